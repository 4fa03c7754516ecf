"""Programs for the verifier's tests, and edits that break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ir_examples as ex
from build_helper import build, fp8

from torch_cute_backend.arch import SM90
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import RoleRegion, TileLoop
from torch_cute_backend.ir.values import Pipeline, Var
from torch_cute_backend.schedule import GemmSchedule

X = Var("x")


def inline90() -> Program:
    return ex.dense_sm90()


def kept90() -> Program:
    return ex.kept("sm_90a")


def kept100() -> Program:
    return ex.kept("sm_100a")


def omitted90() -> Program:
    return replace(kept90(), loop=None)


def pingpong() -> Program:
    """The omitted program of a kernel with two instances of the math role."""
    schedule = GemmSchedule(
        *(128, 128, 128, 4), math_warpgroups=2, math="pingpong", epi_stages=2
    )
    return build(fp8(4096, 4096, 4096), schedule, SM90).after


def before_step(program: Program, *statements: Stmt) -> Program:
    return ex.with_residual(program, *statements)


def change(program: Program, kind: type[Stmt], **fields: object) -> Program:
    """Set fields of every statement of ``kind``."""

    def edit(stmt: Stmt) -> Stmt:
        return replace(stmt, **fields) if isinstance(stmt, kind) else stmt

    return ex.edited(program, edit)


def change_loop(program: Program, role: str, **fields: object) -> Program:
    """Set fields of one role's tile loop."""

    def edit(stmt: Stmt) -> Stmt:
        mine = isinstance(stmt, TileLoop) and str(stmt.role) == role
        return replace(stmt, **fields) if mine else stmt

    return ex.edited(program, edit)


def in_prologue(program: Program, *statements: Stmt) -> Program:
    return replace(program, prologue=(*program.prologue, *statements))


def in_region(program: Program, role: str, *statements: Stmt) -> Program:
    """Append to a role's region."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, RoleRegion) and str(stmt.role) == role:
            return stmt.with_body((*stmt.body, *statements))
        return stmt

    return ex.edited(program, edit)


def twice(program: Program, kind: type[Stmt]) -> Program:
    def edit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        return (stmt, stmt) if isinstance(stmt, kind) else stmt

    return ex.edited(program, edit)


def pair(acc: Pipeline) -> Program:
    """A CTA pair, with ``acc`` for the accumulator's pipeline."""
    program = ex.with_resource(ex.dense_sm100(), ex.ACC, acc)
    return replace(program, cluster_size=2, cluster_shape=(2, 1), cta_group=2)


@dataclass(frozen=True)
class Broken:
    rule: str
    why: str
    program: Callable[[], Program]
    message: str
