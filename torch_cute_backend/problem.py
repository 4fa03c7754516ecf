"""``GemmProblem``: WHAT is to be computed, with no word on how.

``D = epilogue(A @ B)``, A is (M, K), B is (K, N) handed over as (N, K), D is (M, N).
Scales and bias are part of the epilogue graph. A frozen value: two equal problems get
the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from torch_cute_backend.dtypes import BFLOAT16, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
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


@dataclass(frozen=True)
class GemmProblem:
    """One GEMM with its epilogue.

    Attributes:
        op: the ATen op it came from: ``"mm"``, ``"addmm"`` or ``"scaled_mm"``.
        m, n, k: sizes in elements; hints where they are dynamic. The kernel takes the
            sizes at run time, so they steer the schedule, not the code.
        a_dtype, b_dtype: operand element types.
        a_major, b_major: which mode of A (M, K) and of B (N, K) has stride 1.
        scaling: ``"none"``, ``"tensorwise"`` or ``"rowwise"``: names table rows; the
            scales themselves are inputs of ``epilogue``.
        accum: see :class:`Accum`.
        epilogue: what is done to the fp32 accumulator, and the outputs' dtypes.
        out_aligned: every output's base and row pitch are multiples of 16 bytes, so
            it can be written by TMA.
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

    @property
    def out_dtype(self) -> DType:
        """Element type of the first output."""
        return self.epilogue.outputs[0].dtype

    @property
    def family(self) -> str:
        """Table family, ``dtype-scaling``, as in ``"fp8-rowwise"`` or ``"bf16"``."""
        name = self.a_dtype.family
        return name if self.scaling == "none" else f"{name}-{self.scaling}"

    def with_epilogue(self, epilogue: EpilogueGraph) -> GemmProblem:
        """The same GEMM with another epilogue (Inductor fuses consumers this way)."""
        return replace(self, epilogue=epilogue)

    def describe(self) -> str:
        """One line: op, sizes, dtypes, majors, scaling."""
        return (
            f"{self.op} M={self.m} N={self.n} K={self.k} "
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
            & self.epilogue.validate()
        )


OPS = ("mm", "addmm", "scaled_mm")
SCALINGS = ("none", "tensorwise", "rowwise")
