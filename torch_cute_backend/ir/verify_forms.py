"""Rules on partitioned programs: the same tiles everywhere, and what a kept shared loop
must honour. Each yields messages.

The contract of a kept loop: (a) every warp runs it, so nothing returns before it;
(b) no barrier of all threads in a role region; (c) its scheduler starts again at the
first tile, its trip count is the same for all threads, and nothing in it spans the
cluster; (d) tails, store waits and dependent launches are done by the roles before it;
(e) its stores are one elected thread's; (f) no register reallocation, which would bind
it to the lowest count; (g) where registers are reallocated at all, at the head of a
role, by whole warpgroups. (b) is the rule ``cta_barriers`` and holds in every form.
"""

from __future__ import annotations

from dataclasses import replace

from torch_cute_backend.ir.analysis import is_pure
from torch_cute_backend.ir.effects import (
    Drain,
    Launch,
    Registers,
    Scope,
    Sync,
    SyncArrive,
    SyncWait,
    Write,
)
from torch_cute_backend.ir.ops import Stmt, walk
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.pipelines import tile_loop_of, walk_key
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import TileLoop
from torch_cute_backend.ir.sync import SetRegisters
from torch_cute_backend.ir.values import Space
from torch_cute_backend.ir.verify_structure import Messages, runs

WARPGROUP_WARPS = 4
MIN_REGISTERS, MAX_REGISTERS, REGISTER_STEP = 24, 240, 8


def same_tiles(program: Program) -> Messages:
    """Every role, and a kept shared loop, walks the same tiles."""
    loops = [own for r in program.regions if (own := tile_loop_of(r)) is not None]
    if program.loop is not None and program.regions:
        loops.append(program.loop)
    for loop in loops[1:]:
        if walk_key(loop, program.prologue) != walk_key(loops[0], program.prologue):
            found, expected = print_statement(loop), print_statement(loops[0])
            yield f"{found} walks other tiles than {expected}"


def own_schedulers(program: Program) -> Messages:
    """No two loops share a scheduler's state."""
    seen: dict[str, str] = {}
    for loop in (s for s in program.walk() if isinstance(s, TileLoop)):
        name = loop.scheduler.name
        if name in seen:
            yield f"scheduler {name} drives two loops, expected one"
        seen[name] = name


def ordering(program: Program) -> Messages:
    """In an omitted program every conflict is ordered (a kept one is checked without
    its loop when the decision is made)."""
    if program.form == "omitted":
        for race in races(replace(program, loop=None)):
            yield str(race)


def kept_contract(program: Program) -> Messages:
    """See the module docstring; for the kept form only."""
    if program.form != "kept" or program.loop is None:
        return
    loop = program.loop
    if loop.role is not None:
        yield f"(a) the shared loop belongs to role {loop.role}, expected all warps"
    yield from _replay(program, loop)
    for stmt in walk(loop.body):
        yield from _inside(stmt)
    for stmt in walk(program.post):
        late = any(isinstance(e, (Drain, Launch)) for e in stmt.effects())
        if stmt.role is not None or late:
            yield f"(d) {print_statement(stmt)} stands behind the shared loop"
    for stmt in program.walk():
        if any(isinstance(e, Registers) for e in stmt.effects()):
            yield f"(f) {print_statement(stmt)} in a program with a shared loop"


def register_counts(program: Program) -> Messages:
    """``setmaxnreg`` takes 24 to 240 in steps of 8, at the head of a role's region, and
    is run by whole warpgroups: idle warps beside a role would have to run it too."""
    heads: list[Stmt] = []
    for region in program.regions:
        for stmt in region.body:
            if isinstance(stmt, TileLoop):
                break
            heads.append(stmt)
    for stmt in program.walk():
        if not isinstance(stmt, SetRegisters):
            continue
        in_range = MIN_REGISTERS <= stmt.count <= MAX_REGISTERS
        if not in_range or stmt.count % REGISTER_STEP:
            yield f"found {stmt.count} registers, expected 24 to 240 in steps of 8"
        if program.regions and stmt not in heads:
            yield f"(g) {print_statement(stmt)} is not at the head of a role's region"
    for stmt, role in runs(program.top()):
        if role is None or not isinstance(stmt, SetRegisters):
            continue
        warps = role.warps + role.idle_warps
        if role.first_warp % WARPGROUP_WARPS or warps % WARPGROUP_WARPS:
            name = print_statement(stmt)
            yield f"(g) {name} in role {role}, expected whole warpgroups"


def _replay(program: Program, loop: TileLoop) -> Messages:
    if not loop.scheduler.replayable:
        yield f"(c) the shared loop cannot walk the tiles of {loop.scheduler} again"
    for expr in (loop.first, loop.limit):
        if not is_pure(expr):
            yield f"(c) {expr} is not known to be the same for all threads"


def _inside(stmt: Stmt) -> Messages:
    name = print_statement(stmt)
    for effect in stmt.effects():
        whole = isinstance(effect, (Sync, SyncArrive, SyncWait))
        if whole and getattr(effect, "scope", None) is Scope.CLUSTER:
            yield f"(c) {name} spans the cluster inside the shared loop"
        if isinstance(effect, (Drain, Launch)):
            yield f"(d) {name} stands inside the shared loop"
        stored = isinstance(effect, Write) and effect.buffer.space is not Space.RMEM
        if stored and not getattr(stmt, "elected", False):
            yield f"(e) {name} stores from every thread of the shared loop"
    if stmt.role is not None:
        yield f"(a) {name} belongs to a role, expected all warps"
