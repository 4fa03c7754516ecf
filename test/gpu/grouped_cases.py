"""Child process of ``test_grouped_gpu``: grouped GEMM kernels, one line a case.

    python grouped_cases.py GROUP [CASE ...]    run a group of cases
    python grouped_cases.py compile [ARCH]      fill the kernel cache; needs no GPU

Groups: ``exact`` (every kind, schedule and pattern of groups), ``situations`` and
``wgrad`` (single ones, as others have met them), ``bad_offsets``, ``frames``,
``guard_pages``, ``random``, ``aten``, and those of ``grouped_loop_cases``. A case that
leaves the GPU's context unusable costs itself: the rest goes on in a fresh process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace

import grouped_loop_cases
import guard_pages
import torch
from case_groups import record
from grouped_lib import (
    CASES,
    DEVICE,
    FORMS,
    FULL,
    PROBLEMS,
    STAND_IN,
    Framed,
    K,
    M,
    N,
    at_most,
    case,
    each,
    ends_of,
    exact,
    extents,
    few_ctas,
    kernel,
    kernels,
    load,
    offsets_of,
    patterns,
    run,
    same,
    schedules,
)

from torch_cute_backend.arch import SM90, arch_spec
from torch_cute_backend.bench import check as bounds
from torch_cute_backend.bench import groups
from torch_cute_backend.bench.cases import Inputs, make_inputs
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import GemmProblem, Grouping
from torch_cute_backend.runtime import grouped, launch
from torch_cute_backend.tuning import lookup


@each("exact", PROBLEMS)
def exactly(kind: str) -> str:
    builds = kernels(kind)
    load(builds.values())
    count = 0
    for built in builds.values():
        problem, s = built.problem, built.schedule
        if not problem.has_offsets:
            for ctas in (few_ctas(built), None):
                exact(built, extents(problem, ()), (), ctas)
                count += 1
            continue
        tile = {M: s.tile_m, N: s.tile_n, K: s.tile_k}[problem.grouping]
        for sizes in patterns(tile).values():
            ends = ends_of(sizes)
            for ctas in (few_ctas(built), None):
                exact(built, extents(problem, ends), ends, ctas)
                count += 1
    return f"{len(builds)} kernels, {count} exact launches"


# Single situations, as others have met them.


@case("wgrad")
def wgrad_with_empty_groups() -> str:
    for kind in ("bf16_k_k_k", "bf16_k_mn_mn"):
        exact(kernel(kind), (16, 16, 32), [0, 8, 16, 16, 32])
    sizes = [162, 0, 2577, 446, 0, 83]
    exact(kernel("bf16_k_mn_mn"), (2048, 768, sum(sizes)), ends_of(sizes))
    return "empty groups are exactly zero"


@case("wgrad")
def fp8_wgrad_with_empty_groups() -> str:
    m = at_most(4096, 256)
    for kind in ("fp8_k", "fp8_k_exact"):
        exact(kernel(kind), (m, m, 7168), [0, 1024, 1024, 4096, 7168, 7168])
    return "right, no hang"


@case("situations")
def one_row() -> str:
    for kind in ("fp8_m", "bf16_m_k_k"):
        exact(kernel(kind), (1, at_most(24576, 2048), 1536), [1])
        exact(kernel(kind), (3, 2048, 512), [1, 1, 2, 3])
    return "groups of one row"


@case("wgrad")
def wgrad_of_many_groups() -> str:
    built = kernel("bf16_k_mn_mn")
    ends = [32 * (i + 1) for i in range(128)]
    for n in (768, 1536):
        exact(built, (at_most(2048, 128), at_most(n, 64), 4096), ends)
    return "128 groups of K"


@case("wgrad")
def long_wgrad() -> str:
    k = at_most(147456, 4608)
    ends = [k // 8 * (i + 1) for i in range(8)]
    exact(kernel("bf16_k_mn_mn"), (at_most(512, 64), at_most(1024, 64), k), ends)
    return f"K of {k}"


@case("situations")
def rows_beyond_the_last_group() -> str:
    k = 512
    for kind in ("bf16_m_k_k", "fp8_m"):
        built = kernel(kind)
        m = at_most(4096, 512) + 8 * 16
        ends = [m // 16 * i for i in range(1, 9)]
        problem = replace(built.problem, m=m, n=256, k=k, groups=8)
        x = groups.exact(problem, ends, torch.Generator(DEVICE).manual_seed(1))
        # What is in no group may be anything.
        x.a[ends[-1] :] = torch.full_like(x.a[ends[-1] :].float(), torch.nan).to(
            x.a.dtype
        )
        run(built, x)
        want = groups.reference(problem, x).to(x.out.dtype)
        same(x.out, want, kind)
        if not bool(x.out[ends[-1] :].isnan().all()):
            raise AssertionError("rows beyond the last group were written")
    return "left as they were"


@case("situations")
def more_than_2_31_elements() -> str:
    m, k, n = at_most(525312, 512), 4096, 256
    built = kernel("bf16_m_k_k")
    ends = [0, m // 3 + 1, m - 40]

    def small(*shape: int) -> torch.Tensor:
        values = torch.randint(-1, 2, shape, device=DEVICE, dtype=torch.int8)
        return values.to(torch.bfloat16)

    out = torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
    offsets = torch.tensor(ends, device=DEVICE, dtype=torch.int32)
    x = Inputs(small(m, k), small(3, n, k), out, offsets=offsets)
    run(built, x)
    for begin, end, g in ((0, ends[1], 1), (ends[1], ends[2], 2)):
        for part in (slice(begin, begin + 100), slice(end - 100, end)):
            want = (x.a[part].float() @ x.b[g].float().T).to(out.dtype)
            same(out[part], want, f"rows {part}")
    if not bool(out[ends[-1] :].isnan().all()):
        raise AssertionError("rows beyond the last group were written")
    return f"{m * k} elements of A"


@case("situations")
def bad_lengths_and_dtypes() -> str:
    built = kernel("bf16_m_k_k", "64")
    problem = replace(built.problem, m=64, n=64, k=64, groups=3)
    x = groups.exact(problem, [16, 32, 64], torch.Generator(DEVICE).manual_seed(1))
    four = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    right = offsets_of(x)
    for offsets in (four, right.long(), right[None], four[::2], None):
        try:
            grouped.run(built, x.a, x.b.mT, offsets=offsets)
        except UserError:
            continue
        raise AssertionError(f"{offsets} was taken")
    return "refused with a plain error"


def bad_ends(total: int) -> dict[str, list[int]]:
    return {
        "decreasing": [total // 2, total // 4, total],
        "negative": [-5, total // 3, -1, total],
        "beyond": [total // 2, total + 7, total + 100000],
        "huge": [2**31 - 1, 3, 2**31 - 1],
        "most_negative": [-(2**31), total // 2, total],
    }


def meaning(grouping: Grouping, ends: Sequence[int], total: int) -> list[slice]:
    """A group lies behind the one before it and inside the tensor, whatever its end. Of
    K, where groups share no output, the end before it is taken as it stands."""
    found, start = [], 0
    for end in ends:
        stop = max(start, min(end, total))
        found.append(slice(start, stop))
        start = max(min(end, total), 0) if grouping is K else stop
    return found


@each("bad_offsets", ("bf16_m_k_k", "bf16_n_k_k", "bf16_k_mn_mn"))
def inside_the_tensors(kind: str) -> str:
    """Nothing outside the tensors is touched, and the result is as documented."""
    built = kernel(kind, "64")
    grouping = built.problem.grouping
    sizes = {"m": 160, "n": 144, "k": 192}
    total = sizes[grouping.value]
    for name, ends in bad_ends(total).items():
        problem = replace(built.problem, **sizes, groups=len(ends))
        seed = torch.Generator(DEVICE).manual_seed(3)
        framed = Framed(groups.exact(problem, [0] * len(ends), seed))
        x = framed.x
        offsets_of(x).copy_(torch.tensor(ends, dtype=torch.int32))
        want = torch.full_like(x.out, torch.nan)
        for g, part in enumerate(meaning(grouping, ends, total)):
            where = {M: (part,), N: (slice(None), part), K: (g,)}[grouping]
            a = {M: x.a[part], N: x.a[g], K: x.a[:, part]}[grouping]
            b = {M: x.b[g], N: x.b[part], K: x.b[:, part]}[grouping]
            want[where] = (a.float() @ b.float().T).to(want.dtype)
        if STAND_IN:
            x.out.copy_(want)
        else:
            run(built, x)
        same(x.out, want, f"{kind} {name} {ends}")
        framed.check()
    return ", ".join(bad_ends(total))


# Poison around every tensor.


@each(
    "frames",
    (*FULL, "bf16_m_mn_mn", "bf16_k_k_k", "fp8_n", "fp8_k", "fp8_batch"),
)
def poisoned_surroundings(kind: str) -> str:
    count = 0
    for name in ("64", "128"):
        built = kernel(kind, name)
        problem = built.problem
        ends = [] if not problem.has_offsets else ends_of([5, 0, 70, 131, 2])
        for rest in (0, 13):
            m, n, k = extents(problem, ends or [0], rest)
            one = replace(problem, m=m, n=n, k=k, groups=len(ends) or 3)
            seed = torch.Generator(DEVICE).manual_seed(4)
            framed = Framed(groups.exact(one, ends, seed))
            run(built, framed.x)
            want = groups.reference(one, framed.x).to(framed.x.out.dtype)
            same(framed.x.out, want, f"{kind} {name}")
            framed.check()
            count += 1
    return f"{count} launches"


# Tensors flush with memory that is not mapped: an access beyond them is a fault.

GUARDED = (*FULL, "bf16_m_mn_mn", "bf16_k_k_k", "fp8_k", "fp8_n")


@each("guard_pages", GUARDED)
def between_unmapped_pages(kind: str) -> str:
    count = 0
    for name in ("64", "128"):
        built = kernel(kind, name)
        problem = built.problem
        ends = [] if not problem.has_offsets else ends_of([5, 0, 70, 131, 2])
        m, n, k = extents(problem, ends or [0])
        one = replace(problem, m=m, n=n, k=k, groups=len(ends) or 3)
        seed = torch.Generator(DEVICE).manual_seed(7)
        x = groups.exact(one, ends, seed)
        want = groups.reference(one, x).to(x.out.dtype)
        for at_end in (True, False):
            guarded = x if STAND_IN else guard(x, at_end)
            run(built, guarded)
            same(guarded.out, want, f"{kind} {name}, flush at end: {at_end}")
            count += 1
    return f"{count} launches"


def guard(x: Inputs, at_end: bool) -> Inputs:
    """Copies of all tensors, each beside an unmapped page."""
    named = {
        name: guard_pages.flush(t, at_end)
        for name, t in vars(x).items()
        if isinstance(t, torch.Tensor)
    }
    return replace(x, **named)


@case("guard_control")
def a_read_beyond_is_a_fault() -> str:
    """Last of its process: the fault ends the context."""
    if STAND_IN:
        return "no such memory on a CPU"
    inside = guard_pages.flush(torch.ones(1024, device=DEVICE), at_end=True)
    if float(inside.sum()) != 1024:
        raise AssertionError("mapped memory does not hold what was written")
    beyond = guard_pages.with_bytes_behind(inside, 4096)
    try:
        beyond.sum().item()
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        if "illegal memory access" not in first:
            raise
        return f"as it should: {first}"
    raise AssertionError("memory beyond the guard page could be read")


# Random data within a bound; what it would let pass.


@each("random", PROBLEMS)
def within_a_bound(kind: str) -> str:
    built = kernel(kind)
    problem = replace(PROBLEMS[kind], m=1008, n=512, k=1040)
    for skewed in (False, True):
        (x,) = make_inputs(problem, 1, DEVICE, skewed)
        run(built, x)
        want = groups.reference(problem, x)
        for got, fine in ((x.out, True), (0 * want, False), (1.01 * want, False)):
            if right(problem, got.float(), want) != fine:
                raise AssertionError(f"{kind}: right() is not {fine}")
    return "the kernel's result within it, zeros and 1.01x are not"


def right(problem: GemmProblem, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Each element within a bound, and no gain of more than half a per cent."""
    count, _ = bounds.wrong_elements(problem, got, want)
    gain = float((got * want).sum() / want.square().sum()) - 1
    return count == 0 and abs(gain) < 5e-3


