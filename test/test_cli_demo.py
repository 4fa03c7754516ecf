"""The demo: its model and its checker on the CPU, and what it does without a GPU."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend import config
from torch_cute_backend.cli import demo_sim, mlp
from torch_cute_backend.cli import main as cli


class TestModel(TestCase):
    def setUp(self):
        super().setUp()
        self.block = mlp.Fp8Mlp(torch.device("cpu"), hidden=128, intermediate=256)
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(24, 128, generator=generator).to(torch.bfloat16)

    def outputs(self):
        """What a right implementation returns, with one rounding fewer than eager."""
        block = self.block
        hidden = F.silu(block.up.reference(*mlp.quantize_rows(self.x)))
        q, scale = mlp.quantize_rows(hidden)
        return [block.down.reference(q, scale).to(torch.bfloat16), q, scale]

    def test_right(self):
        for name, check in self.block.check(self.x, *self.outputs()).items():
            self.assertTrue(check.right, f"{name} {check}")

    @parametrize("fault", ["zeros", "scaled", "nan", "one_element", "rows_swapped"])
    def test_wrong_output(self, fault):
        y, q, scale = self.outputs()
        if fault == "zeros":
            y = torch.zeros_like(y)
        elif fault == "scaled":
            y = (y.float() * 1.01).to(torch.bfloat16)
        elif fault == "nan":
            y[3, 5] = float("nan")
        elif fault == "one_element":
            y[3, 5] += y.float().square().mean().sqrt()
        else:
            y[[0, 1]] = y[[1, 0]]
        checks = self.block.check(self.x, y, q, scale)
        self.assertFalse(checks["down"].right)
        self.assertTrue(checks["up"].right)

    def test_wrong_hidden(self):
        y, q, scale = self.outputs()
        for wrong in (scale * 1.01, torch.zeros_like(scale)):
            self.assertFalse(self.block.check(self.x, y, q, wrong)["up"].right)

    def test_quantize_rows(self):
        x = torch.randn(4, 64)
        x[1] = 0
        x[2] *= 1e30
        q, scale = mlp.quantize_rows(x)
        self.assertEqual(scale.shape, (4, 1))
        self.assertFalse(q.float().isnan().any())
        self.assertEqual(q[1].float(), torch.zeros(64))
        error = (q.float() * scale - x).abs()
        self.assertTrue((error <= x.abs() * 2**-4 + scale * 2**-10).all())
        self.assertEqual(q.float().abs().amax(1)[[0, 2, 3]], torch.full((3,), 448.0))


@unittest.skipIf(torch.cuda.is_available(), "what the demo does without a GPU")
class TestWithoutGpu(TestCase):
    def run_demo(self):
        """Exit code and text, with widths that simulate in a second."""
        out = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            config.patch(cache_dir=Path(folder) / "cache"),
            unittest.mock.patch.object(demo_sim, "CUT", 20),
            contextlib.redirect_stdout(out),
        ):
            return cli.main(["demo"]), out.getvalue()

    def test_simulates_and_compiles_for_both_archs(self):
        code, text = self.run_demo()
        self.assertEqual(code, 0, text)
        self.assertTrue(text.startswith("No GPU here"))
        self.assertIn("No time printed here says anything about a GPU", text)
        for arch in ("sm_90a", "sm_100a"):
            self.assertIn(f'backend="cute_sim"), simulated {arch}:', text)
            for layer in ("up", "down"):
                self.assertIn(f"{layer} projection, {arch}: scaled_mm M=64", text)
        self.assertEqual(text.count("projection right: worst element at"), 4)
        self.assertEqual(text.count("findings: none; every element written once"), 4)
        self.assertEqual(text.count(", 1 launch(es)"), 4)
        self.assertEqual(text.count("shared loop:  omitted"), 8)
        self.assertEqual(text.count("epilogue:     10 nodes, 1 output(s)"), 2)
        self.assertEqual(text.count("spills 0 B stored, 0 B loaded"), 4)
        self.assertEqual(len(re.findall(r"\d+ registers, \d+ B shared", text)), 4)

    def test_right_numbers_from_other_kernels_are_a_failure(self):
        def eager(block, **_):
            def outputs(x):
                hidden = F.silu(block.up.reference(*mlp.quantize_rows(x)))
                q, scale = mlp.quantize_rows(hidden)
                return block.down.reference(q, scale).to(torch.bfloat16), q, scale

            return outputs

        with (
            unittest.mock.patch.object(torch, "compile", eager),
            unittest.mock.patch.object(demo_sim, "_compile_layer"),
        ):
            code, text = self.run_demo()
        self.assertEqual(text.count("projection right: worst element at"), 4)
        self.assertEqual(text.count("not every GEMM ran on the simulated GPU"), 2)
        self.assertEqual(code, 1)


instantiate_parametrized_tests(TestModel)

if __name__ == "__main__":
    run_tests()
