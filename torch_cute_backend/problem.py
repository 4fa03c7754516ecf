"""``GemmProblem``: WHAT is to be computed, with no word on how.

``D = epilogue(A @ B)``, A is (M, K), B is (K, N) handed over as (N, K), D is (M, N).
Scales and bias are part of the epilogue graph. A frozen value: two equal problems get
the same kernel.

A grouped problem is G products in one launch; :class:`Grouping` says which operands
hold the groups one after the other (a ragged dimension, whose ends the int32 tensor
``offsets`` of G elements holds) and which are stacked:

=======  =======  =======  =======  ============  ============
         A        B        D        ROW input     COL input
=======  =======  =======  =======  ============  ============
M        (m,K)    (G,N,K)  (m,N)    (m)           (G,N)
N        (G,M,K)  (n,K)    (M,n)    (G,M)         (n)
K        (M,k)    (N,k)    (G,M,N)  (G*M)         (G*N)
BATCH    (G,M,K)  (G,N,K)  (G,M,N)  (G,M)         (G,N)
=======  =======  =======  =======  ============  ============

Group g covers ``offsets[g - 1]`` (0 for the first) up to ``offsets[g]`` of the ragged
dimension (small letter), which is read on the device. A group may be empty: of K, its
D is zero. What lies beyond the last offset is neither read nor written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from torch_cute_backend.dtypes import BFLOAT16, DType, dtype
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.status import Status


class Major(str, Enum):
    """Which mode of an operand has stride 1."""

    K = "k"
    MN = "mn"


class Accum(str, Enum):
    """How partial sums of FP8 products are kept on Hopper's tensor cores.

    ``FAST`` leaves them in the wgmma accumulator (about 14 significant bits for FP8);
    ``EXACT`` adds each k tile's partial sum to fp32 registers. Other dtypes and archs
    accumulate in fp32 either way.
    """

    FAST = "fast"
    EXACT = "exact"


class Grouping(str, Enum):
    """How the groups of a grouped GEMM lie in memory; see the module's text."""

    NONE = "none"
    M = "m"
    N = "n"
    K = "k"
    BATCH = "batch"