@each("aten", ("bf16_m_k_k", "bf16_n_k_k", "bf16_k_mn_mn", "fp8_m_exact"))
def as_close_as_aten(kind: str) -> str:
    """ATen's own kernels on the same data: the error of ours is no larger than twice
    theirs."""
    built = kernel(kind)
    problem = replace(PROBLEMS[kind], m=1024, n=512, k=1024)
    (x,) = make_inputs(problem, 1, DEVICE)
    if STAND_IN and problem.a_dtype.is_fp8:
        return "ATen has no such kernel on a CPU"
    theirs = groups.aten_call(problem, x)()
    if not isinstance(theirs, torch.Tensor):
        raise AssertionError("ATen's call returned no tensor")
    run(built, x)
    want = groups.reference(problem, x)
    ours, aten = (float((y.float() - want).norm()) for y in (x.out, theirs))
    if not ours <= 2 * aten:
        raise AssertionError(f"{kind}: error {ours} against ATen's {aten}")
    return f"error over ATen's: {ours / aten:.3f}"


# Running.


def compile_all(name: str) -> int:
    """Every kernel of these cases into the kernel cache, for a GPU elsewhere."""
    target = arch_spec(name)
    wanted = [
        (grouped_loop_cases.DENSE_PROBLEM, grouped_loop_cases.dense_schedule(x))
        for x in grouped_loop_cases.DENSE
    ]
    for kind, problem in PROBLEMS.items():
        listed = list(schedules(kind).values())
        if kind in FULL:
            listed += [
                replace(s, shared_loop=form)
                for s in listed
                for form in FORMS[1:]
                if not (s.pingpong and form == "inline")
            ]
            rank3 = [s for s in listed if s.scheduler == "rank3_rhs"]
            listed += [replace(s, dead_loads="drop") for s in rank3]
        choice = lookup.choose(problem, target)
        if choice:
            listed.append(choice.schedule)
        wanted += [(problem, schedule) for schedule in listed]
    sources = {}
    for problem, schedule in wanted:
        built = build_kernel(problem, schedule, target)
        if isinstance(built, KernelBuild):
            sources[built.source.sha256] = built.source
        else:
            print(f"{problem.describe()} {schedule.describe()}: {built}")
    print(f"{len(sources)} kernels")
    launch.load_kernels(list(sources.values()))
    return 0


