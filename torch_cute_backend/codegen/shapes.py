"""Shapes of a kernel's tensors, and how an element of one is addressed.

One symbol a dimension. ``g`` counts groups; ``gm`` and ``gn`` are a row's or column's
value for each group, one group after the other. See :class:`~problem.Grouping` for what
is stacked and what is ragged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.ir.expr import Const, Expr
from torch_cute_backend.problem import GemmProblem, Grouping, scale_count

Shape = tuple[str, ...]
SCALE_SYMBOLS = ("sa", "sb")
"""How many block scales A and B have; see :func:`scale_sizes`."""


def scale_sizes(m: int, n: int, k: int) -> dict[str, int]:
    """Values of :data:`SCALE_SYMBOLS` for a dense GEMM of these sizes."""
    counts = (scale_count(m, k), scale_count(n, k))
    return dict(zip(SCALE_SYMBOLS, counts, strict=True))


@dataclass(frozen=True)
class Shapes:
    """Dimensions of A, B, D and of an input for each row or column of D."""

    a: Shape = ("m", "k")
    b: Shape = ("n", "k")
    d: Shape = ("m", "n")
    row: Shape = ("m",)
    col: Shape = ("n",)

    def of_input(self, kind: InputKind) -> Shape:
        return {
            InputKind.SCALAR: ("1",),
            InputKind.ROW: self.row,
            InputKind.COL: self.col,
            InputKind.FULL: self.d,
        }[kind]


_A, _B, _D = ("g", "m", "k"), ("g", "n", "k"), ("g", "m", "n")

SHAPES: Mapping[Grouping, Shapes] = {
    Grouping.NONE: Shapes(),
    Grouping.M: Shapes(b=_B, col=("g", "n")),
    Grouping.N: Shapes(a=_A, row=("g", "m")),
    Grouping.K: Shapes(d=_D, row=("gm",), col=("gn",)),
    Grouping.BATCH: Shapes(_A, _B, _D, ("g", "m"), ("g", "n")),
}


def shapes_of(problem: GemmProblem) -> Shapes:
    return SHAPES[problem.grouping]


def stacked(shape: Shape) -> bool:
    """Has the tensor one matrix a group?"""
    return len(shape) == 3


@dataclass(frozen=True)
class Where:
    """Texts of a tile's first element, of its group, and of where the group ends;
    ``inside``: is (``row``, ``col``) of the group?"""

    row: str
    col: str
    group: str = ""
    row_end: str = "m"
    col_end: str = "n"
    begins: str = ""

    @property
    def inside(self) -> str:
        return f"row < {self.row_end} and col < {self.col_end}{self.begins}"


def where(
    tile: tuple[Expr, ...],
    origin: tuple[Expr, ...] = (),
    end: tuple[Expr, ...] = (),
    begin: tuple[Expr, ...] = (),
) -> Where:
    """Texts for a statement's ``tile`` index or ``origin`` element, its ``end``, and
    its ``begin``, of which zeros need no test."""
    pairs = zip(("row", "col"), begin, strict=False)
    begins = "".join(f" and {x} >= {e}" for x, e in pairs if e != Const(0))
    row_end, col_end = tuple(str(e) for e in end) or ("m", "n")
    if not origin:
        return Where(
            f"{tile[0]} * TILE_M", f"{tile[1]} * TILE_N", "", row_end, col_end, begins
        )
    row, col, group = (str(e) for e in origin)
    return Where(row, col, group, row_end, col_end, begins)


def index(shape: Shape, row: str, col: str, group: str) -> tuple[str, ...]:
    """Texts of the index of an element, from texts of its coordinates."""
    coordinates = {
        "1": "0",
        "g": group,
        "m": row,
        "n": col,
        "gm": f"{group} * m + {row}",
        "gn": f"{group} * n + {col}",
    }
    return tuple(coordinates[symbol] for symbol in shape)


def input_index(problem: GemmProblem, kind: InputKind, place: Where) -> tuple[str, ...]:
    """Index of the value for ``row`` and ``col``, clamped to lie inside."""
    row, col = "cutlass.min(row, m - 1)", "cutlass.min(col, n - 1)"
    return index(shapes_of(problem).of_input(kind), row, col, place.group)


def output_index(problem: GemmProblem, place: Where) -> str:
    """Index of output element ``row``, ``col``."""
    return ", ".join(index(shapes_of(problem).d, "row", "col", place.group))
