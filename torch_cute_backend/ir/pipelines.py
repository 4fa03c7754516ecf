"""Do producer and consumer of a pipeline run in step?

In: a partitioned program. Out: messages of what is unbalanced, none if each stage is
acquired, committed, waited for and released once, in the same loops, in both roles.
Ordering proofs rest on this.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch_cute_backend.ir.analysis import definitions
from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    ConsumerWait,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
)
from torch_cute_backend.ir.expr import Expr, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    RoleRegion,
    ScalarLoad,
    ScheduledCoordinates,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.threads import Section, Site, threads
from torch_cute_backend.ir.values import Pipeline, Var

Key = tuple[object, ...]
Definitions = Mapping[Var, tuple[Stmt, ...]]


def region_of(program: Program, role: str) -> RoleRegion | None:
    for region in program.regions:
        if region.role is not None and region.role.name == role:
            return region
    return None


def tile_loop_of(region: RoleRegion) -> TileLoop | None:
    """The region's persistent loop, if it has exactly one."""
    loops = [s for s in region.body if isinstance(s, TileLoop)]
    return loops[0] if len(loops) == 1 else None


def value_key(expr: Expr, known: Definitions, seen: tuple[Var, ...] = ()) -> Key:
    """Equal keys: equal values, whatever the variables between are called. A variable
    without known definition, or a cycle, is equal to itself only, by name."""
    if isinstance(expr, Ref):
        return _variable_key(expr.var, known, seen)
    children = tuple(value_key(c, known, seen) for c in expr.children())
    if not children:
        return (expr,)
    return (type(expr).__name__, getattr(expr, "op", ""), *children)


def walk_key(loop: TileLoop, scope: Body) -> Key:
    """Equal keys: both loops walk the same tiles."""
    known = definitions((*scope, loop))
    steps = [s for s in loop.body if isinstance(s, SchedulerAdvance)]
    exprs = (loop.first, loop.limit, *(s.step for s in steps))
    return (loop.scheduler.kind, *(value_key(e, known, (loop.work,)) for e in exprs))


def imbalance(program: Program, pipeline: Pipeline) -> str | None:
    """Why ``pipeline``'s two sides are not in step, or None if they are."""
    made = region_of(program, pipeline.producer)
    taken = region_of(program, pipeline.consumer)
    if made is None or taken is None:
        return f"pipeline {pipeline} has no region for producer or consumer"
    loops = (tile_loop_of(made), tile_loop_of(taken))
    if loops[0] is None or loops[1] is None:
        return f"producer or consumer of pipeline {pipeline} has no tile loop"
    scope = program.prologue
    if walk_key(loops[0], scope) != walk_key(loops[1], scope):
        return f"the tile loops of {pipeline.producer} and {pipeline.consumer} differ"
    expected = _nests(program, pipeline, ProducerAcquire)
    if not expected or any(nest[0] is not Section.LOOP for nest in expected):
        return f"pipeline {pipeline} is not acquired in its producer's tile loop alone"
    for kind in (ProducerCommit, ConsumerWait, ConsumerRelease):
        found = _nests(program, pipeline, kind)
        if found != expected:
            return (
                f"pipeline {pipeline}: {kind.__name__} is not in step with "
                f"ProducerAcquire (found {len(found)} sites, expected "
                f"{len(expected)} in the same loops)"
            )
    return _lag_imbalance(program, pipeline)


def _lag_imbalance(program: Program, pipeline: Pipeline) -> str | None:
    """Late releases: fewer than the stages, and made good behind the loop, always."""
    sites = _sites(program, pipeline)
    releases = [s for s in sites if isinstance(s.stmt, ConsumerRelease)]
    lags = {s.stmt.lag for s in releases if isinstance(s.stmt, ConsumerRelease)}
    if len(lags) > 1:
        return f"pipeline {pipeline}: releases lag by {sorted(lags)}"
    lag = next(iter(lags), 0)
    if lag >= pipeline.stages:
        return (
            f"pipeline {pipeline}: lag {lag} needs more than {pipeline.stages} stages"
        )
    drains = [s for s in sites if isinstance(s.stmt, MmaDrain) and s.stmt.lag]
    late = [s.stmt.lag for s in drains if isinstance(s.stmt, MmaDrain)]
    if late != [lag] * len(releases) * bool(lag):
        return (
            f"pipeline {pipeline}: releases lag by {lag} but MmaDrain releases {late}"
        )
    for release, drain in zip(releases, drains, strict=lag > 0):
        behind = drain.order > release.order
        if not behind or drain.nesting != release.nesting[:-1]:
            return f"pipeline {pipeline}: MmaDrain does not stand behind its k loop"
    return None


def _sites(program: Program, pipeline: Pipeline) -> tuple[Site, ...]:
    found = []
    for thread in threads(program):
        for site in thread.sites():
            if getattr(site.stmt, "pipeline", None) == pipeline:
                found.append(site)
    return tuple(found)


def _nests(program: Program, pipeline: Pipeline, kind: type[Stmt]) -> tuple[Key, ...]:
    """For each ``kind`` of the pipeline, in order, the loops around it."""
    nests = []
    for site in _sites(program, pipeline):
        if not isinstance(site.stmt, kind):
            continue
        role = "" if site.role is None else site.role.name
        region = region_of(program, role)
        inside: Body = () if region is None else region.body
        known = definitions((*program.prologue, *inside))
        levels = tuple(_level_key(level, known) for level in site.nesting)
        nests.append((site.section, *levels))
    return tuple(nests)


def _level_key(level: Stmt, known: Definitions) -> Key:
    if isinstance(level, KLoop):
        return ("k", value_key(level.count, known))
    if isinstance(level, SubtileLoop):
        return ("subtile", level.count)
    if isinstance(level, If):
        return ("if", value_key(level.condition, known))
    return ("unknown", level)


def _variable_key(var: Var, known: Definitions, seen: tuple[Var, ...]) -> Key:
    sources = known.get(var, ())
    if var in seen or not sources:
        return ("var", var)
    inner = (*seen, var)
    return ("any", *(_source_key(s, var, known, inner) for s in sources))


def _source_key(stmt: Stmt, var: Var, known: Definitions, seen: tuple[Var, ...]) -> Key:
    if isinstance(stmt, Let):
        return ("let", value_key(stmt.value, known, seen))
    if isinstance(stmt, ScalarLoad):
        return ("load", stmt.buffer, value_key(stmt.index, known, seen))
    if isinstance(stmt, KLoop):
        return ("index", value_key(stmt.count, known, seen))
    if isinstance(stmt, SubtileLoop):
        return ("index", stmt.count)
    if isinstance(stmt, TileLoop):
        bounds = (stmt.first, stmt.limit)
        return ("work", *(value_key(e, known, seen) for e in bounds))
    if isinstance(stmt, SchedulerAdvance):
        return ("step", value_key(stmt.step, known, seen))
    if isinstance(stmt, ScheduledCoordinates):
        # Each role has a scheduler of its own name; of one kind, they agree on what
        # belongs to a work index. (Nothing that a role clones loads what is written.)
        place = stmt.targets.index(var)
        work = value_key(Ref(stmt.work), known, seen)
        return ("supplied", stmt.scheduler.kind, stmt.buffer, place, work)
    return ("opaque", stmt)
