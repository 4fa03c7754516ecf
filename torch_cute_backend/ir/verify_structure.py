"""Rules on names, scopes, roles and the shape of loops. Each yields messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby

from torch_cute_backend.ir.effects import (
    Launch,
    Read,
    Sync,
    SyncArrive,
    SyncWait,
    Write,
)
from torch_cute_backend.ir.ops import Body, Stmt, walk
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    KLoop,
    RoleRegion,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import PdlLaunch, PdlWait, PrefetchDescriptors
from torch_cute_backend.ir.values import (
    Buffer,
    NamedBarrier,
    Pipeline,
    Role,
    SchedulerKind,
    Space,
    Var,
)

Messages = Iterator[str]

STEPPED = (SchedulerKind.STATIC_PERSISTENT, SchedulerKind.GROUPED_STATIC)
"""Schedulers whose loops end in a step of their own."""


def names(program: Program) -> Messages:
    """Resources have unique names and are declared."""
    groups: tuple[tuple[str, Iterable[object]], ...] = (
        ("role", program.roles),
        ("buffer", program.buffers),
        ("pipeline", program.pipelines),
        ("barrier", program.barriers),
    )
    for what, values in groups:
        for name, count in Counter(str(v) for v in values).items():
            if count > 1:
                yield f"{what} name {name} found {count} times, expected once"
    declared = (*program.buffers, *program.pipelines, *program.barriers)
    used = dict.fromkeys(v for s in program.walk() for v in _resources(s))
    for value in used:
        registers = isinstance(value, Buffer) and value.space is Space.RMEM
        if not registers and value not in declared:
            yield f"{type(value).__name__.lower()} {value} is used but not declared"


def scoping(program: Program) -> Messages:
    """A variable is used only where it is defined: what a loop, branch or role block
    defines first is gone behind it, as in the CuTe DSL."""
    yield from _scope(program.top(), set())


def role_nesting(program: Program) -> Messages:
    """What stands inside a role's statement belongs to that role."""
    yield from _nesting(program.top(), None)
    for region in program.regions:
        if region.role not in program.roles:
            yield f"region of {region.role}, expected a declared role"


def loop_step(program: Program) -> Messages:
    """A static persistent loop ends in its own step and holds no other: a statement
    behind the step would see the next tile's work."""
    for loop in (s for s in program.walk() if isinstance(s, TileLoop)):
        steps = [s for s in loop.body if isinstance(s, SchedulerAdvance)]
        name = print_statement(loop)
        if loop.scheduler.kind in STEPPED and len(steps) != 1:
            yield f"{name}: found {len(steps)} steps, expected 1"
        for step in steps:
            if step is not loop.body[-1]:
                after = print_statement(loop.body[loop.body.index(step) + 1])
                yield f"{after} stands behind the step; expected the step last"
            if (step.scheduler, step.work) != (loop.scheduler, loop.work):
                found = f"{step.scheduler} of {step.work}"
                expected = f"{loop.scheduler} of {loop.work}"
                yield f"{name}: found a step of {found}, expected {expected}"
    for stray in _stray_steps(program.top(), inside=False):
        yield f"{print_statement(stray)} is not directly in a tile loop"


def loop_variables(program: Program) -> Messages:
    """A loop's index is its own, and only its step changes a work tile: ordering proofs
    compute stages from indices."""
    for loop in program.walk():
        if isinstance(loop, TileLoop):
            own = loop.work
        elif isinstance(loop, (KLoop, SubtileLoop)):
            own = loop.index
        else:
            continue
        for stmt in walk(loop.body):
            if own in stmt.defs():
                found, name = print_statement(stmt), print_statement(loop)
                yield f"{found} assigns {own}, the variable of {name}"


def region_shape(program: Program) -> Messages:
    """One region a role, one tile loop a region."""
    counts = Counter(str(r.role) for r in program.regions)
    for role, count in counts.items():
        if count > 1:
            yield f"role {role} has {count} regions, expected 1"
    for region in program.regions:
        loops = sum(isinstance(s, TileLoop) for s in walk(region.body))
        if loops > 1:
            yield f"role {region.role} has {loops} tile loops, expected at most 1"


