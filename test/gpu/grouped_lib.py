"""Grouped kernels for GPU tests: which there are, how they are launched and checked.

Operands are small integers with scales that are powers of two, so every product is
exact and must be equal, element by element; outputs are full of NaN before each launch,
and what belongs to no group must still be. Each launch is seen by the launch counter.

With ``CUTE_TEST_STAND_IN=1`` the definition of the product takes the kernels' place on
a CPU, and sizes shrink: that tests the cases, not the kernels.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from torch_cute_backend.arch import SM90, ArchSpec
from torch_cute_backend.bench import groups
from torch_cute_backend.bench.cases import Inputs, problem_of
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, GemmProblem, Grouping, Major
from torch_cute_backend.runtime import device, grouped, launch
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup

STAND_IN = os.environ.get("CUTE_TEST_STAND_IN") == "1"
DEVICE = "cpu" if STAND_IN else "cuda"
M, N, K, BATCH = Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH
FORMS = ("auto", "keep", "inline")

Case = Callable[[], str]
CASES: dict[str, dict[str, Case]] = {}
"""By group and name; a case returns a line on what it saw."""


def case(group: str) -> Callable[[Case], Case]:
    def register(fn: Case) -> Case:
        CASES.setdefault(group, {})[fn.__name__] = fn
        return fn

    return register


def each(group: str, kinds: Iterable[str]) -> Callable[[Callable[[str], str]], Any]:
    """As :func:`case`, once for each kind of problem."""

    def register(fn: Callable[[str], str]) -> Callable[[str], str]:
        for kind in kinds:
            CASES.setdefault(group, {})[f"{fn.__name__}_{kind}"] = partial(fn, kind)
        return fn

    return register


# Kernels.


def _problems() -> dict[str, GemmProblem]:
    found: dict[str, GemmProblem] = {}
    for grouping in (M, N, K, BATCH):
        name = grouping.value
        plain = problem_of(f"bf16-grouped-{name}-g4", (2048, 2048, 2048))
        for a, b in itertools.product((Major.K, Major.MN), repeat=2):
            majors = f"{a.value}_{b.value}"
            found[f"bf16_{name}_{majors}"] = replace(plain, a_major=a, b_major=b)
        fp8 = problem_of(f"fp8-grouped-{name}-g4", (2048, 2048, 2048))
        found[f"fp8_{name}"] = fp8
        found[f"fp8_{name}_exact"] = replace(fp8, accum=Accum.EXACT)
    found["fp16_m"] = problem_of("fp16-grouped-m-g4", (2048, 2048, 2048))
    return found


PROBLEMS = _problems()
FULL = ("bf16_m_k_k", "fp8_m", "bf16_n_k_k", "bf16_k_mn_mn", "bf16_batch_k_k")
"""Kinds that every schedule is tried on."""


def schedules(kind: str) -> dict[str, GemmSchedule]:
    """Schedules of a kind by name; all must be valid for it."""
    problem = PROBLEMS[kind]
    k = 128 // problem.a_dtype.bytes
    small = GemmSchedule(64, 64, k, 6, epi_n=64, scheduler="grouped_static")
    large = replace(small, tile_m=128, tile_n=128, ab_stages=4, epi_stages=2)
    large = replace(large, math_warpgroups=2)
    found = {"64": small, "128": large}
    if kind not in FULL:
        return found
    found |= {
        "cluster_2x1": replace(large, cluster_m=2),
        "cluster_1x2": replace(large, cluster_n=2),
        "along_n": replace(small, raster="along_n"),
        "direct": replace(small, store="direct"),
    }
    if problem.a_major is Major.K:
        found["16"] = replace(small, tile_m=16)
    if problem.grouping is M:
        found["rank3"] = replace(large, scheduler="rank3_rhs")
    if problem.grouping is not K:
        found["pingpong"] = replace(large, epi_n=32, math="pingpong")
    return found


@cache
def arch() -> ArchSpec:
    found = SM90 if STAND_IN else device.default_arch()
    if found is None:
        raise UserError("no supported GPU")
    return found


def build(problem: GemmProblem, schedule: GemmSchedule) -> KernelBuild:
    built = build_kernel(problem, schedule, arch())
    if not isinstance(built, KernelBuild):
        raise AssertionError(
            f"{problem.describe()} {schedule.describe()} {schedule.scheduler} "
            f"{schedule.shared_loop}: {built}"
        )
    return built


def kernels(kind: str) -> dict[str, KernelBuild]:
    """Every kernel of a kind, the look-up's choice among them."""
    problem = PROBLEMS[kind]
    choice = lookup.choose(problem, arch())
    if not choice:
        raise AssertionError(f"{kind}: {choice}")
    listed = {**schedules(kind), "chosen": choice.schedule}
    return {name: build(problem, s) for name, s in listed.items()}


def forms(kind: str, name: str) -> dict[str, KernelBuild]:
    """A kernel with its shared loop as the check decides, kept, and inline."""
    schedule = schedules(kind)[name]
    return {
        form: build(PROBLEMS[kind], replace(schedule, shared_loop=form))
        for form in FORMS
    }


def load(builds: Iterable[KernelBuild]) -> None:
    """Compile side by side what is in no cache."""
    if not STAND_IN:
        launch.load_kernels(list({b.source.sha256: b.source for b in builds}.values()))


