"""Loops of a cubin's machine code, and which role each belongs to.

A backward branch closes a loop. The role is told by the instruction that only it
issues: TMA load, MMA, TMEM load. Blocking waits are counted once: the code that spins
after a failed first try lies outside the loops.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_BRANCH = re.compile(r"(?:^|\s)BRA(?:\.U)?\S*\s+(?:!?U?P\w+,\s*)?0x([0-9a-f]+)")
_NOT_WORK = ("NOP",)

Markers = Mapping[str, re.Pattern[str]]
MARKERS: Markers = {
    "load": re.compile(r"\bUTMALDG"),
    "mma": re.compile(r"\bUTC\w*MMA\b"),
    "epilogue": re.compile(r"\bLDTM"),
}
"""Role to the instruction that only it issues."""

CTA_BARRIER = re.compile(r"\bBAR\.SYNC\S* 0x0\b")
NAMED_BARRIER = re.compile(r"\bBAR\.(?:SYNC|ARV)\S* 0x[1-9a-f]")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: byte address and text with its predicate."""

    address: int
    text: str

    @property
    def target(self) -> int | None:
        found = _BRANCH.search(self.text)
        return int(found.group(1), 16) if found else None


Code = tuple[Instruction, ...]


def disassemble(cubin: Path) -> Code:
    """Instructions of the only kernel of ``cubin``, in order, without padding."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    text = subprocess.run(
        [str(tool), "-sass", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    rows = (_LINE.match(line) for line in text.splitlines())
    code = [Instruction(int(r.group(1), 16), r.group(2)) for r in rows if r]
    # What follows the last exit spins for waits that failed at the first try, and
    # branches back into the code before: no loop of the kernel.
    last_exit = max(n for n, i in enumerate(code) if i.text == "EXIT")
    return tuple(i for i in code[: last_exit + 1] if not i.text.startswith(_NOT_WORK))


def loops(code: Code) -> tuple[Code, ...]:
    """Bodies of all loops, smallest first. A branch to itself pads the code's end."""
    bodies = []
    for last in code:
        if last.target is None or last.target >= last.address:
            continue
        body = (i for i in code if last.target <= i.address <= last.address)
        bodies.append(tuple(body))
    return tuple(sorted(bodies, key=len))


def count(code: Code, pattern: re.Pattern[str]) -> int:
    return sum(bool(pattern.search(i.text)) for i in code)


def innermost(code: Code, role: str, markers: Markers = MARKERS) -> Code:
    """The smallest loop holding the role's instruction: its k loop."""
    return next(body for body in loops(code) if count(body, markers[role]))


def tile_loop(code: Code, role: str, markers: Markers = MARKERS) -> Code:
    """The largest loop holding the role's instruction and no other role's: its
    persistent loop."""
    others = [m for r, m in markers.items() if r != role]
    found = [
        body
        for body in loops(code)
        if count(body, markers[role]) and not any(count(body, m) for m in others)
    ]
    return found[-1]


def residual_loops(code: Code) -> tuple[Code, ...]:
    """Loops with a CTA barrier and no role's instruction: a kept shared loop."""
    return tuple(
        body
        for body in loops(code)
        if count(body, CTA_BARRIER)
        and not any(count(body, m) for m in MARKERS.values())
    )
