"""``CuteScheduling``: torch's CUDA scheduling plus our templates, and the same for the
CPU's, whose templates run in the simulator.

A template is ours while its ``make_kernel_render`` is a :class:`Render`: a
``CuteTemplateBuffer`` always, a ``MultiTemplateBuffer`` while Inductor tries our choice
and once it has settled on it. Everything else goes to torch's own class.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import ir
from torch._inductor.codecache import write_atomic
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_cute_backend import phases
from torch_cute_backend.errors import CuteBackendError
from torch_cute_backend.inductor import compat, reasons, timing
from torch_cute_backend.inductor.choice import CuteCaller, Render
from torch_cute_backend.inductor.plan import Plan, keep_variants, make_plan
from torch_cute_backend.inductor.served import rebuild
from torch_cute_backend.inductor.spec import KernelSpec
from torch_cute_backend.inductor.viewfusion import reads_through_view
from torch_cute_backend.status import Status

LOADER = "torch_cute_load_gemm"
_IMPORT = f"from torch_cute_backend.inductor.served import load_gemm as {LOADER}"


def render_of(node: Any) -> Render | None:
    """Our render, if ``node`` is or holds a template that is ours at this moment."""
    template = node.get_template_node() if node.is_template() else None
    render = getattr(template, "make_kernel_render", None)
    return render if isinstance(render, Render) else None


class CuteTemplates(BaseScheduling):  # type: ignore[misc]
    """What our templates need of a scheduling, before a class of torch's in the order
    of inheritance; method names and contracts are ``BaseScheduling``'s."""

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        render = render_of(node1)
        if render is not None:
            return self._can_fuse_epilogue(render, node1, node2)
        if render_of(node2) is not None:
            return False
        return bool(super().can_fuse_vertical(node1, node2))

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        if render_of(node1) is not None or render_of(node2) is not None:
            return False
        return bool(super().can_fuse_horizontal(node1, node2))

    def can_fuse_multi_outputs_template(self, node1: Any, node2: Any) -> bool:
        """Asked first of all by ``Scheduler.can_fuse``, whose yes is final: used for
        consumers that read the GEMM through a view (see :mod:`viewfusion`)."""
        if reads_through_view(node1, node2):
            render = self._likely_render(node1)
            if render is not None:
                return self._can_fuse_epilogue(render, node1, node2)
        return bool(super().can_fuse_multi_outputs_template(node1, node2))

    @staticmethod
    def _likely_render(node: Any) -> Render | None:
        """Our render of a template, settled or the one that Inductor would try first:
        it tries only the fastest choice that it believes to be a Triton template."""
        render = render_of(node)
        template = node.get_template_node()
        if render is not None or not isinstance(template, ir.MultiTemplateBuffer):
            return render
        if template.make_kernel_render is not None or not compat.tries_only_fastest():
            return None
        timed = {
            choice: ms
            for choice, ms in template.choice_timings().items()
            if isinstance(choice, ir.TritonTemplateCallerBase)
        }
        best = min(timed, key=timed.__getitem__, default=None)
        return best.make_kernel_render if isinstance(best, CuteCaller) else None

    def _can_fuse_epilogue(self, render: Render, node1: Any, node2: Any) -> bool:
        nodes = [*node1.get_nodes(), *node2.get_nodes()]
        plan = _compiled(self._plan(render, nodes))
        if isinstance(plan, Status):
            request = render.candidate.request
            reasons.record(request.op, "epilogue", plan, request.problem.describe())
            return False
        return True

    def _plan(self, render: Render, nodes: Sequence[Any]) -> Plan | Status:
        """The kernels of a template with its consumers, all of ``nodes`` together."""
        prologue, template, epilogue = nodes[0].get_prologue_template_epilogue(
            list(nodes)
        )
        if prologue:
            return Status.no("epilogue: prologues cannot be fused")
        fused = OrderedSet(node.get_name() for node in (template, *epilogue))

        def removable(name: str) -> bool:
            scheduler = V.graph.scheduler
            return bool(scheduler.can_buffer_be_removed_through_fusion(name, fused))

        consumers = [node.node for node in epilogue]
        return make_plan(render, template.node, consumers, removable)

    def codegen_template(
        self,
        template_node: Any,
        epilogue_nodes: Sequence[Any],
        prologue_nodes: Sequence[Any],
        **kwargs: Any,
    ) -> str | None:
        render = render_of(template_node)
        if render is None:
            return super().codegen_template(  # type: ignore[no-any-return]
                template_node, epilogue_nodes, prologue_nodes, **kwargs
            )
        nodes = [*prologue_nodes, template_node, *epilogue_nodes]
        plan = _compiled(self._plan(render, nodes))
        if isinstance(plan, Status):
            # Inductor gave up its other choices when it fused these nodes, which it
            # was told can be done.
            raise CuteBackendError(f"cannot generate a kernel that was planned: {plan}")
        V.graph.removed_buffers |= OrderedSet(plan.removed)
        for node in nodes:
            node.mark_run()
        self._emit(plan, nodes)
        self.free_buffers_in_scheduler()
        counters["inductor"]["torch_cute_gemm"] += 1
        counters["inductor"]["torch_cute_fused_nodes"] += len(epilogue_nodes)
        return None

    def _emit(self, plan: Plan, nodes: Sequence[Any]) -> None:
        """Write definition and call of the kernel into the wrapper."""
        wrapper = V.graph.wrapper_code
        name = _define(plan, nodes)
        self._comment(nodes, name)
        arguments = ", ".join(view.text() for view in plan.views)
        wrapper.writeline(f"{name}.run({arguments}, {name}.ctas)")

    def _comment(self, nodes: Sequence[Any], name: str) -> None:
        """Tell Inductor's provenance tracing which nodes the call stands for."""
        raise NotImplementedError

    def generate_kernel_code_from_nodes(
        self,
        nodes: Sequence[Any],
        benchmark_kernel: bool = False,
        hint_override: int | None = None,
    ) -> str:
        template = next((node for node in nodes if node.is_template()), None)
        render = None if template is None else render_of(template)
        if render is None:
            return str(
                super().generate_kernel_code_from_nodes(
                    nodes, benchmark_kernel, hint_override=hint_override
                )
            )
        source = _trial_source(self._plan(render, nodes))
        compat.mark_compiled(source)
        return source

    def benchmark_codegened_module(self, module: ModuleType) -> tuple[float, str]:
        trial = getattr(module, "torch_cute_trial", None)
        if trial is None:
            result: tuple[float, str] = super().benchmark_codegened_module(module)
            return result
        path = module.__file__ or ""
        return _time_trial(trial, path), path


