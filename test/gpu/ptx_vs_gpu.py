"""The hand-written kernels of ``test/sim/hopper_ptx.py`` on a GPU and in the simulator.

    python test/gpu/ptx_vs_gpu.py

Compiles each kernel's PTX with the driver, runs it, runs the simulator beside it, and
compares bits (approximate functions: distances in units in the last place; any NaN is
like another). One JSON line a kernel, also written to
``benchmarks/results/ptx_vs_gpu.jsonl``; fails on a difference. Needs torch, numpy and a
driver, not the CuTe DSL.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

import hopper_ptx
from hopper_ptx import FILL_BYTES, THREADS, PtxKernel

from torch_cute_backend.bench import results
from torch_cute_backend.errors import UserError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "ptx_vs_gpu.jsonl"
_MAX_DYNAMIC_SHARED = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", help="parts of kernel names")
    args = parser.parse_args()
    driver = Driver()
    where = vars(results.environment())
    rows = []
    for kernel in hopper_ptx.KERNELS:
        if args.only and not any(part in kernel.name for part in args.only):
            continue
        rows.append({**compare(kernel, driver), **where})
        print(json.dumps(rows[-1]), flush=True)
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = [row["kernel"] for row in rows if not row["good"]]
    print(json.dumps({"kernels": len(rows), "bad": bad}))
    return 1 if bad else 0


class Driver:
    """Launches PTX text through the CUDA driver, in torch's context.

    Raises:
        UserError: there is no driver or no GPU.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UserError("no GPU")
        torch.zeros(1, device="cuda")
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.cuda, name)(*args)
        if code:
            raise UserError(f"{name} failed with {code}")

    def run(self, kernel: PtxKernel) -> np.ndarray:
        """Output words of one launch."""
        source = torch.from_numpy(kernel.data).cuda()
        out = torch.full((kernel.out_words * 4,), 255, dtype=torch.uint8).cuda()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), kernel.text.encode())
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        size = ctypes.c_int(FILL_BYTES)
        self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, size)
        pointers = [ctypes.c_uint64(t.data_ptr()) for t in (source, out)]
        params = (ctypes.c_void_p * 2)(*(ctypes.addressof(p) for p in pointers))
        grid_and_block = (1, 1, 1, THREADS, 1, 1)
        self.call(
            "cuLaunchKernel", function, *grid_and_block, FILL_BYTES, None, params, None
        )
        torch.cuda.synchronize()
        self.call("cuModuleUnload", module)
        return out.cpu().numpy().view(np.uint32)


def compare(kernel: PtxKernel, driver: Driver) -> dict[str, Any]:
    """One kernel on both; a driver's refusal is a bad row, not the end."""
    row: dict[str, Any] = {"kernel": kernel.name}
    try:
        found = driver.run(kernel)
    except UserError as error:
        return {**row, "error": str(error), "good": False}
    simulated, kinds = hopper_ptx.simulate(kernel)
    row["identical"] = bool(np.array_equal(found, simulated))
    found = hopper_ptx.one_nan(found, kernel.floats)
    simulated = hopper_ptx.one_nan(simulated, kernel.floats)
    same = bool(np.array_equal(found, simulated))
    row["identical_but_for_nan_bits"] = same
    row["different_words"] = int((found != simulated).sum())
    row["ulps"] = hopper_ptx.distance(found, simulated) if kernel.ulps else None
    if not same:
        at = int((found != simulated).argmax())
        words = (at, found[at], simulated[at])
        row["first_difference"] = "word {}: GPU {:#x}, simulator {:#x}".format(*words)
    close = kernel.ulps > 0 and row["ulps"] <= kernel.ulps
    return {**row, "good": (same or close) and not kinds}


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"ptx_vs_gpu: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
