"""What is measured: suites of shapes, the GEMM of a shape, and its input tensors."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import (
    SCALE_INPUTS,
    Accum,
    GemmProblem,
    Grouping,
    Major,
)

Shape = tuple[int, int, int]
"""(M, N, K)"""


@dataclass(frozen=True)
class Kind:
    """A kind of GEMM: element type, scaling, which modes have stride 1, groups.

    ``skewed`` groups differ in size, and the first is empty; others are equal.
    """

    dtype: DType
    scaling: str = "none"
    b_major: Major = Major.K
    a_major: Major = Major.K
    grouping: Grouping = Grouping.NONE
    groups: int = 1
    skewed: bool = False


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
GROUPED_KINDS: dict[str, Kind] = {
    **{
        f"{name}-grouped-{grouping.value}": Kind(dtype, scaling, grouping=grouping)
        for name, dtype, scaling in (
            ("fp8", E4M3, "rowwise"),
            ("bf16", BFLOAT16, "none"),
            ("fp16", FLOAT16, "none"),
        )
        for grouping in (Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH)
    },
    "bf16-wgrad": Kind(
        BFLOAT16, a_major=Major.MN, b_major=Major.MN, grouping=Grouping.K
    ),
}
"""To be followed by the number of groups, ``-g8``, and ``-skewed`` if they are. Wgrad
has groups along K of operands whose K is not contiguous, as a backward pass has."""
_GROUPED_NAME = re.compile(r"(?P<base>.+)-g(?P<groups>[1-9]\d*)(?P<skewed>-skewed)?")
SWEEP_GROUPS = 5
"""Groups of exact products, where how many there are matters little."""

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
        return kind_named(self.kind).dtype.is_fp8

    @property
    def is_skewed(self) -> bool:
        return kind_named(self.kind).skewed

    def problem(self, accum: Accum = Accum.FAST) -> GemmProblem:
        return problem_of(self.kind, self.shape, accum)

    def describe(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Suite:
    """Shapes of one operand kind, and the peers that it compares with by default.

    ``exact`` also measures ``use_fast_accum=False``; ``more`` are shapes of other
    kinds.
    """

    name: str
    kind: str
    shapes: tuple[Shape, ...]
    exact: bool = False
    more: tuple[tuple[str, Shape], ...] = ()

    def cases(self, shapes: Sequence[Shape] | None = None) -> Iterator[Case]:
        """Its cases, or those of ``shapes`` in each of its kinds."""
        listed = [*((self.kind, shape) for shape in self.shapes), *self.more]
        if shapes is not None:
            kinds = dict.fromkeys(kind for kind, _ in listed)
            listed = [(kind, shape) for kind in kinds for shape in shapes]
        for kind, shape in listed:
            yield Case(self.name, kind, shape)


_GROUPED_NK = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
_GROUPED_LARGE = (
    *((4, 8192, n, k) for n, k in (*_GROUPED_NK, (4096, 7168), (7168, 2048))),
    *((8, 4096, n, k) for n, k in _GROUPED_NK),
)
_GROUPED_FEW = tuple(
    (32, m, n, k) for m in (64, 4, 16, 256) for n, k in ((4096, 7168), (7168, 2048))
)
"""(groups, M of one, N, K): DeepGEMM's contiguous ones, and few rows for each of many
groups, as a batch of tokens gives its experts."""
_SKEWED = ((8, 4096, 4096, 4096), (32, 64, 4096, 7168), (32, 256, 7168, 2048))
_WGRAD = ((4, 8192, 4096, 4096), (8, 4096, 7168, 2048), (32, 256, 7168, 2048))
"""(groups, K of one, M, N)."""


def _grouped_cases() -> tuple[tuple[str, Shape], ...]:
    """By turns of each kind, so that a run cut short has seen all of them."""
    kinds: list[list[tuple[str, Shape]]] = []
    for rows, end in ((_GROUPED_LARGE, ""), (_GROUPED_FEW, ""), (_SKEWED, "-skewed")):
        for dtype in ("fp8", "bf16"):
            kinds.append(
                [
                    (f"{dtype}-grouped-m-g{groups}{end}", (groups * m, n, k))
                    for groups, m, n, k in rows
                ]
            )
    kinds.append([(f"bf16-wgrad-g{g}", (m, n, g * k)) for g, k, m, n in _WGRAD])
    turns = zip_longest(*kinds)
    return tuple(case for turn in turns for case in turn if case is not None)


RANDOM = "random"
"""Shapes for judging candidates: each is searched through, none is in a table."""
GROUPED = "grouped"
"""Grouped GEMMs of experts, with groups of equal and of different sizes."""
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
        Suite(GROUPED, "fp8-grouped-m-g4", (), more=_grouped_cases()),
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
    m, n, k = shape
    spec = kind_named(kind)
    fp8, grouped = spec.dtype.is_fp8, spec.grouping is not Grouping.NONE
    out = BFLOAT16 if fp8 else spec.dtype
    return GemmProblem(
        op=f"{'scaled_' if fp8 else ''}{'grouped_' if grouped else ''}mm",
        m=m,
        n=n,
        k=k,
        a_dtype=spec.dtype,
        b_dtype=spec.dtype,
        a_major=spec.a_major,
        b_major=spec.b_major,
        scaling=spec.scaling,
        accum=accum if fp8 else Accum.FAST,
        epilogue=EpilogueGraph.linear(out, *SCALE_INPUTS[spec.scaling]),
        out_aligned=n * out.bytes % 16 == 0,
        grouping=spec.grouping,
        groups=spec.groups,
    )


def kind_named(name: str) -> Kind:
    """The kind called ``name``, as in ``"fp8"`` or ``"bf16-grouped-m-g8-skewed"``.

    Raises:
        UserError: there is none; the message lists them.
    """
    if name in KINDS:
        return KINDS[name]
    found = _GROUPED_NAME.fullmatch(name)
    base = None if found is None else GROUPED_KINDS.get(found["base"])
    if found is None or base is None:
        known = [*KINDS, *(f"{x}-gN" for x in GROUPED_KINDS)]
        raise UserError(f"unknown kind {name!r}; known: {', '.join(known)}")
    return replace(base, groups=int(found["groups"]), skewed=bool(found["skewed"]))


def sweep_kind(name: str) -> str:
    """The kind that stands for ``name`` where the number of groups does not matter."""
    found = _GROUPED_NAME.fullmatch(name)
    return name if found is None else f"{found['base']}-g{SWEEP_GROUPS}"


def kind_of(problem: GemmProblem) -> str | None:
    """The kind that ``problem`` is of, apart from its epilogue; None if of no kind."""
    for name, spec in (GROUPED_KINDS if problem.is_grouped else KINDS).items():
        same = (problem.a_dtype, problem.b_dtype, problem.scaling, problem.grouping)
        wanted = (spec.dtype, spec.dtype, spec.scaling, spec.grouping)
        majors = (problem.a_major, problem.b_major) == (spec.a_major, spec.b_major)
        if same == wanted and majors:
            return f"{name}-g{problem.groups}" if problem.is_grouped else name
    return None


@dataclass(frozen=True)
class Inputs:
    """One input set. ``a`` is (M, K), ``b`` (N, K); scales are fp32, (M,) and (N,) or
    (1,) and (1,). Of a grouped GEMM all are as its kernel takes them."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    @property
    def tail(self) -> tuple[torch.Tensor, ...]:
        """Kernel arguments after the scales."""
        return () if self.offsets is None else (self.offsets,)

    @property
    def scales(self) -> tuple[torch.Tensor, ...]:
        if self.scale_a is None or self.scale_b is None:
            return ()
        return self.scale_a, self.scale_b


