"""``doctor``: versions, GPU, what is on or off and why, what was validated where."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from typing import Any

from torch_cute_backend import config
from torch_cute_backend.arch import ARCHS
from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import CacheError
from torch_cute_backend.problem import SCALE_INPUTS, GemmProblem, Grouping
from torch_cute_backend.runtime import toolchain, validated
from torch_cute_backend.runtime.cache import KernelCache
from torch_cute_backend.status import Status
from torch_cute_backend.tuning.lookup import choose
from torch_cute_backend.tuning.table import timed_with
from torch_cute_backend.version import __version__

PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl", "apache-tvm-ffi", "numpy")
GROUPINGS = (Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH)
OPS = (
    ("mm", "none", BFLOAT16, Grouping.NONE),
    ("mm", "none", FLOAT16, Grouping.NONE),
    ("addmm", "none", BFLOAT16, Grouping.NONE),
    ("addmm", "none", FLOAT16, Grouping.NONE),
    ("scaled_mm", "tensorwise", E4M3, Grouping.NONE),
    ("scaled_mm", "rowwise", E4M3, Grouping.NONE),
    ("scaled_mm", "mxfp8", E4M3, Grouping.NONE),
    *(("grouped_mm", "none", BFLOAT16, grouping) for grouping in GROUPINGS),
    *(("grouped_mm", "none", FLOAT16, grouping) for grouping in GROUPINGS),
    *(("scaled_grouped_mm", "rowwise", E4M3, grouping) for grouping in GROUPINGS),
    ("scaled_grouped_mm", "mxfp8", E4M3, Grouping.M),
)
_SIZE = (64, 5120, 5120)
"""M, N, K of the GEMM that stands for its kind in the support matrix."""
_GROUPED_SIZE, _GROUPS = (1024, 4096, 4096), 8
"""The same of a grouped one: the ragged size is of all groups together."""


def run(args: argparse.Namespace) -> int:
    report = collect()
    if args.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        print(to_text(report))
    return 0


def collect() -> dict[str, Any]:
    """Everything, as plain JSON values. Never raises for what is missing."""
    return {
        "versions": {
            "torch_cute_backend": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "gpus": _gpus(),
        "checks": [
            {
                "name": name,
                "ok": bool(status),
                "detail": detail if status else str(status),
            }
            for name, status, detail in _checks()
        ],
        "settings": {k: str(v) for k, v in vars(config.get()).items()},
        "support": support_matrix(),
        "validated": [
            {
                "kernels": str(row.kernels),
                "gpu": row.gpu,
                "date": row.date,
                "commit": row.commit,
                "tests": row.tests,
            }
            for row in validated.RECORDS
        ],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _imported_version(package)


def _imported_version(package: str) -> str | None:
    """For a package that was copied into place, without its metadata."""
    try:
        module = importlib.import_module(package)
    except ImportError:
        return None
    version: str | None = getattr(module, "__version__", None)
    return version


def _gpus() -> list[dict[str, Any]]:
    import torch

    from torch_cute_backend.runtime import device

    if not torch.cuda.is_available():
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        arch = device.arch_of(index)
        gpus.append(
            {
                "name": device.name_of(index),
                "arch": None if arch is None else arch.name,
                "sms": device.sm_count(index),
            }
        )
    return gpus


def environment_checks() -> list[tuple[str, Status, str]]:
    """What must hold for Inductor to be offered kernels, GPU aside.

    Returns:
        (what, whether it is as it should be, what is said if it is).
    """
    return [
        ("torch", toolchain.torch_supported(_version("torch")), "supported"),
        ("CuTe DSL", toolchain.dsl_status(), "supported"),
        ("plugin", _plugin_status(), "offers kernels wherever max_autotune is on"),
        ("cache", KernelCache().usable(), str(config.get().cache_dir)),
    ]


def _checks() -> list[tuple[str, Status, str]]:
    """As :func:`environment_checks`, and what else is good to know."""
    return [
        *environment_checks(),
        (
            "warm start",
            Status.check(
                (
                    toolchain.linker() is not None,
                    "no C compiler: loading a cached kernel imports cutlass (seconds)",
                ),
                (toolchain.runtime_library() is not None, "no libcute_dsl_runtime.so"),
            ),
            f"links with {toolchain.linker()}",
        ),
        ("cached kernels", _cache_status(), "intact"),
        ("pretuned tables", _tables_status(), "measured with this CuTe DSL"),
        ("GPU", _gpu_status(), "kernels can run here"),
    ]


def _cache_status() -> Status:
    try:
        problems = KernelCache().verify()
    except (CacheError, OSError) as error:
        return Status.no(str(error))
    return Status.check((not problems, "; ".join(problems.values())))


def _tables_status() -> Status:
    """Another compiler may have other favourites: rows are re-timed when it changes."""
    others = {v: n for v, n in timed_with().items() if v != toolchain.dsl_version()}
    return Status.check(
        *(
            (False, f"{n} rows in use were measured with CuTe DSL {v}: tune them again")
            for v, n in others.items()
        )
    )


def _plugin_status() -> Status:
    inductor_list = os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "")
    named = not inductor_list or "TORCH_CUTE" in inductor_list.upper()
    return Status.check(
        (config.get().enabled, f"{config.PREFIX}ENABLED=0"),
        (
            named,
            "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS does not name TORCH_CUTE",
        ),
    )


def _gpu_status() -> Status:
    gpus = _gpus()
    usable = [gpu for gpu in gpus if gpu["arch"] is not None]
    if usable:
        return Status.ok()
    if not gpus:
        return Status.no("no GPU: kernels compile here, and run in the simulator only")
    return Status.no(f"{gpus[0]['name']} is none of {', '.join(ARCHS)}")


def support_matrix() -> list[dict[str, Any]]:
    """One row an op, grouping, scaling, dtype and arch: supported or not, run where.

    ``torch`` says how far each version was tested with these kernels.
    """
    return [_support(*op, arch) for op in OPS for arch in ARCHS.values()]


def _support(
    op: str, scaling: str, kind: DType, grouping: Grouping, arch: ArchSpec
) -> dict[str, Any]:
    grouped = grouping is not Grouping.NONE
    m, n, k = _GROUPED_SIZE if grouped else _SIZE
    out = FLOAT16 if kind is FLOAT16 else BFLOAT16
    bias = out if op == "addmm" else None
    problem = GemmProblem(
        op,
        m,
        n,
        k,
        kind,
        kind,
        scaling=scaling,
        epilogue=EpilogueGraph.linear(out, *SCALE_INPUTS[scaling], bias),
        grouping=grouping,
        groups=_GROUPS if grouped else 1,
    )
    choice = choose(problem, arch)
    row: dict[str, Any] = {
        "op": op,
        "grouping": grouping.value,
        "scaling": scaling,
        "dtype": kind.name,
        "arch": arch.name,
        "torch": dict(toolchain.TORCH_TESTED),
    }
    if isinstance(choice, Status):
        return {**row, "supported": False, "detail": str(choice)}
    kernels = validated.KernelClass.of(problem, choice.schedule, arch)
    return {**row, "supported": True, "detail": _hardware(kernels)}


def _hardware(kernels: validated.KernelClass) -> str:
    """What ran of the class that the look-up takes; if nothing, what of its sisters."""
    text = validated.describe(kernels)
    kind = (kernels.arch, kernels.family)
    others = dict.fromkeys(
        row.kernels
        for row in validated.RECORDS
        if (row.kernels.arch, row.kernels.family) == kind
    )
    if kernels in others or not others:
        return text
    listed = (f"{x.form}: {validated.describe(x)}" for x in others)
    return "; ".join((f"{kernels.form}: {text}", *listed))


def to_text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = ["versions"]
    lines += [
        f"  {name:20} {version or 'not installed'}"
        for name, version in report["versions"].items()
    ]
    lines.append("GPUs")
    lines += [
        f"  {gpu['name']}: {gpu['arch'] or 'not supported'}, {gpu['sms']} SMs"
        for gpu in report["gpus"]
    ] or ["  none"]
    lines.append("checks")
    lines += [
        f"  {'on ' if check['ok'] else 'OFF'} {check['name']:16} {check['detail']}"
        for check in report["checks"]
    ]
    lines.append("torch versions, of every kernel below")
    lines += [f"  {name:8}{how}" for name, how in toolchain.TORCH_TESTED.items()]
    lines.append("support")
    lines += [
        f"  {row['op']:18}{row['grouping']:6}{row['scaling']:11}{row['dtype']:15}"
        f"{row['arch']:8} "
        f"{'yes' if row['supported'] else 'no'}: {row['detail']}"
        for row in report["support"]
    ]
    return "\n".join(lines)
