"""Fault injection: edits of real PTX that a correct checker must notice.

A ``Fault`` replaces one occurrence of a pattern. That it applies is checked, so that a
changed code generator cannot turn a fault into a no-op unseen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .report import SimError


@dataclass(frozen=True)
class Fault:
    """Replace occurrence ``which`` (0-based; negative from the end) of ``pattern``.

    ``pattern`` is a multi-line regular expression; ``after`` restricts the search to
    the text behind the first match of another one. ``replacement`` may use groups;
    empty removes. ``every`` replaces all occurrences.
    """

    name: str
    pattern: str
    replacement: str = ""
    which: int = 0
    after: str = ""
    every: bool = False

    def apply(self, ptx: str) -> str:
        """.

        The edited PTX; ``SimError`` if the fault does not apply or changes nothing.
        """
        start = 0
        if self.after:
            anchor = re.search(self.after, ptx, re.M)
            if anchor is None:
                raise SimError(f"fault {self.name!r}: no match for {self.after!r}")
            start = anchor.end()
        found = [m for m in re.finditer(self.pattern, ptx, re.M) if m.start() >= start]
        if not found or not -len(found) <= self.which < len(found):
            raise SimError(
                f"fault {self.name!r}: {len(found)} matches for {self.pattern!r}"
            )
        chosen = found if self.every else [found[self.which]]
        for match in reversed(chosen):
            ptx = (
                ptx[: match.start()]
                + match.expand(self.replacement)
                + ptx[match.end() :]
            )
        if any(m.group(0) == m.expand(self.replacement) for m in chosen):
            raise SimError(f"fault {self.name!r} changes nothing")
        return ptx
