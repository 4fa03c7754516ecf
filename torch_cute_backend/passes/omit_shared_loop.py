"""``omit_shared_loop``: remove the shared loop iff it provably does nothing.

In: a partitioned program. Out: the same, without its residual loop if all seven rules
of ``CHECKS`` hold, and an :class:`Omission` that says why. Fails closed: what is not on
the list of droppable statements, by exact class, is work.

A loop over a scheduler that cannot be walked twice (claims, mailboxes) can only be
omitted: if a rule fails, the program is *refused*, since the loop can neither go nor
stay. So is a program whose loop would have to stay but breaks the contract of kept
loops (:mod:`ir.verify_forms`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch_cute_backend.ir.analysis import definitions, launch_uniform, used, users
from torch_cute_backend.ir.ops import Stmt, walk
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.participants import mismatches
from torch_cute_backend.ir.pipelines import tile_loop_of
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import RoleRegion, SchedulerAdvance, TileLoop
from torch_cute_backend.ir.values import SchedulerKind
from torch_cute_backend.ir.verify_forms import kept_contract
from torch_cute_backend.passes.base import Pass, PassContext, PassResult
from torch_cute_backend.passes.remarks import Omission, Remark
from torch_cute_backend.passes.residual import Finding, classify

Check = Callable[[Program, TileLoop, PassContext], tuple[Finding, ...]]

STATIC_KINDS = (
    SchedulerKind.STATIC_PERSISTENT,
    SchedulerKind.GROUPED_STATIC,
    SchedulerKind.SINGLE_TILE,
)


@dataclass(frozen=True)
class OmitSharedLoop(Pass):
    """See the module docstring."""

    name: ClassVar[str] = "omit_shared_loop"

    def run(self, program: Program, context: PassContext) -> PassResult:
        loop = program.loop
        if loop is None:
            return _result(program, Omission("not_applicable", None))
        failed = {
            rule: found
            for rule, check in CHECKS
            if (found := check(program, loop, context))
        }
        rule = next(iter(failed), None)
        keep = context.shared_loop != "auto"
        if rule is None and not keep:
            return _omit(program, loop)
        return _keep(program, loop, rule, failed)


def _omit(program: Program, loop: TileLoop) -> PassResult:
    remarks = [
        Remark(True, "residual_work", f.statement, f.message)
        for f in classify(program, loop)
    ]
    once = loop.scheduler.kind is SchedulerKind.SINGLE_TILE
    what = "shared tile" if once else "shared loop"
    remarks.append(
        Remark(True, "omit_shared_loop", print_statement(loop), f"{what} omitted")
    )
    decision = "not_applicable" if once else "omitted"
    omission = Omission(decision, None, tuple(remarks))
    return _result(replace(program, loop=None), omission)


def _keep(
    program: Program,
    loop: TileLoop,
    rule: str | None,
    failed: dict[str, tuple[Finding, ...]],
) -> PassResult:
    """Every residual statement gets a remark, then the rules that failed."""
    remarks = []
    why = "the schedule asks for it" if rule is None else f"rule {rule}"
    for f in classify(program, loop):
        message = f"{f.message}; the loop stays: {why}" if f.droppable else f.message
        remarks.append(Remark(False, "residual_work", f.statement, message))
    for name, findings in failed.items():
        if name != "residual_work":
            remarks.extend(
                Remark(False, name, f.statement, f.message) for f in findings
            )
    if rule is None:
        remarks.append(Remark(False, "omit_shared_loop", print_statement(loop), why))
    decision, reported = "kept", rule
    broken = tuple(kept_contract(program))
    name = print_statement(loop)
    if not loop.scheduler.replayable:
        decision, reported = "refused", "scheduler"
        text = f"may not go ({why}) and cannot stay: it cannot be walked again"
        remarks.append(Remark(False, "scheduler", name, text))
    elif broken:
        decision = "refused"
        remarks.extend(Remark(False, "kept_contract", name, text) for text in broken)
    elif loop.scheduler.kind is SchedulerKind.SINGLE_TILE:
        decision = "not_applicable"
    return _result(program, Omission(decision, reported, tuple(remarks)))


def _result(program: Program, omission: Omission) -> PassResult:
    return PassResult(program, omission.remarks, omission)


def _step(stmt: Stmt) -> bool:
    return isinstance(stmt, SchedulerAdvance)


# --- the rules


def _single_root(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    if len(program.roots) == 1:
        return ()
    names = ", ".join(program.roots)
    message = f"{len(program.roots)} root programs share the loop: {names}"
    return (Finding(print_statement(loop), message, False),)


def _role_local(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    found = []
    for name in context.required_roles:
        regions = [r for r in program.regions if r.role and r.role.name == name]
        message = _not_local(program, loop, regions)
        if message:
            found.append(Finding(f"role {name}", message, False))
    return tuple(found)


def _not_local(
    program: Program, loop: TileLoop, regions: list[RoleRegion]
) -> str | None:
    if len(regions) != 1:
        return f"required role has {len(regions)} regions, expected 1"
    own = tile_loop_of(regions[0])
    if own is None:
        return "required role has no persistent loop of its own"
    kind = own.scheduler.kind
    if kind is SchedulerKind.SINGLE_TILE and kind is not loop.scheduler.kind:
        return f"scheduler {own.scheduler} is not persistent"
    others = [
        other.scheduler
        for region in program.regions
        if region is not regions[0]
        for other in walk(region.body)
        if isinstance(other, TileLoop)
    ]
    if own.scheduler in (loop.scheduler, *others):
        return f"scheduler {own.scheduler} is not the role's own"
    if not any(s.effects() for s in walk(own.body) if not _step(s)):
        return "the role-local loop does nothing"
    return None


def _residual_work(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    return tuple(f for f in classify(program, loop) if not f.droppable)


def _post_loop_use(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    later = used(program.post)
    found = []
    for var in definitions((loop,)):
        if var in later:
            for stmt in users(program.post, var):
                message = f"uses {var}, which the shared loop defines"
                found.append(Finding(print_statement(stmt), message, False))
    return tuple(found)


def _barrier_order(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    found = []
    for race in races(replace(program, loop=None)):
        message = f"without the shared loop's barriers: {race}"
        found.append(Finding(print_statement(race.statement), message, False))
    return tuple(found)


def _scheduler(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    """Static, private, finite: a pure function of block id and grid. One that cannot
    be walked twice is fine only if no copy of its step is left in the shared loop."""
    scheduler, name = loop.scheduler, print_statement(loop)
    if not scheduler.replayable:
        return tuple(
            Finding(print_statement(s), f"shared step of {scheduler}", False)
            for s in walk(loop.body)
            if any(getattr(e, "scheduler", None) == scheduler for e in s.effects())
        )
    if scheduler.kind not in STATIC_KINDS:
        return (Finding(name, f"{scheduler.kind.value} is not static", False),)
    steps = [s.step for s in walk(loop.body) if isinstance(s, SchedulerAdvance)]
    exprs = [loop.first, loop.limit, *steps]
    names = [v for e in exprs for v in e.variables()]
    if not launch_uniform(names, program.prologue):
        message = "first, limit or step do not follow from launch parameters alone"
        return (Finding(name, message, False),)
    return ()


def _participants(
    program: Program, loop: TileLoop, context: PassContext
) -> tuple[Finding, ...]:
    counted = mismatches(replace(program, loop=None))
    return tuple(Finding(resource, message, False) for resource, message in counted)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("single_root", _single_root),
    ("role_local", _role_local),
    ("residual_work", _residual_work),
    ("post_loop_use", _post_loop_use),
    ("barrier_order", _barrier_order),
    ("scheduler", _scheduler),
    ("participants", _participants),
)
"""The seven rules, in the order in which the first failure is reported."""