class CuteScheduling(CuteTemplates, CUDACombinedScheduling):  # type: ignore[misc]
    """For GPUs."""

    def _comment(self, nodes: Sequence[Any], name: str) -> None:
        self._triton_scheduling.codegen_comment(nodes, name)


class CuteCpuScheduling(CuteTemplates, CppScheduling):  # type: ignore[misc]
    """For the simulator."""

    def _comment(self, nodes: Sequence[Any], name: str) -> None:
        self.codegen_comment(nodes, name)


def _compiled(plan: Plan | Status) -> Plan | Status:
    """``plan`` with its kernels compiled, less those that do not compile."""
    if isinstance(plan, Status):
        return plan
    sources = [b.source for b in plan.builds]
    return keep_variants(plan, plan.candidate.target.compiled(sources))


def _define(plan: Plan, nodes: Sequence[Any]) -> str:
    """Define the kernel at the wrapper's module level, once; returns its name."""
    wrapper = V.graph.wrapper_code
    text = plan.spec.to_json()
    known = wrapper.src_to_kernel.get(text)
    if known is not None:
        return str(known)
    wrapper.add_import_once(_IMPORT)
    suffix = wrapper.next_kernel_suffix()
    name = f"torch_cute_{compat.fused_name(nodes)}_{suffix}"
    wrapper.src_to_kernel[text] = name
    comment = "\n".join([compat.kernel_comment(nodes), *_remarks(plan)])
    place = plan.candidate.target.place
    compat.define_kernel(name, f"{LOADER}(r'''{text}''', {place})", comment)
    return name


def _remarks(plan: Plan) -> list[str]:
    """What was decided about each kernel, as comments of the wrapper."""
    lines = [f"# {plan.spec.problem.describe()}"]
    for variant, result in zip(plan.spec.variants, plan.builds, strict=True):
        limit = "any M" if variant.up_to_m is None else f"M <= {variant.up_to_m}"
        if len(plan.builds) > 1 and variant.up_to_m is None:
            limit = "larger M"
        lines.append(f"# kernel for {limit}: {result.source.name}")
        lines.append(f"#   schedule {variant.schedule.describe()}")
        lines.append(f"#   source sha256 {variant.sha256}")
        rule = f" ({result.omission.rule})" if result.omission.rule else ""
        lines.append(f"#   shared loop {result.omission.decision}{rule}")
        lines += [f"#     {remark}" for remark in result.omission.remarks]
    return lines


def _trial_source(plan: Plan | Status) -> str:
    """A module for Inductor to load and hand to ``benchmark_codegened_module``.

    It must not raise: torch 2.11 would pass that on. A plan that cannot be made is
    benchmarked as infinitely slow.
    """
    if isinstance(plan, Status):
        trial: dict[str, Any] = {"reasons": list(plan.reasons)}
    else:
        layouts = [
            [v.name, str(v.dtype).removeprefix("torch."), *v.hints()]
            for v in plan.views
        ]
        trial = {"spec": plan.spec.to_json(), "layouts": layouts}
        trial["device"] = plan.candidate.request.device.index
        trial["variant"] = _traced_variant(plan)
    text = json.dumps(trial, sort_keys=True)
    return f"# A fused trial of torch_cute_backend.\ntorch_cute_trial = r'''{text}'''\n"


def _traced_variant(plan: Plan) -> int:
    """Index of the variant that serves the traced M."""
    for i, variant in enumerate(plan.spec.variants):
        if variant.up_to_m is None or plan.spec.problem.m <= variant.up_to_m:
            return i
    raise CuteBackendError("the last variant of a kernel must serve every M")


def _time_trial(text: str, path: str) -> float:
    """Milliseconds of a trial, kept beside its module as Inductor keeps its own."""
    trial = json.loads(text)
    if "reasons" in trial:
        reasons.record("gemm", "epilogue", Status(tuple(trial["reasons"])))
        return math.inf
    perf = os.path.splitext(path)[0] + ".kernel_perf"
    if path and os.path.exists(perf):
        with open(perf) as file:
            return float(file.read())
    spec = KernelSpec.from_json(trial["spec"])
    variant = spec.variants[trial["variant"]]
    layouts = [
        (name, getattr(torch, dtype), (tuple(size), tuple(stride), offset))
        for name, dtype, size, stride, offset in trial["layouts"]
    ]
    device = torch.device("cuda", trial["device"])
    source = rebuild(spec, variant).source
    with phases.span("benchmark fused", source.name):
        size = variant.schedule.cluster_size
        ms = timing.time_layouts(source, layouts, {}, device, size)
    if isinstance(ms, Status):
        reasons.record("gemm", "benchmark", ms, spec.problem.describe())
        return math.inf
    if path:
        write_atomic(perf, str(ms))
    return ms
