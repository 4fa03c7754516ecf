"""The comparison with the driver's tensor-map encoder, on stand-ins for the driver."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))

import tensor_maps

from torch_cute_backend.sim.tensormap import decode, encode

CAPTURED = tensor_maps.RESULTS / "tensor_maps.captured.jsonl"
DRIVER = tensor_maps.RESULTS / "tensor_maps.driver.jsonl"
NAMES = {code: name for name, code in tensor_maps.DATA_TYPES.items()}
NAMES |= {code: name for name, code in tensor_maps.TF32.items()}
SPANS = {0: 0, 1: 32, 2: 64, 3: 128, 4: 128, 5: 128, 6: 128}


def stand_in(request):
    """What the driver is known to do, from its documented arguments."""
    name = NAMES.get(request.data_type, "u4")
    raw = encode(
        request.address,
        name,
        request.dims,
        request.strides,
        request.box,
        SPANS[request.swizzle],
    )
    words = np.frombuffer(raw, np.uint64).copy()
    atom = {4: 1, 5: 2, 6: 3}.get(request.swizzle, 0)
    extra = request.l2 << 17 | atom << 19 | request.interleave << 11
    extra |= request.nan_fill << 15 | (request.data_type in (11, 12)) << 16
    words[1] |= np.uint64(extra)
    if request.data_type > 13:
        words[1] |= np.uint64(15 << 7)
    for i, stride in enumerate(request.element_strides):
        words[6] |= np.uint64((stride - 1) << 32 + 3 * i)
    return words.tobytes()[:64]


def mode(meaning):
    """What of a descriptor is not a size or a place."""
    names = ("type_name", "swizzle_bytes", "swizzle_atom", "l2_bytes", "tf32")
    return (len(meaning["dims"]), *(meaning[name] for name in names))


class TestTensorMaps(TestCase):
    def setUp(self):
        super().setUp()
        self.rows = [json.loads(line) for line in CAPTURED.read_text().splitlines()]

    def test_captured_rows(self):
        users = set()
        for row in self.rows:
            meaning = tensor_maps.meaning_of(row)
            self.assertEqual(decode(bytes.fromhex(row["bytes"])), meaning)
            users |= {use.split()[0] for use in row["used_by"]}
        for arch in ("sm_90a", "sm_100a"):
            self.assertGreaterEqual(sum(arch in user for user in users), 25)

    def test_a_gpu_has_compared_every_mode(self):
        """Sizes may differ from the committed comparison's; modes may not."""
        modes = {mode(row["meaning"]) for row in self.rows}
        compared = [json.loads(line) for line in DRIVER.read_text().splitlines()]
        good = {
            mode(row["meaning"])
            for row in compared
            if row["kind"] == "captured" and row["good"]
        }
        self.assertEqual(modes - good, set())

    def test_all_verdicts_good(self):
        found = list(tensor_maps.compare(self.rows, stand_in, (10, 0)))
        self.assertEqual([row for row in found if not row["good"]], [])
        kinds = {row["kind"] for row in found}
        self.assertEqual(kinds, {"captured", "modelled", "unmodelled"})
        self.assertTrue(all(row.get("refused", row) for row in found))

    @parametrize(
        "field,value",
        [("box", (16, 8)), ("swizzle", 1), ("l2", 0), ("address", 0), ("dims", (8, 8))],
    )
    def test_another_encoder_is_noticed(self, field, value):
        def wrong(request):
            return stand_in(replace(request, **{field: value}))

        row = next(r for r in self.rows if r["meaning"]["swizzle_bytes"] == 128)
        meaning = tensor_maps.meaning_of(row)
        raw = bytes.fromhex(row["bytes"])
        self.assertTrue(tensor_maps.against(raw, meaning, stand_in)["good"])
        self.assertFalse(tensor_maps.against(raw, meaning, wrong)["good"])

    def test_an_error_is_not_agreement(self):
        meaning = next(tensor_maps.modelled())
        found = tensor_maps.decoded(meaning, lambda _: 1, (9, 0))
        self.assertFalse(found["good"] or found["driver_refuses"])
        raw = bytes.fromhex(self.rows[0]["bytes"])
        known = tensor_maps.meaning_of(self.rows[0])
        self.assertFalse(tensor_maps.against(raw, known, lambda _: 1)["good"])

    def test_a_gpu_may_lack_newer_modes(self):
        """Before compute capability 10.0, the driver has to refuse exactly these."""

        def refuses(request):
            newer = request.data_type == 13 or request.swizzle == 4
            return 1 if newer else stand_in(request)

        for capability, good in (((9, 0), True), ((10, 0), False)):
            found = list(tensor_maps.compare(self.rows, refuses, capability))
            lacking = [row for row in found if "error" in row]
            self.assertEqual(len(lacking), 5)
            for row in lacking:
                self.assertEqual((row["good"], row["driver_refuses"]), (good, good))
            self.assertTrue(all(row["good"] for row in found if "error" not in row))
        other = next(m for m in tensor_maps.modelled() if m.swizzle_atom == 32)
        found = tensor_maps.decoded(other, lambda _: 201, (9, 0))
        self.assertFalse(found["good"])


instantiate_parametrized_tests(TestTensorMaps)

if __name__ == "__main__":
    run_tests()
