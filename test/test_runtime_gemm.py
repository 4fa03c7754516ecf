"""Fitting tensors to a kernel's parameters. No GPU: launching is tested on one."""

from __future__ import annotations

import types
import unittest.mock

import torch
from build_helper import grouped as grouped_problem
from build_helper import mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.codegen.source import TensorArg
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT32
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Grouping
from torch_cute_backend.runtime import gemm, grouped

A = TensorArg("a", BFLOAT16, ("m", "k"), 1, divisibility=8)
A_MN = TensorArg("a", BFLOAT16, ("m", "k"), 0, divisibility=8)
D = TensorArg("d", BFLOAT16, ("m", "n"), 1, divisibility=8, output=True)
SCALAR = TensorArg("scale", FLOAT32, ("1",), None, align_bytes=4)
ROW = TensorArg("scale_a", FLOAT32, ("m",), None, align_bytes=4)
SIZES = {"m": 4, "n": 16, "k": 32}


def matrix(rows: int, cols: int) -> torch.Tensor:
    return torch.arange(rows * cols).reshape(rows, cols).to(torch.bfloat16)


class TestFit(TestCase):
    def test_a_fitting_tensor_is_not_copied(self):
        padded = torch.zeros(4, 48, dtype=torch.bfloat16)
        for tensor in (matrix(4, 32), padded[:, :32], padded[:, 8:40]):
            fitted = gemm.fit(A, tensor, SIZES)
            self.assertEqual(fitted.data_ptr(), tensor.data_ptr())
            self.assertEqual(fitted.stride(), tensor.stride())

    @parametrize("kind", ["column_major", "misaligned", "odd_pitch", "negated"])
    def test_an_unfitting_tensor_is_copied(self, kind):
        base = matrix(40, 40)
        tensor = {
            "column_major": base.t()[:4, :32],
            "misaligned": base[:4, 1:33],
            "odd_pitch": matrix(4, 33)[:, :32],
            "negated": torch._neg_view(base)[:4, :32],
        }[kind]
        fitted = gemm.fit(A, tensor, SIZES)
        self.assertNotEqual(fitted.data_ptr(), tensor.data_ptr())
        self.assertEqual(fitted, tensor)
        self.assertFalse(fitted.is_neg())
        self.assertIsNone(gemm._problem(A, fitted))

    def test_mn_major(self):
        sizes = {"m": 8, "k": 4}
        fitted = gemm.fit(A_MN, matrix(8, 4), sizes)
        self.assertEqual(fitted, matrix(8, 4))
        self.assertEqual(fitted.stride(), (1, 8))

    def test_size_one_dimensions(self):
        single = torch.zeros(3, dtype=torch.bfloat16).as_strided((1, 1), (3, 5))
        arg = TensorArg("x", BFLOAT16, ("m", "k"), 1, divisibility=1)
        self.assertEqual(gemm.fit(arg, single, {"m": 1, "k": 1}).stride(1), 1)
        row = matrix(1, 32).as_strided((1, 32), (3, 1))
        fitted = gemm.fit(A, row, {**SIZES, "m": 1})
        self.assertEqual(fitted.stride(), (32, 1))
        self.assertEqual(fitted.data_ptr(), row.data_ptr())

    @parametrize("shape", [(), (1,), (1, 1)])
    def test_scalar(self, shape):
        self.assertEqual(gemm.fit(SCALAR, torch.ones(shape), SIZES).shape, (1,))

    def test_row_vector(self):
        column = torch.arange(8.0).reshape(4, 2)[:, :1]
        fitted = gemm.fit(ROW, column, SIZES)
        self.assertEqual(fitted, torch.tensor([0.0, 2.0, 4.0, 6.0]))

    def test_refused(self):
        cases = [
            (A, torch.zeros(4, 32), SIZES, "expected torch.bfloat16"),
            (A, matrix(4, 24), SIZES, "expected .4, 32."),
            (A, matrix(4, 20), {**SIZES, "k": 20}, "extent 20 is not a multiple of 8"),
            (ROW, torch.zeros(5), SIZES, "scale_a has shape"),
        ]
        for arg, tensor, sizes, words in cases:
            with self.subTest(words), self.assertRaisesRegex(UserError, words):
                gemm.fit(arg, tensor, sizes)

    def test_outputs_are_never_copied(self):
        out = torch.zeros(4, 32, dtype=torch.bfloat16)[:, :16]
        self.assertEqual(gemm.require(D, out, SIZES).data_ptr(), out.data_ptr())
        with self.assertRaisesRegex(UserError, "d is not aligned"):
            gemm.require(D, torch.zeros(4, 32, dtype=torch.bfloat16)[:, 1:17], SIZES)
        with self.assertRaisesRegex(UserError, "negated"):
            gemm.require(D, torch._neg_view(out), SIZES)


