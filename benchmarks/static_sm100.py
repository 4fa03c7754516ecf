"""Static figures of sm_100a kernels: ours, and NVIDIA's example at the same schedule.

No GPU is needed: both are compiled to cubins and their machine code is read. NVIDIA's
example is not part of this repository; pass its file with ``--reference`` (CUTLASS,
``examples/python/CuTeDSL/cute/blackwell/kernel/dense_gemm/dense_gemm_persistent.py``).
It has no epilogue inputs, so ours is compared without scales.

    python benchmarks/static_sm100.py [--reference FILE] [--out STEM]

writes STEM.jsonl (a row a kernel) and STEM.md (a table).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ptx_loops
from sass_loops import (
    CTA_BARRIER,
    MARKERS,
    NAMED_BARRIER,
    Code,
    Markers,
    count,
    disassemble,
    innermost,
    residual_loops,
    tile_loop,
)

from torch_cute_backend.arch import SM100
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.build import build_kernel
from torch_cute_backend.dtypes import BFLOAT16, E4M3, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.runtime.compile import compile_kernel, launch_constants
from torch_cute_backend.schedule import GemmSchedule

REFERENCE = "nvidia_example"
FORMS = {"omitted": "auto", "kept": "keep", "inline": "inline"}
STAGES_OF_REFERENCE = "_compute_stages"
"""The example's function that chooses (accumulator, A/B, C) stages: replaced, so that
both kernels run the same schedule."""


@dataclass(frozen=True)
class Case:
    """A schedule to compare, with the example's C stages."""

    name: str
    dtype: DType
    schedule: GemmSchedule


CASES = (
    Case("fp8_64x64x128", E4M3, GemmSchedule(64, 64, 128, 12, 2, 64, 1)),
    Case("fp8_128x128x128", E4M3, GemmSchedule(128, 128, 128, 5, 2, 32, 2)),
    Case("fp8_128x256x128", E4M3, GemmSchedule(128, 256, 128, 4, 2, 32, 2)),
    Case("bf16_128x128x64", BFLOAT16, GemmSchedule(128, 128, 64, 5, 2, 32, 2)),
    Case(
        "fp8_128x128x128_c2x1",
        E4M3,
        GemmSchedule(128, 128, 128, 5, 2, 32, 2, cluster_m=2),
    ),
    Case(
        "fp8_128x256x128_pair",
        E4M3,
        GemmSchedule(128, 256, 128, 5, 2, 32, 2, cluster_m=2, cta_group=2),
    ),
)


def figures(
    name: str,
    provider: str,
    form: str,
    cubin: Path,
    ptx: str,
    subtiles: int,
) -> dict:
    """One row: size and loops of machine code and PTX, resources of the cubin.
    ``subtiles`` of a tile, one TMEM load each."""
    code, usage = disassemble(cubin), resource_usage(cubin)
    row: dict[str, Any] = {
        "suite": "static_sm100",
        "dsl": dsl_version(),
        "kernel": name,
        "provider": provider,
        "form": form,
        "instructions": len(code),
    }
    row |= roles(name, form, code, MARKERS, subtiles)
    counts = roles(name, form, ptx_loops.parse(ptx), ptx_loops.MARKERS, subtiles)
    row |= {f"ptx_{key}": value for key, value in counts.items()}
    if form != "inline":
        row["named_barriers_per_tile"] = executed(
            code, NAMED_BARRIER, subtiles, MARKERS
        )
    shared = residual_loops(code)
    row["shared_loop_instructions"] = len(shared[0]) if shared else 0
    row["cta_barriers_per_tile"] = barriers_per_tile(code, form)
    for key, label in (("registers", "REG"), ("stack_bytes", "STACK")):
        row[key] = int(re.findall(rf"{label}:(\d+)", usage)[-1])
    return row


def roles(
    name: str, form: str, code: Code, markers: Markers, subtiles: int
) -> dict[str, float]:
    """Instructions of a k tile of loads and MMAs and, unless the roles share a loop, of
    a tile's epilogue."""
    row: dict[str, float] = {}
    for role in ("load", "mma"):
        body = innermost(code, role, markers)
        # A compiler may unroll the k loop: count a k tile by its MMAs or loads.
        per_tile = count(body, markers[role]) / expected(name, role)
        row[f"{role}_per_k_tile"] = round(len(body) / per_tile, 1)
    if form != "inline":
        row["epilogue_per_tile"] = executed(code, None, subtiles, markers)
    return row


def executed(
    code: Code, pattern: re.Pattern[str] | None, subtiles: int, markers: Markers
) -> int:
    """Instructions of ``pattern`` that the epilogue executes for a tile. A loop over
    subtiles that the compiler did not unroll counts as often as it runs."""

    def size(body: Code) -> int:
        return len(body) if pattern is None else count(body, pattern)

    outer = tile_loop(code, "epilogue", markers)
    inner = innermost(code, "epilogue", markers)
    if inner == outer:
        return size(outer)
    trips = subtiles // count(inner, markers["epilogue"])
    return size(outer) + (trips - 1) * size(inner)


def barriers_per_tile(code: Code, form: str) -> int:
    """CTA barriers executed by each warp for each tile."""
    if form == "inline":
        return count(innermost(code, "epilogue"), CTA_BARRIER)
    return sum(count(b, CTA_BARRIER) for b in residual_loops(code))


def expected(name: str, role: str) -> int:
    """MMAs or TMA loads of one k tile: an MMA covers 32 bytes of K."""
    return 4 if role == "mma" else 2


