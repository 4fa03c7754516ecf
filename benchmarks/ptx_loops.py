"""A kernel's PTX as ``sass_loops`` sees machine code, to count its loops likewise."""

from __future__ import annotations

import re

from sass_loops import Code, Instruction

_LABEL = re.compile(r"(\$\w+):")
_LOCAL = re.compile(r"^(\w+: *)+")
_BRANCH = re.compile(r"^(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)$")
_STEP = 16

MARKERS = {
    "load": re.compile(r"\bcp\.async\.bulk\.tensor\.\dd\.shared::\w+\.global\b"),
    "mma": re.compile(r"\btcgen05\.mma\."),
    "epilogue": re.compile(r"\btcgen05\.ld\."),
}
"""Role to the PTX instruction that only it issues."""


def parse(text: str) -> Code:
    """Instructions of the only kernel in ``text``, in order; branches to the compiler's
    labels become branches to addresses. Directives are left out; the waits' spinning,
    which is inline PTX with labels of its own, counts once."""
    body = text[text.index("{", text.index(".entry")) :]
    body = re.sub(r"//.*", "", body)
    statements: list[str] = []
    labels: dict[str, int] = {}
    for piece in _LABEL.sub(r";\1:;", body).split(";"):
        statement = " ".join(piece.split()).lstrip("{} ")
        label = _LABEL.fullmatch(statement)
        if label:
            labels[label[1]] = len(statements) * _STEP
            continue
        statement = _LOCAL.sub("", statement).lstrip("{} ")
        if statement and not statement.startswith("."):
            statements.append(statement)
    return tuple(
        Instruction(n * _STEP, _addressed(s, labels)) for n, s in enumerate(statements)
    )


def _addressed(statement: str, labels: dict[str, int]) -> str:
    branch = _BRANCH.match(statement)
    if branch is None:
        return statement
    return f"{branch[1] or ''}BRA 0x{labels[branch[2]]:x}"
