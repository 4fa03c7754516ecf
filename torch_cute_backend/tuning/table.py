"""Pretuned tables: ``tables/<arch>.json``, one row a shape, each with its provenance.

A row that does not parse is named, skipped and never served; the others stay usable.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch_cute_backend.errors import TableError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

log = logging.getLogger(__name__)

TABLES = Path(__file__).parent / "tables"
PROVENANCE = ("measured", "published", "model")


@dataclass(frozen=True)
class RowKey:
    """What a row was tuned for."""

    family: str
    accum: str
    a_major: str
    b_major: str
    m: int
    n: int
    k: int

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
        )

    def same_kind(self, other: RowKey) -> bool:
        """Equal but for the sizes."""
        mine = (self.family, self.accum, self.a_major, self.b_major)
        return mine == (other.family, other.accum, other.a_major, other.b_major)


@dataclass(frozen=True)
class TableRow:
    """A schedule with the shape it is for and where it comes from.

    ``provenance`` holds ``kind`` (one of ``PROVENANCE``) and, where measured, ``gpu``,
    ``date``, ``commit``, ``us`` and ``margin`` over the best other provider.
    """

    name: str
    key: RowKey
    schedule: GemmSchedule
    provenance: tuple[tuple[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        key = self.key
        return {
            "name": self.name,
            **{f: getattr(key, f) for f in RowKey.__dataclass_fields__},
            "schedule": self.schedule.to_json(),
            "provenance": dict(self.provenance),
        }


def parse_row(raw: dict[str, Any]) -> TableRow:
    """One JSON row; ``TableError`` says what is wrong with it."""
    try:
        key = RowKey(**{f: raw[f] for f in RowKey.__dataclass_fields__})
        provenance = dict(raw["provenance"])
        schedule = GemmSchedule.from_json(dict(raw["schedule"]))
        name = str(raw["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"malformed row: {error!r}") from error
    if provenance.get("kind") not in PROVENANCE:
        raise TableError(f"row {name}: provenance kind {provenance.get('kind')!r}")
    sizes = (key.m, key.n, key.k)
    if not all(isinstance(x, int) and x > 0 for x in sizes):
        raise TableError(f"row {name}: sizes {sizes} are not positive integers")
    return TableRow(name, key, schedule, tuple(sorted(provenance.items())))


def load_table(path: Path) -> tuple[TableRow, ...]:
    """Every well-formed row of ``path``; malformed ones are logged and left out.

    Raises:
        TableError: the file is not JSON or not a table.
    """
    try:
        content = json.loads(path.read_text())
        rows = content["rows"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise TableError(f"{path.name} is not a table: {error}") from error
    good: list[TableRow] = []
    for i, raw in enumerate(rows):
        try:
            good.append(parse_row(raw))
        except TableError as error:
            log.warning("%s row %d skipped: %s", path.name, i, error)
    return tuple(good)


@lru_cache
def table(arch: str) -> tuple[TableRow, ...]:
    """The shipped table of ``arch``; empty if it ships none."""
    path = TABLES / f"{arch}.json"
    return load_table(path) if path.exists() else ()


@lru_cache
def tables_digest() -> str:
    """Digest of every shipped table: part of compile-cache keys."""
    digest = hashlib.sha256()
    for path in sorted(TABLES.glob("*.json")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
