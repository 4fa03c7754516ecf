"""What is measured: suites of shapes, the GEMM of a shape, and its input tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, GemmProblem

Shape = tuple[int, int, int]
"""(M, N, K)"""

KINDS = ("fp8", "bf16")
"""``fp8``: rowwise scaled_mm, e4m3 to bf16; ``bf16``: mm. B is K-major in both."""

_DECODE_M = (1, 2, 8, 16, 32, 64)
_DECODE_KN = (
    (4096, 4096),
    (4096, 256),
    (2048, 4096),
    (4096, 6144),
    (2048, 12288),
    (5120, 5120),
    (6144, 2048),
)
_M64_KN = (
    (2048, 4096),
    (2048, 2048),
    (2048, 12288),
    (6144, 2048),
    (4096, 6144),
    (4096, 4096),
    (4096, 24576),
    (12288, 4096),
    (5120, 10240),
    (5120, 5120),
    (5120, 51200),
    (25600, 5120),
)
_DEEPGEMM_NK = (
    (2112, 7168),
    (576, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
)


def _unique(shapes: list[Shape]) -> tuple[Shape, ...]:
    return tuple(dict.fromkeys(shapes))


SERVING = _unique([(64, n, k) for k, n in _M64_KN])
DECODE = _unique([(m, n, k) for m in _DECODE_M for k, n in _DECODE_KN] + [*SERVING])
LARGE = _unique(
    [
        (512, 4096, 2048),
        (512, 2048, 2048),
        (2048, 4096, 4096),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        *((m, n, k) for m in (128, 4096) for n, k in _DEEPGEMM_NK),
    ]
)
HEADLINE: tuple[Shape, ...] = (
    (64, 5120, 5120),
    (64, 5120, 25600),
    (16, 4096, 4096),
    (512, 4096, 2048),
    (4096, 4096, 4096),
)
"""Decode and serving shapes of Qwen3- and Llama-like models, DeepGEMM's, squares."""


@dataclass(frozen=True)
class Case:
    """One shape of a suite."""

    suite: str
    kind: str
    shape: Shape

    def problem(self, accum: Accum = Accum.FAST) -> GemmProblem:
        if self.kind == "fp8":
            return fp8_problem(self.shape, accum)
        return bf16_problem(self.shape)

    def describe(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Suite:
    """Shapes of one operand kind, and the peers that it compares with by default.

    ``exact`` also measures ``use_fast_accum=False``.
    """

    name: str
    kind: str
    shapes: tuple[Shape, ...]
    exact: bool = False

    def cases(self) -> Iterator[Case]:
        for shape in self.shapes:
            yield Case(self.name, self.kind, shape)


SUITES: dict[str, Suite] = {
    s.name: s
    for s in (
        Suite("headline", "fp8", HEADLINE, exact=True),
        Suite("fp8-rowwise-decode", "fp8", DECODE),
        Suite("fp8-rowwise", "fp8", LARGE, exact=True),
        Suite("bf16", "bf16", _unique([*HEADLINE, *LARGE])),
    )
}


def suite(name: str) -> Suite:
    """The suite of that name; ``UserError`` listing the known ones otherwise."""
    if name not in SUITES:
        raise UserError(f"unknown suite {name!r}; known: {', '.join(SUITES)}")
    return SUITES[name]


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """``"64x5120x5120,16x4096x4096"`` (M x N x K) to shapes."""
    shapes = []
    for part in text.split(","):
        sizes = part.strip().lower().split("x")
        if len(sizes) != 3 or not all(s.isdigit() and int(s) > 0 for s in sizes):
            raise UserError(f"{part!r} is not a shape MxNxK")
        m, n, k = map(int, sizes)
        shapes.append((m, n, k))
    return _unique(shapes)


def fp8_problem(shape: Shape, accum: Accum = Accum.FAST) -> GemmProblem:
    """FP8 rowwise scaled_mm to bf16."""
    m, n, k = shape
    return GemmProblem(
        op="scaled_mm",
        m=m,
        n=n,
        k=k,
        a_dtype=E4M3,
        b_dtype=E4M3,
        scaling="rowwise",
        accum=accum,
        epilogue=EpilogueGraph.linear(BFLOAT16, InputKind.ROW, InputKind.COL),
        out_aligned=n * BFLOAT16.bytes % 16 == 0,
    )


def bf16_problem(shape: Shape) -> GemmProblem:
    """bf16 mm, both operands K-major, as ``x @ w.t()`` gives."""
    m, n, k = shape
    return GemmProblem(op="mm", m=m, n=n, k=k, out_aligned=n * BFLOAT16.bytes % 16 == 0)


@dataclass(frozen=True)
class Inputs:
    """One input set. ``b`` is (N, K), K-major; scales are fp32, (M,) and (N,)."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None


def quantize_rowwise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(R, K) -> e4m3 of the same shape and the fp32 scale of each row, (R,)."""
    limit = torch.finfo(torch.float8_e4m3fn).max
    scale = (x.abs().amax(dim=1).float() / limit).clamp(min=1e-12)
    return (x.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


def make_inputs(problem: GemmProblem, count: int, device: str = "cuda") -> list[Inputs]:
    """``count`` different input sets of random-normal data."""
    generator = torch.Generator(device=device).manual_seed(0)
    sets = []
    for _ in range(count):
        a = _normal(problem.m, problem.k, generator, device)
        b = _normal(problem.n, problem.k, generator, device)
        out = torch.empty(problem.m, problem.n, dtype=torch.bfloat16, device=device)
        if problem.a_dtype.is_fp8:
            qa, sa = quantize_rowwise(a)
            qb, sb = quantize_rowwise(b)
            sets.append(Inputs(qa, qb, out, sa, sb))
        else:
            sets.append(Inputs(a, b, out))
    return sets


def _normal(
    rows: int, columns: int, generator: torch.Generator, device: str
) -> torch.Tensor:
    return torch.randn(
        rows, columns, generator=generator, device=device, dtype=torch.bfloat16
    )


def bytes_per_set(problem: GemmProblem) -> int:
    """Bytes that one call reads and writes at least once."""
    width = problem.a_dtype.bytes
    read = (problem.m + problem.n) * problem.k * width
    return read + problem.m * problem.n * problem.out_dtype.bytes


def flops(problem: GemmProblem) -> int:
    return 2 * problem.m * problem.n * problem.k
