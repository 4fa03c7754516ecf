"""``drop_placeholders``: take out what only marked where role statements stood.

In: a program after the loop-omission decision. Out: the same without placeholders and
without loops and branches that held nothing else. Nothing with an effect goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import If, KLoop, Placeholder, SubtileLoop
from torch_cute_backend.passes.base import Pass, PassContext, PassResult

_CONTAINERS = (If, KLoop, SubtileLoop)


@dataclass(frozen=True)
class DropPlaceholders(Pass):
    """See the module docstring."""

    name: ClassVar[str] = "drop_placeholders"

    def run(self, program: Program, context: PassContext) -> PassResult:
        loop = program.loop
        if loop is not None:
            loop = loop.with_body(_without(loop.body))
        return PassResult(replace(program, loop=loop, post=_without(program.post)))


def _without(body: Body) -> Body:
    kept: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Placeholder):
            continue
        if isinstance(stmt, _CONTAINERS):
            inside = _without(stmt.body)
            if not inside:
                continue
            stmt = stmt.with_body(inside)
        kept.append(stmt)
    return tuple(kept)
