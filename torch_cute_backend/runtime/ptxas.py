"""ptxas's words about a kernel: capture them from the DSL, read them, judge them.

The DSL assembles in process and, asked for ``--remark-filter ptxas``, prints ptxas's
verbose log on ``sys.stderr``. :class:`StderrCapture` takes what the compiling thread
writes there; :func:`parse` turns it into a :class:`PtxasReport`.
"""

from __future__ import annotations

import io
import re
import sys
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from torch_cute_backend.status import Status

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_WARNING = re.compile(r"\((C\d+)\) (.+?)(?= ptxas |\Z)")
_SERIOUS = ("setmaxnreg", "wgmma.mma_async instructions are serialized")


@dataclass(frozen=True)
class PtxasReport:
    """What ptxas said.

    Attributes:
        seen: its log was found; without it nothing below is known.
        registers: registers a thread, 0 if not seen.
        spill_store_bytes, spill_load_bytes: spill traffic a thread.
        warnings: its performance warnings, each with its code.
    """

    seen: bool
    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    warnings: tuple[str, ...] = ()

    def gate(self) -> Status:
        """The build gate: no spills, no ignored register hint, no serialised wgmma.

        An ignored ``setmaxnreg`` means that the kernel's register budget is not the
        one its roles were designed for; serialised wgmma, that tensor cores wait for
        each product. A missing log proves nothing, so it fails.
        """
        spilled = self.spill_store_bytes + self.spill_load_bytes
        serious = [w for w in self.warnings if any(word in w for word in _SERIOUS)]
        return Status.check(
            (self.seen, "ptxas's log was not captured: spills are unknown"),
            (
                spilled == 0,
                f"ptxas spilled registers: {self.spill_store_bytes} bytes stored, "
                f"{self.spill_load_bytes} bytes loaded",
            ),
            (not serious, f"ptxas: {'; '.join(serious)}"),
        )


def parse(log: str) -> PtxasReport:
    """Read the DSL's rendering of ptxas's log (coloured, wrapped, with frames)."""
    text = " ".join(_ESCAPE.sub("", log).split())
    used = _USED.search(text)
    spills = _SPILLS.search(text)
    if used is None or spills is None:
        return PtxasReport(seen=False)
    return PtxasReport(
        seen=True,
        registers=int(used.group(1)),
        spill_store_bytes=int(spills.group(1)),
        spill_load_bytes=int(spills.group(2)),
        warnings=tuple(f"{code} {words}" for code, words in _WARNING.findall(text)),
    )


class StderrCapture(io.TextIOBase):
    """Takes the creating thread's ``sys.stderr``; other threads' text passes through.

    Compiling happens in threads of a live process, whose other threads must not lose
    what they print.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owner = threading.get_ident()
        self._text: list[str] = []
        self._previous: TextIO = sys.stderr

    def __enter__(self) -> StderrCapture:
        self._previous = sys.stderr
        sys.stderr = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if sys.stderr is self:
            sys.stderr = self._previous

    def write(self, text: str) -> int:
        if threading.get_ident() != self._owner:
            return self._previous.write(text)
        self._text.append(text)
        return len(text)

    def flush(self) -> None:
        self._previous.flush()

    def fileno(self) -> int:
        return self._previous.fileno()

    @property
    def text(self) -> str:
        return "".join(self._text)
