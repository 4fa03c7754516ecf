"""Cases of grouped and of kept-loop kernels for ``grouped_cases``: forms of the shared
loop (``forms``), CUDA graphs (``graphs``), and a thousand launches of every kind of
kernel whose loop stays (``soak_*``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from grouped_lib import (
    CASES,
    DEVICE,
    FORMS,
    FULL,
    PROBLEMS,
    STAND_IN,
    Case,
    K,
    M,
    build,
    case,
    each,
    ends_of,
    exact,
    extents,
    few_ctas,
    forms,
    kernel,
    launches_of,
    load,
    offsets_of,
    patterns,
    run,
    same,
    schedules,
    stand_in,
)

from torch_cute_backend.bench import check as bounds
from torch_cute_backend.bench import groups
from torch_cute_backend.bench.cases import Inputs, make_inputs, problem_of
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.runtime import device, gemm, grouped
from torch_cute_backend.schedule import GemmSchedule

LAUNCHES = 20 if STAND_IN else 1000
Variant = Callable[[], torch.Tensor]
"""One launch; returns its output's bits."""


# Forms of the shared loop, tile counts.


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


@each("forms", FULL)
def inline_kept_and_omitted_agree(kind: str) -> str:
    said = []
    names = ["64", "128", "cluster_2x1", "cluster_1x2", "direct"]
    if PROBLEMS[kind].grouping is M:
        names.append("rank3")
    problem = replace(PROBLEMS[kind], m=704, n=528, k=336, groups=4)
    (x,) = make_inputs(problem, 1, DEVICE, skewed=True)
    for name in names:
        builds = forms(kind, name)
        load(builds.values())
        outputs = {}
        for form, built in builds.items():
            for ctas in (few_ctas(built), None):
                run(built, x, ctas)
                outputs[form, ctas] = bits(x.out).clone()
        first = next(iter(outputs.values()))
        for key, got in outputs.items():
            if not torch.equal(first, got):
                raise AssertionError(f"{kind} {name}: {key} differs")
        decisions = [b.omission.decision for b in builds.values()]
        said.append(f"{name}: {' '.join(decisions)}")
    return "; ".join(said)


@each("forms", [kind for kind in FULL if PROBLEMS[kind].grouping is not K])
def pingpong_agrees_with_its_kept_loop(kind: str) -> str:
    """And with that of both warpgroups on each tile, for one CTA and many."""
    base = schedules(kind)
    listed = [replace(base["pingpong"], shared_loop=form) for form in FORMS[:2]]
    builds = [build(PROBLEMS[kind], s) for s in (base["128"], *listed)]
    load(builds)
    problem = replace(PROBLEMS[kind], m=704, n=528, k=336, groups=4)
    (x,) = make_inputs(problem, 1, DEVICE, skewed=True)
    outputs = []
    for built in builds:
        for ctas in (1, few_ctas(built), None):
            run(built, x, ctas)
            outputs.append(bits(x.out).clone())
    for got in outputs[1:]:
        if not torch.equal(outputs[0], got):
            raise AssertionError(f"{kind}: outputs differ")
    return ", ".join(b.omission.decision for b in builds)


@case("forms")
def dropping_dead_loads_changes_nothing() -> str:
    base = schedules("bf16_m_k_k")["rank3"]
    builds = [
        build(PROBLEMS["bf16_m_k_k"], replace(base, dead_loads=x))
        for x in ("keep", "drop")
    ]
    load(builds)
    problem = replace(PROBLEMS["bf16_m_k_k"], m=704, n=528, k=336, groups=4)
    (x,) = make_inputs(problem, 1, DEVICE, skewed=True)
    outputs = []
    for built in builds:
        run(built, x)
        outputs.append(bits(x.out).clone())
    if not torch.equal(*outputs):
        raise AssertionError("the two kernels differ")
    return ", ".join(b.omission.decision for b in builds)


def sms() -> int:
    return 4 if STAND_IN else device.sm_count(torch.cuda.current_device())


