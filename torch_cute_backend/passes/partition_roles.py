"""``partition_roles``: from one shared tile loop to one loop a role and a residual.

In: an inline program. Out: its kept form, or a ``Status`` with the rule broken and the
two statements. Partitioning is loop fission, legal iff

* P1: every pair of conflicting effects of two roles, or of two warps of one role, is
  ordered without any barrier of the shared loop;
* P2: no value and no memory dependence runs between residual and role statements,
  except that a role may clone ``Let``s and loads of buffers that nothing writes;
* P3: what follows the loop is ordered without any barrier of the shared loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from torch_cute_backend.ir.accesses import memory_effects, written_buffers
from torch_cute_backend.ir.analysis import (
    count_statements,
    definitions,
    used,
    with_role,
)
from torch_cute_backend.ir.effects import (
    Arrive,
    Effect,
    NamedSync,
    Read,
    Sync,
    SyncWait,
    Wait,
)
from torch_cute_backend.ir.ops import Body, Stmt, walk
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    Placeholder,
    RoleRegion,
    ScalarLoad,
    ScheduledCoordinates,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.values import Buffer, Role, Scheduler, Var
from torch_cute_backend.passes.base import Pass, PassContext, PassResult
from torch_cute_backend.status import Status

_CONTAINERS = (If, KLoop, SubtileLoop)
_LOADS = (ScalarLoad, ScheduledCoordinates)


@dataclass(frozen=True)
class PartitionRoles(Pass):
    """See the module docstring."""

    name: ClassVar[str] = "partition_roles"

    def run(self, program: Program, context: PassContext) -> PassResult | Status:
        loop = program.loop
        if loop is None:
            return Status.no("partition_roles: the program has no tile loop")
        if program.regions:
            return Status.no("partition_roles: the program is already partitioned")
        if not loop.scheduler.replayable:
            return Status.no(
                f"partition_roles: {loop.scheduler} cannot be walked once a role"
            )
        status = _dependences(program, loop)
        if not status:
            return status
        parted = _partition(program, loop)
        status = _order(parted)
        return PassResult(parted) if status else status


# --- the rewrite


def _partition(program: Program, loop: TileLoop) -> Program:
    shared, heads = _split_prologue(program.prologue)
    tails = tuple(s for s in program.post if s.role is not None)
    regions = []
    for role in program.roles:
        head = tuple(with_role(s, role) for s in heads if s.role == role)
        tail = tuple(with_role(s, role) for s in tails if s.role == role)
        own = _role_loop(loop, role, tail)
        if head or own or tail:
            regions.append(RoleRegion(role=role, body=(*head, *own, *tail)))
    return replace(
        program,
        prologue=shared,
        regions=tuple(regions),
        loop=loop.with_body(_residual(loop.body)),
        post=tuple(s for s in program.post if s.role is None),
    )


def _split_prologue(prologue: Body) -> tuple[Body, Body]:
    """A role's own set-up behind the last barrier moves into its region. What stands
    before that barrier (a TMEM allocation, say) is published by it and stays."""
    last = max((i for i, s in enumerate(prologue) if _is_barrier(s)), default=-1)
    moved = tuple(s for s in prologue[last + 1 :] if s.role is not None)
    stays = tuple(s for s in prologue[last + 1 :] if s.role is None)
    return (*prologue[: last + 1], *stays), moved


def _is_barrier(stmt: Stmt) -> bool:
    return any(isinstance(e, (Sync, SyncWait)) for e in stmt.effects())


def _role_loop(loop: TileLoop, role: Role, tail: Body) -> Body:
    needed = _needed(loop.body, role, tail)
    body = _project(loop.body, role, needed)
    if not any(s.role == role for s in walk(body)):
        return ()
    scheduler = replace(loop.scheduler, name=f"{role.name}_{loop.scheduler.name}")
    own = _rescheduled(tuple(with_role(s, role) for s in body), loop, scheduler)
    return (replace(loop, role=role, scheduler=scheduler, body=own),)


def _rescheduled(body: Body, loop: TileLoop, own: Scheduler) -> Body:
    """The body with the role's own scheduler for the shared one."""
    changed: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, (SchedulerAdvance, ScheduledCoordinates)):
            shared = stmt.scheduler == loop.scheduler
            stmt = replace(stmt, scheduler=own if shared else stmt.scheduler)
        for nested in stmt.bodies():
            stmt = stmt.with_body(_rescheduled(nested, loop, own))
        changed.append(stmt)
    return tuple(changed)


def _needed(body: Body, role: Role, tail: Body) -> frozenset[Var]:
    """Variables that the role's statements use, and what those depend on."""
    needed: frozenset[Var] = frozenset(used(tail))
    while True:
        wider = needed | frozenset(used(_project(body, role, needed)))
        if wider == needed:
            return needed
        needed = wider


def _project(body: Body, role: Role, needed: frozenset[Var]) -> Body:
    """The role's statements, the definitions of ``needed``, and the loops and branches
    around either, in their order."""
    kept: list[Stmt] = []
    for stmt in body:
        if stmt.role is not None:
            if stmt.role == role:
                kept.append(stmt)
        elif isinstance(stmt, SchedulerAdvance):
            kept.append(stmt)
        elif isinstance(stmt, _CONTAINERS):
            inside = _project(stmt.body, role, needed)
            if inside:
                kept.append(stmt.with_body(inside))
        elif any(var in needed for var in stmt.defs()):
            kept.append(stmt)
    return tuple(kept)


