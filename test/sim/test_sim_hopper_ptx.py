"""The kernels of ``hopper_ptx`` in the simulator: what the manual says, no finding.
``test/gpu/ptx_vs_gpu.py`` runs the same ones on a GPU.
"""

from __future__ import annotations

import _paths  # noqa: F401
import hopper_ptx
import numpy as np
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)


def named() -> list[subtest]:
    return [subtest(k, name=k.name) for k in hopper_ptx.KERNELS]


class HopperPtxTest(TestCase):
    @parametrize("kernel", named())
    def test_kernel(self, kernel: hopper_ptx.PtxKernel):
        for mode in ("lazy", "random:1"):
            out, kinds = hopper_ptx.simulate(kernel, mode)
            self.assertEqual(kinds, [], mode)
            if kernel.expected is not None:
                wanted = kernel.expected().reshape(-1).view(np.uint32)
                np.testing.assert_array_equal(out, wanted, mode)
            self.assertTrue((out != 0xFFFFFFFF).any())

    def test_every_layout_matters(self):
        """Another swizzle in the descriptor gives other numbers."""
        kernel = next(
            k for k in hopper_ptx.KERNELS if k.name == "wgmma_e4m3_e4m3_k64_k64"
        )
        wanted = kernel.expected().reshape(-1).view(np.uint32)
        code = 2 << 62
        for other in (0, 1 << 62, 3 << 62):
            body = kernel.body
            for word in {w for w in body.split() if w.strip(";").isdigit()}:
                number = int(word.strip(";"))
                if number >> 62 == 2:
                    body = body.replace(word, f"{number & ~code | other};")
            changed = hopper_ptx.PtxKernel("x", body, kernel.data, kernel.out_words)
            out, _ = hopper_ptx.simulate(changed)
            self.assertFalse(np.array_equal(out, wanted), hex(other))

    def test_one_nan(self):
        words = np.array([0x7FC00000, 0xFFC00001, 0x7F800000, 5], np.uint32)
        got = hopper_ptx.one_nan(words, "f32").tolist()
        self.assertEqual(got, [0x7F800001, 0x7F800001, 0x7F800000, 5])
        words = np.array([0x7FFF7F80, 0x7C017C00, 0xFE00FC00], np.uint32)
        got = hopper_ptx.one_nan(words, "bf16x2").tolist()
        self.assertEqual(got, [0x7F817F80, 0x7C017C00, 0xFE00FC00])
        got = hopper_ptx.one_nan(words, "f16x2").tolist()
        self.assertEqual(got, [0x7C017C01, 0x7C017C00, 0x7C01FC00])

    def test_distance(self):
        one = np.array([1.0, -1.0], np.float32).view(np.uint32)
        self.assertEqual(hopper_ptx.distance(one, one), 0)
        self.assertEqual(hopper_ptx.distance(one, one + np.uint32(3)), 3)
        zeros = np.array([0.0, -0.0], np.float32).view(np.uint32)
        self.assertEqual(hopper_ptx.distance(zeros, zeros[::-1].copy()), 0)
        nan = np.array([np.nan, -1.0], np.float32).view(np.uint32)
        self.assertEqual(hopper_ptx.distance(one, nan), 1 << 32)


instantiate_parametrized_tests(HopperPtxTest)

if __name__ == "__main__":
    run_tests()
