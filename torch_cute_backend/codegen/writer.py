"""Indented text that stays within 88 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 88
_INDENT = "    "


class Writer:
    """Collects lines. ``call`` and ``header`` break long argument lists one a line."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        self._lines.append(f"{_INDENT * self._depth}{text}" if text else "")

    def blank(self) -> None:
        """An empty line, never two in a row."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def comment(self, text: str, hang: int = 0) -> None:
        """``text`` as comment lines; all but the first are indented by ``hang``."""
        width = WIDTH - len(_INDENT) * self._depth - 2
        for part in textwrap.wrap(text, width, subsequent_indent=" " * hang):
            self.line(f"# {part}")

    def call(self, head: str, args: tuple[str, ...], tail: str = ")") -> None:
        """``head`` (up to and with its open bracket), arguments, ``tail``."""
        flat = f"{head}{', '.join(args)}{tail}"
        if len(_INDENT) * self._depth + len(flat) <= WIDTH:
            self.line(flat)
            return
        self.line(head)
        with self.indent():
            for arg in args:
                self.line(f"{arg},")
        self.line(tail)

    def lines(self, *texts: str) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def indent(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """``header`` (with its colon) and an indented body."""
        self.line(header)
        with self.indent():
            yield

    def text(self) -> str:
        return "\n".join(self._lines).rstrip("\n") + "\n"
