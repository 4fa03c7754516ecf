"""PTX simulator: run compiled CuTe DSL kernels on CPU tensors, without a GPU, and check
them.

``simulate(compiled, args)`` takes any ``cute.compile`` result (compiled with
``--keep-ptx``) and its arguments on the CPU, executes the kernel's real PTX, writes the
outputs in place and returns a ``SimReport``. Importing this package imports neither
cutlass nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .faults import Fault
from .report import BadInput, Finding, SimError, SimReport, UnsupportedPtx

__all__ = [
    "BadInput",
    "Fault",
    "Finding",
    "SimError",
    "SimReport",
    "UnsupportedPtx",
    "simulate",
]


def simulate(
    compiled: Any,
    args: Sequence[Any],
    arch: str = "sm_90a",
    *,
    mode: str = "lazy",
    sms: int = 132,
    checks: bool = True,
    trace: str | None = None,
    outputs: Sequence[Any] = (),
    tensors: Sequence[Any] = (),
    roles: Mapping[int, str] | None = None,
    faults: Sequence[Fault] = (),
    progress: Callable[[int, int], None] | None = None,
    ptx: str | None = None,
) -> SimReport:
    """Run a compiled function on CPU tensors in the simulator.

    ``outputs`` are the tensors that must be written exactly once; ``tensors`` further
    ones that the kernel reaches only through pointers. ``roles`` maps warp index to
    role name. ``faults`` are edits of the PTX, to see whether the checks catch them.
    ``progress(done, total)`` is called as clusters finish. ``ptx`` runs in place of the
    compiled function's own, for example after an edit by hand; the launch stays.

    Raises:
        BadInput: no PTX, an unsupported target, tensors on a device or too small.
        UnsupportedPtx: an instruction or field that is not modelled; names its line.
        SimError: the host code failed, or there is no C compiler for the stub.
    """
    from . import launch as capture_module
    from .merge import merge_reports
    from .simulator import run_launch

    launches, own = capture_module.capture(compiled, args, sms=sms, arch=arch)
    text = own if ptx is None else ptx
    for fault in faults:
        text = fault.apply(text)
    regions = capture_module.regions_of([*args, *tensors], outputs)
    reports = [
        run_launch(
            text,
            launch,
            regions,
            mode=mode,
            checks=checks,
            sms=sms,
            roles=roles,
            trace=trace if number == 0 else None,
            progress=progress,
        )
        for number, launch in enumerate(launches)
    ]
    return merge_reports(reports)
