"""Pure integer expressions of launch parameters, block ids and variables.

They have no effects, so a ``Let`` may be cloned into any role. ``str()`` is both the
IR's and the CuTe DSL's spelling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_cute_backend.errors import IRError
from torch_cute_backend.ir.values import Var

_INFIX = ("+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=")
_CALLS = ("min", "max")


@dataclass(frozen=True)
class Expr:
    """Base of all expressions."""

    def children(self) -> tuple[Expr, ...]:
        return ()

    def variables(self) -> Iterator[Var]:
        """Every variable read, in order, with repeats."""
        for child in self.children():
            yield from child.variables()


@dataclass(frozen=True)
class Const(Expr):
    """A literal."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Param(Expr):
    """A launch-uniform value by its name in the kernel: a size, a tile count, a grid
    or block index, a cluster coordinate, or a compile-time constant."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Ref(Expr):
    """The value of a variable."""

    var: Var

    def variables(self) -> Iterator[Var]:
        yield self.var

    def __str__(self) -> str:
        return self.var.name


@dataclass(frozen=True)
class BinOp(Expr):
    """``left op right`` for the operators of ``_INFIX`` and the calls of ``_CALLS``."""

    op: str
    left: Expr
    right: Expr

    def __post_init__(self) -> None:
        if self.op not in _INFIX + _CALLS:
            raise IRError(f"unknown integer operator {self.op!r}")

    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        if self.op in _CALLS:
            return f"cutlass.{self.op}({self.left}, {self.right})"
        return f"{_parens(self.left)} {self.op} {_parens(self.right)}"


@dataclass(frozen=True)
class Select(Expr):
    """``if_true`` where ``condition`` holds, else ``if_false``."""

    condition: Expr
    if_true: Expr
    if_false: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.if_true, self.if_false)

    def __str__(self) -> str:
        return f"cutlass.select_({self.condition}, {self.if_true}, {self.if_false})"


def _parens(e: Expr) -> str:
    return f"({e})" if isinstance(e, BinOp) and e.op in _INFIX else str(e)