def prologue_sync(program: Program) -> Messages:
    """The prologue publishes what it sets up: behind its last barrier of all threads
    only a role's own set-up may follow, and what sets up nothing: no effects, or those
    on other grids. (Whether a role's set-up races is the ordering rule's to say.)"""
    last = -1
    for i, stmt in enumerate(program.prologue):
        if stmt.role is None and _syncs(stmt):
            last = i
    if last < 0:
        yield "the prologue has no barrier of all threads, expected one"
        return
    for stmt in program.prologue[last + 1 :]:
        sets_up = any(not isinstance(e, Launch) for e in stmt.effects())
        if sets_up and stmt.role is None:
            yield f"{print_statement(stmt)} stands behind the prologue's last barrier"


def cta_barriers(program: Program) -> Messages:
    """A barrier of all threads is run by all threads: never by one role."""
    for stmt, role in runs(program.top()):
        if role is not None and _syncs(stmt):
            yield f"{print_statement(stmt)} in role {role}, expected all threads"


def dependent_launch(program: Program) -> Messages:
    """A grid that may start before its predecessor's end waits for it in every thread,
    once, before anything touches global memory, and only then lets its own successor
    start: the end of this grid must imply the end of all before it."""
    waits = [s for s in program.walk() if isinstance(s, PdlWait)]
    launches = [s for s in program.walk() if isinstance(s, PdlLaunch)]
    if not waits and not launches:
        return
    at = next((i for i, s in enumerate(program.prologue) if s in waits), None)
    if at is None or len(waits) != 1 or waits[0].role is not None:
        yield f"found {len(waits)} PdlWait, expected one of all threads in the prologue"
        return
    for stmt in program.prologue[:at]:
        if isinstance(stmt, PdlLaunch):
            yield f"{print_statement(stmt)} stands before PdlWait"
        # Descriptors are parameters of the launch, not data of a predecessor.
        data = not isinstance(stmt, PrefetchDescriptors)
        if data and any(_touches_global(s) for s in walk((stmt,))):
            yield f"{print_statement(stmt)} touches global memory before PdlWait"


def _touches_global(stmt: Stmt) -> bool:
    return any(
        isinstance(e, (Read, Write)) and e.buffer.space is Space.GMEM
        for e in stmt.effects()
    )


def runs(body: Body, role: Role | None = None) -> Iterator[tuple[Stmt, Role | None]]:
    """Every statement with the role that runs it."""
    for stmt in body:
        who = stmt.role or role
        yield stmt, who
        for nested in stmt.bodies():
            yield from runs(nested, who)


def _syncs(stmt: Stmt) -> bool:
    return any(isinstance(e, (Sync, SyncArrive, SyncWait)) for e in stmt.effects())


def _resources(stmt: Stmt) -> Iterator[Buffer | Pipeline | NamedBarrier]:
    for f in fields(stmt):
        value = getattr(stmt, f.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, (Buffer, Pipeline, NamedBarrier)):
                yield item


def _scope(body: Body, visible: set[Var]) -> Messages:
    """``visible`` gains what ``body`` defines at its own level. A run of one role's
    statements is printed as one block, so its definitions end with it."""
    for role, run in groupby(body, key=lambda s: s.role):
        scope = visible if role is None else set(visible)
        for stmt in run:
            yield from _undefined(stmt, scope)
            inner = set(scope) | set(stmt.defs())
            for nested in stmt.bodies():
                yield from _scope(nested, set(inner))
            if isinstance(stmt, TileLoop) or not stmt.bodies():
                scope.update(stmt.defs())


def _undefined(stmt: Stmt, visible: set[Var]) -> Messages:
    for var in stmt.uses():
        if var not in visible:
            yield f"{print_statement(stmt)} uses {var}, which is not defined there"


def _nesting(body: Body, outer: Role | None) -> Messages:
    for stmt in body:
        if outer is not None and stmt.role not in (None, outer):
            yield f"{print_statement(stmt)} stands inside a statement of role {outer}"
        if isinstance(stmt, RoleRegion) and outer is not None:
            yield f"region of {stmt.role} stands inside role {outer}"
        for nested in stmt.bodies():
            yield from _nesting(nested, stmt.role or outer)


def _stray_steps(body: Body, inside: bool) -> Iterator[Stmt]:
    for stmt in body:
        if isinstance(stmt, SchedulerAdvance) and not inside:
            yield stmt
        for nested in stmt.bodies():
            yield from _stray_steps(nested, isinstance(stmt, TileLoop))