def resource_usage(cubin: Path) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run(
        [str(tool), "--dump-resource-usage", str(cubin)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def ours(case: Case, form: str, folder: Path) -> dict:
    """Our kernel without scales, which the example has none of."""
    fp8 = case.dtype.is_fp8
    problem = GemmProblem(
        op="scaled_mm" if fp8 else "mm",
        m=4096,
        n=4096,
        k=4096,
        a_dtype=case.dtype,
        b_dtype=case.dtype,
        scaling="tensorwise" if fp8 else "none",
        epilogue=EpilogueGraph.linear(BFLOAT16),
    )
    schedule = replace(case.schedule, shared_loop=FORMS[form])
    build = build_kernel(problem, schedule, SM100)
    if not build:
        raise SystemExit(f"{case.name}: {build}")
    compiled = compile_kernel(build.source, ptx=True)
    cubin = folder / f"{case.name}_{form}.cubin"
    cubin.write_bytes(compiled.cubin)
    subtiles = case.schedule.tile_n // case.schedule.epi_n
    ptx = compiled.ptx or ""
    row = figures(case.name, OURS, form, cubin, ptx, subtiles)
    row["smem_bytes"] = compiled.resources.smem_bytes
    row["spill_bytes"] = compiled.resources.spill_store_bytes
    return row


def reference(case: Case, path: Path, folder: Path) -> dict:
    """NVIDIA's example with our stages."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
    from cutlass.utils.blackwell_helpers import compute_epilogue_tile_size

    module = load(path)
    s = case.schedule
    stages = (s.acc_stages, s.ab_stages, s.epi_stages)
    setattr(module, STAGES_OF_REFERENCE, lambda *args, **kwargs: stages)
    kernel = module.PersistentDenseGemmKernel(
        cutlass.Float32,
        s.cta_group == 2,
        (s.tile_m * s.cta_group, s.tile_n),
        (s.cluster_m, s.cluster_n),
        True,
    )
    m = cute.sym_int(32)
    n = cute.sym_int(32, divisibility=16)
    k = cute.sym_int(32, divisibility=16)

    def tensor(kind: Any, rows: Any, columns: Any) -> Any:
        pitch = 128 // kind.width
        strides = (cute.sym_int(64, divisibility=pitch), 1, cute.sym_int(64))
        return make_fake_tensor(kind, (rows, columns, 1), strides, assumed_align=16)

    kind = getattr(cutlass, case.dtype.cutlass)
    dump = folder / f"{case.name}_reference"
    dump.mkdir()
    compiled = cute.compile(
        kernel,
        tensor(kind, m, k),
        tensor(kind, n, k),
        tensor(cutlass.BFloat16, m, n),
        SM100.default_sms,
        make_fake_stream(),
        options=f"--gpu-arch {SM100.name} --keep-cubin --keep-ptx --dump-dir {dump}",
    )
    (cubin,) = dump.glob("*.cubin")
    # Rows and columns of an epilogue subtile, as the example chooses them.
    _, columns = compute_epilogue_tile_size(
        s.tile_m, s.tile_n, s.cta_group == 2, cutlass.BFloat16.width, None, False, True
    )
    subtiles = s.tile_n // columns
    ptx = compiled.__ptx__
    row = figures(case.name, REFERENCE, "omitted", cubin, ptx, subtiles)
    row["smem_bytes"], _ = launch_constants(str(compiled.ir_module))
    return row


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("reference_kernel", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_kernel"] = module
    spec.loader.exec_module(module)
    return module


COMPARED = (
    "load_per_k_tile",
    "mma_per_k_tile",
    "epilogue_per_tile",
    "ptx_load_per_k_tile",
    "ptx_mma_per_k_tile",
    "named_barriers_per_tile",
    "cta_barriers_per_tile",
    "registers",
    "stack_bytes",
)
"""What ours must not have more of than NVIDIA's. Not in it: PTX of the epilogue, where
ours converts one value at a time, which ptxas pairs (fewer machine instructions); and
shared memory, of which ours takes up to :data:`BARRIER_BLOCK` more."""
BARRIER_BLOCK = 1024
"""Bytes that our barriers take, since 1024-byte aligned buffers follow them."""
OWN = (
    *COMPARED,
    "ptx_epilogue_per_tile",
    "shared_loop_instructions",
    "instructions",
    "smem_bytes",
    "spill_bytes",
)
"""What must not grow from one commit to the next."""


def worse(row: dict, limit: dict, names: tuple[str, ...]) -> list[str]:
    """The figures of ``row`` that exceed those of ``limit``."""
    return [f"{x}: {row[x]} > {limit[x]}" for x in names if row[x] > limit[x]]


COLUMNS = (
    "kernel",
    "provider",
    "form",
    "load_per_k_tile",
    "mma_per_k_tile",
    "epilogue_per_tile",
    "ptx_load_per_k_tile",
    "ptx_mma_per_k_tile",
    "ptx_epilogue_per_tile",
    "named_barriers_per_tile",
    "cta_barriers_per_tile",
    "shared_loop_instructions",
    "instructions",
    "registers",
    "spill_bytes",
    "smem_bytes",
)


def table(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = (str(row.get(c, "-")) for c in COLUMNS)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def dsl_version() -> str:
    return version("nvidia-cutlass-dsl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="NVIDIA's example, a file")
    default = Path(__file__).parent / "results" / "static_sm100"
    parser.add_argument("--out", type=Path, default=default, help="stem of the output")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            rows += [ours(case, form, Path(scratch)) for form in FORMS]
            if options.reference:
                rows.append(reference(case, options.reference, Path(scratch)))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    options.out.with_suffix(".jsonl").write_text(text)
    note = (
        "Counts of machine and PTX instructions a warp executes, not times "
        f"(CuTe DSL {dsl_version()}). Waits count once.\n\n"
    )
    options.out.with_suffix(".md").write_text(note + table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
