"""Element types: one row each. To add a dtype, add a row.

Names are torch's (``torch.<name>``); ``cutlass`` is the attribute of the same type in
the CuTe DSL. Nothing here imports torch or cutlass.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.errors import CuteBackendError


@dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
        name: torch's name, for example ``"float8_e4m3fn"``.
        cutlass: the CuTe DSL's name, for example ``"Float8E4M3FN"``.
        bits: width in bits, a multiple of 8.
        operand: may be an A or B operand of a GEMM.
        output: may be stored by an epilogue.
        short: spelling in table families and kernel names; ``name`` if empty.
    """

    name: str
    cutlass: str
    bits: int
    operand: bool = False
    output: bool = False
    short: str = ""

    def __post_init__(self) -> None:
        if self.bits < 8 or self.bits % 8:
            raise CuteBackendError(f"dtype {self.name} of {self.bits} bits")

    @property
    def family(self) -> str:
        """What its tuned schedules are filed under: both FP8 types alike."""
        return "fp8" if self.is_fp8 else self.short or self.name

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_fp8(self) -> bool:
        """An FP8 number; E8M0, a bare exponent, is none."""
        return self.operand and self.name.startswith("float8")

    def __str__(self) -> str:
        return self.name


FLOAT32 = DType("float32", "Float32", 32, output=True)
FLOAT16 = DType("float16", "Float16", 16, operand=True, output=True, short="fp16")
BFLOAT16 = DType("bfloat16", "BFloat16", 16, operand=True, output=True, short="bf16")
E4M3 = DType("float8_e4m3fn", "Float8E4M3FN", 8, operand=True, output=True)
E5M2 = DType("float8_e5m2", "Float8E5M2", 8, operand=True, output=True)
E8M0 = DType("float8_e8m0fnu", "Float8E8M0FNU", 8)
"""Powers of two, as MXFP8's scales are."""
INT32 = DType("int32", "Int32", 32)

DTYPES: dict[str, DType] = {
    d.name: d for d in (FLOAT32, FLOAT16, BFLOAT16, E4M3, E5M2, E8M0, INT32)
}
"""Registry by torch name. Extensions add their row here."""


def dtype(name: str) -> DType:
    """The row called ``name`` (``"torch."`` prefix allowed).

    Raises:
        CuteBackendError: there is no such row; the message lists the names.
    """
    row = DTYPES.get(name.removeprefix("torch."))
    if row is None:
        raise CuteBackendError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return row
