"""The last build: a template buffer with its fused consumers as kernels and arguments.

In: the render of the choice that Inductor settled on (or tries), the template's buffer,
the consumers. Out: a :class:`Plan` with at most four kernels, told apart by M at run
time, and the loop-omission decision of each; or a ``Status`` with the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_cute_backend import build
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.inductor import compat
from torch_cute_backend.inductor.choice import (
    Candidate,
    Render,
    as_launched,
    check_arguments,
)
from torch_cute_backend.inductor.epilogue import BoundEpilogue, fuse
from torch_cute_backend.inductor.spec import KernelSpec, Variant
from torch_cute_backend.inductor.views import View
from torch_cute_backend.problem import GemmProblem, Grouping
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import lookup
from torch_cute_backend.tuning.fit import refit

M_LIMITS: tuple[int | None, ...] = (64, 256, 1024, None)
"""Upper ends of the ranges of M (of a group) that may get kernels of their own."""
_LARGE_M = 4096
"""M that stands for the last range."""


@dataclass(frozen=True)
class Plan:
    """What to define and call.

    Attributes:
        candidate: the choice it grew from.
        spec: problem and variants, as the wrapper will hold them.
        builds: one a variant.
        epilogue: graph with the views of its inputs and outputs.
        removed: buffers that only existed between the fused nodes.
    """

    candidate: Candidate
    spec: KernelSpec
    builds: tuple[KernelBuild, ...]
    epilogue: BoundEpilogue
    removed: tuple[str, ...]

    @property
    def views(self) -> tuple[View, ...]:
        """Kernel arguments in order."""
        return self.candidate.request.arguments(self.epilogue)


def make_plan(
    render: Render,
    buffer: Any,
    consumers: Sequence[Any],
    removable: Callable[[str], bool],
) -> Plan | Status:
    """Fuse ``consumers`` behind the GEMM that writes ``buffer`` and build kernels.

    Args:
        render: the choice in question.
        buffer: the template's IR buffer.
        consumers: ``ComputedBuffer`` nodes in execution order.
        removable: whether nobody but these nodes uses a buffer.
    """
    candidate = render.candidate
    base = _bound_to(candidate.request.epilogue, buffer)
    if isinstance(base, Status):
        return base
    written = [buffer.get_name(), *(node.get_name() for node in consumers)]
    removed = tuple(name for name in written if removable(name))
    epilogue = _fused(candidate, base, consumers, removed)
    if isinstance(epilogue, Status):
        return epilogue
    problem = replace(
        candidate.request.problem,
        epilogue=epilogue.graph,
        out_aligned=all(_is_aligned(view) for view in epilogue.outputs),
    )
    builds = _variants(candidate, problem, epilogue)
    if isinstance(builds, Status):
        return builds
    variants = tuple(
        Variant(limit, result.schedule, result.source.sha256)
        for limit, result in builds
    )
    spec = KernelSpec(candidate.arch, problem, variants)
    return Plan(candidate, spec, tuple(b for _, b in builds), epilogue, removed)


def _fused(
    candidate: Candidate,
    base: BoundEpilogue,
    consumers: Sequence[Any],
    removed: Sequence[str],
) -> BoundEpilogue | Status:
    """``base`` followed by ``consumers``.

    A grouped kernel leaves rows beyond the last offset alone; a consumer fused into it
    would too, though it may give such rows a value (``where(valid, y, 0)``).
    """
    if not candidate.request.problem.is_grouped:
        name = base.outputs[0].name
        return fuse(base, name, consumers, lambda x: x not in removed)
    if consumers:
        return Status.no("epilogue: consumers of a grouped GEMM are not fused")
    return base


def keep_variants(plan: Plan, usable: Sequence[Status]) -> Plan | Status:
    """``plan`` without the variants whose status is falsy; the next one serves their
    M. The reasons, if none is left."""
    kept = [i for i, status in enumerate(usable) if status]
    if not kept:
        return next(iter(usable))
    variants = [plan.spec.variants[i] for i in kept]
    variants[-1] = replace(variants[-1], up_to_m=None)
    return replace(
        plan,
        spec=replace(plan.spec, variants=tuple(variants)),
        builds=tuple(plan.builds[i] for i in kept),
    )


def _bound_to(epilogue: BoundEpilogue, buffer: Any) -> BoundEpilogue | Status:
    """``epilogue`` with its output in ``buffer``, whose rows may have been padded or
    placed inside a concatenation since the lowering."""
    out, layout = epilogue.outputs[0], buffer.get_layout()
    if not compat.known_equal(layout.stride[-1], 1):
        return Status.no(f"output of strides {tuple(layout.stride)}")
    stride = (*layout.stride[:-1], 1)
    bound = View(buffer.get_name(), out.dtype, out.size, stride, 0)
    return replace(epilogue, outputs=(bound,))


def _is_aligned(view: View) -> bool:
    """Do base and rows start and end at multiples of 16 bytes, as TMA stores need?"""
    unit = max(16 // view.dtype.itemsize, 1)
    layout = V.graph.get_buffer(view.name).get_layout()
    inside = layout.view.get_layout().offset if _is_inside(layout) else 0
    steps = (*view.stride[:-1], view.size[-1], view.offset, inside)
    return all(compat.known_multiple(x, unit) for x in steps)


def _is_inside(layout: Any) -> bool:
    return isinstance(layout, ir.NonOwningLayout)


def _variants(
    candidate: Candidate, problem: GemmProblem, epilogue: BoundEpilogue
) -> list[tuple[int | None, KernelBuild]] | Status:
    """Kernels by upper end of M, in ascending order; one if M is static."""
    own = _build(candidate, problem, epilogue, candidate.choice.schedule)
    if isinstance(own, Status):
        return own
    if not compat.is_dynamic(candidate.request.m):
        return [(None, own)]
    result: list[tuple[int | None, KernelBuild]] = []
    groups = problem.groups if problem.grouping is Grouping.M else 1
    limits = [None if x is None else x * groups for x in M_LIMITS]
    home = next(x for x in limits if x is None or problem.m <= x)
    for limit in limits:
        built: KernelBuild | Status = own
        if limit != home:
            m = limit or _LARGE_M * groups
            built = _build_for(candidate, problem, epilogue, m)
        kernel = built if isinstance(built, KernelBuild) else own
        if result and result[-1][1].source.sha256 == kernel.source.sha256:
            result.pop()
        result.append((limit, kernel))
    return result


def _build_for(
    candidate: Candidate, problem: GemmProblem, epilogue: BoundEpilogue, m: int
) -> KernelBuild | Status:
    """The kernel that the tables choose at another M."""
    arch, there = candidate.arch, replace(problem, m=m)
    chosen = lookup.choose(there, arch)
    if isinstance(chosen, Status):
        return chosen
    schedule = as_launched(chosen.schedule, there)
    status = candidate.target.usable(there, schedule)
    return _build(candidate, problem, epilogue, schedule) if status else status


def _build(
    candidate: Candidate,
    problem: GemmProblem,
    epilogue: BoundEpilogue,
    schedule: GemmSchedule,
) -> KernelBuild | Status:
    """``schedule``, refitted if the epilogue has outgrown it, built and checked."""
    if not schedule.validate(problem, candidate.arch):
        schedule = refit(problem, candidate.arch, schedule)
    result = build.build_kernel(problem, schedule, candidate.arch)
    if isinstance(result, Status):
        return result
    views = candidate.request.arguments(epilogue)
    status = check_arguments(result, views)
    return result if status else status