# Launches.


def launches_of(built: KernelBuild) -> int:
    return launch.launches().get(built.source.name, 0)


def run(built: KernelBuild, x: Inputs, num_ctas: int | None = None) -> None:
    """One launch on poisoned output, counted."""
    x.out.fill_(float("nan"))
    if STAND_IN:
        stand_in(built, x)
        return
    before = launches_of(built)
    grouped.run(
        built,
        x.a,
        x.b.mT,
        *x.scales,
        offsets=x.offsets,
        out=[x.out],
        num_ctas=num_ctas,
    )
    if launches_of(built) != before + 1:
        raise AssertionError(f"{built.source.name} was not launched once")


def sized(built: KernelBuild, x: Inputs) -> GemmProblem:
    """The kernel's problem with the sizes of these inputs."""
    n, k = x.b.shape[-2:]
    count = x.a.shape[0] if x.offsets is None else x.offsets.shape[0]
    return replace(built.problem, m=x.a.shape[-2], n=n, k=k, groups=count)


def offsets_of(x: Inputs) -> torch.Tensor:
    if x.offsets is None:
        raise AssertionError("these groups have no offsets")
    return x.offsets


def stand_in(built: KernelBuild, x: Inputs) -> None:
    want = groups.reference(sized(built, x), x)
    x.out.copy_(torch.where(want.isnan(), x.out.float(), want))


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Equal, with NaN where ``want`` has it; says where not."""
    bad = ~((got == want) | (got.isnan() & want.isnan()))
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} elements, first at {where}: "
            f"{got[where].item()} instead of {want[where].item()}"
        )


def exact(
    built: KernelBuild,
    sizes: tuple[int, int, int],
    ends: Sequence[int],
    num_ctas: int | None = None,
    batch: int = 3,
) -> None:
    """Run once on integers and compare with the definition."""
    m, n, k = sizes
    problem = replace(built.problem, m=m, n=n, k=k, groups=len(ends) or batch)
    generator = torch.Generator(DEVICE).manual_seed(m + n + k)
    x = groups.exact(problem, ends, generator)
    run(built, x, num_ctas)
    want = groups.reference(problem, x).to(x.out.dtype)
    s = built.schedule
    what = f"{problem.describe()} ends {list(ends)[:40]}, {s.describe()} {num_ctas}"
    same(x.out, want, what)


def few_ctas(built: KernelBuild) -> int:
    """Two clusters, so that each gets several tiles."""
    return 2 * built.schedule.cluster_size


# Groups.


def ends_of(sizes: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(sizes))


def patterns(tile: int) -> dict[str, list[int]]:
    """Sizes of groups in units of elements; around a tile, empty, many."""
    return {
        "around_a_tile": [0, 1, 7, tile - 1, tile, tile + 1, 0, 2 * tile + 5, 0],
        "one": [3 * tile + 9],
        "all_empty": [0, 0, 0],
        "more_than_a_warp": [i % 6 for i in range(70)],
        "skewed": [0, 2, 5 * tile, 1],
    }


def extents(problem: GemmProblem, ends: Sequence[int], rest: int = 13) -> Any:
    """Sizes: 208, 336 and 528, the ragged one what the groups need and ``rest``."""
    sizes = {"m": 208, "n": 336, "k": 528}
    if problem.has_offsets:
        # A multiple of 16 elements, since it may be an operand's contiguous extent.
        sizes[problem.grouping.value] = (ends[-1] + rest + 15) // 16 * 16
    return sizes["m"], sizes["n"], sizes["k"]


def kernel(kind: str, name: str = "chosen") -> KernelBuild:
    built = kernels(kind)[name]
    load([built])
    return built


def at_most(size: int, small: int) -> int:
    """``size``, or what the stand-in can do in a moment."""
    return small if STAND_IN else size


# Frames of poison around every tensor.


class Framed:
    """Inputs whose tensors each lie in a larger buffer of poison, both sides of which
    must neither change nor show in the result."""

    BYTES = 1 << 16

    def __init__(self, x: Inputs) -> None:
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        named = {
            name: self._frame(t)
            for name, t in vars(x).items()
            if isinstance(t, torch.Tensor)
        }
        self.x = replace(x, **named)

    def _frame(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the same strides inside bytes of 0xff: NaN, or an offset of -1."""
        width = tensor.itemsize
        length = 1 + sum(
            (s - 1) * t for s, t in zip(tensor.shape, tensor.stride(), strict=True)
        )
        raw = torch.full(
            (2 * self.BYTES + length * width,),
            255,
            dtype=torch.uint8,
            device=tensor.device,
        )
        inner = raw[self.BYTES : self.BYTES + length * width]
        # Odd lengths of FP8 leave no whole element behind: the view is of bytes.
        view = inner.view(tensor.dtype).as_strided(
            tensor.shape, tensor.stride(), self.BYTES // width
        )
        view.copy_(tensor)
        self._buffers.append((raw, inner))
        return view

    def check(self) -> None:
        for raw, inner in self._buffers:
            behind = raw[self.BYTES + inner.numel() :]
            if not bool((raw[: self.BYTES] == 255).all() and (behind == 255).all()):
                raise AssertionError("bytes outside a tensor were written")