@case("forms")
def tile_counts() -> str:
    """0, 1, cluster - 1, SMs, SMs + 1 and many tiles, also with fewer CTAs."""
    count = 0
    for kind, names in (
        ("bf16_m_k_k", ("128", "cluster_2x1", "rank3")),
        ("fp8_m", ("128", "cluster_1x2")),
    ):
        for name in names:
            builds = forms(kind, name)
            load(builds.values())
            s = schedules(kind)[name]
            rows = s.tile_m * s.cluster_m
            for tiles in (0, 1, 2, sms(), sms() + 1, 5 * sms() + 3):
                ends = ends_of([rows] * tiles) or [0]
                m = max(ends[-1], 16)
                for built in builds.values():
                    for ctas in (None, 7 * s.cluster_size):
                        exact(built, (m, s.tile_n * s.cluster_n, 256), ends, ctas)
                        count += 1
    return f"{count} launches"


# CUDA graphs.


def captured(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """Replays of a graph of ``calls``, each of which has run before."""
    if STAND_IN:
        return lambda: [call() for call in calls] and None  # type: ignore[func-returns-value]
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def bound(built: KernelBuild, x: Inputs) -> Callable[[], object]:
    if STAND_IN:
        return partial(stand_in, built, x)
    return grouped.bind(built, x.a, x.b.mT, *x.scales, offsets=x.offsets, out=[x.out])


@each("graphs", ("bf16_m_k_k", "fp8_m", "bf16_n_k_k", "bf16_k_mn_mn"))
def offsets_rewritten_between_replays(kind: str) -> str:
    count = 0
    names = ["64", "128"]
    names += ["rank3"] if kind == "bf16_m_k_k" else []
    names += ["pingpong"] if PROBLEMS[kind].grouping is M else []
    for name in names:
        built = kernel(kind, name)
        sizes = {"m": 416, "n": 336, "k": 288}
        total = sizes[built.problem.grouping.value]
        problem = replace(built.problem, **sizes, groups=4)
        seed = torch.Generator(DEVICE).manual_seed(5)
        x = groups.exact(problem, [0, 0, 0, total], seed)
        replay = captured([bound(built, x)])
        for ends in (
            [100, 100, 300, total],
            [0, 0, 0, 0],
            [1, 2, 3, 4],
            [total, total, total, total],
            [16, 160, 161, total - 30],
        ):
            offsets_of(x).copy_(torch.tensor(ends, dtype=torch.int32))
            x.out.fill_(torch.nan)
            replay()
            want = groups.reference(problem, x).to(x.out.dtype)
            same(x.out, want, f"{kind} {name} {ends}")
            count += 1
    return f"{count} replays"


def two_in_one_graph(kinds: tuple[str, str]) -> str:
    """One kernel after the other, or the same one twice, on tensors of their own."""
    count, sets = 0, []
    for i, kind in enumerate(kinds):
        built = kernel(kind, "128")
        problem = replace(built.problem, m=512, n=256, k=320, groups=4)
        total = {M: 512, K: 320}[problem.grouping]
        seed = torch.Generator(DEVICE).manual_seed(i)
        sets.append((built, problem, groups.exact(problem, [0, 33, 200, total], seed)))
    replay = captured([bound(built, x) for built, _, x in sets])
    for shift in (0, 7, 20):
        for _, _, x in sets:
            offsets_of(x)[1] = 33 + shift
            x.out.fill_(torch.nan)
        replay()
        for _, problem, x in sets:
            want = groups.reference(problem, x).to(x.out.dtype)
            same(x.out, want, f"{kinds} {shift}")
            count += 1
    return f"{count} products"


CASES["graphs"] |= {
    "a_kernel_twice_in_a_graph": partial(two_in_one_graph, ("fp8_m", "fp8_m")),
    "two_dtypes_in_a_graph": partial(two_in_one_graph, ("fp8_m", "bf16_m_k_k")),
    "forward_and_wgrad_in_a_graph": partial(
        two_in_one_graph, ("bf16_m_k_k", "bf16_k_mn_mn")
    ),
}


# A thousand launches of every kind of kernel whose loop stays: no hang, always equal.


def soak(
    make: Callable[[], tuple[KernelBuild, list[Variant]]],
) -> str:
    """Launch variants in turns; each result must be equal to the variant's first."""
    built, variants = make()
    if built.schedule.shared_loop != "inline" and built.omission.decision != "kept":
        raise AssertionError(f"the loop is {built.omission.decision}, not kept")
    first = [variant().clone() for variant in variants]
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    begin = time.perf_counter()
    for i in range(LAUNCHES):
        which = i % len(variants)
        wrong += (variants[which]() != first[which]).sum()
    if int(wrong):
        raise AssertionError(f"{int(wrong)} elements differed")
    seconds = time.perf_counter() - begin
    return f"{LAUNCHES} launches in {seconds:.1f} s, {built.omission.decision}"


def grouped_soak(kind: str, name: str, form: str) -> str:
    def make() -> tuple[KernelBuild, list[Variant]]:
        built = build(PROBLEMS[kind], replace(schedules(kind)[name], shared_loop=form))
        load([built])
        variants = []
        for sizes in patterns(128).values():
            ends = ends_of(sizes)
            m, n, k = extents(built.problem, ends)
            problem = replace(built.problem, m=m, n=n, k=k, groups=len(ends))
            seed = torch.Generator(DEVICE).manual_seed(6)
            x = groups.exact(problem, ends, seed)
            exact(built, (m, n, k), ends)
            for ctas in (few_ctas(built), None):
                variants.append(partial(_again, built, x, ctas))
        return built, variants

    return soak(make)


def _again(built: KernelBuild, x: Inputs, ctas: int | None) -> torch.Tensor:
    run(built, x, ctas)
    return bits(x.out)


DENSE_PROBLEM = problem_of("fp8", (512, 512, 512))
DENSE: dict[str, dict[str, Any]] = {
    "dense_kept": {"shared_loop": "keep"},
    "dense_cluster_kept": {"shared_loop": "keep", "cluster_m": 2},
    "dense_inline": {"shared_loop": "inline"},
    "dense_cluster_inline": {"shared_loop": "inline", "cluster_n": 2},
}


def dense_schedule(name: str) -> GemmSchedule:
    schedule = GemmSchedule(128, 128, 128, 4, epi_n=64, epi_stages=2)
    return replace(schedule, math_warpgroups=2, **DENSE[name])


def dense_soak(name: str) -> str:
    def make() -> tuple[KernelBuild, list[Variant]]:
        built = build(DENSE_PROBLEM, dense_schedule(name))
        load([built])
        variants = []
        for m, n, k in ((512, 512, 512), (65, 1040, 256), (1500, 400, 1040)):
            (x,) = make_inputs(problem_of("fp8", (m, n, k)), 1, DEVICE)
            for ctas in (few_ctas(built), None):
                variants.append(partial(_dense, built, x, ctas))
        return built, variants

    return soak(make)


def _dense(built: KernelBuild, x: Inputs, ctas: int | None) -> torch.Tensor:
    x.out.fill_(torch.nan)
    if STAND_IN:
        x.out.copy_(bounds.reference(built.problem, x))
    else:
        before = launches_of(built)
        gemm.run(built, x.a, x.b.t(), *x.scales, out=[x.out], num_ctas=ctas)
        if launches_of(built) != before + 1:
            raise AssertionError(f"{built.source.name} was not launched once")
    return bits(x.out)


SOAKS: dict[str, Case] = {
    **{name: partial(dense_soak, name) for name in DENSE},
    "grouped_static_kept": partial(grouped_soak, "bf16_m_k_k", "128", "keep"),
    "grouped_static_inline": partial(grouped_soak, "bf16_m_k_k", "128", "inline"),
    "grouped_cluster_kept": partial(grouped_soak, "fp8_m", "cluster_2x1", "keep"),
    "rank3_rhs_kept": partial(grouped_soak, "bf16_m_k_k", "rank3", "auto"),
    "rank3_rhs_inline": partial(grouped_soak, "bf16_m_k_k", "rank3", "inline"),
    "pingpong_kept": partial(grouped_soak, "fp8_m", "pingpong", "keep"),
    "wgrad_kept": partial(grouped_soak, "bf16_k_mn_mn", "128", "keep"),
}
for _name, _soak in SOAKS.items():
    CASES[f"soak_{_name}"] = {_name: _soak}
