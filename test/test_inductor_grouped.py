"""Grouped GEMMs under Inductor without a GPU: what is taken, what is refused, and on
which arguments the kernel is launched. See ``test_inductor_codegen``.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from typing import Any

import torch
from fake_gpu import empty, fake_mode
from test_inductor_codegen import InductorTestCase, _lowered_request, _node, integers
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.inductor import grouped
from torch_cute_backend.inductor.request import OpCall
from torch_cute_backend.problem import Grouping

BF16, E4M3, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.int32
RAGGED = (Grouping.M, Grouping.N, Grouping.K)
G, M, N, K = 4, 96, 272, 128
"""Small and all different; of the ragged dimension per group, on average."""


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
                _node(empty(*t.shape, dtype=t.dtype, stride=t.stride()))
                for t in tensors
            ]
            call = OpCall("scaled_grouped_mm", {**ARGUMENTS, **arguments})
            with unittest.mock.patch(
                "test_inductor_codegen.gemm_request", grouped.grouped_request
            ):
                status = _lowered_request(call, nodes)
        self.assertRegex(str(status), reason)


instantiate_parametrized_tests(TestRefused)

if __name__ == "__main__":
    run_tests()
