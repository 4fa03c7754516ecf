"""Readable text of a program: one statement a line, bodies indented.

In: a :class:`Program`. Out: deterministic text for ``explain --print-ir`` and for
tests. Order comes from the program's tuples alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    ClcClaim,
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
from torch_cute_backend.ir.sync import CtaBarrier
from torch_cute_backend.ir.values import Buffer, Pipeline, Role, Var

INDENT = "  "


def print_program(program: Program) -> str:
    """The whole program, resources first; ends in a newline."""
    lines = [f"program {program.name} ({program.arch}, {program.form})"]
    lines += [INDENT + line for line in _resources(program)]
    sections: tuple[tuple[str, Body], ...] = (
        ("prologue", program.prologue),
        ("regions", program.regions),
        ("loop", () if program.loop is None else (program.loop,)),
        ("post", program.post),
    )
    for title, statements in sections:
        if statements:
            lines.append(f"{title}:")
            lines.extend(_body(statements, 1, None))
    return "\n".join(lines) + "\n"


def print_statement(stmt: Stmt) -> str:
    """One line, without nested bodies: how remarks and messages name a statement."""
    tag = f"[{stmt.role}] " if stmt.role else ""
    return tag + headline(stmt)


def headline(stmt: Stmt) -> str:
    """The statement without its role tag and without nested bodies."""
    if isinstance(stmt, TileLoop):
        what = f"tile loop {stmt.scheduler} ({stmt.scheduler.kind.value})"
        return f"{what}: {stmt.work} = {stmt.first}; while {stmt.work} < {stmt.limit}"
    if isinstance(stmt, SchedulerAdvance):
        return f"advance {stmt.scheduler}: {stmt.work} += {stmt.step}"
    if isinstance(stmt, (KLoop, SubtileLoop)):
        kind = "for" if isinstance(stmt, KLoop) else "unrolled for"
        return f"{kind} {stmt.index} in range({stmt.count})"
    if isinstance(stmt, Let):
        return f"{stmt.var} = {stmt.value}{_replaced(stmt.replaced_by)}"
    if isinstance(stmt, ScalarLoad):
        value = f"{stmt.buffer}[{stmt.index}]"
        return f"{stmt.var} = {value}{_replaced(stmt.replaced_by)}"
    if isinstance(stmt, ScheduledCoordinates):
        targets = ", ".join(v.name for v in stmt.targets)
        return f"{targets} = {stmt.scheduler} at {stmt.work} of {stmt.buffer}"
    if isinstance(stmt, ClcClaim):
        return f"{stmt.work} = claim {stmt.scheduler}"
    if isinstance(stmt, If):
        return f"if {stmt.condition}"
    if isinstance(stmt, RoleRegion):
        return f"role {stmt.role}"
    if isinstance(stmt, Placeholder):
        return f"placeholder ({stmt.count} of {stmt.of})"
    if isinstance(stmt, CtaBarrier):
        return f"CtaBarrier()  # {stmt.why}" if stmt.why else "CtaBarrier()"
    text = str(stmt)
    tag = f"[{stmt.role}] " if stmt.role else ""
    return text.removeprefix(tag)


def _replaced(var: Var | None) -> str:
    return "" if var is None else f"  # replaced by {var}"


def _body(statements: Body, depth: int, role: Role | None) -> Iterator[str]:
    """Role tags are shown where the role changes; a region's body carries its own."""
    for stmt in statements:
        inherited = stmt.role == role or isinstance(stmt, RoleRegion)
        tag = "" if inherited or stmt.role is None else f"[{stmt.role}] "
        nested = stmt.bodies()
        yield INDENT * depth + tag + headline(stmt) + (":" if nested else "")
        inside = role if stmt.role is None else stmt.role
        for body in nested:
            yield from _body(body, depth + 1, inside)


def _resources(program: Program) -> Iterator[str]:
    yield f"roots {', '.join(program.roots)}"
    if program.cluster_size > 1:
        m, n = program.cluster_shape
        yield f"cluster {m}x{n}"
    for role in program.roles:
        yield f"role {role}: {_warps(role)}"
    for buffer in program.buffers:
        yield f"buffer {_buffer(buffer)}"
    for pipeline in program.pipelines:
        yield f"pipeline {_pipeline(pipeline)}"
    for barrier in program.barriers:
        who = ", ".join(barrier.roles)
        yield f"barrier {barrier}: id {barrier.id}, {barrier.threads} threads of {who}"


def _warps(role: Role) -> str:
    last = role.first_warp + role.all_warps - 1
    text = f"warps {role.first_warp}-{last}" if role.all_warps > 1 else f"warp {last}"
    return text if role.registers is None else f"{text}, {role.registers} registers"


def _buffer(buffer: Buffer) -> str:
    shape = "x".join(str(n) for n in buffer.shape)
    stages = f" x {buffer.stages} stages" if buffer.stages > 1 else ""
    shaped = f" {shape}" if shape else ""
    return f"{buffer}: {buffer.space.value} {buffer.dtype}{shaped}{stages}"


def _pipeline(p: Pipeline) -> str:
    carries = ", ".join(b.name for b in p.carries)
    return (
        f"{p}: {p.kind.value} {p.producer} -> {p.consumer}, carries {carries}, "
        f"{p.stages} stages, tx {p.tx_bytes} bytes, "
        f"arrivals {p.producer_arrivals}/{p.consumer_arrivals}"
    )
