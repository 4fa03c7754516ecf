"""What a simulation hands back: findings, counts and errors.

Owns the frozen result types of the simulator and its exception classes. A *finding* is
something wrong (or doubtful) in the simulated kernel; an *error* means that the
simulator cannot or must not continue (unknown opcode, malformed PTX, wrong arguments).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch_cute_backend.errors import CuteBackendError, UserError


class SimError(CuteBackendError):
    """The simulator cannot run this input; the message names the PTX line if any."""

    def __init__(self, message: str, ptx_line: int | None = None) -> None:
        where = "" if ptx_line is None else f"PTX line {ptx_line}: "
        super().__init__(where + message)
        self.ptx_line = ptx_line


class UnsupportedPtx(SimError):
    """An opcode, qualifier or descriptor field that the simulator does not model."""


class BadInput(SimError, UserError):
    """What the caller handed over cannot be simulated: no PTX, another target, tensors
    that the kernel does not take. The command line's exit code is 2.
    """


@contextmanager
def at_line(line: int) -> Iterator[None]:
    """Give an ``UnsupportedPtx`` from a helper without a line this PTX line."""
    try:
        yield
    except UnsupportedPtx as error:
        if error.ptx_line is None:
            raise UnsupportedPtx(str(error), line) from None
        raise


@dataclass(frozen=True)
class Finding:
    """One fault of the simulated kernel.

    ``kind`` is a stable short name (``race``, ``deadlock``, ``uninitialised``,
    ``out_of_bounds``, ``misuse``, ``double_write``, ``missing_write``, ``proxy``,
    ``async_register``, ``tmem``, ``unread_store``); ``role`` is a role name when the
    caller gave a role map, else ``"warp N"``. ``advice`` findings are reported but do
    not make a run fail.
    """

    kind: str
    message: str
    ptx_line: int | None = None
    source_line: str | None = None
    role: str | None = None
    advice: bool = False

    def __str__(self) -> str:
        where = [f"PTX line {self.ptx_line}"] if self.ptx_line else []
        where += [w for w in (self.source_line, self.role) if w]
        return f"{self.kind}: {self.message}" + (
            f" ({', '.join(where)})" if where else ""
        )


@dataclass(frozen=True)
class SimReport:
    """Result of one simulated launch.

    ``findings`` holds faults, ``notes`` holds advice. ``counts`` maps a role or warp
    name to executed instruction counts, summed over CTAs. ``tiles_written_once`` is
    None when no output tensor was named. ``seconds`` is simulation time without
    compilation.
    """

    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    counts: Mapping[str, Mapping[str, int]]
    tiles_written_once: bool | None
    seconds: float
    mode: str
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    kernel: str
    launches: int = 1
    deadlocked: bool = False
    ptx: str = field(default="", repr=False)

    @property
    def clean(self) -> bool:
        """True when no fault was found and every output element was written once."""
        return not self.findings and self.tiles_written_once is not False

    def summary(self) -> str:
        """A few lines for a terminal."""
        head = (
            f"{self.kernel[:60]}: grid {self.grid}, cluster {self.cluster}, {self.mode}"
        )
        lines = [head, f"{self.seconds:.2f} s, {len(self.findings)} findings"]
        lines += [f"  {finding}" for finding in self.findings[:20]]
        return "\n".join(lines)
