"""Control structure, coordinates, scheduler steps: the skeleton of a tile program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_cute_backend.ir.effects import Claim, Effect, Read, Step, Write
from torch_cute_backend.ir.expr import Expr
from torch_cute_backend.ir.ops import Body, Stmt, body, defines, replacement
from torch_cute_backend.ir.values import Buffer, Scheduler, Var


@dataclass(frozen=True, kw_only=True)
class Let(Stmt):
    """``var = value``, a pure integer expression. ``replaced_by``: the variable from
    which the roles read this value now, supplied by a grouped scheduler."""

    var: Var = defines()
    value: Expr
    replaced_by: Var | None = replacement()

    def effects(self) -> tuple[Effect, ...]:
        return ()

    def __str__(self) -> str:
        tag = f"[{self.role}] " if self.role else ""
        return f"{tag}{self.var} = {self.value}"


@dataclass(frozen=True, kw_only=True)
class ScalarLoad(Stmt):
    """``var = buffer[index]``, an integer loaded from global memory. ``replaced_by`` as
    for :class:`Let`."""

    var: Var = defines()
    buffer: Buffer
    index: Expr
    replaced_by: Var | None = replacement()

    def effects(self) -> tuple[Effect, ...]:
        return (Read(self.buffer),)


@dataclass(frozen=True, kw_only=True)
class ScalarStore(Stmt):
    """``buffer[index] = value``, an integer, by one elected thread of the CTA; no two
    CTAs have the same ``index``."""

    buffer: Buffer
    index: Expr
    value: Expr
    elected: ClassVar[bool] = True

    def effects(self) -> tuple[Effect, ...]:
        return (Write(self.buffer, disjoint=True),)


@dataclass(frozen=True, kw_only=True)
class TileLoop(Stmt):
    """``work = first; while work < limit: body``. Its body ends in the step of its own
    scheduler, which alone changes ``work``."""

    scheduler: Scheduler
    work: Var = defines()
    first: Expr
    limit: Expr
    body: Body = body()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class SchedulerAdvance(Stmt):
    """``work += step``: the last statement of a :class:`TileLoop`."""

    scheduler: Scheduler
    work: Var
    step: Expr

    def effects(self) -> tuple[Effect, ...]:
        return (Step(self.scheduler),)


@dataclass(frozen=True, kw_only=True)
class ClcClaim(Stmt):
    """Ask the hardware for the next cluster's work; cannot be repeated."""

    scheduler: Scheduler
    work: Var = defines()

    def effects(self) -> tuple[Effect, ...]:
        return (Claim(self.scheduler),)


@dataclass(frozen=True, kw_only=True)
class ScheduledCoordinates(Stmt):
    """``targets`` = what a grouped scheduler knows of tile ``work``, found in the group
    offsets ``buffer``: first its group, which is the number of groups behind the last
    tile of all, then its tile indices."""

    scheduler: Scheduler
    work: Var
    buffer: Buffer
    targets: tuple[Var, ...] = defines()

    def effects(self) -> tuple[Effect, ...]:
        return (Read(self.buffer),)


@dataclass(frozen=True, kw_only=True)
class KLoop(Stmt):
    """Run-time loop ``for index in range(count)`` over k tiles."""

    index: Var = defines()
    count: Expr
    body: Body = body()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class SubtileLoop(Stmt):
    """Unrolled loop over the ``count`` epilogue subtiles of a tile."""

    index: Var = defines()
    count: int
    body: Body = body()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class If(Stmt):
    """``if condition: body``; the condition is CTA-uniform."""

    condition: Expr
    body: Body = body()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class RoleRegion(Stmt):
    """Statements that only the warps of ``role`` run: their set-up, persistent loop
    and tail."""

    body: Body = body()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Placeholder(Stmt):
    """Marks where ``count`` statements of a role stood before partitioning."""

    of: str
    count: int

    def effects(self) -> tuple[Effect, ...]:
        return ()
