"""Questions about variables: who defines, who uses, what depends on what.

Everything is derived from the statements' fields. Variables are compared by name and
flow-insensitively: a variable assigned twice has two definitions, and whoever needs it
needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref, Select
from torch_cute_backend.ir.ops import Body, Stmt, walk
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    SchedulerAdvance,
    SubtileLoop,
)
from torch_cute_backend.ir.values import Role, Var

_PURE = (Const, Param, Ref, BinOp, Select)


def assigned(stmt: Stmt) -> tuple[Var, ...]:
    """Variables that the statement itself gives a value; a scheduler step assigns the
    work variable although it does not define it."""
    if isinstance(stmt, SchedulerAdvance):
        return (*stmt.defs(), stmt.work)
    return stmt.defs()


def definitions(statements: Body) -> dict[Var, tuple[Stmt, ...]]:
    """Every variable assigned in ``statements`` (nested ones included) and by what."""
    found: dict[Var, tuple[Stmt, ...]] = {}
    for stmt in walk(statements):
        for var in assigned(stmt):
            found[var] = (*found.get(var, ()), stmt)
    return found


@dataclass(frozen=True)
class Definition:
    """One assignment of ``var``. ``controls``: the conditions and counts of the loops
    and branches around it, on which the value depends as well."""

    var: Var
    stmt: Stmt
    controls: tuple[Expr, ...] = ()


def controlled_definitions(
    statements: Body, outer: tuple[Expr, ...] = ()
) -> Iterator[Definition]:
    """Every assignment in ``statements`` with what controls it below them."""
    for stmt in statements:
        for var in assigned(stmt):
            yield Definition(var, stmt, outer)
        control = control_of(stmt)
        inside = outer if control is None else (*outer, control)
        for nested in stmt.bodies():
            yield from controlled_definitions(nested, inside)


def control_of(stmt: Stmt) -> Expr | None:
    """What decides whether, or how often, the statement's body runs."""
    if isinstance(stmt, If):
        return stmt.condition
    if isinstance(stmt, KLoop):
        return stmt.count
    return Const(stmt.count) if isinstance(stmt, SubtileLoop) else None


def used(statements: Body) -> tuple[Var, ...]:
    """Every variable read in ``statements``, nested ones included."""
    return tuple(dict.fromkeys(v for stmt in walk(statements) for v in stmt.uses()))


def users(statements: Body, var: Var) -> tuple[Stmt, ...]:
    return tuple(stmt for stmt in walk(statements) if var in stmt.uses())


def is_pure(expr: Expr) -> bool:
    """Built of the known expression classes alone. A class not listed is not pure."""
    return type(expr) in _PURE and all(is_pure(child) for child in expr.children())


def is_plain(expr: Expr | None, known: frozenset[Var]) -> bool:
    """Pure, and of ``known`` variables alone?"""
    if expr is None or not is_pure(expr):
        return False
    return all(var in known for var in expr.variables())


def with_role(stmt: Stmt, role: Role | None) -> Stmt:
    """A copy tagged with ``role``, nested statements included."""
    tagged = replace(stmt, role=role)
    for body in stmt.bodies():
        tagged = tagged.with_body(tuple(with_role(s, role) for s in body))
    return tagged


def count_statements(statements: Body) -> int:
    return sum(1 for _ in walk(statements))


def launch_uniform(names: Iterable[Var], scope: Body) -> bool:
    """Do all ``names`` follow from launch parameters through the pure ``Let``s of
    ``scope`` alone? A variable with no definition there does not."""
    known: dict[Var, tuple[Definition, ...]] = {}
    for found in controlled_definitions(scope):
        known[found.var] = (*known.get(found.var, ()), found)
    pending, seen = list(names), set[Var]()
    while pending:
        var = pending.pop()
        if var in seen:
            continue
        seen.add(var)
        if var not in known:
            return False
        for found in known[var]:
            stmt = found.stmt
            if type(stmt) is not Let or stmt.role is not None:
                return False
            exprs = (stmt.value, *found.controls)
            if not all(is_pure(e) for e in exprs):
                return False
            pending.extend(v for e in exprs for v in e.variables())
    return True