@dataclass(frozen=True)
class GemmProblem:
    """One GEMM, or one group of GEMMs, with its epilogue.

    Attributes:
        op: the ATen op it came from, one of :data:`OPS`.
        m, n, k: sizes in elements; hints where they are dynamic. The kernel takes the
            sizes at run time, so they steer the schedule, not the code. The ragged
            dimension of a grouped problem counts all groups together.
        a_dtype, b_dtype: operand element types.
        a_major, b_major: which mode of A (M, K) and of B (N, K) has stride 1.
        scaling: ``"none"``, ``"tensorwise"`` or ``"rowwise"``: names table rows; the
            scales themselves are inputs of ``epilogue``. ``"mxfp8"``: every
            :data:`SCALE_BLOCK` elements of K share a power of two (E8M0), which the
            MMA multiplies with; see :func:`scale_count` for where those lie.
        accum: see :class:`Accum`.
        epilogue: what is done to the fp32 accumulator, and the outputs' dtypes.
        out_aligned: every output's base and row pitch are multiples of 16 bytes, so
            it can be written by TMA.
        grouping: which dimension the groups divide, if any.
        groups: how many groups to expect; the kernel takes their number from its
            arguments.
    """

    op: str
    m: int
    n: int
    k: int
    a_dtype: DType = BFLOAT16
    b_dtype: DType = BFLOAT16
    a_major: Major = Major.K
    b_major: Major = Major.K
    scaling: str = "none"
    accum: Accum = Accum.FAST
    epilogue: EpilogueGraph = field(default_factory=EpilogueGraph.identity)
    out_aligned: bool = True
    grouping: Grouping = Grouping.NONE
    groups: int = 1

    @property
    def is_grouped(self) -> bool:
        return self.grouping is not Grouping.NONE

    @property
    def block_scaled(self) -> bool:
        """Does the MMA itself apply scales, one for each block of K?"""
        return self.scaling == "mxfp8"

    @property
    def has_offsets(self) -> bool:
        """Does the kernel take the groups' ends, as it does unless all are equal?"""
        return self.grouping in (Grouping.M, Grouping.N, Grouping.K)

    @property
    def group_sizes(self) -> tuple[int, int, int]:
        """M, N and K of a group of average size, at least 1 each."""
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        if self.has_offsets:
            ragged = self.grouping.value
            sizes[ragged] = -(-sizes[ragged] // max(self.groups, 1))
        return sizes["m"], sizes["n"], sizes["k"]

    def ragged_align(self, staged: bool) -> int:
        """Elements of the ragged dimension that tiles start at multiples of: those of
        16 bytes, where TMA takes boxes from that dimension and it is the contiguous
        one of their tensor; 1 if no tensor is so. ``staged``: outputs leave by TMA."""
        majors = {
            Grouping.M: ((self.a_dtype, self.a_major is Major.MN),),
            Grouping.N: (
                (self.b_dtype, self.b_major is Major.MN),
                (self.out_dtype, staged),
            ),
            Grouping.K: (
                (self.a_dtype, self.a_major is Major.K),
                (self.b_dtype, self.b_major is Major.K),
            ),
        }
        found = (16 // t.bytes for t, yes in majors.get(self.grouping, ()) if yes)
        return max(found, default=1)

    @property
    def out_dtype(self) -> DType:
        """Element type of the first output."""
        return self.epilogue.outputs[0].dtype

    @property
    def family(self) -> str:
        """Table family, ``dtype-scaling-grouping`` without what there is none of, as in
        ``"fp8-rowwise"``, ``"bf16"`` or ``"fp8-rowwise-grouped-m"``."""
        name = self.a_dtype.family
        if self.block_scaled:
            name = self.scaling
        elif self.scaling != "none":
            name += f"-{self.scaling}"
        return f"{name}-grouped-{self.grouping.value}" if self.is_grouped else name

    def with_epilogue(self, epilogue: EpilogueGraph) -> GemmProblem:
        """The same GEMM with another epilogue (Inductor fuses consumers this way)."""
        return replace(self, epilogue=epilogue)

    def to_json(self) -> dict[str, Any]:
        """Every field as a plain JSON value, by its name."""
        return {
            "op": self.op,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "a_dtype": self.a_dtype.name,
            "b_dtype": self.b_dtype.name,
            "a_major": self.a_major.value,
            "b_major": self.b_major.value,
            "scaling": self.scaling,
            "accum": self.accum.value,
            "epilogue": self.epilogue.to_json(),
            "out_aligned": self.out_aligned,
            "grouping": self.grouping.value,
            "groups": self.groups,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> GemmProblem:
        """Inverse of :meth:`to_json`. Anything else is a ``ValueError``, ``KeyError``,
        ``TypeError`` or ``CuteBackendError``: the caller knows what to call it."""
        return cls(
            **{
                **row,
                "a_dtype": dtype(row["a_dtype"]),
                "b_dtype": dtype(row["b_dtype"]),
                "a_major": Major(row["a_major"]),
                "b_major": Major(row["b_major"]),
                "accum": Accum(row["accum"]),
                "epilogue": EpilogueGraph.from_json(row["epilogue"]),
                "grouping": Grouping(row["grouping"]),
            }
        )

    def describe(self) -> str:
        """One line: op, sizes, dtypes, majors, scaling."""
        groups = ""
        if self.is_grouped:
            groups = f"G={self.groups} along {self.grouping.value} "
        return (
            f"{self.op} {groups}M={self.m} N={self.n} K={self.k} "
            f"{self.a_dtype}({self.a_major.value}) x {self.b_dtype}"
            f"({self.b_major.value}) -> {self.out_dtype}, scaling {self.scaling}, "
            f"accum {self.accum.value}"
        )

    def validate(self) -> Status:
        """Can any of our kernels compute this? Sizes of 0 are left to the caller."""
        sixteen = 16 // self.a_dtype.bytes
        both_fp8 = self.a_dtype.is_fp8 and self.b_dtype.is_fp8
        contiguous_a = self.k if self.a_major is Major.K else self.m
        contiguous_b = self.k if self.b_major is Major.K else self.n
        return (
            Status.check(
                (self.op in OPS, f"op {self.op!r} is not one of {', '.join(OPS)}"),
                (
                    self.scaling in SCALINGS,
                    f"scaling {self.scaling!r} is not one of {', '.join(SCALINGS)}",
                ),
                (min(self.m, self.n, self.k) > 0, "a size is not positive"),
                (max(self.m, self.n, self.k) < 2**31, "a size exceeds 2^31 - 1"),
                (
                    self.a_dtype.operand and self.b_dtype.operand,
                    f"{self.a_dtype} and {self.b_dtype} operands are not supported",
                ),
                (
                    self.a_dtype == self.b_dtype or both_fp8,
                    f"mixed operands {self.a_dtype} and {self.b_dtype}",
                ),
                (
                    not both_fp8 or self.a_major is self.b_major is Major.K,
                    "FP8 operands must both be K-major (A row-major, B column-major)",
                ),
                (
                    contiguous_a % sixteen == 0 and contiguous_b % sixteen == 0,
                    f"TMA needs 16-byte rows: contiguous extents {contiguous_a} and "
                    f"{contiguous_b} are not multiples of {sixteen}",
                ),
            )
            & self._check_op()
            & self._check_groups()
            & self.epilogue.validate()
        )

    def _check_op(self) -> Status:
        """Are dtype and scaling those that torch has the op for?"""
        scaled = self.op in SCALED_OPS
        if self.op not in OPS or self.scaling not in SCALINGS:
            return Status.ok()
        return Status.check(
            (scaled == self.a_dtype.is_fp8, f"{self.op} of {self.a_dtype}"),
            (
                scaled == (self.scaling != "none"),
                f"{self.op} with scaling {self.scaling}",
            ),
            (
                not self.block_scaled or self.k % SCALE_BLOCK == 0,
                f"MXFP8 takes K in steps of {SCALE_BLOCK}, not {self.k}",
            ),
            (
                not self.block_scaled
                or all(i.name not in SCALE_NAMES for i in self.epilogue.inputs),
                f"an epilogue input is called {' or '.join(SCALE_NAMES)}, as MXFP8's "
                "scales are",
            ),
        )

    def _check_groups(self) -> Status:
        """Do op, grouping and scaling belong together?"""
        if not self.is_grouped:
            return Status.check(
                (self.op not in GROUPED_OPS, f"{self.op} without a grouping"),
                (self.groups == 1, f"{self.groups} groups without a grouping"),
            )
        return Status.check(
            (
                self.op in GROUPED_OPS or self.op not in OPS,
                f"{self.op} cannot be grouped along {self.grouping.value}",
            ),
            (self.groups > 0, f"{self.groups} groups"),
            (self.scaling != "tensorwise", f"{self.op} with scaling {self.scaling}"),
            (
                not self.block_scaled or self.grouping is Grouping.M,
                f"MXFP8 with groups along {self.grouping.value}: only along m",
            ),
        )


GROUPED_OPS = ("grouped_mm", "scaled_grouped_mm")
OPS = ("mm", "addmm", "scaled_mm", *GROUPED_OPS)
SCALED_OPS = ("scaled_mm", "scaled_grouped_mm")
SCALE_INPUTS: dict[str, tuple[InputKind | None, InputKind | None]] = {
    "none": (None, None),
    "tensorwise": (InputKind.SCALAR, InputKind.SCALAR),
    "rowwise": (InputKind.ROW, InputKind.COL),
    "mxfp8": (None, None),
}
"""Kinds of the epilogue inputs that hold the scales of A and B, by scaling."""
SCALINGS = tuple(SCALE_INPUTS)
SCALE_NAMES = ("scale_a", "scale_b")
"""Parameters with MXFP8's scales of A and B."""
SCALE_BLOCK = 32
"""Elements of K that share a scale of MXFP8."""
SCALE_ROWS, SCALE_COLUMNS = 128, 4
"""Of a tile of MXFP8 scales. Tiles lie one after the other, along K first."""


def scale_count(rows: int, k: int) -> int:
    """How many MXFP8 scales an operand of ``rows`` by ``k`` elements has in memory.

    They are padded to whole tiles of 128 rows by 4 blocks of K, 512 bytes each, in
    which the scale of row r and block c is byte ``16 * (r % 32) + 4 * (r // 32) + c``
    (PTX ISA, tcgen05.mma scale factors; ``torch._scaled_mm`` takes the same).
    """
    tiles = -(-rows // SCALE_ROWS) * -(-k // (SCALE_BLOCK * SCALE_COLUMNS))
    return tiles * SCALE_ROWS * SCALE_COLUMNS