class TestDevices(TestCase):
    def test_cpu_tensors_are_refused(self):
        source = types.SimpleNamespace(name="gemm", args=(A, A, D))
        build = types.SimpleNamespace(source=source, arch=SM90, problem=mm())
        with self.assertRaisesRegex(UserError, "one CUDA device, got cpu"):
            gemm.run(build, matrix(4, 32), matrix(32, 16))
        with self.assertRaisesRegex(UserError, "one CUDA device, got cpu"):
            gemm.run(build, matrix(0, 32), matrix(32, 16))
        with self.assertRaisesRegex(UserError, "must be matrices"):
            gemm.run(build, matrix(4, 32), matrix(32, 16)[None])

    def test_each_run_has_its_kernels(self):
        dense = types.SimpleNamespace(problem=mm())
        one = types.SimpleNamespace(problem=grouped_problem())
        with self.assertRaisesRegex(UserError, "use grouped.run"):
            gemm.run(one, matrix(4, 32), matrix(32, 16))
        with self.assertRaisesRegex(UserError, "use gemm.run"):
            grouped.run(dense, matrix(4, 32), matrix(32, 16))

    @parametrize("kind", ["dense", "groups"])
    def test_block_scales_of_an_empty_k(self, kind):
        # Padding K would need scales of its own.
        build = types.SimpleNamespace(
            problem=types.SimpleNamespace(
                grouping=Grouping.M, is_grouped=kind == "groups", block_scaled=True
            )
        )
        a, words = torch.zeros(8, 0), "needs a K of at least one block"
        with (
            unittest.mock.patch.object(gemm, "check_devices"),
            self.assertRaisesRegex(UserError, words),
        ):
            if kind == "groups":
                grouped.run(build, a, torch.zeros(3, 0, 24), offsets=ENDS)
            else:
                gemm.run(build, a, torch.zeros(0, 24))

    def test_fp8_dtype(self):
        arg = TensorArg("a", E4M3, ("m", "k"), 1, divisibility=16)
        self.assertIs(gemm.torch_dtype(arg), torch.float8_e4m3fn)


ENDS = torch.zeros(3, dtype=torch.int32)
A2, A3 = torch.zeros(8, 16), torch.zeros(3, 8, 16)
B2, B3 = torch.zeros(16, 24), torch.zeros(3, 16, 24)
BAD_GROUPS = {
    "one_dimension": (Grouping.M, A2, B2, ENDS, "a 3-D b, got 2-D and 2-D"),
    "stacked": (Grouping.N, A2, B2, ENDS, "need a 3-D a and a 2-D b"),
    "missing": (Grouping.M, A2, B3, None, "groups along m need offsets"),
    "needless": (Grouping.BATCH, A3, B3, ENDS, "a batch takes no offsets"),
    "too_many": (Grouping.M, A2, B3, torch.cat([ENDS, ENDS]), "6 groups, but an op"),
    "too_few": (Grouping.N, A3, B2, ENDS[:2], "2 groups, but an operand holds 3"),
    "batches": (Grouping.BATCH, A3, B3[:2], None, "3 groups, but an operand holds 2"),
    "int64": (Grouping.K, A2, B2, ENDS.long(), "offsets are torch.int64"),
    "float": (Grouping.K, A2, B2, ENDS.float(), "offsets are torch.float32"),
    "matrix": (Grouping.K, A2, B2, ENDS[None], "must be a dense vector"),
    "strided": (Grouping.K, A2, B2, torch.cat([ENDS, ENDS])[::2], "must be a dense"),
}


class TestGroups(TestCase):
    @parametrize("name", sorted(BAD_GROUPS))
    def test_refused(self, name):
        *arguments, words = BAD_GROUPS[name]
        with self.assertRaisesRegex(UserError, words):
            grouped.sizes_of(*arguments)

    @parametrize(
        "grouping,a,b,offsets",
        [
            (Grouping.M, A2, B3, ENDS),
            (Grouping.N, A3, B2, ENDS),
            (Grouping.K, A2, B2, ENDS),
            (Grouping.BATCH, A3, B3, None),
        ],
    )
    def test_sizes(self, grouping, a, b, offsets):
        sizes = grouped.sizes_of(grouping, a, b, offsets)
        expected = {"m": 8, "n": 24, "k": 16, "g": 3, "gm": 24, "gn": 72}
        self.assertEqual(sizes, expected)


instantiate_parametrized_tests(TestFit)
instantiate_parametrized_tests(TestDevices)
instantiate_parametrized_tests(TestGroups)

if __name__ == "__main__":
    run_tests()
