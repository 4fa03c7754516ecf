"""Our choices beside ATen's and Triton's, or instead of them.

``offer`` is Inductor's preprocessing function: it gets the list of choices for the op
that is being lowered and returns it with ours appended (they compete, also fused, in
the ``MultiTemplateBuffer``), or ours alone where a pretuned row or the op's meaning
decides at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch._inductor.virtualized import V

from torch_cute_backend import build, config, phases
from torch_cute_backend.arch import ArchSpec
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.errors import CuteBackendError
from torch_cute_backend.inductor import compat, lowering, reasons, timing
from torch_cute_backend.inductor.grouped import grouped_request
from torch_cute_backend.inductor.request import GemmRequest, OpCall, gemm_request
from torch_cute_backend.inductor.target import Target, target_of
from torch_cute_backend.inductor.views import View, unwrap
from torch_cute_backend.problem import GROUPED_OPS, GemmProblem
from torch_cute_backend.runtime.pool import can_compile
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import lookup
from torch_cute_backend.tuning.lookup import ScheduleChoice

MAX_CANDIDATES = 4


@dataclass(frozen=True)
class Candidate:
    """A request with one schedule for it, built for ``arch``, to run on ``target``."""

    request: GemmRequest
    target: Target
    arch: ArchSpec
    choice: ScheduleChoice
    build: KernelBuild


@dataclass(frozen=True)
class Render:
    """What a template buffer carries as ``make_kernel_render`` when it is ours.

    Inductor's own schedulings call that attribute; ours looks for this class instead.
    """

    candidate: Candidate

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CuteBackendError("a torch_cute kernel reached another code generator")


class CuteTemplateBuffer(ir.TemplateBuffer):  # type: ignore[misc]
    """The GEMM's output where the choice was ours from the start."""


@dataclass
class BenchmarkRequest:
    """What ``TritonTemplateCaller`` asks of its request in torch 2.11 to 2.14.

    It must not be a ``TritonGPUBenchmarkRequest``: those are compiled by Triton's
    workers. ``n_regs`` is read by 2.14 only.
    """

    num_stages: int
    num_warps: int
    module_path: str
    module_cache_key: str
    n_regs: int | None = None


class CuteCaller(TritonTemplateCaller):  # type: ignore[misc]
    """One kernel as a choice. A Triton caller by type only: Inductor tries just those
    with the epilogue fused."""

    def __init__(
        self, candidate: Candidate, nodes: Sequence[Any], layout: ir.Layout
    ) -> None:
        schedule, source = candidate.choice.schedule, candidate.build.source
        threads = candidate.arch.threads(schedule)
        tile = (schedule.tile_m, schedule.tile_n, schedule.tile_k)
        super().__init__(
            name=f"torch_cute_{candidate.request.problem.op}_{schedule.describe()}",
            input_nodes=list(nodes),
            layout=layout,
            make_kernel_render=Render(candidate),
            description=f"{candidate.choice.source}: {schedule.describe()}",
            bmreq=BenchmarkRequest(
                schedule.ab_stages, threads // 32, source.name, source.sha256
            ),
            # A text, and a tuple: TORCHINDUCTOR_MM_LOGGING_FILE evaluates it.
            log_info={"tile_shape": str(tile)},
        )
        self.candidate = candidate
        self.log_info["backend"] = compat.BACKEND_NAME

    def __str__(self) -> str:
        return f"CuteCaller({self.name}, {self.description})"

    def hash_key(self) -> str:
        """Key of the timing cache, which knows neither plugin nor sizes by itself."""
        from torch_cute_backend.inductor.cachekey import plugin_id

        parts = (plugin_id(), self.candidate.build.source.sha256, self._operands())
        return f"{self.name}-{hashlib.sha256(repr(parts).encode()).hexdigest()}"

    def _operands(self) -> tuple[View, ...]:
        r = self.candidate.request
        return (r.a, r.b, *r.scales, *r.epilogue.inputs, *r.tail)

    def precompile(self) -> None:
        """Compile in a child process; Inductor calls this from a thread pool and drops
        the choice if it raises."""
        timing.compile_source(self.candidate.build.source)

    def benchmark(self, *args: torch.Tensor, out: torch.Tensor) -> float:
        """Milliseconds of one launch on Inductor's example tensors.

        Args:
            args: one tensor a distinct input buffer: the buffers, not our views.
            out: the output's buffer.
        """
        request = self.candidate.request
        buffers = dict(zip(request.inputs, args, strict=False))
        buffers[request.out.name] = out
        with phases.span("benchmark", self.candidate.build.source.name):
            status = timing.time_source(
                self.candidate.build.source,
                request.arguments(request.epilogue),
                buffers,
                request.device,
                self.candidate.choice.schedule.cluster_size,
            )
        if isinstance(status, Status):
            step, problem = "benchmark", request.problem.describe()
            reasons.record(request.op, step, status, problem)
            return float("inf")
        return status

    def output_node(self) -> Any:
        inputs = [unwrap(node) for node in self.input_nodes]
        for view in self._operands():
            if all(view.name != node.get_name() for node in inputs):
                inputs.append(unwrap(V.graph.get_buffer(view.name)))
        buffer = CuteTemplateBuffer(self.layout, inputs, self.make_kernel_render)
        return ir.TensorBox.create(buffer)


