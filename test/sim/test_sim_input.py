"""Bad input gets one clear error, the same directly and through the child process; and
progress arrives while a simulation runs.
"""

from __future__ import annotations

import struct

import _paths  # noqa: F401
import micro
import numpy as np
import torch
from build_helper import build, mm
from runtime_kernels import spill_source
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.errors import UserError
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import gemm_case, launch
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.launch_record import Launch, region_of_array
from torch_cute_backend.sim.parse import parse
from torch_cute_backend.sim.report import BadInput, SimError
from torch_cute_backend.sim.simulator import run_launch
from torch_cute_backend.sim.tensormap import encode

LOAD = """
mov.b32 %r1, smem;
add.s32 %r2, %r1, 4096;
elect.sync %r3|%p1, -1;
@!%p1 bra DONE;
mbarrier.init.shared::cta.b64 [%r2], 1;
mov.b32 %r4, 0;
mov.b64 %rd1, p0;
cvta.param.u64 %rd2, %rd1;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes \
[%r1], [%rd2, {%r4, %r4}], [%r2];
DONE:
"""


class TestDirect(TestCase):
    def test_is_an_error_of_the_user_and_of_the_simulator(self):
        self.assertTrue(issubclass(BadInput, UserError))
        self.assertTrue(issubclass(BadInput, SimError))

    def test_not_ptx(self):
        for text, words in (
            ("", "not a PTX module"),
            ("\\x7fELF", "not a PTX module"),
            (".version 9.0\n.target sm_90a\n", "no .entry"),
        ):
            with self.assertRaisesRegex(BadInput, words):
                parse(text)

    def test_cut_off_anywhere(self):
        """Every prefix of a kernel is refused in words, never with a traceback."""
        whole = micro.text("/* a */ mov.b32 %r1, 0; // b\n{ .reg .b32 q;\n}", [8])
        first = whole.index(".entry")
        for end in range(first, whole.rindex("}")):
            with self.assertRaises(SimError):
                parse(whole[:end])
        parse(whole)

    def test_unsupported_target(self):
        with self.assertRaisesRegex(BadInput, "not 'sm_80'"):
            micro.run("", [], target="sm_80")

    def test_ptx_of_another_kernel(self):
        with self.assertRaisesRegex(BadInput, "'other' is not in the PTX"):
            run_launch(micro.text("", [8]), self.launch("other", bytes(8)), [])
        with self.assertRaisesRegex(BadInput, r"parameters of \[4\] bytes"):
            run_launch(micro.text("", [8]), self.launch("k", bytes(4)), [])

    def launch(self, kernel: str, *params: bytes) -> Launch:
        return Launch(kernel, (1, 1, 1), (32, 1, 1), (1, 1, 1), 8192, params)

    def test_tensor_too_small_for_its_map(self):
        data = micro.aligned((32, 64), np.uint8)
        for rows in (32, 33):
            raw = encode(data.ctypes.data, "u8", (64, rows), (64,), (64, 8))
            call = (
                micro.text(LOAD, [128]),
                self.launch("k", raw),
                [region_of_array("weights", data)],
            )
            if rows == 32:
                kinds = micro.kinds(run_launch(*call))
                self.assertNotIn("out_of_bounds", kinds)
            else:
                words = "weights is too small: .* 2112 bytes, 2048 are there"
                with self.assertRaisesRegex(BadInput, words):
                    run_launch(*call)

    def test_pointer_behind_a_tensor_is_a_finding(self):
        body = "ld.param.u64 %rd1, [p0];\nld.global.b32 %r1, [%rd1+64];"
        data = micro.aligned((16,), np.uint32)
        self.assertEqual(micro.kinds(micro.run(body, [data])), ["out_of_bounds"])

    def test_no_ptx_in_the_function(self):
        with self.assertRaisesRegex(BadInput, "--keep-ptx"):
            launch.ptx_of(struct)

    def test_tensor_on_a_device(self):
        with self.assertRaisesRegex(BadInput, "needs CPU tensors, got meta"):
            launch.regions_of([torch.empty(4, device="meta")])


class TestChild(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()
        schedule = GemmSchedule(64, 64, 64, 4, epi_n=64)
        cls.built = build(mm(100, 120, 96), schedule, SM90)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    @parametrize(
        "name,change,words",
        [
            ("device", lambda t: t.to("meta"), "needs CPU tensors, got meta"),
            ("dtype", lambda t: t.half(), "b: expected bfloat16"),
            ("too small", lambda t: t[:, :80], "b: size k is 80, but 96 in a"),
            ("rank", lambda t: t[0], "b: expected 2 dimensions, got 1"),
            ("empty", lambda t: t[:0], "b: empty tensor"),
            ("stride", lambda t: torch.cat([t, t], 1)[:, ::2], "must have stride 1"),
            ("pitch", lambda t: torch.zeros(120, 99).bfloat16()[:, :96], "multiple"),
        ],
        name_fn=lambda name, change, words: name.replace(" ", "_"),
    )
    def test_tensor(self, name, change, words):
        operands = gemm_case.make(self.built, 100, 120, 96)
        operands.tensors[1] = change(operands.tensors[1])
        with self.assertRaisesRegex(BadInput, words):
            self.child.simulate(self.built.source, operands.tensors)

    def test_number_of_tensors(self):
        with self.assertRaisesRegex(BadInput, "expected 3 tensors, got 0"):
            self.child.simulate(self.built.source, [])

    def test_ptx(self):
        operands = gemm_case.make(self.built, 100, 120, 96)
        with self.assertRaisesRegex(BadInput, "not a PTX module"):
            self.child.simulate(self.built.source, operands.tensors, ptx="nonsense")

    def test_what_the_build_gate_refuses_is_a_note(self):
        x = torch.ones(1, 160 * 8, dtype=torch.bfloat16)
        tensors = [x, torch.ones(1), torch.zeros_like(x)]
        report = self.child.simulate(spill_source(), tensors, num_ctas=1, checks=False)
        (note,) = [n for n in report.notes if n.kind == "build"]
        self.assertIn("ptxas spilled registers", str(note))

    def test_serves_on_after_an_error_and_tells_progress(self):
        operands = gemm_case.make(self.built, 100, 120, 96)
        steps = []
        report = self.child.simulate(
            self.built.source,
            operands.tensors,
            num_ctas=4,
            progress=lambda done, total: steps.append((done, total)),
        )
        self.assertTrue(report.clean, report.summary())
        self.assertTrue(operands.exact())
        self.assertEqual(steps[-1], (4, 4))
        self.assertEqual(steps, sorted(steps))


instantiate_parametrized_tests(TestChild)

if __name__ == "__main__":
    run_tests()
