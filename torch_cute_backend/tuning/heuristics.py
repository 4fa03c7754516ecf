"""Candidates from NVIDIA's ``nvidia-matmul-heuristics`` package, where it is installed.

It knows H200 and B200 and works offline, without a GPU. An alternative to ``model`` as
a source of candidates; ``benchmarks/compare_sources.py`` says which is better where.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import GemmProblem, Major
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning.fit import complete

PACKAGE = "nvMatmulHeuristics"
_GPUS = {"sm_90a": "H200_SXM", "sm_100a": "B200"}
_LETTERS = {
    "bfloat16": "T",
    "float16": "H",
    "float32": "S",
    "float8_e4m3fn": "Q",
    "float8_e5m2": "R",
}
"""Of operands and outputs; sums are fp32, ``S``."""
_LAYOUTS = {
    (Major.K, Major.K): "NT_ROW_MAJOR",
    (Major.K, Major.MN): "NN_ROW_MAJOR",
    (Major.MN, Major.K): "TT_ROW_MAJOR",
    (Major.MN, Major.MN): "TN_ROW_MAJOR",
}
"""By the majors of A and of B: D is row-major."""
_ASKED = 8
"""Answers asked for a candidate wanted: some differ in warp tiles only or split K."""


def available() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


@functools.cache
def _interface(gpu: str) -> Any:
    """The package's interface for a GPU. Of its targets the generic one: CUTLASS's
    knows fewer tile widths than our kernels have."""
    if not available():
        raise UserError("nvidia-matmul-heuristics is not installed")
    package = importlib.import_module(PACKAGE)
    return package.NvMatmulHeuristicsInterfaceEx(
        backend=package.NvMatmulHeuristicsTarget.GENERIC,
        flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=getattr(package.NvMatmulHeuristicsNvidiaGpu, gpu),
    )


def candidates(
    problem: GemmProblem, arch: ArchSpec, limit: int = 4
) -> list[GemmSchedule]:
    """At most ``limit`` different valid schedules, best first.

    Tile, cluster and raster are the package's; stages and subtiles are ours, since they
    depend on what our kernels put into shared memory. Answers that our kernels cannot
    take (split K, tile sizes) are left out.

    Raises:
        UserError: the package is not installed, or it does not know the arch.
    """
    if arch.name not in _GPUS:
        raise UserError(f"nvidia-matmul-heuristics: no GPU for {arch.name}")
    interface = _interface(_GPUS[arch.name])
    layouts = importlib.import_module(PACKAGE).NvMatmulHeuristicsMatmulLayout
    layout = getattr(layouts, _LAYOUTS[problem.a_major, problem.b_major])
    question = interface.makeNvMatmulHeuristicsProblem(
        problem.m, problem.n, problem.k, layout
    )
    found: list[GemmSchedule] = []
    answers = interface.get(question, _ASKED * limit, precision=_precision(problem))
    for answer in answers:
        schedule = _schedule(problem, arch, answer["kernel"])
        if schedule is not None and schedule not in found:
            found.append(schedule)
    return found[:limit]


def _precision(problem: GemmProblem) -> str:
    """Five letters: A, B, C, compute, D."""
    try:
        a, b, out = (
            _LETTERS[d.name]
            for d in (problem.a_dtype, problem.b_dtype, problem.out_dtype)
        )
    except KeyError as error:
        raise UserError(f"nvidia-matmul-heuristics: no letter for {error}") from error
    return f"{a}{b}{out}S{out}"


def _schedule(problem: GemmProblem, arch: ArchSpec, kernel: Any) -> GemmSchedule | None:
    """One answer as a schedule of ours, or None where there is no such kernel."""
    k_bytes = kernel.cta_tile_k * problem.a_dtype.bytes
    if kernel.split_k != 1 or k_bytes % 128:
        return None
    wgmma = "math" in arch.required_roles
    schedule = complete(
        problem,
        arch,
        kernel.cta_tile_m,
        kernel.cta_tile_n,
        k_bytes=k_bytes,
        cluster_m=kernel.cluster_m,
        cluster_n=kernel.cluster_n,
        math_warpgroups=2 if wgmma and kernel.cta_tile_m >= 128 else 1,
        raster="along_m" if kernel.cta_order == 0 else "along_n",
    )
    return schedule if schedule.validate(problem, arch) else None