def _residual(body: Body) -> Body:
    """The untagged statements, one placeholder for each run of a role's."""
    kept: list[Stmt] = []
    for role, run in groupby(body, key=lambda s: s.role):
        statements = tuple(run)
        if role is not None:
            count = count_statements(statements)
            kept.append(Placeholder(of=role.name, count=count))
            continue
        for stmt in statements:
            if isinstance(stmt, _CONTAINERS):
                stmt = stmt.with_body(_residual(stmt.body))
            kept.append(stmt)
    return tuple(kept)


# --- P2


def _dependences(program: Program, loop: TileLoop) -> Status:
    status = Status.ok()
    written = written_buffers(program)
    tails = tuple(s for s in program.post if s.role is not None)
    for role in program.roles:
        tail = tuple(s for s in tails if s.role == role)
        needed = _needed(loop.body, role, tail)
        status &= _clonable(program, loop, role, needed, written)
    return status & _residual_dependences(program, loop)


def _clonable(
    program: Program,
    loop: TileLoop,
    role: Role,
    needed: frozenset[Var],
    written: frozenset[Buffer],
) -> Status:
    """Every definition that the role needs is its own or may be cloned into it."""
    owners = _owners(loop.body, None)
    own = {v for (v, _), owner in owners.items() if owner == role}
    carried = definitions(program.prologue)
    reasons = []
    for var, sources in definitions(loop.body).items():
        for source in sources if var in needed else ():
            owner = owners[var, source]
            if owner is None and var in carried:
                # A clone would go on from the prologue's value, and the residual from
                # the clone's last one.
                why = "is carried on from the prologue"
            elif owner is None and not _may_clone(source, written):
                why = "cannot be cloned"
            elif owner not in (None, role) and var not in own:
                # Otherwise two roles use one name for values of their own.
                why = f"is a value of role {owner}"
            else:
                continue
            reasons.append(
                f"P2: role {role} needs {var}, but {print_statement(source)} {why}; "
                f"used by {_first_user(loop, role, var)}"
            )
    return Status(tuple(dict.fromkeys(reasons)))


def _owners(body: Body, inherited: Role | None) -> dict[tuple[Var, Stmt], Role | None]:
    """Which role runs each definition; nested statements belong to their container's
    role."""
    found: dict[tuple[Var, Stmt], Role | None] = {}
    for stmt in body:
        role = stmt.role or inherited
        for var, sources in definitions((stmt,)).items():
            if stmt in sources:
                found[var, stmt] = role
        for nested in stmt.bodies():
            found.update(_owners(nested, role))
    return found


def _may_clone(stmt: Stmt, written: frozenset[Buffer]) -> bool:
    if type(stmt) in (Let, KLoop, SubtileLoop, SchedulerAdvance):
        return True
    if isinstance(stmt, (ScalarLoad, ScheduledCoordinates)):
        return type(stmt) in _LOADS and stmt.buffer not in written
    return False


def _first_user(loop: TileLoop, role: Role, var: Var) -> str:
    for stmt in walk(loop.body):
        if var in stmt.uses() and (stmt.role == role or stmt.role is None):
            return print_statement(stmt)
    return "its tail"


def _residual_dependences(program: Program, loop: TileLoop) -> Status:
    """Nothing untagged reads a role's value, or touches memory or barriers that a role
    touches too."""
    shared = _untagged(loop.body)
    tagged = tuple(_tagged(loop.body, None))
    # A loop's index ends with the loop; any other value outlives its statement, and the
    # role's warps would carry it into the shared loop.
    outlive = {v for s in tagged if not s.bodies() for v in s.defs()}
    roles_define = {v for s in tagged for v in s.defs()}
    shared_define = {v for s in shared for v in s.defs()}
    foreign = outlive | (roles_define - shared_define)
    reasons = []
    for stmt in shared:
        for var in stmt.uses():
            if var in foreign:
                reasons.append(
                    f"P2: {print_statement(stmt)} of the shared loop uses {var}, "
                    "a role's value"
                )
        for other in tagged:
            clash = _clash(stmt.effects(), other.effects())
            if clash:
                reasons.append(
                    f"P2: {print_statement(stmt)} of the shared loop and "
                    f"{print_statement(other)} share {clash}"
                )
    return Status(tuple(dict.fromkeys(reasons)))


def _untagged(body: Body) -> tuple[Stmt, ...]:
    found: list[Stmt] = []
    for stmt in body:
        if stmt.role is None:
            found.append(stmt)
            for nested in stmt.bodies():
                found.extend(_untagged(nested))
    return tuple(found)


def _tagged(body: Body, inherited: Role | None) -> Iterator[Stmt]:
    for stmt in body:
        role = stmt.role or inherited
        if role is not None:
            yield stmt
        for nested in stmt.bodies():
            yield from _tagged(nested, role)


def _clash(ours: tuple[Effect, ...], theirs: tuple[Effect, ...]) -> str | None:
    """The resource that both touch, at least one of them changing it."""
    for what, changed in _touched(ours):
        for other, changed_too in _touched(theirs):
            if what == other and (changed or changed_too):
                return what
    return None


def _touched(effects: tuple[Effect, ...]) -> Iterator[tuple[str, bool]]:
    """(resource, is it changed?); arriving and waiting change a barrier."""
    for effect in effects:
        if isinstance(effect, (Arrive, Wait)):
            yield f"pipeline {effect.pipeline}", True
        elif isinstance(effect, NamedSync):
            yield f"barrier {effect.barrier}", True
    for access in memory_effects(effects):
        yield f"buffer {access.buffer}", not isinstance(access, Read)


# --- P1 and P3


def _order(parted: Program) -> Status:
    """P1 and P3 on the program without its residual loop and that loop's barriers."""
    reasons = []
    for race in races(replace(parted, loop=None)):
        rule = "P3" if race.in_post else "P1"
        reasons.append(f"{rule}: {race}")
    return Status(tuple(dict.fromkeys(reasons)))
