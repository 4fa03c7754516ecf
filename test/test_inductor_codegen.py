"""Inductor end to end without a GPU: which kernels a wrapper launches, and on what.

Every numeric test executes the generated wrapper on the CPU with reference GEMMs (see
``wrapper_runner``) and compares with eager torch.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from fake_gpu import OURS_WIN, Timings
from inductor_helper import (
    InductorTestCase,
    integers,
    scaled,
    scaled_operands,
    scaled_reference,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from wrapper_runner import kernel_names, our_calls, specs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def mm(a: Any, w: Any) -> Any:
    return a @ w.t()


def two_outputs(a: Any, w: Any) -> Any:
    y = a @ w.t()
    return torch.relu(y), (torch.relu(y) * 0.5).clamp(-448, 448).to(E4M3)


def inner_view(a: Any, w: Any, r: Any) -> Any:
    return torch.relu(F.linear(a, w)) + r


M, N, K = 96, 256, 128
"""Small, all different, and not multiples of each other's halves."""


FUSED: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "relu": (lambda a, w: torch.relu(mm(a, w)), [(M, K), (N, K)]),
    "gelu": (lambda a, w: F.gelu(mm(a, w)), [(M, K), (N, K)]),
    "gelu_tanh": (
        lambda a, w: F.gelu(mm(a, w), approximate="tanh"),
        [(M, K), (N, K)],
    ),
    "silu": (lambda a, w: F.silu(mm(a, w)), [(M, K), (N, K)]),
    "sigmoid": (lambda a, w: torch.sigmoid(mm(a, w)), [(M, K), (N, K)]),
    "leaky_relu": (lambda a, w: F.leaky_relu(mm(a, w)), [(M, K), (N, K)]),
    "hardswish": (lambda a, w: F.hardswish(mm(a, w)), [(M, K), (N, K)]),
    "rsqrt": (lambda a, w: torch.rsqrt(mm(a, w).abs() + 1), [(M, K), (N, K)]),
    "clamp": (lambda a, w: mm(a, w).clamp(-3, 5), [(M, K), (N, K)]),
    "to_fp8": (
        lambda a, w: mm(a, w).clamp(-448, 448).to(E4M3),
        [(M, K), (N, K)],
    ),
    "bias_relu": (
        lambda a, w, b: torch.relu(F.linear(a, w, b)),
        [(M, K), (N, K), (N,)],
    ),
    "residual": (
        lambda a, w, r: torch.relu(mm(a, w)) + r,
        [(M, K), (N, K), (M, N)],
    ),
    "scalar": (lambda a, w, s: mm(a, w) * s, [(M, K), (N, K), (1,)]),
    "row": (lambda a, w, s: mm(a, w) * s, [(M, K), (N, K), (M, 1)]),
    "col": (lambda a, w, s: mm(a, w) * s, [(M, K), (N, K), (1, N)]),
    "row_col_scalar": (
        lambda a, w, r, c, s: mm(a, w) * r * c * s,
        [(M, K), (N, K), (M, 1), (N,), (1,)],
    ),
    "gated": (
        lambda a, w, g: F.silu(g) * mm(a, w),
        [(M, K), (N, K), (M, N)],
    ),
    "two_outputs": (two_outputs, [(M, K), (N, K)]),
    "view_3d": (inner_view, [(4, M // 4, K), (N, K), (4, M // 4, N)]),
    "view_4d": (inner_view, [(2, 3, M // 6, K), (N, K), (2, 3, M // 6, N)]),
    "flat": (lambda a, w: torch.relu(mm(a, w).view(-1)), [(M, K), (N, K)]),
    "self_product": (lambda a: torch.relu(a @ a.t()), [(M, K)]),
    "operand_as_residual": (lambda a, w: torch.relu(mm(a, w)) + a, [(M, K), (K, K)]),
}


class TestFusion(InductorTestCase):
    @parametrize("name", sorted(FUSED))
    def test_epilogue_is_fused_and_right(self, name: str) -> None:
        fn, shapes = FUSED[name]
        tensors = [integers(*shape, seed=i) for i, shape in enumerate(shapes)]
        compiled = self.compile(fn, tensors)
        self.assertEqual(len(kernel_names(compiled.code)), 1, compiled.code)
        self.assertEqual(len(our_calls(compiled.code)), 1)
        expected = fn(*(t.float() for t in tensors))
        like = fn(*tensors)
        single = isinstance(expected, torch.Tensor)
        pairs = [(expected, like)] if single else list(zip(expected, like, strict=True))
        wanted = [e.float().to(y.dtype) for e, y in pairs]
        # erf, exp and tanh of eager CPU torch differ by an fp32 ulp or two.
        self.check_numbers(compiled, tensors, wanted, atol=1e-6, rtol=2**-8)

    def test_two_consumers_one_of_them_unfused(self) -> None:
        def fn(a: Any, w: Any) -> Any:
            y = a @ w.t()
            return torch.relu(y), y.sum(0)

        compiled = self.compile(fn, [integers(M, K), integers(N, K)])
        (call,) = our_calls(compiled.code)
        (spec,) = specs(compiled.code)
        self.assertEqual([o.name for o in spec.problem.epilogue.outputs], ["d", "d1"])
        self.assertIn("buf0, buf1", call)
        self.assertRegex(compiled.code, r"triton_\w+_sum_\w+\.run\(buf0,")

    def test_transposed_reader_is_not_fused(self) -> None:
        def fn(a: Any, w: Any, z: Any) -> Any:
            return (a @ w.t()).t() + z

        timings = Timings(OURS_WIN, {"ours": 0.1, "triton": 9.0})
        tensors = [integers(M, K), integers(N, K), integers(N, M)]
        compiled = self.compile(fn, tensors, timings=timings)
        ours, other = kernel_names(compiled.code)
        self.assertTrue(ours.startswith("torch_cute_"), ours)
        self.assertTrue(other.startswith("triton_poi"), other)

    def test_transposed_square_reader_is_not_fused(self) -> None:
        # M = N: shapes cannot tell the two apart, only indices can.
        def fn(a: Any, w: Any, z: Any) -> Any:
            return (a @ w.t()).t() + z

        tensors = [integers(N, K), integers(N, K, seed=1), integers(N, N)]
        compiled = self.compile(fn, tensors)
        self.assertEqual(len(kernel_names(compiled.code)), 2)

    def test_inexpressible_consumer_stays_apart(self) -> None:
        timings = Timings(OURS_WIN, {"ours": 0.1, "triton": 9.0})
        compiled = self.compile(
            lambda a, w: torch.sin(a @ w.t()),
            [integers(M, K), integers(N, K)],
            timings=timings,
        )
        ours, other = kernel_names(compiled.code)
        self.assertTrue(ours.startswith("torch_cute_fused_mm"), ours)
        self.assertTrue(other.startswith("triton_poi_fused_sin"), other)
        self.assertEqual(
            timings.inexpressible, ["epilogue: op sin has no epilogue expression"]
        )

    def test_emulate_precision_casts_rounds_the_product(self) -> None:
        def fn(a: Any, w: Any, c: Any) -> Any:
            return torch.relu(a @ w.t() - c)

        # 257 rounds to 256 in bf16: 257 - 256 is 1 unrounded and 0 rounded.
        a, w = torch.ones(M, 272, dtype=BF16), torch.zeros(N, 272, dtype=BF16)
        w[:, :257] = 1
        c = torch.full((N,), 256.0, dtype=BF16)
        for emulate, value in ((False, 1.0), (True, 0.0)):
            options = {"emulate_precision_casts": emulate}
            compiled = self.compile(fn, [a, w, c], options=options)
            self.assertEqual(len(kernel_names(compiled.code)), 1)
            want = torch.full((M, N), value, dtype=BF16)
            self.check_numbers(compiled, [a, w, c], want)

    def test_backward_of_relu_is_fused(self) -> None:
        def fn(g: Any, w: Any, y: Any) -> Any:
            return torch.ops.aten.threshold_backward(g @ w, y, 0)

        tensors = [integers(M, K), integers(K, N), integers(M, N)]
        compiled = self.compile(fn, tensors)
        self.assertEqual(len(kernel_names(compiled.code)), 1)
        (spec,) = specs(compiled.code)
        ops = {n.op for n in spec.problem.epilogue.nodes}
        self.assertTrue({"le", "where"} <= ops, str(ops))
        self.check_numbers(compiled, tensors, fn(*tensors))


class TestBias(InductorTestCase):
    SHAPES: ClassVar = {
        "n": lambda t: (t(N), InputKindName.COL),
        "1n": lambda t: (t(1, N), InputKindName.COL),
        "m1": lambda t: (t(N, 1), InputKindName.ROW),
        "mn": lambda t: (t(N, N), InputKindName.FULL),
        "n_expanded": lambda t: (t(N).expand(N, N), InputKindName.COL),
        "m1_expanded": lambda t: (t(N, 1).expand(N, N), InputKindName.ROW),
    }

    @parametrize("name", sorted(SHAPES))
    def test_addmm_bias_by_strides_not_by_shape(self, name: str) -> None:
        # M = N, so that no shape says which way a bias is broadcast.
        bias, kind = self.SHAPES[name](lambda *s: integers(*s, seed=9))
        a, w = integers(N, K), integers(N, K, seed=1)
        compiled = self.compile(lambda b, a, w: torch.addmm(b, a, w.t()), [bias, a, w])
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        (spec,) = specs(compiled.code)
        self.assertEqual([i.kind.value for i in spec.problem.epilogue.inputs], [kind])
        want = (bias.float() + a.float() @ w.float().t()).to(BF16)
        self.check_numbers(compiled, [bias, a, w], want)

    def test_one_element_bias(self) -> None:
        # Inductor materialises the broadcast (2.11 for us too, 2.14 for the others).
        tensors = [integers(1, 1), integers(M, K), integers(N, K, seed=1)]
        compiled = self.compile(lambda b, a, w: torch.addmm(b, a, w.t()), tensors)
        (spec,) = specs(compiled.code)
        kinds = [i.kind.value for i in spec.problem.epilogue.inputs]
        self.assertIn(kinds, (["scalar"], ["full"]))

    def test_column_major_residual_is_refused(self) -> None:
        bias, a, w = integers(N, N).t(), integers(N, K), integers(N, K, seed=1)
        self.compile(lambda b, a, w: torch.addmm(b, a, w.t()), [bias, a, w])
        self.assertIn("bias of strides", self.reasons())

    @parametrize("alpha,beta", [(0.5, 2.0), (1, 0), (2, 0), (-1, 1)])
    def test_alpha_and_beta(self, alpha: float, beta: float) -> None:
        bias, a, w = integers(N), integers(M, K), integers(N, K, seed=1)
        if beta == 0:
            bias.fill_(float("nan"))
        compiled = self.compile(
            lambda b, a, w: torch.addmm(b, a, w.t(), alpha=alpha, beta=beta),
            [bias, a, w],
        )
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        want = alpha * (a.float() @ w.float().t())
        want = want if beta == 0 else want + beta * bias.float()
        self.check_numbers(compiled, [bias, a, w], want.to(BF16))

    def test_alpha_zero_is_left_to_aten(self) -> None:
        bias, a, w = integers(N), integers(M, K), integers(N, K)
        compiled = self.compile(
            lambda b, a, w: torch.addmm(b, a, w.t(), alpha=0), [bias, a, w]
        )
        self.assertEqual(our_calls(compiled.code), [])
        self.assertIn("alpha=0", self.reasons())


class InputKindName:
    SCALAR, ROW, COL, FULL = "scalar", "row", "col", "full"


class TestArbitration(InductorTestCase):
    CASES: ClassVar = {
        "ours_fused": (0.9, 0.95, 1.15, r"torch_cute_fused_mm_relu"),
        "ours_unfused": (0.9, 5.0, 5.0, r"torch_cute_fused_mm_t_0;triton_poi_fused_"),
        "triton_fused": (3.0, 9.0, 1.05, r"triton_tem_fused_mm_relu"),
        "aten_unfused": (3.0, 9.0, 9.0, r"extern_kernels.mm;triton_poi_fused_"),
    }

    @parametrize("name", sorted(CASES))
    def test_the_fastest_wins(self, name: str) -> None:
        ours, ours_fused, triton_fused, pattern = self.CASES[name]
        timings = Timings(
            {**OURS_WIN, "ours": ours}, {"ours": ours_fused, "triton": triton_fused}
        )
        compiled = self.compile(
            lambda a, w: torch.relu(a @ w.t()),
            [integers(512, 1024), integers(2048, 1024)],
            timings=timings,
        )
        self.assertRegex(";".join(kernel_names(compiled.code)), pattern)
        kinds = {c.split("_")[0] for c in timings.choices}
        self.assertEqual(kinds, {"mm", "triton", "torch"})

    def test_fused_trials_do_not_reach_triton_workers(self) -> None:
        from torch._inductor.async_compile import CompiledTritonKernels

        from torch_cute_backend.inductor import scheduling

        seen = []
        original = scheduling.compat.mark_compiled

        def spy(source: str) -> None:
            original(source)
            seen.append(CompiledTritonKernels.get(source))

        with unittest.mock.patch.object(scheduling.compat, "mark_compiled", spy):
            self.compile(
                lambda a, w: torch.relu(a @ w.t()), [integers(M, K), integers(N, K)]
            )
        self.assertGreater(len(seen), 0)
        for entry in seen:
            # Inductor waits on the inner future, which must be a real one.
            self.assertTrue(entry.future.done())
            self.assertIsNone(entry.result())


class TestDynamicM(InductorTestCase):
    def test_at_most_four_variants_dispatch_on_m(self) -> None:
        a, w = integers(M, K), integers(N, K)
        a.dynamic_dims = (0,)  # type: ignore[attr-defined]
        compiled = self.compile(lambda a, w: torch.relu(a @ w.t()), [a, w])
        (spec,) = specs(compiled.code)
        self.assertLessEqual(len(spec.variants), 4)
        self.assertIsNone(spec.variants[-1].up_to_m)
        limits = [v.up_to_m for v in spec.variants[:-1]]
        self.assertEqual(limits, sorted(limits))
        for rows in (2, 64, 65, 300, 5000):
            x = integers(rows, K, seed=rows)
            want = torch.relu(x.float() @ w.float().t()).to(BF16)
            self.check_numbers(compiled, [x, w], want)

    def test_dynamic_rowwise(self) -> None:
        tensors = scaled_operands()
        for i in (0, 2):
            tensors[i].dynamic_dims = (0,)  # type: ignore[attr-defined]
        compiled = self.compile(scaled(), tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        other = scaled_operands(m=33)
        self.check_numbers(compiled, other, scaled_reference(*other).to(BF16))

    def test_dynamic_k_without_known_divisibility_is_refused(self) -> None:
        a, w = integers(M, K), integers(N, K)
        a.dynamic_dims = w.dynamic_dims = (1,)  # type: ignore[attr-defined]
        compiled = self.compile(lambda a, w: a @ w.t(), [a, w])
        self.assertEqual(our_calls(compiled.code), [])
        self.assertIn("for certain", self.reasons())


class TestLayouts(InductorTestCase):
    @parametrize("a_major", ["k", "mn"])
    @parametrize("b_major", ["k", "mn"])
    def test_majors(self, a_major: str, b_major: str) -> None:
        a = integers(M, K) if a_major == "k" else integers(K, M).t()
        w = integers(N, K) if b_major == "k" else integers(K, N).t()
        compiled = self.compile(mm, [a, w])
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        (spec,) = specs(compiled.code)
        majors = (spec.problem.a_major.value, spec.problem.b_major.value)
        self.assertEqual(majors, (a_major, b_major))
        self.check_numbers(compiled, [a, w], (a.float() @ w.float().t()).to(BF16))

    def test_padded_rows_and_aligned_offsets(self) -> None:
        a, w = integers(2 * M, 2 * K)[:M, 8 : K + 8], integers(N, K + 64)[:, :K]
        compiled = self.compile(mm, [a, w])
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.check_numbers(compiled, [a, w], (a.float() @ w.float().t()).to(BF16))

    def test_outputs_inside_a_concatenation(self) -> None:
        # Inductor lets both GEMMs write into views of the concatenated buffer.
        def fn(a: Any, w: Any, b: Any) -> Any:
            return torch.cat([a @ w.t(), b @ w.t()], 0)

        tensors = [integers(3, K), integers(264, K), integers(64, K, seed=2)]
        options = {"max_pointwise_cat_inputs": 0}
        compiled = self.compile(fn, tensors, options=options)
        self.assertEqual(len(our_calls(compiled.code)), 2)
        self.assertEqual(len(kernel_names(compiled.code)), 2)
        want = fn(*(t.float() for t in tensors)).to(BF16)
        self.check_numbers(compiled, tensors, want)

    @parametrize(
        "name,make",
        [
            ("k_of_1001", lambda: [integers(M, 1001), integers(N, 1001)]),
            ("odd_pitch", lambda: [integers(M, K + 3)[:, :K], integers(N, K)]),
            ("expanded", lambda: [integers(1, K).expand(M, K), integers(N, K)]),
            ("empty", lambda: [integers(0, K), integers(N, K)]),
            ("fp32", lambda: [integers(M, K, dtype=F32), integers(N, K, dtype=F32)]),
        ],
    )
    def test_refused_and_said_why(self, name: str, make: Any) -> None:
        compiled = self.compile(mm, make())
        self.assertEqual(our_calls(compiled.code), [])
        expected = {
            "k_of_1001": "16-byte rows",
            "odd_pitch": "is not a multiple of 8 for certain",
            "expanded": "no row of unit stride",
            "empty": "may be zero",
            "fp32": "float32",
        }
        self.assertIn(expected[name], self.reasons())

    @parametrize("n", [333, 1000, 8])
    def test_ragged_output_rows(self, n: int) -> None:
        tensors = [integers(M, K), integers(n, K), integers(n)]
        compiled = self.compile(lambda a, w, b: torch.relu(F.linear(a, w, b)), tensors)
        self.assertEqual(len(kernel_names(compiled.code)), 1, self.reasons())
        (spec,) = specs(compiled.code)
        self.assertEqual(spec.problem.out_aligned, n % 8 == 0)
        want = torch.relu(F.linear(*(t.float() for t in tensors))).to(BF16)
        self.check_numbers(compiled, tensors, want)

    def test_no_unit_stride_is_copied_by_inductor_first(self) -> None:
        compiled = self.compile(mm, [integers(M, 2 * K)[:, ::2], integers(N, K)])
        copy, ours = kernel_names(compiled.code)
        self.assertTrue(copy.startswith("triton_poi"), copy)
        self.assertTrue(ours.startswith("torch_cute"), ours)

    def test_view_at_an_odd_offset_is_refused(self) -> None:
        def fn(a: Any, w: Any) -> Any:
            return a.narrow(1, 1, K) @ w.t()

        compiled = self.compile(fn, [integers(M, K + 8), integers(N, K)])
        self.assertEqual(our_calls(compiled.code), [])
        self.assertIn("offset 1 is not 16-byte aligned", self.reasons())


instantiate_parametrized_tests(TestFusion)
instantiate_parametrized_tests(TestBias)
instantiate_parametrized_tests(TestArbitration)
instantiate_parametrized_tests(TestLayouts)

if __name__ == "__main__":
    run_tests()
