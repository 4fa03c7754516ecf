"""What is in the residual loop? One finding a statement: droppable, or work.

Three kinds may be dropped: dead coordinate ``Let``s, placeholders, and the CTA barriers
of the inline form; besides the loop's own scheduler step, and loops and branches of
only those. Kinds are compared by exact class, so that a new or derived class is work
until it is listed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_cute_backend.ir.analysis import definitions, is_pure, launch_uniform
from torch_cute_backend.ir.effects import Effect
from torch_cute_backend.ir.expr import Const, Expr
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    Placeholder,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import CtaBarrier
from torch_cute_backend.ir.values import Var

DROPPABLE: tuple[type[Stmt], ...] = (Let, Placeholder, CtaBarrier)
"""Leaf statements that the shared loop may hold and still be omitted."""

_CONTAINERS: tuple[type[Stmt], ...] = (If, KLoop, SubtileLoop)


@dataclass(frozen=True)
class Finding:
    """A statement or resource, by its text, and what was found about it."""

    statement: str
    message: str
    droppable: bool


def classify(loop: TileLoop, prologue: Body) -> tuple[Finding, ...]:
    """One finding for each statement of the loop, in order, nested ones included."""
    coordinates = _coordinates(loop, prologue)
    return tuple(_classify(loop, loop.body, coordinates))


def _classify(
    loop: TileLoop, body: Body, coordinates: frozenset[Var]
) -> Iterator[Finding]:
    for stmt in body:
        text = print_statement(stmt)
        message = _droppable(loop, stmt, coordinates)
        if message is not None:
            yield Finding(text, message, True)
        else:
            yield Finding(text, _describe(stmt), False)
        for nested in stmt.bodies():
            yield from _classify(loop, nested, coordinates)


def _droppable(loop: TileLoop, stmt: Stmt, coordinates: frozenset[Var]) -> str | None:
    """Why the statement may go (its nested ones are judged by themselves), or None."""
    if stmt.role is not None:
        return None
    kind = type(stmt)
    if kind is Let and isinstance(stmt, Let) and stmt.var in coordinates:
        return "dead coordinate set-up"
    if kind is Placeholder:
        return "placeholder"
    if kind is CtaBarrier:
        return "obsolete CTA barrier"
    if isinstance(stmt, SchedulerAdvance) and _own_step(loop, stmt):
        return "the loop's own step"
    if kind in _CONTAINERS and _plain(_control(stmt), coordinates):
        return "control flow"
    return None


def _own_step(loop: TileLoop, stmt: SchedulerAdvance) -> bool:
    return (
        type(stmt) is SchedulerAdvance
        and stmt is loop.body[-1]
        and stmt.scheduler == loop.scheduler
        and stmt.work == loop.work
        and loop.scheduler.replayable
    )


def _control(stmt: Stmt) -> Expr | None:
    if isinstance(stmt, If):
        return stmt.condition
    if isinstance(stmt, KLoop):
        return stmt.count
    return Const(stmt.count) if isinstance(stmt, SubtileLoop) else None


def _plain(expr: Expr | None, coordinates: frozenset[Var]) -> bool:
    if expr is None or not is_pure(expr):
        return False
    return all(var in coordinates for var in expr.variables())


def _coordinates(loop: TileLoop, prologue: Body) -> frozenset[Var]:
    """Variables that are pure integer functions of launch parameters and the loop's own
    work tile. A loaded value, or one that depends on it, never is.

    The largest set that supports itself: start from all, take out what has a definition
    that does not qualify, until nothing changes.
    """
    known = definitions((loop,))
    uniform = frozenset(v for v in definitions(prologue) if v not in known)
    uniform = frozenset(v for v in uniform if launch_uniform((v,), prologue))
    chosen = frozenset(known) | uniform
    while True:
        kept = uniform | frozenset(
            var
            for var, sources in known.items()
            if all(_supports(loop, s, chosen) for s in sources)
        )
        if kept == chosen:
            return kept
        chosen = kept


def _supports(loop: TileLoop, stmt: Stmt, coordinates: frozenset[Var]) -> bool:
    if stmt is loop:
        return True
    if isinstance(stmt, SchedulerAdvance):
        return _own_step(loop, stmt)
    if stmt.role is not None:
        return False
    if type(stmt) is Let and isinstance(stmt, Let):
        return _plain(stmt.value, coordinates)
    if type(stmt) in (KLoop, SubtileLoop):
        return _plain(_control(stmt), coordinates)
    return False


def _describe(stmt: Stmt) -> str:
    """Why it is work: its effects, or that nothing is known about its class."""
    effects = stmt.effects()
    if stmt.role is not None:
        return f"a statement of role {stmt.role}"
    if isinstance(stmt, Let):
        return "depends on a value that is not a coordinate"
    if effects:
        return f"work: {', '.join(_effect(e) for e in effects)}"
    return f"{type(stmt).__name__} is not a kind that may be dropped"


def _effect(effect: Effect) -> str:
    parts = [
        str(getattr(effect, name))
        for name in ("buffer", "pipeline", "barrier")
        if hasattr(effect, name)
    ]
    return " ".join([type(effect).__name__.lower(), *parts])