def quantize(x: torch.Tensor, rowwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(.., R, K) -> e4m3 of the same shape and the fp32 scale of each row or of all."""
    limit = torch.finfo(torch.float8_e4m3fn).max
    largest = x.abs().amax(dim=-1) if rowwise else x.abs().max()[None]
    scale = (largest.float() / limit).clamp(min=1e-12)
    return (x.float() / scale[..., None]).to(torch.float8_e4m3fn), scale


def make_inputs(
    problem: GemmProblem, count: int, device: str = "cuda", skewed: bool = False
) -> list[Inputs]:
    """``count`` different input sets of random-normal data."""
    generator = torch.Generator(device=device).manual_seed(0)
    out_dtype = getattr(torch, problem.out_dtype.name)
    wide = torch.bfloat16 if problem.a_dtype.is_fp8 else out_dtype

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=wide)

    if problem.is_grouped:
        from torch_cute_backend.bench import groups

        ends = groups.ends_of(problem, skewed)
        return [
            groups.make(problem, ends, lambda shape: normal(*shape), device)
            for _ in range(count)
        ]
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
    m, n, k = problem.group_sizes
    read = (m + n) * k * problem.a_dtype.bytes
    return problem.groups * (read + m * n * problem.out_dtype.bytes)


def flops(problem: GemmProblem) -> int:
    m, n, k = problem.group_sizes
    return 2 * problem.groups * m * n * k
