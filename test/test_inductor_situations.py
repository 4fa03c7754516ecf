"""Situations that went wrong in this field, as public reports describe them.

Each is a kind of fault rather than one input; the report is named at each. What our
kernels compute in hardware is tested by ``test/gpu`` and the simulator; here it is what
Inductor asks of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from fake_gpu import empty, fake_mode
from inductor_helper import (
    InductorTestCase,
    integers,
    lowered_request,
    node,
    scaled,
    scaled_operands,
    scaled_reference,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from wrapper_runner import our_calls, run_wrapper

from torch_cute_backend.inductor import lowering
from torch_cute_backend.inductor.request import GemmRequest, OpCall
from torch_cute_backend.status import Status

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
M, N, K = 208, 336, 528
"""No two equal, none a multiple of another (vllm-project/vllm#28637)."""

RECIPES = {
    "blockwise": ([2], [2], [0], [0]),
    "two_level": ([1, 1], [1, 1], [0], [0]),
    "swizzled": ([1], [1], [1], [0]),
}


class TestScales(InductorTestCase):
    def check_scaled(self, tensors: Any, out: torch.dtype = BF16) -> None:
        compiled = self.compile(scaled(out), tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(out))

    @parametrize("a", [E4M3, E5M2])
    @parametrize("b", [E4M3, E5M2])
    def test_pairs_of_fp8_types(self, a: torch.dtype, b: torch.dtype) -> None:
        # pytorch/pytorch#132005; eager refuses e5m2 x e5m2, a limit of its library.
        tensors = scaled_operands()
        self.check_scaled([tensors[0].to(a), tensors[1].to(b), *tensors[2:]])

    @parametrize("out", [BF16, F16, F32])
    @parametrize("bias", [BF16, F16, F32])
    @parametrize("rowwise", [True, False])
    def test_outputs_and_biases(
        self, out: torch.dtype, bias: torch.dtype, rowwise: bool
    ) -> None:
        # pytorch/pytorch#190538, #187569, #166744.
        tensors = [*scaled_operands(rowwise=rowwise), integers(208, dtype=bias)]
        self.check_scaled(tensors, out)

    @parametrize("special", [0.0, math.inf, math.nan])
    def test_a_special_scale_reaches_its_row_alone(self, special: float) -> None:
        # pytorch/ao#4713, #3356: IEEE products, nothing is clamped.
        tensors = scaled_operands()
        tensors[2][5] = special
        tensors[0][9] = math.nan
        want = scaled_reference(*tensors).to(BF16)
        finite = torch.ones(len(want), dtype=torch.bool)
        finite[[5, 9]] = False
        self.assertTrue(want[finite].isfinite().all())
        self.check_scaled(tensors)

    def test_scaled_in_fp32_before_the_cast(self) -> None:
        # llvm/torch-mlir#4616: the unscaled sum overflows fp16.
        a = torch.full((64, 128), 448.0).to(E4M3)
        w = torch.full((208, 128), 448.0).to(E4M3)
        tensors = [a, w, torch.tensor(1e-3), torch.tensor(1e-3)]
        compiled = self.compile(scaled(F16), tensors)
        want = scaled_reference(*tensors)
        self.assertTrue(25 < float(want[0, 0]) < 26)
        self.check_numbers(compiled, tensors, want.to(F16), atol=0, rtol=2**-10)

    @parametrize(
        "kind,count,reason",
        [
            subtest((torch.float8_e8m0fnu, 2048, ""), "mx"),
            subtest((torch.float8_e8m0fnu, 4096, "4096 block scales"), "mx_size"),
            subtest((E4M3, 2048, "scales of torch.float8_e4m3fn"), "nvfp4"),
        ],
    )
    def test_block_scale_formats(self, kind: Any, count: int, reason: str) -> None:
        """Taken as block scales or refused, never for rowwise ones."""
        # pytorch/pytorch#187315, #186384.
        with fake_mode():
            operands = [empty(256, 256, dtype=E4M3), empty(256, 256, dtype=E4M3).t()]
            scales = [empty(count, dtype=kind), empty(count, dtype=kind)]
            nodes = [node(t) for t in (*operands, *scales)]
            call = OpCall("scaled_mm", {"out_dtype": BF16})
            request = lowered_request(call, nodes)
        if reason:
            self.assertIn(reason, str(request))
        else:
            self.assertEqual(request.problem.scaling, "mxfp8")

    @parametrize("name", sorted(RECIPES))
    def test_recipes_of_v2_that_are_not_ours(self, name: str) -> None:
        # pytorch/pytorch#188996: recipe and swizzle are part of the match.
        recipe_a, recipe_b, swizzle_a, swizzle_b = RECIPES[name]
        arguments = {"a": 0, "b": 0, "scale_a": [0], "scale_b": [0]}
        arguments |= {"recipe_a": recipe_a, "recipe_b": recipe_b}
        arguments |= {"swizzle_a": swizzle_a, "swizzle_b": swizzle_b}
        call = lowering.op_call("scaled_mm_v2", (), (), arguments)
        self.assertIsInstance(call, Status)
        arguments |= {"recipe_a": [1], "recipe_b": [1]}
        arguments |= {"swizzle_a": [0], "swizzle_b": [0]}
        call = lowering.op_call("scaled_mm_v2", (), (), arguments)
        self.assertIsInstance(call, OpCall)


class TestShapes(InductorTestCase):
    def test_three_different_sizes(self) -> None:
        a, w, b = integers(M, K), integers(N, K, seed=1), integers(N)
        product = a.float() @ w.float().t()
        compiled = self.compile(lambda a, w: a @ w.t(), [a, w])
        self.check_numbers(compiled, [a, w], product.to(BF16))
        compiled = self.compile(lambda b, a, w: torch.addmm(b, a, w.t()), [b, a, w])
        self.check_numbers(compiled, [b, a, w], (product + b.float()).to(BF16))
        tensors = scaled_operands(M, N, K)
        compiled = self.compile(scaled(), tensors)
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(BF16))

    @parametrize("sizes", [(0, 256, 128), (96, 0, 128), (96, 256, 0)])
    def test_empty_sizes_are_not_ours(self, sizes: tuple[int, int, int]) -> None:
        # pytorch/pytorch#192497, #140967: no launch with an empty grid.
        m, n, k = sizes
        with fake_mode():
            nodes = [node(empty(m, k)), node(empty(n, k).t())]
            status = lowered_request(OpCall("mm", {}), nodes)
        self.assertIn("size 0 may be zero", str(status))

    @parametrize(
        "size,stride",
        [
            subtest(((64, 128), (64, 1)), "overlapping_rows"),
            subtest(((64, 128), (0, 1)), "expanded_rows"),
            subtest(((64, 128), (1, 0)), "expanded_columns"),
            subtest(((64, 128), (2, 256)), "no_unit_stride"),
        ],
    )
    def test_no_pitch_for_tma(self, size: Any, stride: Any) -> None:
        # pytorch/pytorch#42425, #2022, #179505.
        with fake_mode():
            nodes = [node(empty(*size, stride=stride)), node(empty(256, 128).t())]
            status = lowered_request(OpCall("mm", {}), nodes)
        self.assertIn("no row of unit stride", str(status))

    @parametrize("m,n,k", [(525312, 16, 4096), (16, 525312, 4096), (65536, 65536, 16)])
    def test_operands_past_32_bit_indices_are_refused(
        self, m: int, n: int, k: int
    ) -> None:
        # pytorch/torchtitan#1932, NVIDIA/cutlass#2312: either side of 2^31.
        with fake_mode():
            for rows, refused in ((m, True), (m // 2, False)):
                columns = n if rows == m else max(n // 2, 16)
                nodes = [node(empty(rows, k)), node(empty(columns, k).t())]
                status = lowered_request(OpCall("mm", {}), nodes)
                self.assertEqual("elements" in str(status), refused, str(status)[:80])

    def test_row_major_b_of_fp8_is_refused(self) -> None:
        # pytorch/pytorch#191138: as eager on CUDA.
        with fake_mode():
            operands = [empty(16, 32, dtype=E4M3), empty(32, 32, dtype=E4M3)]
            nodes = [node(t) for t in (*operands, *(empty(1, dtype=F32),) * 2)]
            call = OpCall("scaled_mm", {"out_dtype": BF16})
            self.assertIn("must both be K-major", str(lowered_request(call, nodes)))

    def test_fp8_weights_stored_as_bytes(self) -> None:
        # Inductor keeps x.view(dtype) as a view of the buffer of x.
        a, w, *scales = scaled_operands()
        stored = [a.view(torch.uint8), w.view(torch.uint8), *scales]

        def fn(a: Any, w: Any, sa: Any, sb: Any) -> Any:
            return scaled()(a.view(E4M3), w.view(E4M3), sa, sb)

        compiled = self.compile(fn, stored)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        want = scaled_reference(a, w, *scales).to(BF16)
        self.check_numbers(compiled, stored, want)

    def test_k_that_eager_refuses_is_refused_when_traced(self) -> None:
        # pytorch/ao#1268, #4106.
        tensors = scaled_operands(k=24)
        with self.assertRaisesRegex(Exception, "divisible by 16"):
            self.compile(scaled(), tensors)

    def test_k_of_one_gives_contiguous_rows(self) -> None:
        # pytorch/pytorch#175549; Inductor itself asks for no GEMM here.
        with fake_mode():
            nodes = [node(empty(64, 1, stride=(1, 64))), node(empty(1, 256))]
            request = lowered_request(OpCall("mm", {}), nodes)
        self.assertIsInstance(request, GemmRequest, str(request))
        self.assertEqual(request.out.stride, (256, 1))
        self.assertEqual((request.a.stride, request.b.stride), ((1, 64), (1, 256)))

    @parametrize("shape", [(N,), (1, N), (None, 1), (None, N)])
    def test_bias_shapes_of_a_dynamic_m(self, shape: tuple[int | None, ...]) -> None:
        # pytorch/pytorch#148234, #181901.
        def operands(m: int) -> list[torch.Tensor]:
            size = [m if s is None else s for s in shape]
            return [integers(*size, seed=9), integers(m, K), integers(N, K, seed=1)]

        tensors = operands(M)
        for tensor in tensors[:2] if None in shape else tensors[1:2]:
            tensor.dynamic_dims = (0,)  # type: ignore[attr-defined]
        compiled = self.compile(lambda b, a, w: torch.addmm(b, a, w.t()), tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        for m in (M, 33):
            b, a, w = operands(m)
            want = (b.float() + a.float() @ w.float().t()).to(BF16)
            arguments = [m if i is None else (b, a, w)[i] for i in compiled.order]
            (got,) = run_wrapper(compiled.code, arguments)
            self.assertEqual(got, want, atol=0, rtol=0)


class TestExports(InductorTestCase):
    def test_cpp_wrapper_has_no_kernel_of_ours_and_says_why(self) -> None:
        compiled = self.compile(
            lambda a, w: torch.relu(a @ w.t()),
            [integers(96, 128), integers(256, 128)],
            options={"cpp_wrapper": True},
        )
        self.assertNotIn("torch_cute", compiled.code)
        self.assertIn("cpp_wrapper or AOTInductor", self.reasons())


instantiate_parametrized_tests(TestScales)
instantiate_parametrized_tests(TestShapes)

if __name__ == "__main__":
    run_tests()