def offer(choices: list[Any]) -> list[Any]:
    """Inductor's preprocessing function; see the module's text."""
    pending = lowering.pending()
    if pending is None:
        return choices
    pending.offered = True
    with phases.span("choices", pending.call.op):
        ours = _choices(pending.call, choices)
    if isinstance(ours, Status):
        reasons.record(f"aten.{pending.call.op}", "lowering", ours)
        return choices
    if not _takes_all(ours[0].candidate):
        # Inductor compiles its own choices meanwhile, and precompiles ours only on some
        # versions of Python.
        timing.prefetch([caller.candidate.build.source for caller in ours])
        return [*choices, *ours]
    # Nothing would notice later that the only choice left does not compile.
    first = ours[0].candidate
    (status,) = first.target.compiled([first.build.source])
    if status:
        return ours[:1]
    reasons.record(f"aten.{pending.call.op}", "compile", status)
    return choices


def _takes_all(candidate: Candidate) -> bool:
    must = candidate.request.must_decide or not candidate.target.times_choices
    return must or decides(candidate)


def decides(candidate: Candidate) -> bool:
    """Is this kernel taken without being timed against the others?"""
    exact = candidate.choice.source == "pretuned-exact"
    return config.get().decide_early and exact


def _choices(call: OpCall, choices: Sequence[Any]) -> list[CuteCaller] | Status:
    status = compat.asked_for() & compat.benchmarks_elsewhere() & can_compile()
    if not status:
        return status
    nodes = _input_nodes(call, choices)
    grouped = call.op in GROUPED_OPS
    request = (grouped_request if grouped else gemm_request)(call, nodes)
    if isinstance(request, Status):
        return request
    layout = _layout(request, choices)
    if isinstance(layout, Status):
        return layout
    candidates = build_candidates(request)
    if isinstance(candidates, Status):
        return candidates
    return [CuteCaller(candidate, nodes, layout) for candidate in candidates]


def _input_nodes(call: OpCall, choices: Sequence[Any]) -> list[Any]:
    """The realised inputs that Inductor gave its own choices, or, without any, the
    op's arguments realised here."""
    if choices:
        return list(choices[0].input_nodes)
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.select_algorithm import realize_inputs

    named = call.arguments
    if call.op == "mm":
        return list(mm_args(named["mat1"], named["mat2"])[4:6])
    if call.op == "addmm":
        *_, mat1, mat2, bias = mm_args(named["mat1"], named["mat2"], named["input"])
        return [bias, mat1, mat2]
    names = ("a", "b", "scale_a", "scale_b", "bias", "offs")
    operands = [x for x in (named.get(k) for k in names) if x is not None]
    return list(realize_inputs(*operands))


def _layout(request: GemmRequest, choices: Sequence[Any]) -> ir.Layout | Status:
    """The output's layout: rows in order and fixed, as the other choices have it."""
    out = request.out
    fixed = ir.FixedLayout(
        request.device, out.dtype, list(out.size), list(out.stride), 0
    )
    for choice in choices:
        layout = choice.layout
        if isinstance(layout, ir.FlexibleLayout):
            return Status.no("other choices leave the output's layout open")
        if layout != fixed:
            return Status.no(f"output layout {layout} is not row-major")
    return fixed


def build_candidates(request: GemmRequest) -> list[Candidate] | Status:
    """At most four built kernels for a request, the most trusted first; one where the
    table has settled it."""
    target = target_of(request.device)
    if isinstance(target, Status):
        return target
    arch = target.arch
    if arch is None:
        return Status.no(f"no kernels for {target.name}")
    built: list[Candidate] = []
    refused = Status.ok()
    for found in lookup.candidates(request.problem, arch, limit=MAX_CANDIDATES):
        choice = replace(found, schedule=as_launched(found.schedule, request.problem))
        result = _checked_build(request, target, arch, choice.schedule)
        if isinstance(result, KernelBuild):
            built.append(Candidate(request, target, arch, choice, result))
            if found.settled:
                break
        else:
            refused = refused & result
    if built:
        return built
    if refused:
        return Status.no(f"no schedule of {arch.name} fits the problem")
    return refused


def as_launched(schedule: GemmSchedule, problem: GemmProblem) -> GemmSchedule:
    """``schedule`` as a dependent of the kernel before it, where settings say so."""
    if not config.get().dependent_launch or problem.is_grouped:
        return schedule
    return replace(schedule, launch="dependent")


def _checked_build(
    request: GemmRequest, target: Target, arch: ArchSpec, schedule: GemmSchedule
) -> KernelBuild | Status:
    """Build a kernel that may run there and that the request's tensors fit."""
    result = build.build_kernel(request.problem, schedule, arch)
    if isinstance(result, Status):
        return result
    status = check_arguments(result, request.arguments(request.epilogue))
    status = status and target.usable(request.problem, schedule)
    return result if status else status


def check_arguments(result: KernelBuild, views: Sequence[View]) -> Status:
    """Do these views meet the kernel's entry, for every size of the graph?"""
    args = result.source.args
    if len(args) != len(views):
        raise CuteBackendError(f"kernel of {len(args)} tensors, {len(views)} given")
    status = Status.ok()
    for arg, view in zip(args, views, strict=True):
        status = status & view.check(arg)
    return status
