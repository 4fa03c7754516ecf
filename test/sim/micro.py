"""Hand-written PTX kernels for the simulator's unit tests.

Text and launch in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from torch_cute_backend.sim.launch_record import Launch, region_of_array
from torch_cute_backend.sim.report import SimReport
from torch_cute_backend.sim.simulator import run_launch

HEADER = """.version 9.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k({params})
{{
\t.reg .pred %p<32>;
\t.reg .b16 %rs<32>;
\t.reg .b32 %r<256>;
\t.reg .b64 %rd<64>;
{body}
\tret;
}}
"""


def text(body: str, sizes: Sequence[int], target: str = "sm_100a") -> str:
    """A kernel ``k`` whose parameters ``p0, p1, ...`` have the given byte sizes."""
    params = ", ".join(
        f".param .align 64 .b8 p{i}[{n}]" if n > 8 else f".param .u{8 * n} p{i}"
        for i, n in enumerate(sizes)
    )
    lines = "\n".join(f"\t{line.strip()}" for line in body.strip().splitlines())
    return HEADER.format(target=target, params=params, body=lines)


def run(
    body: str,
    arrays: Sequence[np.ndarray],
    *,
    outputs: Sequence[int] = (),
    extra: Sequence[bytes] = (),
    threads: int = 32,
    grid: int = 1,
    cluster: int = 1,
    smem_bytes: int = 4096,
    mode: str = "lazy",
    checks: bool = True,
    target: str = "sm_100a",
    sms: int = 132,
) -> SimReport:
    """Run a kernel body; parameters are the arrays' pointers, then ``extra`` bytes."""
    params = [struct.pack("<Q", a.ctypes.data) for a in arrays] + list(extra)
    launch = Launch(
        "k", (grid, 1, 1), (threads, 1, 1), (cluster, 1, 1), smem_bytes, tuple(params)
    )
    regions = [region_of_array(f"t{i}", a, i in outputs) for i, a in enumerate(arrays)]
    ptx = text(body, [len(p) for p in params], target)
    return run_launch(ptx, launch, regions, mode=mode, checks=checks, sms=sms)


def kinds(report: SimReport) -> list[str]:
    """Sorted kinds of all findings."""
    return sorted({finding.kind for finding in report.findings})


def aligned(shape: Sequence[int], dtype: type, fill: int = 0) -> np.ndarray:
    """A 256-byte aligned array."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 256, np.uint8)
    skip = -raw.ctypes.data % 256
    out = raw[skip : skip + count].view(dtype).reshape(shape)
    out[...] = fill
    return out
