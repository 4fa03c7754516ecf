"""Generated wrappers of ``scaled_mm``: scales, biases, outputs, early decisions."""

from __future__ import annotations

import unittest
from typing import Any

import torch
from fake_gpu import B200, H200, Timings, empty, fake_mode
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
from wrapper_runner import kernel_names, our_calls, specs

from torch_cute_backend import config
from torch_cute_backend.inductor.request import OpCall

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3 = torch.float8_e4m3fn


class TestScaledMM(InductorTestCase):
    @parametrize("rowwise", [True, False])
    @parametrize("out", [BF16, F16, F32])
    @parametrize("fast", [True, False])
    def test_scalings_and_outputs(
        self, rowwise: bool, out: torch.dtype, fast: bool
    ) -> None:
        tensors = scaled_operands(rowwise=rowwise)
        compiled = self.compile(scaled(out, fast), tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        (spec,) = specs(compiled.code)
        self.assertEqual(spec.problem.scaling, "rowwise" if rowwise else "tensorwise")
        self.assertEqual(spec.problem.accum.value, "fast" if fast else "exact")
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(out))

    @parametrize("bias", [BF16, F16])
    def test_bias(self, bias: torch.dtype) -> None:
        tensors = [*scaled_operands(), integers(208, dtype=bias)]
        out = F16 if bias is F16 else BF16
        compiled = self.compile(scaled(out), tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(out))

    def test_single_row_tensorwise_is_not_taken_for_rowwise(self) -> None:
        tensors = scaled_operands(m=1, rowwise=False)
        compiled = self.compile(scaled(), tensors)
        (spec,) = specs(compiled.code)
        self.assertEqual(
            [i.kind.value for i in spec.problem.epilogue.inputs], ["scalar", "scalar"]
        )
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(BF16))

    def test_single_row_rowwise(self) -> None:
        tensors = scaled_operands(m=1)
        compiled = self.compile(scaled(), tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(BF16))

    def test_fused_quantisation_makes_one_kernel_with_two_outputs(self) -> None:
        def post(y: Any) -> Any:
            y = torch.relu(y)
            return y, (y * 0.5).clamp(-448, 448).to(E4M3)

        tensors = scaled_operands()
        compiled = self.compile(scaled(post=post), tensors)
        self.assertEqual(len(kernel_names(compiled.code)), 1)
        want = torch.relu(scaled_reference(*tensors))
        wanted = [want.to(BF16), (want * 0.5).clamp(-448, 448).to(E4M3)]
        self.check_numbers(compiled, tensors, wanted)

    def test_blockwise_scales_are_refused(self) -> None:
        tensors = [*scaled_operands()[:2], torch.ones(64, 2), torch.ones(2, 208)]
        with fake_mode():
            args = [empty(*t.shape, dtype=t.dtype) for t in tensors]
            nodes = [node(arg) for arg in (args[0], args[1].t(), *args[2:])]
            status = lowered_request(OpCall("scaled_mm", {"out_dtype": BF16}), nodes)
        self.assertIn("are not tensor- or rowwise", str(status))

    def test_scale_result_scales_an_fp8_output(self) -> None:
        def fn(a: Any, w: Any, sa: Any, sb: Any, sr: Any) -> Any:
            return torch._scaled_mm(
                a, w.t(), sa, sb, scale_result=sr, out_dtype=E4M3, use_fast_accum=True
            )

        tensors = [*scaled_operands(k=16, rowwise=False), torch.tensor(0.5)]
        # Inductor's own choices drop the scale, so ours may not lose against them.
        timings = Timings({"ours": 9.0, "triton": 0.1, "aten": 0.1})
        compiled = self.compile(fn, tensors, timings=timings)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        want = scaled_reference(*tensors[:4]) * 0.5
        self.check_numbers(compiled, tensors, want.to(E4M3))

    def test_scale_result_is_ignored_for_other_outputs(self) -> None:
        def fn(a: Any, w: Any, sa: Any, sb: Any, sr: Any) -> Any:
            return torch._scaled_mm(
                a, w.t(), sa, sb, scale_result=sr, out_dtype=BF16, use_fast_accum=True
            )

        tensors = [*scaled_operands(rowwise=False), torch.tensor(0.5)]
        compiled = self.compile(fn, tensors)
        kept = [i for i in compiled.order if i != 4]
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.assertEqual(kept, [i for i in compiled.order if i in (0, 1, 2, 3)])
        want = scaled_reference(*tensors[:4]).to(BF16)
        self.check_numbers(compiled, tensors, want)

    @unittest.skipUnless(
        torch.ops.aten._scaled_mm_v2.default
        in __import__("torch._inductor.lowering", fromlist=["lowerings"]).lowerings,
        "torch 2.11 and 2.12 do not lower _scaled_mm_v2",
    )
    @parametrize("rowwise", [True, False])
    def test_v2(self, rowwise: bool) -> None:
        recipe = int(rowwise)

        def fn(a: Any, w: Any, sa: Any, sb: Any) -> Any:
            return torch.ops.aten._scaled_mm_v2(
                a, w.t(), [sa], [recipe], [0], [sb], [recipe], [0], None, BF16, [], True
            )

        tensors = scaled_operands(rowwise=rowwise)
        compiled = self.compile(fn, tensors)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.check_numbers(compiled, tensors, scaled_reference(*tensors).to(BF16))

    @parametrize("arch", [subtest(H200, "sm90"), subtest(B200, "sm100")])
    def test_pretuned_shape_is_decided_early(self, arch: tuple[int, int]) -> None:
        tensors = scaled_operands(64, 5120, 5120)
        timings = Timings({"ours": 9.0, "triton": 0.1, "aten": 0.1})
        with config.patch(decide_early=True):
            compiled = self.compile(
                scaled(post=torch.relu), tensors, timings=timings, capability=arch
            )
        self.assertEqual(timings.choices, [], "nothing may be benchmarked")
        (name,) = kernel_names(compiled.code)
        self.assertRegex(name, "torch_cute_fused_.*relu")
        self.assertIn("#   shared loop omitted", compiled.code)
        self.assertRegex(compiled.code, r"#     .*APPLIED.*residual_work")


instantiate_parametrized_tests(TestScaledMM)

if __name__ == "__main__":
    run_tests()
