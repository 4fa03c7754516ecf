"""The demo without a GPU: the same job on a simulated one, and the full-size kernels.

A smaller block of the same kind goes through ``torch.compile(backend="cute_sim")`` on
CPU tensors, once for each arch: lowering, schedule choice, fusion and kernels are those
of a GPU, only the launches are simulated, and checked. The kernels of the full sizes
are compiled to cubins and summarised.
"""

from __future__ import annotations

import time

import torch

from torch_cute_backend.arch import ARCHS, ArchSpec
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.cli.demo_gemms import kernels_of, loaded_gemms, refusals
from torch_cute_backend.cli.explain_cmd import describe_schedule, omission_lines
from torch_cute_backend.cli.mlp import HIDDEN, INTERMEDIATE, Fp8Mlp
from torch_cute_backend.cli.problem import plan_problem, require_build
from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.problem import SCALE_INPUTS, GemmProblem
from torch_cute_backend.runtime import validated

CUT = 4
"""Both widths are divided by this, so that the simulation takes seconds."""
_LAYERS = {"up": (INTERMEDIATE, HIDDEN), "down": (HIDDEN, INTERMEDIATE)}
"""(N, K) of each GEMM at full size."""


def run(m: int) -> int:
    """Both parts for every arch; 0 if all results were right."""
    archs = tuple(reversed(ARCHS.values()))
    hidden, intermediate = HIDDEN // CUT, INTERMEDIATE // CUT
    print(f"FP8 MLP block, {m} tokens, {hidden} -> {intermediate} -> {hidden}:")
    print(f"the demo's widths divided by {CUT}, on CPU tensors, every GEMM on a")
    print("simulated GPU. No time printed here says anything about a GPU.")
    block = Fp8Mlp(torch.device("cpu"), hidden, intermediate)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(m, hidden, generator=generator).to(torch.bfloat16)
    right = [_simulate(block, x, arch) for arch in archs]
    print("\nthe kernels of the full sizes, compiled to cubins, not run:")
    for arch in archs:
        for layer in _LAYERS:
            _compile_layer(layer, m, arch)
    return 0 if all(right) else 1


def _simulate(block: Fp8Mlp, x: torch.Tensor, arch: ArchSpec) -> bool:
    """Compile the block for one simulated arch, run it, say what happened."""
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="cute_sim", options={"sim_arch": arch.name})
    start = time.monotonic()
    with torch.no_grad(), loaded_gemms() as gemms:
        outputs = compiled(x)
    seconds = time.monotonic() - start
    print(f'\ntorch.compile(backend="cute_sim"), simulated {arch.name}:')
    print(f"compiled and simulated in {seconds:.1f} s; against fp32, on each GEMM's")
    print("own inputs:")
    right = True
    for layer, result in block.check(x, *outputs).items():
        print(f"  {layer:4} projection {result}")
        right = right and result.right
    built = kernels_of(gemms)
    counts = [_report_kernel(kernel) for kernel in built]
    for line in refusals():
        print(f"\n{line}")
    if len(built) != len(_LAYERS) or not all(counts):
        print("\nnot every GEMM ran on the simulated GPU")
        return False
    return right


def _report_kernel(built: KernelBuild) -> int:
    """Print one kernel and what the simulator saw; returns how often it ran."""
    from torch_cute_backend.sim import kernels

    planned = plan_problem(built.problem, built.arch)
    count = kernels.launches().get(built.source.sha256, 0)
    print(f"\nran:          {built.problem.describe()}")
    print(f"kernel:       {built.source.name}, {count} launch(es)")
    print(f"schedule:     {built.schedule.describe()} (first choice: {planned.source})")
    graph = built.problem.epilogue
    print(f"epilogue:     {len(graph.nodes)} nodes, {len(graph.outputs)} output(s)")
    print("\n".join(omission_lines(built.omission)))
    if not count:
        return 0
    report = kernels.last_reports()[built.source.sha256]
    found = ", ".join(str(f) for f in report.findings) or "none"
    once = "every element written once" if report.tiles_written_once else "NOT once"
    print(f"simulator:    findings: {found}; {once}; grid {report.grid}")
    return count


def layer_problem(layer: str, m: int) -> GemmProblem:
    """A layer's GEMM at full size: e4m3, rowwise scales, bf16 out."""
    n, k = _LAYERS[layer]
    epilogue = EpilogueGraph.linear(BFLOAT16, *SCALE_INPUTS["rowwise"])
    return GemmProblem(
        "scaled_mm", m, n, k, E4M3, E4M3, scaling="rowwise", epilogue=epilogue
    )


def _compile_layer(layer: str, m: int, arch: ArchSpec) -> None:
    from torch_cute_backend.runtime.pool import shared_pool

    planned = plan_problem(layer_problem(layer, m), arch)
    built = require_build(planned)
    start = time.monotonic()
    entry = shared_pool().submit(built.source).result()
    seconds = time.monotonic() - start
    kernels = validated.KernelClass.of(built.problem, built.schedule, built.arch)
    print(f"\n{layer} projection, {arch.name}: {built.problem.describe()}")
    print(f"schedule:     {describe_schedule(planned)}")
    print("\n".join(omission_lines(built.omission)))
    print(f"kernel:       {built.source.name}, ready in {seconds:.1f} s")
    print(f"resources:    {entry.resources.describe()}")
    print(f"hardware:     {validated.describe(kernels)}")
