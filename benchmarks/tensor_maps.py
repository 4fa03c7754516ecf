"""TMA descriptors: what the DSL's host code builds, beside the driver's own encoder.

    python benchmarks/tensor_maps.py --capture      # no GPU needed
    python benchmarks/tensor_maps.py --driver       # where there is a driver and a GPU

``--capture`` runs the host code of every kernel of ``test/kernel_cases.py`` (both
archs) and ``test/grouped_kernel_cases.py`` against the simulator's stub and writes each
distinct descriptor with its decoded meaning to ``results/tensor_maps.captured.jsonl``,
the address zeroed. ``--driver`` encodes each meaning with ``cuTensorMapEncodeTiled``
and compares bits; then it encodes modes that no kernel of ours uses (all data types,
ranks, swizzles, L2 promotions, large strides) and compares what the simulator decodes
with what was asked for, and sees that modes which the simulator does not model are
refused. ``tensor_maps.driver.jsonl`` has every verdict; it fails if one is bad.

Packed 4-bit elements and swizzle atoms of more than 16 bytes came with compute
capability 10.0: PTX has ``b4x16`` and the ``swizzle_atomicity`` of
``tensormap.replace`` from sm_100a on only. Below, a driver may refuse them; such rows
say ``driver_refuses``, for nothing was compared.

Only the first 64 bytes are compared: the rest is the driver's own, and uninitialised in
the DSL's descriptors. The DSL sets two bits of word 1 that the driver does not; they
are reported as ``dsl_bits``, and nothing else may differ.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from case_runs import runs
from grouped_kernel_cases import GROUPED
from kernel_cases import CASES

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.errors import UserError
from torch_cute_backend.sim import gemm_case, grouped_case, launch_source
from torch_cute_backend.sim.report import UnsupportedPtx
from torch_cute_backend.sim.tensormap import TensorMap, decode

RESULTS = Path(__file__).parent / "results"
DSL_BITS = 1 << 1 | 1 << 21
"""Of word 1: set by the DSL, not by the driver. Bit 21: at least 128 KiB of data."""
INVALID_VALUE = 1
"""``CUDA_ERROR_INVALID_VALUE``"""
ADDRESS = 0x7F00_0000_0000
SIZE = 128

DATA_TYPES = {
    "u8": 0,
    "u16": 1,
    "u32": 2,
    "s32": 3,
    "u64": 4,
    "s64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
    "f32ftz": 10,
    "u4": 13,
}
"""Codes of ``CUtensorMapDataType``, which are not the descriptor's."""
TF32 = {"f32": 11, "f32ftz": 12}
BITS = {"u8": 8, "u16": 16, "f16": 16, "bf16": 16, "u64": 64, "s64": 64, "f64": 64}
SWIZZLES = {(0, 16): 0, (32, 16): 1, (64, 16): 2, (128, 16): 3, (128, 32): 4}
L2 = {0: 0, 64: 1, 128: 2, 256: 3}


@dataclass(frozen=True)
class Request:
    """Arguments of the driver's encoder."""

    data_type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2: int = 0
    nan_fill: int = 0
    address: int = ADDRESS


Encoder = Callable[[Request], bytes | int]
"""A descriptor, or the driver's error code."""


def request_of(meaning: TensorMap) -> Request:
    """What to ask the driver for, to get a descriptor of this meaning."""
    kinds = TF32 if meaning.tf32 else DATA_TYPES
    return Request(
        kinds[meaning.type_name],
        meaning.dims,
        meaning.strides,
        meaning.box,
        (1,) * len(meaning.dims),
        swizzle=SWIZZLES[meaning.swizzle_bytes, meaning.swizzle_atom],
        l2=L2[meaning.l2_bytes],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capture", action="store_true", help="the DSL's descriptors")
    parser.add_argument("--driver", action="store_true", help="the driver's; compares")
    parser.add_argument(
        "--captured", type=Path, default=RESULTS / "tensor_maps.captured.jsonl"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "tensor_maps.driver.jsonl"
    )
    args = parser.parse_args()
    if not (args.capture or args.driver):
        parser.error("one of --capture and --driver")
    if args.capture:
        _write(args.captured, list(capture()))
    if args.driver:
        if not args.captured.exists():
            raise UserError(f"{args.captured} is missing: run --capture first")
        rows = args.captured.read_text(encoding="utf-8").splitlines()
        encoder = driver()
        capability = torch.cuda.get_device_capability()
        found = list(compare([json.loads(row) for row in rows], encoder, capability))
        _write(args.out, found)
        bad = [row for row in found if not row["good"]]
        for row in bad:
            print(json.dumps(row))
        without = sum(row.get("driver_refuses", False) for row in found)
        counts = {"compared": len(found) - without, "driver_refuses": without}
        print(json.dumps({**counts, "bad": len(bad)}))
        return 1 if bad else 0
    return 0


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path.name}: {len(rows)} rows")


