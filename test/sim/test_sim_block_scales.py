"""MXFP8 kernels with something missing: wrong scales are wrong results, and a tensor of
too few scales is refused. (That the kernels are right is in ``test_sim_matrix``.)"""

from __future__ import annotations

import _paths  # noqa: F401
import torch
from build_helper import build, fp8
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM100
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.faults import Fault
from torch_cute_backend.sim.report import BadInput

COPY = r"^\ttcgen05\.cp[^;]*;"
SIZES = (200, 144, 288)


class BlockScalesTest(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()
        schedule = GemmSchedule(128, 128, 128, 2, acc_stages=2, epi_n=64, epi_stages=2)
        cls.built = build(fp8(scaling="mxfp8"), schedule, SM100)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    @parametrize(
        "fault",
        [
            subtest(Fault("no copy of A's", COPY), name="no_copy_of_a"),
            subtest(Fault("no copy of B's", COPY, which=1), name="no_copy_of_b"),
        ],
    )
    def test_needs(self, fault):
        operands = gemm_case.make(self.built, *SIZES)
        found = self.child.simulate(
            self.built.source, operands.tensors, num_ctas=1, faults=[fault]
        )
        kinds = {f.kind for f in found.findings}
        self.assertIn("uninitialised", kinds)
        self.assertFalse(operands.exact())

    @parametrize("operand", [0, 1])
    def test_every_scale_counts(self, operand):
        """One scale twice as large: its row, or column, is wrong, and nothing else."""
        operands = gemm_case.make(self.built, *SIZES)
        scales = operands.tensors[3 + operand]
        scales.view(torch.uint8)[16 * 5 + 1] += 1  # row 5, second block
        self.child.simulate(self.built.source, operands.tensors, num_ctas=1)
        (out,) = operands.outputs.values()
        (wanted,) = operands.references.values()
        wrong = (out != wanted).nonzero()[:, operand].unique()
        self.assertEqual(wrong.tolist(), [5])

    def test_too_few_scales(self):
        operands = gemm_case.make(self.built, *SIZES)
        operands.tensors[3] = operands.tensors[3][:-512]
        with self.assertRaisesRegex(
            BadInput, "too small: .* 3072 bytes, 2560 are there"
        ):
            self.child.simulate(self.built.source, operands.tensors, num_ctas=1)


instantiate_parametrized_tests(BlockScalesTest)

if __name__ == "__main__":
    run_tests()
