"""What a grouped-static scheduler has made superfluous in the shared loop.

A grouped kernel finds each tile's group by loading group offsets and comparing. If its
scheduler supplies tile and group itself, the statements that found them are dead, loads
and comparisons included. They may go iff

* each value they define names, on every definition, the variable that ``replaced_by``
  it, and is computed from coordinates and other such values only;
* no role uses the old value any more, and in each role that uses the new one, the
  role's own scheduler supplies it before the first use (dominates it);
* the buffers they load from are written by nothing in the kernel.

That no use is left behind the loop is the rule ``post_loop_use``. One definition
without a replacement is work, and so is what depends on it.
"""

from __future__ import annotations

from torch_cute_backend.ir.accesses import written_buffers
from torch_cute_backend.ir.analysis import (
    Definition,
    controlled_definitions,
    definitions,
    is_plain,
    used,
)
from torch_cute_backend.ir.expr import Expr
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.pipelines import tile_loop_of
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    Let,
    RoleRegion,
    ScalarLoad,
    ScheduledCoordinates,
    TileLoop,
)
from torch_cute_backend.ir.values import SchedulerKind, Var


def replaced_variables(
    program: Program, loop: TileLoop, coordinates: frozenset[Var]
) -> frozenset[Var]:
    """Variables of the shared loop that the grouped scheduler has taken over."""
    if loop.scheduler.kind is not SchedulerKind.GROUPED_STATIC:
        return frozenset()
    chosen = frozenset(
        var
        for var, sources in definitions((loop,)).items()
        if all(_replaceable(program, s) for s in sources)
        and _taken_over(program, var, sources)
    )
    found = tuple(controlled_definitions((loop,)))
    while True:
        support = chosen | coordinates
        bad = frozenset(d.var for d in found if not _supported(d, support))
        if not bad & chosen:
            return chosen
        chosen -= bad


def supplied_variables(program: Program, loop: TileLoop) -> frozenset[Var]:
    """What the loop's own grouped scheduler supplies for its tile, at every assignment:
    as good as a coordinate, once the statement that supplies it may go."""
    found = definitions((loop,))
    return frozenset(
        var
        for var, sources in found.items()
        if all(_supplies(program, loop, s) for s in sources)
    )


def is_superfluous(
    program: Program, loop: TileLoop, stmt: Stmt, replaced: frozenset[Var]
) -> bool:
    """Is ``stmt`` a definition that the scheduler replaces, or the shared loop's own
    copy of what the scheduler supplies?"""
    if stmt.role is not None:
        return False
    if type(stmt) in (Let, ScalarLoad):
        return all(var in replaced for var in stmt.defs())
    return _supplies(program, loop, stmt)


def _supplies(program: Program, loop: TileLoop, stmt: Stmt) -> bool:
    """Does ``stmt`` ask the loop's own grouped scheduler, of the loop's own tile?"""
    if type(stmt) is not ScheduledCoordinates or stmt.role is not None:
        return False
    if not isinstance(stmt, ScheduledCoordinates):
        return False
    grouped = loop.scheduler.kind is SchedulerKind.GROUPED_STATIC
    own = stmt.scheduler == loop.scheduler and stmt.work == loop.work
    return grouped and own and stmt.buffer not in written_buffers(program)


def _replaceable(program: Program, stmt: Stmt) -> bool:
    """A shared definition of a kind that may go; a load only of a read-only buffer."""
    if stmt.role is not None:
        return False
    if type(stmt) is ScalarLoad and isinstance(stmt, ScalarLoad):
        return stmt.buffer not in written_buffers(program)
    return type(stmt) is Let


def _supported(found: Definition, support: frozenset[Var]) -> bool:
    """Are the value and the conditions around it computed from ``support`` alone?"""
    value: Expr | None = None
    if isinstance(found.stmt, Let):
        value = found.stmt.value
    elif isinstance(found.stmt, ScalarLoad):
        value = found.stmt.index
    return all(is_plain(e, support) for e in (value, *found.controls))


def _taken_over(program: Program, var: Var, sources: tuple[Stmt, ...]) -> bool:
    """One replacement for all definitions, which dominates its uses in every role."""
    names = {getattr(s, "replaced_by", None) for s in sources}
    new = next(iter(names))
    if len(names) != 1 or not isinstance(new, Var):
        return False
    for region in program.regions:
        if var in used(region.body):
            return False
        if new in used(region.body) and not _dominates(region, new):
            return False
    return True


def _dominates(region: RoleRegion, var: Var) -> bool:
    """Does the role's own scheduler supply ``var``, alone, before anything uses it?"""
    own = tile_loop_of(region)
    if own is None:
        return False
    outside = tuple(s for s in region.body if s is not own)
    if var in used(outside) or len(definitions(region.body).get(var, ())) != 1:
        return False
    for stmt in own.body:
        if type(stmt) is ScheduledCoordinates and var in stmt.defs():
            return stmt.scheduler == own.scheduler and stmt.work == own.work
        if var in used((stmt,)):
            return False
    return False