def capture() -> Iterator[dict[str, Any]]:
    """Distinct descriptors of all kernels."""
    from torch_cute_backend.sim import launch

    launch.prepare()
    seen: dict[bytes, dict[str, Any]] = {}
    for label, build, tensors, num_ctas in _launches():
        (one,) = launch_source.capture_source(build.source, tensors, num_ctas)
        for index, param in enumerate(one.params):
            if len(param) == SIZE:
                raw = bytes(8) + param[8:64]
                row = seen.setdefault(raw, _captured(raw))
                row["used_by"].append(f"{label} {index}")
    yield from seen.values()


def _launches() -> Iterator[tuple[str, KernelBuild, list[torch.Tensor], int]]:
    """Label, kernel, tensors and CTA count: dense ones at two sizes, grouped ones."""
    for case in CASES:
        build = case.build()
        for run in runs(build)[:2]:
            operands = gemm_case.make(build, *run.sizes, num_ctas=run.num_ctas)
            yield f"{case} {run.label}", build, operands.tensors, run.num_ctas
    for grouped in GROUPED:
        build = grouped.build()
        made = grouped_case.make(build, grouped.problem, grouped.ends)
        yield f"{grouped} ends", build, made.tensors, 3 * grouped.schedule.cluster_size


def _captured(raw: bytes) -> dict[str, Any]:
    return {"bytes": raw.hex(), "meaning": asdict(decode(raw)), "used_by": []}


def meaning_of(row: dict[str, Any]) -> TensorMap:
    """Of a captured row, from its JSON."""
    fields = dict(row["meaning"])
    for name in ("dims", "strides", "box"):
        fields[name] = tuple(fields[name])
    return TensorMap(**fields)


def driver() -> Encoder:
    """``cuTensorMapEncodeTiled`` of this machine's driver.

    Raises:
        UserError: there is no driver or no GPU.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UserError(f"no CUDA driver: {error}") from error
    if not torch.cuda.is_available():
        raise UserError("no GPU")
    torch.zeros(1, device="cuda")  # makes a context, should the encoder want one

    def encode(request: Request) -> bytes | int:
        buffer = (ctypes.c_uint8 * (SIZE + 64))()
        start = -ctypes.addressof(buffer) % 64
        rank = len(request.dims)
        code = cuda.cuTensorMapEncodeTiled(
            ctypes.byref(buffer, start),
            ctypes.c_int(request.data_type),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(request.address),
            (ctypes.c_uint64 * rank)(*request.dims),
            (ctypes.c_uint64 * max(rank - 1, 1))(*request.strides),
            (ctypes.c_uint32 * rank)(*request.box),
            (ctypes.c_uint32 * rank)(*request.element_strides),
            ctypes.c_int(request.interleave),
            ctypes.c_int(request.swizzle),
            ctypes.c_int(request.l2),
            ctypes.c_int(request.nan_fill),
        )
        return int(code) or bytes(buffer)[start : start + 64]

    return encode


def compare(
    captured: list[dict[str, Any]], encoder: Encoder, capability: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Verdicts on the captured, the modelled and the refused descriptors."""
    for row in captured:
        meaning = meaning_of(row)
        yield {
            "kind": "captured",
            "used_by": len(row["used_by"]),
            **against(bytes.fromhex(row["bytes"]), meaning, encoder),
        }
    for meaning in modelled():
        yield {"kind": "modelled", **decoded(meaning, encoder, capability)}
    for name, request in unmodelled():
        yield {"kind": "unmodelled", "mode": name, **refused(request, encoder)}


def against(raw: bytes, meaning: TensorMap, encoder: Encoder) -> dict[str, Any]:
    """A descriptor of the DSL beside the driver's for the same meaning."""
    found = encoder(request_of(meaning))
    row: dict[str, Any] = {"meaning": asdict(replace(meaning, address=0))}
    if isinstance(found, int):
        return {**row, "error": found, "good": False}
    words = np.frombuffer(raw[8:], np.uint64) ^ np.frombuffer(found[8:], np.uint64)
    difference = [int(word) for word in words]
    dsl_bits = difference[0] & DSL_BITS
    difference[0] &= ~DSL_BITS
    address = int.from_bytes(found[:8], "little")
    reading = _reading(found, meaning)
    return {
        **row,
        "driver": (bytes(8) + found[8:]).hex(),
        "dsl_bits": [bit for bit in range(64) if dsl_bits >> bit & 1],
        "different_words": [i + 1 for i, word in enumerate(difference) if word],
        **reading,
        "good": reading["decoded_same"] and not any(difference) and address == ADDRESS,
    }


