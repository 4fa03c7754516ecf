"""The statements of a tile program.

A statement is a frozen dataclass. Its operands are IR values in its fields; what it
uses and defines is derived from them: :func:`defines` marks a field whose ``Var`` it
defines, :func:`body` a nested statement list. A class must say its effects; one that
does not raises ``TypeError`` when it is defined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

from torch_cute_backend.ir.effects import Effect
from torch_cute_backend.ir.expr import Expr
from torch_cute_backend.ir.values import Role, Var

S = TypeVar("S", bound="Stmt")

STATEMENTS: dict[str, type[Stmt]] = {}
"""Registry: class name to class, in order of definition."""

Body = tuple["Stmt", ...]


def defines() -> Any:
    """A field holding a ``Var`` that the statement defines."""
    return field(metadata={"defines": True})


def replacement() -> Any:
    """A field naming the ``Var`` that took over from the one defined here. It is no
    use: nothing is read."""
    return field(default=None, metadata={"replacement": True})


def body() -> Any:
    """A field holding nested statements."""
    return field(default=(), metadata={"body": True})


@dataclass(frozen=True, kw_only=True)
class Stmt:
    """Base of all statements. ``role`` is None for shared (untagged) statements."""

    role: Role | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "effects" not in cls.__dict__:
            raise TypeError(f"statement {cls.__name__} declares no effects")
        STATEMENTS[cls.__name__] = cls

    def effects(self) -> tuple[Effect, ...]:
        """Effects of this statement itself, without those of nested bodies."""
        raise NotImplementedError

    def defs(self) -> tuple[Var, ...]:
        """Variables this statement itself defines."""
        found: list[Var] = []
        for f in fields(self):
            if f.metadata.get("defines"):
                found.extend(_variables(getattr(self, f.name)))
        return tuple(found)

    def uses(self) -> tuple[Var, ...]:
        """Variables this statement itself reads, without its nested bodies."""
        found: list[Var] = []
        for f in fields(self):
            if not f.metadata.keys() & {"defines", "body", "replacement"}:
                found.extend(_variables(getattr(self, f.name)))
        return tuple(dict.fromkeys(found))

    def bodies(self) -> tuple[Body, ...]:
        return tuple(
            getattr(self, f.name) for f in fields(self) if f.metadata.get("body")
        )

    def with_body(self: S, statements: Body) -> S:
        """A copy whose only body is ``statements``."""
        (name,) = (f.name for f in fields(self) if f.metadata.get("body"))
        changes: dict[str, Any] = {name: statements}
        return replace(self, **changes)

    def operands(self) -> str:
        """The fields as the printer shows them; what has its default is left out."""
        parts = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "role" or f.metadata.get("body") or value in (None, ()):
                continue
            if f.default is not MISSING and value == f.default:
                continue
            parts.append(f"{f.name}={_show(value)}")
        return ", ".join(parts)

    def __str__(self) -> str:
        tag = f"[{self.role}] " if self.role else ""
        return f"{tag}{type(self).__name__}({self.operands()})"


def walk(statements: Body) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    for s in statements:
        yield s
        for nested in s.bodies():
            yield from walk(nested)


def _variables(value: object) -> Iterator[Var]:
    if isinstance(value, Var):
        yield value
    elif isinstance(value, Expr):
        yield from value.variables()
    elif isinstance(value, tuple):
        for item in value:
            yield from _variables(item)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(_show(v) for v in value) + ")"
    return str(value.value if isinstance(value, Enum) else value)
