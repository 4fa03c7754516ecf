"""Grouped GEMMs under Inductor without a GPU: what is taken, what is refused, and on
which arguments the kernel is launched. See ``inductor_helper``.
"""

from __future__ import annotations

import itertools
import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fake_gpu import OURS_WIN, Timings, empty, fake_mode
from grouped_reference import grouped_product
from inductor_helper import InductorTestCase, integers, lowered_request, node
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from wrapper_runner import kernel_names, our_calls, specs

from torch_cute_backend.inductor import choice, grouped
from torch_cute_backend.inductor.request import OpCall
from torch_cute_backend.problem import Grouping

BF16, E4M3, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.int32
RAGGED = (Grouping.M, Grouping.N, Grouping.K)
G, M, N, K = 4, 96, 272, 128
"""Small and all different; of the ragged dimension per group, on average."""
MAJORS = list(itertools.product("kn", repeat=2))


def offsets(total: int) -> torch.Tensor:
    """An empty group, two of odd sizes, and rows that belong to no group."""
    return torch.tensor([0, total // 3 + 1, total - 16, total - 16], dtype=I32)


def operands(
    grouping: Grouping, dtype: torch.dtype = BF16, majors: tuple[str, str] = ("k", "k")
) -> list[torch.Tensor]:
    """A (.., M, K), B (.., K, N), for FP8 their scales, and offsets if there are any,
    as ATen takes them."""
    m, n, k = (
        size * (G if grouping is ragged else 1)
        for size, ragged in zip((M, N, K), RAGGED, strict=True)
    )
    a_groups = () if grouping in (Grouping.M, Grouping.K) else (G,)
    b_groups = () if grouping in (Grouping.N, Grouping.K) else (G,)
    a = _operand(a_groups, m, k, majors[0], dtype, 1)
    b = _operand(b_groups, n, k, majors[1], dtype, 2).mT
    tensors = [a, b]
    if dtype is E4M3:
        shares = G if grouping is Grouping.K else 1
        for groups, extent in ((a_groups, m), (b_groups, n)):
            tensors.append(2.0 ** integers(*groups, extent * shares).float())
    total = {Grouping.M: m, Grouping.N: n, Grouping.K: k}.get(grouping)
    return tensors if total is None else [*tensors, offsets(total)]


def _operand(
    groups: tuple[int, ...], rows: int, k: int, major: str, dtype: Any, seed: int
) -> torch.Tensor:
    values = integers(*groups, rows, k, seed=seed).to(dtype)
    return values if major == "k" else values.mT.contiguous().mT


def grouped_mm(a: Any, b: Any, offs: Any = None) -> Any:
    return torch._grouped_mm(a, b, offs=offs)


def scaled(fast: bool = True) -> Callable[..., Any]:
    def scaled_grouped_mm(a: Any, b: Any, sa: Any, sb: Any, offs: Any = None) -> Any:
        return torch._scaled_grouped_mm(
            a, b, sa, sb, offs=offs, out_dtype=BF16, use_fast_accum=fast
        )

    return scaled_grouped_mm


def reference(grouping: Grouping, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    a, b, *rest = tensors
    offs = rest.pop() if grouping in RAGGED else None
    return grouped_product(grouping, a, b.mT, rest, offs).to(BF16)


class TestGrouped(InductorTestCase):
    def check(self, fn: Any, grouping: Grouping, tensors: Any, **kw: Any) -> Any:
        """One kernel of ours, right numbers; returns the problem it solves."""
        compiled = self.compile(fn, tensors, **kw)
        self.assertEqual(len(kernel_names(compiled.code)), 1, self.reasons())
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.check_numbers(compiled, tensors, reference(grouping, tensors))
        (spec,) = specs(compiled.code)
        self.assertIs(spec.problem.grouping, grouping)
        self.assertEqual(spec.problem.groups, G)
        return spec.problem

    @parametrize("grouping", RAGGED, name_fn=lambda g: g.value)
    @parametrize("majors", MAJORS, name_fn="".join)
    def test_bf16(self, grouping: Grouping, majors: tuple[str, str]) -> None:
        problem = self.check(grouped_mm, grouping, operands(grouping, majors=majors))
        found = (problem.a_major.value[0], problem.b_major.value[0])
        self.assertEqual(found, tuple(x.replace("n", "m") for x in majors))
        self.assertEqual(problem.op, "grouped_mm")
        self.assertEqual(problem.group_sizes, (M, N, K))

    @parametrize("grouping", list(Grouping)[1:], name_fn=lambda g: g.value)
    @parametrize("fast", [True, False])
    def test_fp8_rowwise(self, grouping: Grouping, fast: bool) -> None:
        problem = self.check(scaled(fast), grouping, operands(grouping, E4M3))
        self.assertEqual(problem.op, "scaled_grouped_mm")
        self.assertEqual(problem.accum.value, "fast" if fast else "exact")
        self.assertEqual(
            [i.kind.value for i in problem.epilogue.inputs], ["row", "col"]
        )

    def test_batch(self) -> None:
        self.check(grouped_mm, Grouping.BATCH, operands(Grouping.BATCH))

    def test_padded_output_rows(self) -> None:
        # ATen starts every row at a multiple of 16 bytes.
        a, b, offs = operands(Grouping.M)
        compiled = self.compile(grouped_mm, [a, b[..., :133], offs])
        (spec,) = specs(compiled.code)
        self.assertFalse(spec.problem.out_aligned)
        self.assertIn(f"empty_strided_cuda(({G * M}, 133), (136, 1)", compiled.code)
        want = reference(Grouping.M, [a, b[..., :133], offs])
        self.check_numbers(compiled, [a, b[..., :133], offs], want)

    @parametrize("grouping", RAGGED, name_fn=lambda g: g.value)
    def test_padded_operands(self, grouping: Grouping) -> None:
        a, b, offs = operands(grouping)
        wide = torch.nn.functional.pad(a, (0, 24))
        self.check(grouped_mm, grouping, [wide[..., : a.shape[-1]], b, offs])

    @parametrize("grouping", list(Grouping)[1:], name_fn=lambda g: g.value)
    def test_consumers_are_not_fused(self, grouping: Grouping) -> None:
        def fn(a: Any, b: Any, offs: Any = None) -> Any:
            return torch.relu(torch._grouped_mm(a, b, offs=offs))

        timings = Timings(OURS_WIN, {"ours": 0.1, "triton": 9.0})
        compiled = self.compile(fn, operands(grouping), timings=timings)
        ours, other = kernel_names(compiled.code)
        self.assertTrue(ours.startswith("torch_cute_fused__grouped_mm"), ours)
        self.assertTrue(other.startswith("triton_poi"), other)
        self.assertIn("consumers of a grouped GEMM are not fused", self.reasons())

    def test_decided_early(self) -> None:
        timings = Timings({"ours": 9.0, "triton": 0.1, "aten": 0.1})
        with unittest.mock.patch.object(choice, "decides", return_value=True):
            self.check(
                scaled(), Grouping.M, operands(Grouping.M, E4M3), timings=timings
            )
        self.assertEqual(timings.choices, [], "nothing may be benchmarked")

    def test_the_fastest_wins(self) -> None:
        timings = Timings({"ours": 3.0, "triton": 9.0, "aten": 1.0})
        compiled = self.compile(grouped_mm, operands(Grouping.M), timings=timings)
        self.assertEqual(our_calls(compiled.code), [])
        self.assertIn("torch", {c.split("_")[0] for c in timings.choices})

    def test_only_under_max_autotune(self) -> None:
        options = {"max_autotune": False}
        compiled = self.compile(grouped_mm, operands(Grouping.M), options=options)
        self.assertEqual(our_calls(compiled.code), [])

    def test_without_other_backends(self) -> None:
        options = {"max_autotune_gemm_backends": "TORCH_CUTE"}
        tensors = operands(Grouping.M, E4M3)
        self.check(scaled(), Grouping.M, tensors, options=options)


class TestDynamic(InductorTestCase):
    def test_rows(self) -> None:
        a, b, offs = operands(Grouping.M)
        a.dynamic_dims = (0,)  # type: ignore[attr-defined]
        compiled = self.compile(grouped_mm, [a, b, offs])
        (spec,) = specs(compiled.code)
        limits = [v.up_to_m for v in spec.variants]
        self.assertIsNone(limits[-1])
        self.assertTrue(all(x % (64 * G) == 0 for x in limits[:-1]), str(limits))
        for rows in (16, 64 * G, 64 * G + 1, 4096):
            x = integers(rows, K, seed=rows)
            ends = torch.tensor([3, 3, 9, rows], dtype=I32)
            want = reference(Grouping.M, [x, b, ends])
            self.check_numbers(compiled, [x, b, ends], want)

    def test_shared_k(self) -> None:
        a, b, offs = operands(Grouping.K, majors=("n", "n"))
        a.dynamic_dims, b.dynamic_dims = (1,), (0,)  # type: ignore[attr-defined]
        compiled = self.compile(grouped_mm, [a, b, offs])
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        (spec,) = specs(compiled.code)
        self.assertEqual(len(spec.variants), 1)


ARGUMENTS = {"out_dtype": BF16, "use_fast_accum": True}


def _set(index: int, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def change(tensors: list[torch.Tensor]) -> None:
        tensors[index] = make(tensors[index])

    return change


REFUSED: dict[str, tuple[Any, Grouping, dict[str, Any], str]] = {
    "bias": (_set(0, lambda t: t), Grouping.M, {"bias": object()}, "with a bias"),
    "scale_result": (
        _set(0, lambda t: t),
        Grouping.M,
        {"scale_result": object()},
        "with scale_result",
    ),
    "out": (
        _set(0, lambda t: t),
        Grouping.M,
        {"out_dtype": torch.float32},
        "float8_e4m3fn to float32",
    ),
    "mx_scales": (
        _set(2, lambda t: t.to(torch.float8_e8m0fnu)),
        Grouping.M,
        {},
        "scales of torch.float8_e8m0fnu",
    ),
    "tensorwise": (
        _set(2, lambda t: t.new_empty(1)),
        Grouping.M,
        {},
        "are not rowwise",
    ),
    "scales_of_a_group": (
        _set(3, lambda t: t.new_empty(N)),
        Grouping.K,
        {},
        "are not rowwise",
    ),
    "e5m2": (
        _set(0, lambda t: t.to(torch.float8_e5m2)),
        Grouping.M,
        {},
        "mixed operands",
    ),
    "a_major": (
        _set(0, lambda t: t.mT.contiguous().mT),
        Grouping.M,
        {},
        "FP8 operands must both be K-major",
    ),
    "long_offsets": (
        _set(4, lambda t: t.long()),
        Grouping.M,
        {},
        "offsets of torch.int64",
    ),
    "strided_offsets": (
        _set(4, lambda t: t.new_empty(2 * G)[::2]),
        Grouping.M,
        {},
        "offsets of size .* and stride",
    ),
    "too_few_offsets": (
        _set(4, lambda t: t[:-1]),
        Grouping.M,
        {},
        "3 groups and an operand of 4",
    ),
    "no_offsets": (lambda t: t.pop(), Grouping.M, {}, "along m with 4 inputs"),
    "needless_offsets": (
        lambda t: t.append(torch.empty(G, dtype=I32)),
        Grouping.BATCH,
        {},
        "along batch with 5 inputs",
    ),
    "empty": (_set(0, lambda t: t[:0]), Grouping.M, {}, "size 0 may be zero"),
    "broadcast": (
        _set(1, lambda t: t[:1].expand(G, -1, -1)),
        Grouping.M,
        {},
        "groups 0 elements apart",
    ),
    "overlapping_rows": (
        _set(0, lambda t: t.as_strided(t.shape, (16, 1))),
        Grouping.M,
        {},
        "no row of unit stride",
    ),
    "k": (_set(1, lambda t: t[:, : K - 16]), Grouping.M, {}, "K differs"),
}


class TestRefused(InductorTestCase):
    @parametrize("name", sorted(REFUSED))
    def test_reason(self, name: str) -> None:
        change, grouping, arguments, reason = REFUSED[name]
        tensors = operands(grouping, E4M3)
        change(tensors)
        with fake_mode():
            nodes = [
                node(empty(*t.shape, dtype=t.dtype, stride=t.stride())) for t in tensors
            ]
            call = OpCall("scaled_grouped_mm", {**ARGUMENTS, **arguments})
            with unittest.mock.patch(
                "inductor_helper.gemm_request", grouped.grouped_request
            ):
                status = lowered_request(call, nodes)
        self.assertRegex(str(status), reason)

    def test_view_at_an_odd_offset(self) -> None:
        def fn(a: Any, b: Any, offs: Any) -> Any:
            return torch._grouped_mm(a.narrow(1, 1, K), b, offs=offs)

        a, b, offs = operands(Grouping.M)
        compiled = self.compile(fn, [torch.nn.functional.pad(a, (0, 8)), b, offs])
        self.assertEqual(our_calls(compiled.code), [])
        self.assertIn("offset 1 is not 16-byte aligned", self.reasons())


instantiate_parametrized_tests(TestGrouped)
instantiate_parametrized_tests(TestRefused)

if __name__ == "__main__":
    run_tests()