def _reading(found: bytes, meaning: TensorMap) -> dict[str, Any]:
    """Does the simulator read ``found`` as ``meaning``?"""
    try:
        return {"decoded_same": decode(found) == replace(meaning, address=ADDRESS)}
    except UnsupportedPtx as error:
        return {"decoded_same": False, "refused": str(error)}


def decoded(
    meaning: TensorMap, encoder: Encoder, capability: tuple[int, int]
) -> dict[str, Any]:
    """Does the simulator read the driver's descriptor as what was asked for?

    A mode that this GPU does not have may be refused; then there is nothing to compare.
    """
    found = encoder(request_of(meaning))
    row: dict[str, Any] = {"meaning": asdict(meaning)}
    if isinstance(found, int):
        newer = meaning.type_name == "u4" or meaning.swizzle_atom != 16
        lacking = newer and found == INVALID_VALUE and capability < (10, 0)
        return {**row, "error": found, "driver_refuses": lacking, "good": lacking}
    reading = _reading(found, meaning)
    return {**row, "driver": found.hex(), **reading, "good": reading["decoded_same"]}


def refused(request: Request, encoder: Encoder) -> dict[str, Any]:
    """Is a descriptor that the simulator does not model refused, not misread?

    Where this driver refuses it as well (``driver_refuses``), there is nothing to
    misread.
    """
    found = encoder(request)
    if isinstance(found, int):
        return {"error": found, "driver_refuses": True, "good": True}
    try:
        decode(found)
    except UnsupportedPtx as error:
        return {"driver": found.hex(), "refused": str(error), "good": True}
    return {"driver": found.hex(), "refused": None, "good": False}


def modelled() -> Iterator[TensorMap]:
    """One meaning a mode that the simulator models, beyond what our kernels use."""
    base = TensorMap(0, "u8", 8, (640, 96), (640,), (64, 8), 0)
    for name in DATA_TYPES:
        bits = 4 if name == "u4" else BITS.get(name, 32)
        inner = 64 * 8 // bits
        shape = {"dims": (inner * 5, 96), "strides": (inner * 5 * bits // 8,)}
        typed = replace(base, type_name=name, item_bits=bits, **shape)
        for swizzle in (0, 64, 128):
            yield replace(typed, box=(inner, 8), swizzle_bytes=swizzle)
        yield replace(typed, box=(inner // 2, 8), swizzle_bytes=32)
    for name in TF32:
        yield replace(base, type_name=name, item_bits=32, tf32=True, box=(16, 8))
    for rank in range(1, 6):
        dims = (640, 96, 7, 5, 3)[:rank]
        strides = tuple(640 * 96 ** min(i, 1) * 8 ** max(i - 1, 0) for i in range(4))
        box = (64, 8, 4, 2, 1)[:rank]
        yield replace(base, dims=dims, strides=strides[: rank - 1], box=box)
    for l2_bytes in L2:
        yield replace(base, l2_bytes=l2_bytes)
    wide = {"dims": (256, 256, 4), "box": (256, 256, 1)}
    for stride in (1 << 36, (1 << 39) + 16):
        yield replace(base, **wide, strides=(256, stride))
    yield replace(base, dims=(1 << 32, 3), strides=(1 << 32,))
    yield replace(base, box=(128, 8), swizzle_bytes=128, swizzle_atom=32)


def unmodelled() -> Iterator[tuple[str, Request]]:
    """Modes that the simulator must refuse."""
    plain = Request(0, (640, 96, 4), (640, 61440), (64, 8, 1), (1, 1, 1))
    yield "element strides", replace(plain, element_strides=(1, 2, 1))
    yield "inner element stride", replace(plain, element_strides=(2, 1, 1))
    yield "interleave 16B", replace(plain, interleave=1, box=(16, 8, 1))
    yield "interleave 32B", replace(plain, interleave=2, swizzle=1, box=(32, 8, 1))
    floats = replace(plain, data_type=9, strides=(1280, 122880))
    yield "NaN fill", replace(floats, nan_fill=1)
    rows = replace(plain, box=(128, 8, 1))
    yield "swizzle 128B, atom 32B, flip 8B", replace(rows, swizzle=5)
    yield "swizzle 128B, atom 64B", replace(rows, swizzle=6)
    packed = {"dims": (640, 96, 4), "box": (128, 8, 1)}
    yield "16U4_ALIGN16B", replace(plain, data_type=14, **packed)
    yield "16U6_ALIGN16B", replace(plain, data_type=15, **packed)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"tensor_maps: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
