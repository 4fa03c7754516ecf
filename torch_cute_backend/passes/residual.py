"""What is in the residual loop? One finding a statement: droppable, or work.

Three kinds may be dropped: dead coordinate ``Let``s, placeholders, and the CTA barriers
of the inline form; besides the loop's own scheduler step, and loops and branches of
only those. Kinds are compared by exact class, so that a new or derived class is work
until it is listed here. A loop over a grouped-static scheduler has its own classifier
on top (:mod:`passes.grouped`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_cute_backend.ir.analysis import (
    Definition,
    control_of,
    controlled_definitions,
    definitions,
    is_plain,
    launch_uniform,
)
from torch_cute_backend.ir.effects import Effect
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
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
from torch_cute_backend.passes.grouped import (
    is_superfluous,
    replaced_variables,
    supplied_variables,
)

DROPPABLE: tuple[type[Stmt], ...] = (Let, Placeholder, CtaBarrier)
"""Leaf statements that the shared loop may hold and still be omitted."""

_CONTAINERS: tuple[type[Stmt], ...] = (If, KLoop, SubtileLoop)


@dataclass(frozen=True)
class Finding:
    """A statement or resource, by its text, and what was found about it."""

    statement: str
    message: str
    droppable: bool


def classify(program: Program, loop: TileLoop) -> tuple[Finding, ...]:
    """One finding for each statement of the loop, in order, nested ones included."""
    supplied = supplied_variables(program, loop)
    coordinates = _coordinates(loop, program.prologue, supplied)
    replaced = replaced_variables(program, loop, coordinates)

    def judge(body: Body) -> Iterator[Finding]:
        for stmt in body:
            message = _droppable(loop, stmt, coordinates | replaced)
            if is_superfluous(program, loop, stmt, replaced):
                message = "replaced by the grouped scheduler"
            found = _describe(stmt) if message is None else message
            yield Finding(print_statement(stmt), found, message is not None)
            for nested in stmt.bodies():
                yield from judge(nested)

    return tuple(judge(loop.body))


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
    if kind in _CONTAINERS and is_plain(control_of(stmt), coordinates):
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


def _coordinates(
    loop: TileLoop, prologue: Body, supplied: frozenset[Var]
) -> frozenset[Var]:
    """Variables that are pure integer functions of launch parameters, the loop's own
    work tile and what its grouped scheduler ``supplied`` for that, in control flow that
    depends on such values alone. A loaded value, or one that depends on it, never is.

    The largest set that supports itself: start from all, take out what has a definition
    that does not qualify, until nothing changes.
    """
    found = tuple(controlled_definitions((loop,)))
    assigned = frozenset(d.var for d in found)
    uniform = frozenset(v for v in definitions(prologue) if v not in assigned)
    uniform = frozenset(v for v in uniform if launch_uniform((v,), prologue))
    chosen = assigned | uniform
    while True:
        bad = frozenset(
            d.var
            for d in found
            if d.var not in supplied and not _supports(loop, d, chosen)
        )
        if not bad & chosen:
            return chosen
        chosen -= bad


def _supports(loop: TileLoop, found: Definition, coordinates: frozenset[Var]) -> bool:
    stmt = found.stmt
    if stmt is loop:
        return True
    if isinstance(stmt, SchedulerAdvance):
        return _own_step(loop, stmt)
    if stmt.role is not None:
        return False
    exprs = found.controls
    if type(stmt) is Let and isinstance(stmt, Let):
        exprs = (*exprs, stmt.value)
    elif type(stmt) not in (KLoop, SubtileLoop):
        # Whoever reads a loop's index stands in the loop, and its count controls it.
        return False
    return all(is_plain(e, coordinates) for e in exprs)


def _describe(stmt: Stmt) -> str:
    """Why it is work: its effects, or that nothing is known about its class."""
    effects = stmt.effects()
    if stmt.role is not None:
        return f"a statement of role {stmt.role}"
    if type(stmt) in (Let, *_CONTAINERS):
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
