"""Memory accesses of a program's threads, and pairs of them that conflict.

Two accesses of one shared, tensor-memory or global buffer conflict if one of them
changes it. Registers belong to a thread and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from torch_cute_backend.ir.effects import Alloc, Effect, Free, Read, Write
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.threads import Site, Thread
from torch_cute_backend.ir.values import Buffer, Pipeline, Proxy, Role, Space

MemoryEffect = Read | Write | Alloc | Free


@dataclass(frozen=True)
class Access:
    """One memory effect of one site."""

    site: Site
    effect: MemoryEffect

    @property
    def buffer(self) -> Buffer:
        return self.effect.buffer

    @property
    def mutates(self) -> bool:
        return not isinstance(self.effect, Read)

    @property
    def asynchronous(self) -> bool:
        effect = self.effect
        return isinstance(effect, (Read, Write)) and effect.proxy is Proxy.ASYNC

    @property
    def disjoint(self) -> bool:
        return isinstance(self.effect, Write) and self.effect.disjoint

    def __str__(self) -> str:
        kind = type(self.effect).__name__.lower()
        role = self.site.role
        stmt = self.site.stmt
        tag = f"[{role}] " if role and not stmt.role else ""
        return f"{kind} in {tag}{print_statement(stmt)}"


@dataclass(frozen=True)
class Race:
    """Two conflicting accesses without order, in the order of the text, or one that
    outlives the CTA."""

    first: Access
    second: Access | None
    what: str

    @property
    def in_post(self) -> bool:
        """Does it involve what runs after the loops?"""
        accesses = (self.first,) if self.second is None else (self.first, self.second)
        return self.second is None or any(a.site.section.after_loop for a in accesses)

    @property
    def statement(self) -> Stmt:
        """The statement to name: the later one."""
        return (self.second or self.first).site.stmt

    def __str__(self) -> str:
        if self.second is None:
            return f"{self.what}: {self.first}"
        return f"{self.what}: {self.first} and {self.second}"


def unordered(x: Access, y: Access) -> Race:
    def place(a: Access) -> tuple[bool, int, int]:
        return a.site.section.after_loop, a.site.top, a.site.order

    first, second = sorted((x, y), key=place)
    return Race(first, second, f"unordered accesses of {x.buffer}")


def memory_effects(effects: tuple[Effect, ...]) -> tuple[MemoryEffect, ...]:
    return tuple(e for e in effects if isinstance(e, (Read, Write, Alloc, Free)))


def written_buffers(program: Program) -> frozenset[Buffer]:
    """Buffers that some statement of the kernel changes."""
    return frozenset(
        effect.buffer
        for stmt in program.walk()
        for effect in memory_effects(stmt.effects())
        if not isinstance(effect, Read)
    )


def accesses(thread: Thread) -> tuple[Access, ...]:
    found = []
    for site in thread.sites():
        for effect in memory_effects(site.effects):
            if effect.buffer.space is not Space.RMEM:
                found.append(Access(site, effect))
    return tuple(found)


def conflict(x: Access, y: Access) -> bool:
    return x.buffer == y.buffer and (x.mutates or y.mutates)


def conflicts(
    ones: tuple[Access, ...], others: tuple[Access, ...]
) -> Iterator[tuple[Access, Access]]:
    for x in ones:
        for y in others:
            if conflict(x, y):
                yield x, y


class End(str, Enum):
    """The two ends of a pipeline."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


def end_of(pipeline: Pipeline, role: Role | None) -> End | None:
    """Which end of ``pipeline`` the role is, if any."""
    if role is None:
        return None
    if role.name == pipeline.producer:
        return End.PRODUCER
    return End.CONSUMER if role.name == pipeline.consumer else None
