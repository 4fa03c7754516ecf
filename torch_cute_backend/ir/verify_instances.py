"""Rules on roles of several instances, which take the tiles of one loop in turn.

A consumer's wait names a stage and the parity of its phase, so it must not run a whole
round of the ring early: an instance may wait only once the one before it has waited for
all of its own tile. Each yields messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch_cute_backend.ir.accesses import memory_effects
from torch_cute_backend.ir.analysis import definitions
from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    ConsumerWait,
    MmaDrain,
    ProducerAcquire,
    SkipStages,
)
from torch_cute_backend.ir.effects import NamedSync, Read, TurnPass, TurnWait
from torch_cute_backend.ir.expr import BinOp, Param, Ref
from torch_cute_backend.ir.ops import Body, walk
from torch_cute_backend.ir.pipelines import tile_loop_of
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    ScheduledCoordinates,
    SchedulerAdvance,
    TileLoop,
)
from torch_cute_backend.ir.sync import PassTurn, PipelineStates, TakeTurn
from torch_cute_backend.ir.values import Role, SchedulerKind, Space
from torch_cute_backend.ir.verify_structure import Messages, runs


def instances(program: Program) -> Messages:
    """Turns, skipped stages and private memory of roles with several instances; no
    turns in others."""
    for stmt, role in runs(program.top()):
        alone = role is None or role.instances == 1
        if alone and isinstance(stmt, (TakeTurn, PassTurn, SkipStages)):
            yield f"{print_statement(stmt)} in a role of one instance"
    for role in program.roles:
        if role.instances > 1:
            yield from _private(program, role)
            for region in program.regions:
                loop = tile_loop_of(region)
                if region.role == role and loop is not None:
                    yield from _turns(loop, role)
                    yield from _starts(region.body, loop, role)


def _private(program: Program, role: Role) -> Messages:
    """No two instances meet at a barrier or write the same shared memory."""
    for stmt, who in runs(program.top()):
        if who != role:
            continue
        for effect in memory_effects(stmt.effects()):
            buffer = effect.buffer
            shared = buffer.space in (Space.SMEM, Space.TMEM)
            if shared and not buffer.per_instance and not isinstance(effect, Read):
                yield f"{print_statement(stmt)} writes {buffer}, which instances share"
        for found in stmt.effects():
            if not isinstance(found, (NamedSync, TurnWait, TurnPass)):
                continue
            if found.barrier.instances != role.instances:
                count = found.barrier.instances
                yield (
                    f"{found.barrier}: found {count} barriers, expected "
                    f"{role.instances}, one an instance"
                )
        if isinstance(stmt, ProducerAcquire):
            yield f"{print_statement(stmt)} in a role of {role.instances} instances"


def _turns(loop: TileLoop, role: Role) -> Messages:
    """Each work index takes one turn and passes it on, whether it has a tile or not."""
    name = print_statement(loop)
    if loop.scheduler.kind not in _KINDS:
        kinds = " or ".join(kind.value for kind in _KINDS)
        yield f"{name}: instances need a scheduler that is {kinds}"
    paths = _paths(loop)
    for path in paths:
        yield from _turn(loop, path)
    yield from _skips(loop, paths[0], role)
    for path in paths[1:]:
        for stmt in path:
            if not isinstance(stmt, (TakeTurn, PassTurn)):
                yield f"{print_statement(stmt)} where a work index has no tile"


_KINDS = (SchedulerKind.STATIC_PERSISTENT, SchedulerKind.GROUPED_STATIC)


def _paths(loop: TileLoop) -> tuple[Body, ...]:
    """What is run of the loop's body for a work index: all of it, or with a grouped
    scheduler one of two branches beside the rest. Only such a scheduler says that work
    indices without a tile have none behind them, which is why they skip no stages."""
    branches = [s for s in loop.body if isinstance(s, If) and _has_turn(s.body)]
    if len(branches) != 2 or not _exclude(loop, *branches):
        return (loop.body,)
    rest = tuple(s for s in loop.body if s not in branches)
    if _has_turn(rest):
        return (loop.body,)
    return tuple(branch.body for branch in branches)


def _has_turn(body: Body) -> bool:
    return any(isinstance(s, (TakeTurn, PassTurn)) for s in walk(body))


def _exclude(loop: TileLoop, one: If, other: If) -> bool:
    """Is the first taken iff the work index has a tile, and the second iff it has none?
    A grouped scheduler says so by the first of what it supplies, the group."""
    supplied = [
        s
        for s in loop.body[: loop.body.index(one)]
        if isinstance(s, ScheduledCoordinates) and s.scheduler == loop.scheduler
    ]
    if loop.scheduler.kind is not SchedulerKind.GROUPED_STATIC or len(supplied) != 1:
        return False
    group = supplied[0].targets[0]
    has_tile = BinOp("<", Ref(group), Param("groups"))
    return (
        one.condition == has_tile
        and other.condition == replace(has_tile, op=">=")
        and definitions((loop,))[group] == (supplied[0],)
    )


def _turn(loop: TileLoop, body: Body) -> Messages:
    name = print_statement(loop)
    takes = [i for i, s in enumerate(body) if isinstance(s, TakeTurn)]
    passes = [i for i, s in enumerate(body) if isinstance(s, PassTurn)]
    if len(takes) != 1 or len(passes) != 1:
        yield f"{name}: found {len(takes)} turns taken and {len(passes)} passed"
        return
    first, last = takes[0], passes[0]
    if first > last:
        yield f"{name}: a turn is passed before it is taken"
    for i, stmt in enumerate(body):
        waits = any(isinstance(s, ConsumerWait) for s in walk((stmt,)))
        if waits and not first < i < last:
            yield f"{print_statement(stmt)} waits for a stage out of turn"
    step = next(s for s in loop.body if isinstance(s, SchedulerAdvance)).step
    take, give = body[first], body[last]
    if isinstance(take, TakeTurn) and isinstance(give, PassTurn):
        found = (take.work, take.first, give.work, give.step, give.limit)
        if found != (loop.work, loop.first, loop.work, step, loop.limit):
            yield f"{name}: its turns count other tiles"
        if take.barrier != give.barrier:
            both = f"{take.barrier} and {give.barrier}"
            yield f"{name}: turns are taken and passed at {both}"


def _skips(loop: TileLoop, body: Body, role: Role) -> Messages:
    """Behind a tile's last release, its counters pass the other instances' tiles, which
    are as long as its own."""
    name = print_statement(loop)
    used = dict.fromkeys(
        (s.pipeline, body.index(outer), outer)
        for outer in body
        for s in walk((outer,))
        if isinstance(s, ConsumerWait)
    )
    for pipeline, at, outer in used:
        skips = [
            (i, s)
            for i, s in enumerate(body)
            if isinstance(s, SkipStages) and s.pipeline == pipeline
        ]
        if len(skips) != 1 or not isinstance(outer, KLoop):
            yield f"{name}: found {len(skips)} skips of {pipeline}, expected 1"
            continue
        i, skip = skips[0]
        if (skip.count, skip.others) != (outer.count, role.instances - 1):
            yield f"{print_statement(skip)} skips other stages than {outer.count}"
        if any(v in definitions((loop,)) for v in outer.count.variables()):
            yield f"{name}: tiles of different lengths, {outer.count}"
        if i < max(at, _last_release(body)):
            yield f"{print_statement(skip)} stands before the tile's last release"


def _last_release(body: Body) -> int:
    kinds = (ConsumerRelease, MmaDrain)
    return max(
        (i for i, s in enumerate(body) for n in walk((s,)) if isinstance(n, kinds)),
        default=-1,
    )


def _starts(body: Body, loop: TileLoop, role: Role) -> Iterator[str]:
    counts = {s.count for s in _paths(loop)[0] if isinstance(s, KLoop)}
    for stmt in (s for s in body if isinstance(s, PipelineStates)):
        if {stmt.tile_stages} != counts:
            name = print_statement(stmt)
            yield f"{name}: instances of {role} start {stmt.tile_stages} stages apart"
