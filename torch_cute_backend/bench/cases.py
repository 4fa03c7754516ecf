"""What is measured: suites of shapes, the GEMM of a shape, and its input tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import SCALE_INPUTS, Accum, GemmProblem, Major

Shape = tuple[int, int, int]
"""(M, N, K)"""


@dataclass(frozen=True)
class Kind:
    """A kind of GEMM: element type, scaling, and which mode of B has stride 1."""

    dtype: DType
    scaling: str = "none"
    b_major: Major = Major.K


KINDS: dict[str, Kind] = {
    "fp8": Kind(E4M3, "rowwise"),
    "fp8-tensorwise": Kind(E4M3, "tensorwise"),
    "bf16": Kind(BFLOAT16),
    "bf16-bn": Kind(BFLOAT16, b_major=Major.MN),
    "fp16": Kind(FLOAT16),
    "fp16-bn": Kind(FLOAT16, b_major=Major.MN),
}
"""FP8 is scaled_mm, e4m3 to bf16; the others are mm. ``x @ w.t()`` has a K-major B,
``x @ w`` an N-major one (``-bn``)."""

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
    (5120, 25600),
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


def random_shapes(count: int = 100, seed: int = 2026) -> tuple[Shape, ...]:
    """Shapes that no table lists, log-uniform: M to 8192, N and K multiples of 16 from
    256 to 16384, products to 2**38 multiply-adds."""
    generator = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < count:
        m = int(2 ** generator.uniform(0, 13))
        n, k = (16 * int(2 ** generator.uniform(4, 10)) for _ in range(2))
        if m * n * k <= 2**38 and (m, n, k) not in shapes:
            shapes.append((m, n, k))
    return tuple(shapes)


@dataclass(frozen=True)
class Case:
    """One shape of a suite."""

    suite: str
    kind: str
    shape: Shape

    @property
    def is_fp8(self) -> bool:
        return KINDS[self.kind].dtype.is_fp8

    def problem(self, accum: Accum = Accum.FAST) -> GemmProblem:
        return problem_of(self.kind, self.shape, accum)

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


RANDOM = "random"
"""Shapes for judging candidates: each is searched through, none is in a table."""
LISTED = ("headline", "fp8-rowwise-decode", "fp8-rowwise", "bf16")
"""Suites of shapes that people use."""
SUITES: dict[str, Suite] = {
    s.name: s
    for s in (
        Suite("headline", "fp8", HEADLINE, exact=True),
        Suite("fp8-rowwise-decode", "fp8", DECODE),
        Suite("fp8-rowwise", "fp8", LARGE, exact=True),
        Suite("bf16", "bf16", _unique([*HEADLINE, *LARGE])),
        Suite(RANDOM, "fp8", random_shapes()),
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


def problem_of(kind: str, shape: Shape, accum: Accum = Accum.FAST) -> GemmProblem:
    """The GEMM of a kind; ``accum`` matters to FP8 only.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    m, n, k = shape
    spec = KINDS[kind]
    fp8 = spec.dtype.is_fp8
    out = BFLOAT16 if fp8 else spec.dtype
    return GemmProblem(
        op="scaled_mm" if fp8 else "mm",
        m=m,
        n=n,
        k=k,
        a_dtype=spec.dtype,
        b_dtype=spec.dtype,
        b_major=spec.b_major,
        scaling=spec.scaling,
        accum=accum if fp8 else Accum.FAST,
        epilogue=EpilogueGraph.linear(out, *SCALE_INPUTS[spec.scaling]),
        out_aligned=n * out.bytes % 16 == 0,
    )


def kind_of(problem: GemmProblem) -> str | None:
    """The kind that ``problem`` is of, apart from its epilogue; None if of no kind."""
    for name, spec in KINDS.items():
        same = (problem.a_dtype, problem.b_dtype, problem.scaling, problem.b_major)
        wanted = (spec.dtype, spec.dtype, spec.scaling, spec.b_major)
        if same == wanted and problem.a_major is Major.K:
            return name
    return None


@dataclass(frozen=True)
class Inputs:
    """One input set. ``a`` is (M, K), ``b`` (N, K); scales are fp32, (M,) and (N,) or
    (1,) and (1,)."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    @property
    def scales(self) -> tuple[torch.Tensor, ...]:
        if self.scale_a is None or self.scale_b is None:
            return ()
        return self.scale_a, self.scale_b


def quantize(x: torch.Tensor, rowwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(R, K) -> e4m3 of the same shape and the fp32 scale of each row or of all."""
    limit = torch.finfo(torch.float8_e4m3fn).max
    largest = x.abs().amax(dim=1) if rowwise else x.abs().max()[None]
    scale = (largest.float() / limit).clamp(min=1e-12)
    return (x.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


def make_inputs(problem: GemmProblem, count: int, device: str = "cuda") -> list[Inputs]:
    """``count`` different input sets of random-normal data."""
    generator = torch.Generator(device=device).manual_seed(0)
    out_dtype = getattr(torch, problem.out_dtype.name)
    wide = torch.bfloat16 if problem.a_dtype.is_fp8 else out_dtype

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(
            rows, columns, generator=generator, device=device, dtype=wide
        )

    sets = []
    for _ in range(count):
        a = normal(problem.m, problem.k)
        if problem.b_major is Major.K:
            b = normal(problem.n, problem.k)
        else:
            b = normal(problem.k, problem.n).t()
        out = torch.empty(problem.m, problem.n, dtype=out_dtype, device=device)
        if problem.a_dtype.is_fp8:
            rowwise = problem.scaling == "rowwise"
            (qa, sa), (qb, sb) = quantize(a, rowwise), quantize(b, rowwise)
            sets.append(Inputs(qa, qb, out, sa, sb))
        else:
            sets.append(Inputs(a, b, out))
    return sets


def bytes_per_set(problem: GemmProblem) -> int:
    """Bytes that one call reads and writes at least once."""
    width = problem.a_dtype.bytes
    read = (problem.m + problem.n) * problem.k * width
    return read + problem.m * problem.n * problem.out_dtype.bytes


def flops(problem: GemmProblem) -> int:
    return 2 * problem.m * problem.n * problem.k