def main(group: str, names: Sequence[str]) -> int:
    if group == "compile":
        return compile_all(names[0] if names else SM90.name)
    chosen = {n: fn for n, fn in CASES[group].items() if not names or n in names}
    failed = int(os.environ.get(FAILED, "0"))
    while chosen:
        name = next(iter(chosen))
        fn = chosen.pop(name)
        begin = time.perf_counter()
        try:
            ok, detail = True, fn()
        except Exception:
            ok, detail = False, traceback.format_exc()[-4000:]
        failed += not ok
        seconds = round(time.perf_counter() - begin, 1)
        row = {"case": name, "ok": ok, "seconds": seconds, "detail": detail}
        print(json.dumps(row), flush=True)
        record(f"test/gpu/grouped_cases.py {group} {name}", ok, seconds)
        if not ok and chosen and context_is_lost():
            start_again(group, chosen, failed)
    return 1 if failed else 0


FAILED = "CUTE_TEST_FAILED"


def context_is_lost() -> bool:
    """After a fault on the device nothing runs in this process any more."""
    if STAND_IN:
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def start_again(group: str, names: Iterable[str], failed: int) -> None:
    """The rest of a group in this process's place, so that its time limit holds."""
    sys.stdout.flush()
    environ = {**os.environ, FAILED: str(failed)}
    os.execve(sys.executable, [sys.executable, __file__, group, *names], environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
