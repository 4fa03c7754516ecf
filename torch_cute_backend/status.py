"""``Status``: the answer to "can this be done?", with reasons when it cannot.

A falsy ``Status`` carries one or more short reasons. It is returned, never raised: a
caller that gets one keeps its other choices and may log the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """Supported (truthy, no reasons) or unsupported (falsy, with reasons)."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "ok" if self else "; ".join(self.reasons)

    def __and__(self, other: Status) -> Status:
        """Supported iff both are; the reasons of both are kept, without repeats."""
        return Status(tuple(dict.fromkeys(self.reasons + other.reasons)))

    @classmethod
    def ok(cls) -> Status:
        return cls()

    @classmethod
    def no(cls, *reasons: str) -> Status:
        if not reasons:
            raise ValueError("an unsupported Status needs at least one reason")
        return cls(tuple(reasons))

    @classmethod
    def check(cls, *conditions: tuple[bool, str]) -> Status:
        """Collect the reason of each ``(condition, reason)`` that does not hold."""
        return cls(tuple(reason for holds, reason in conditions if not holds))
