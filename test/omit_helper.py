"""A program's residual, and what the loop-omission check says of it."""

from __future__ import annotations

import ir_examples as ex

from torch_cute_backend.ir.expr import Const
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import ScalarLoad
from torch_cute_backend.ir.values import Var

X, Y, Z = Var("x"), Var("y"), Var("z")


ARCHS = list(ex.EXAMPLES)


def decide(program: Program, *residual: Stmt) -> tuple[str, str | None]:
    """Decision and rule with ``residual`` in the shared loop."""
    after, omission = ex.omit(ex.with_residual(program, *residual))
    if (after.loop is None) != (omission.decision == "omitted"):
        raise AssertionError(f"{omission.decision}, but loop is {after.loop}")
    return omission.decision, omission.rule


def remarks(program: Program, rule: str) -> list[str]:
    return [str(r) for r in ex.omit(program)[1].remarks if r.rule == rule]


def load(var: Var) -> ScalarLoad:
    return ScalarLoad(var=var, buffer=ex.OFFSETS, index=Const(0))
