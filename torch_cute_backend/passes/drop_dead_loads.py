"""``drop_dead_loads``: take dead read-only scalar loads out of the shared loop.

In: a partitioned program. Out: the same without the shared loop's ``ScalarLoad``s, and
the ``Let``s, loops and branches around them, whose values nothing reads any more. Off
unless asked for: the loop-omission check by itself never drops a load. It runs before
the check, which is the same with or without it.

Proof: a load goes only if nothing in the kernel writes its buffer, and if no statement
that stays, in the loop or behind it, depends on a value it defines. Roles cannot: they
have their own copies. Every statement that is not a definition, control flow or a mark
in control flow that holds nothing else stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch_cute_backend.ir.accesses import written_buffers
from torch_cute_backend.ir.analysis import used
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    Placeholder,
    ScalarLoad,
    SubtileLoop,
)
from torch_cute_backend.ir.values import Buffer, Var
from torch_cute_backend.passes.base import Pass, PassContext, PassResult
from torch_cute_backend.passes.remarks import Remark

_CONTAINERS = (If, KLoop, SubtileLoop)


@dataclass(frozen=True)
class DropDeadLoads(Pass):
    """See the module docstring."""

    name: ClassVar[str] = "drop_dead_loads"

    def run(self, program: Program, context: PassContext) -> PassResult:
        loop = program.loop
        if not context.drop_dead_loads or loop is None or not program.regions:
            return PassResult(program)
        written = written_buffers(program)
        live = frozenset(used(program.post))
        while True:
            kept = _live(loop.body, live, written)
            wider = live | frozenset(used(kept))
            if wider == live:
                break
            live = wider
        remarks = tuple(
            Remark(True, self.name, print_statement(s), "dead read-only load dropped")
            for s in _gone(loop.body, live, written)
        )
        return PassResult(replace(program, loop=loop.with_body(kept)), remarks)


def _live(body: Body, live: frozenset[Var], written: frozenset[Buffer]) -> Body:
    kept: list[Stmt] = []
    for stmt in body:
        if _is_dead(stmt, live, written):
            continue
        if type(stmt) in _CONTAINERS and stmt.role is None:
            inside = _live(stmt.bodies()[0], live, written)
            if all(isinstance(s, Placeholder) for s in inside):
                continue
            stmt = stmt.with_body(inside)
        kept.append(stmt)
    return tuple(kept)


def _is_dead(stmt: Stmt, live: frozenset[Var], written: frozenset[Buffer]) -> bool:
    if stmt.role is not None or any(var in live for var in stmt.defs()):
        return False
    if type(stmt) is ScalarLoad and isinstance(stmt, ScalarLoad):
        return stmt.buffer not in written
    return type(stmt) is Let


def _gone(
    body: Body, live: frozenset[Var], written: frozenset[Buffer]
) -> tuple[ScalarLoad, ...]:
    found: list[ScalarLoad] = []
    for stmt in body:
        if isinstance(stmt, ScalarLoad) and _is_dead(stmt, live, written):
            found.append(stmt)
        for nested in stmt.bodies():
            found.extend(_gone(nested, live, written))
    return tuple(found)
