"""Pretuned tables: ``tables/<arch>.json``, one row a shape, each with its provenance.

A row that does not parse is named, skipped and never served; the others stay usable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch_cute_backend.errors import TableError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

log = logging.getLogger(__name__)

TABLES = Path(__file__).parent / "tables"
SIZES = ("m", "n", "k", "groups")
PROVENANCE: dict[str, tuple[str, ...]] = {
    "measured": ("gpu", "date", "commit", "dsl", "us", "margin"),
    "published": ("source",),
    "model": (),
}
"""Kinds of provenance, and what a row of each kind must say."""


@dataclass(frozen=True)
class RowKey:
    """What a row was tuned for. The ragged size of a grouped GEMM is of all groups
    together; a row need not name ``groups`` where there are none."""

    family: str
    accum: str
    a_major: str
    b_major: str
    m: int
    n: int
    k: int
    groups: int = 1

    @classmethod
    def of(cls, problem: GemmProblem) -> RowKey:
        return cls(
            problem.family,
            problem.accum.value,
            problem.a_major.value,
            problem.b_major.value,
            problem.m,
            problem.n,
            problem.k,
            problem.groups,
        )

    def groups_along(self, size: str) -> int:
        """How many groups share the size called ``"m"``, ``"n"`` or ``"k"``."""
        return self.groups if self.family.endswith(f"-grouped-{size}") else 1

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        if self.groups == 1:
            del values["groups"]
        return values

    def same_kind(self, other: RowKey) -> bool:
        """Equal but for the sizes."""
        mine = (self.family, self.accum, self.a_major, self.b_major)
        return mine == (other.family, other.accum, other.a_major, other.b_major)


@dataclass(frozen=True)
class TableRow:
    """A schedule with the shape it is for and where it comes from.

    ``provenance`` holds ``kind`` and what ``PROVENANCE`` asks of it. ``us`` is the time
    of one call in µs; ``margin`` is the best other provider's time over it, less 1;
    ``dsl`` the version of the CuTe DSL that compiled the kernel.
    """

    name: str
    key: RowKey
    schedule: GemmSchedule
    provenance: tuple[tuple[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.key.to_json(),
            "schedule": self.schedule.to_json(),
            "provenance": dict(self.provenance),
        }


_REQUIRED = tuple(f.name for f in dataclasses.fields(RowKey) if f.name != "groups")


def parse_row(raw: dict[str, Any]) -> TableRow:
    """One JSON row; ``TableError`` says what is wrong with it."""
    try:
        name, fields = raw["name"], {f: raw[f] for f in _REQUIRED}
        fields["groups"] = raw.get("groups", 1)
        provenance = dict(raw["provenance"])
        schedule = GemmSchedule.from_json(dict(raw["schedule"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"malformed row: {error!r}") from error
    for field, value in (("name", name), *fields.items()):
        if field not in SIZES and type(value) is not str:
            raise TableError(f"row {name}: {field} {value!r} is not text")
        if field in SIZES and (type(value) is not int or value < 1):
            raise TableError(f"row {name}: {field} {value!r} is no positive integer")
    _check_provenance(name, provenance)
    return TableRow(name, RowKey(**fields), schedule, tuple(sorted(provenance.items())))


def _check_provenance(name: str, provenance: dict[str, Any]) -> None:
    kind = provenance.get("kind")
    if not isinstance(kind, str) or kind not in PROVENANCE:
        raise TableError(f"row {name}: provenance kind {kind!r}")
    missing = [field for field in PROVENANCE[kind] if field not in provenance]
    if missing:
        raise TableError(f"row {name}: {kind}, but without {', '.join(missing)}")


def load_table(path: Path) -> tuple[TableRow, ...]:
    """Every well-formed row of ``path``; malformed ones are logged and left out.

    Raises:
        TableError: the file is not JSON or not a table.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path.name} is not a table: {error!r}") from error
    if not isinstance(rows, list):
        raise TableError(f"{path.name} is not a table: rows is no list")
    good: list[TableRow] = []
    for i, raw in enumerate(rows):
        try:
            good.append(parse_row(raw))
        except TableError as error:
            log.warning("%s row %d skipped: %s", path.name, i, error)
    return tuple(good)


@lru_cache
def table(arch: str) -> tuple[TableRow, ...]:
    """The shipped table of ``arch``; empty if it ships none, or a broken one: the cost
    model then serves instead, and the log names the file."""
    path = TABLES / f"{arch}.json"
    if not path.exists():
        return ()
    try:
        return load_table(path)
    except TableError as error:
        log.error("pretuned table skipped: %s", error)
        return ()


def timed_with() -> dict[str, int]:
    """CuTe DSL versions that compiled the shipped tables' measured rows -> how many."""
    rows = (row for path in TABLES.glob("*.json") for row in table(path.stem))
    versions = (dict(row.provenance).get("dsl") for row in rows)
    return dict(Counter(v for v in versions if v is not None))


@lru_cache
def tables_digest() -> str:
    """Digest of every shipped table: part of compile-cache keys."""
    digest = hashlib.sha256()
    for path in sorted(TABLES.glob("*.json")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
