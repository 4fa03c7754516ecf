"""A partitioned program as its threads of control: one tree of sites a role.

In: a program with role regions. Out: for each role every statement it runs, in order,
with the pipeline stages it holds there (:class:`Site`), and finite *traces*: the same
sequence with static loops unrolled and dynamic loops run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import count

from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    ConsumerWait,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
)
from torch_cute_backend.ir.effects import Effect
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    RoleRegion,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.values import Pipeline, Role, Var


class Section(str, Enum):
    """Where in its role's life a statement runs."""

    PROLOGUE = "prologue"
    HEAD = "head"
    LOOP = "loop"
    TAIL = "tail"
    POST = "post"

    @property
    def after_loop(self) -> bool:
        return self in (Section.TAIL, Section.POST)


@dataclass(frozen=True)
class Hold:
    """A stage of ``pipeline`` held since the acquire or wait with ordinal ``since``."""

    pipeline: Pipeline
    since: int


@dataclass(frozen=True)
class Site:
    """One statement of one role.

    Attributes:
        role: None if every thread runs it.
        top: index of the enclosing top-level statement in ``program.top()``.
        order: ordinal of the statement in its thread of control.
        holds: stages held while it runs.
        nesting: enclosing loops and branches below the tile loop, outermost first.
        tailed: pipelines whose ``ProducerTail`` this role has passed behind its loop.
    """

    stmt: Stmt
    role: Role | None
    section: Section
    top: int
    order: int
    holds: tuple[Hold, ...] = ()
    nesting: tuple[Stmt, ...] = ()
    tailed: tuple[Pipeline, ...] = ()

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        return self.stmt.effects()

    def holds_pipeline(self, pipeline: Pipeline) -> Hold | None:
        return next((h for h in self.holds if h.pipeline == pipeline), None)


@dataclass(frozen=True)
class Node:
    """A site and the sites of its nested statements."""

    site: Site
    children: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Thread:
    """What the warps of ``role`` run; for None, what every thread of the CTA runs."""

    role: Role | None
    nodes: tuple[Node, ...]

    def sites(self) -> Iterator[Site]:
        yield from _flatten(self.nodes)


@dataclass(frozen=True)
class Step:
    """One execution of a site.

    Attributes:
        path: the executions of branches and of K loop iterations that it is part of; it
            happens iff those do. Conditions are CTA-uniform, so all warps of a role
            take one path.
        env: values of unrolled loop indices.
    """

    site: Site
    path: frozenset[int] = frozenset()
    env: Mapping[Var, int] = field(default_factory=dict)

    @property
    def certain(self) -> bool:
        """Does it happen whenever its tile loop iteration does?"""
        return not self.path


def threads(program: Program) -> tuple[Thread, ...]:
    """The shared thread (role None) first, then one for each role."""
    shared = _Builder(None)
    for top, section, stmt in _top_level(program):
        if stmt.role is None and not isinstance(stmt, RoleRegion):
            shared.add((stmt,), section, top)
    found = [Thread(None, tuple(shared.nodes))]
    for role in program.roles:
        builder = _Builder(role)
        for top, section, stmt in _top_level(program):
            if stmt.role != role:
                continue
            if isinstance(stmt, RoleRegion):
                builder.add_region(stmt.body, top)
            else:
                builder.add((stmt,), section, top)
        found.append(Thread(role, tuple(builder.nodes)))
    return tuple(found)


def trace(thread: Thread, trips: int) -> tuple[Step, ...]:
    """The thread's steps if its tile loop runs ``trips`` times.

    A K loop, whose count is known at run time only, is run twice, and a branch once;
    whether they happen is in the steps' paths.
    """
    return tuple(_expand(thread.nodes, trips, frozenset(), {}, count()))


def _top_level(program: Program) -> Iterator[tuple[int, Section, Stmt]]:
    for top, stmt in enumerate(program.top()):
        in_prologue = top < len(program.prologue)
        yield top, Section.PROLOGUE if in_prologue else Section.POST, stmt


def _flatten(nodes: tuple[Node, ...]) -> Iterator[Site]:
    for node in nodes:
        yield node.site
        yield from _flatten(node.children)


def _expand(
    nodes: tuple[Node, ...],
    trips: int,
    path: frozenset[int],
    env: Mapping[Var, int],
    fresh: Iterator[int],
) -> Iterator[Step]:
    for node in nodes:
        stmt = node.site.stmt
        yield Step(node.site, path, env)
        if isinstance(stmt, SubtileLoop):
            for i in range(stmt.count):
                inner = {**env, stmt.index: i}
                yield from _expand(node.children, trips, path, inner, fresh)
            continue
        repeat = trips if isinstance(stmt, TileLoop) else 1
        repeat = 2 if isinstance(stmt, KLoop) else repeat
        for _ in range(repeat):
            unsure = isinstance(stmt, (KLoop, If))
            inside = path | {next(fresh)} if unsure else path
            yield from _expand(node.children, trips, inside, env, fresh)


class _Builder:
    """Walks one role's statements and tracks the stages it holds."""

    def __init__(self, role: Role | None) -> None:
        self.role = role
        self.nodes: list[Node] = []
        self._order = 0
        self._holds: tuple[Hold, ...] = ()
        self._tailed: tuple[Pipeline, ...] = ()

    def add(self, statements: Body, section: Section, top: int) -> None:
        self.nodes.extend(self._build(statements, section, top, ()))

    def add_region(self, statements: Body, top: int) -> None:
        section = Section.HEAD
        for stmt in statements:
            if isinstance(stmt, TileLoop):
                self.add((stmt,), Section.LOOP, top)
                section = Section.TAIL
            else:
                self.add((stmt,), section, top)

    def _build(
        self, statements: Body, section: Section, top: int, nesting: tuple[Stmt, ...]
    ) -> tuple[Node, ...]:
        nodes = []
        for stmt in statements:
            self._leave(stmt)
            site = Site(
                stmt=stmt,
                role=self.role,
                section=section,
                top=top,
                order=self._order,
                holds=self._holds,
                nesting=nesting,
                tailed=self._tailed,
            )
            self._order += 1
            self._enter(site)
            inside = nesting if isinstance(stmt, TileLoop) else (*nesting, stmt)
            children = self._nested(stmt, section, top, inside)
            nodes.append(Node(site, children))
        return tuple(nodes)

    def _nested(
        self, stmt: Stmt, section: Section, top: int, nesting: tuple[Stmt, ...]
    ) -> tuple[Node, ...]:
        children: tuple[Node, ...] = ()
        before = self._holds
        for body in stmt.bodies():
            children += self._build(body, section, top, nesting)
        if stmt.bodies():
            # A body may run zero times or many: only what it leaves as it found is
            # held for sure.
            self._holds = tuple(h for h in before if h in self._holds)
        return children

    def _leave(self, stmt: Stmt) -> None:
        if isinstance(stmt, (ProducerCommit, ConsumerRelease)):
            gone = stmt.pipeline
            self._holds = tuple(h for h in self._holds if h.pipeline != gone)

    def _enter(self, site: Site) -> None:
        stmt = site.stmt
        if isinstance(stmt, (ProducerAcquire, ConsumerWait)):
            self._holds = (*self._holds, Hold(stmt.pipeline, site.order))
        # In front of the loop, or on some paths only, a tail has waited for nothing.
        always = site.section.after_loop and not site.nesting
        if isinstance(stmt, ProducerTail) and always:
            self._tailed = (*self._tailed, stmt.pipeline)
