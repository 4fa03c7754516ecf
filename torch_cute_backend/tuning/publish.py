"""Write measured rows into a table file, one row a line, as the shipped tables are.

In: the outcome of a search. Out: a table that ``table.load_table`` reads. Rows of other
shapes stay as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch_cute_backend.bench.protocol import Timing
from torch_cute_backend.errors import TableError
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning.table import RowKey, TableRow, parse_row

_NAMES = {
    "fp8-rowwise": "scale_mm_cute",
    "fp8-tensorwise": "scale_mm_tensorwise_cute",
    "fp8-rowwise-grouped-m": "scaled_grouped_mm_cute",
    "bf16-grouped-m": "grouped_mm_bf16_cute",
}


def row_name(key: RowKey) -> str:
    """``scale_mm_cute_m64_k5120_n5120`` for FP8 rowwise; others say what differs."""
    text = _NAMES.get(key.family, f"mm_{key.family}_cute")
    text += "_exact" if key.accum == "exact" else ""
    text += "".join(
        f"_{operand}n"
        for operand, major in (("a", key.a_major), ("b", key.b_major))
        if major != "k"
    )
    groups = f"_g{key.groups}" if key.groups > 1 else ""
    return f"{text}{groups}_m{key.m}_k{key.k}_n{key.n}"


def measured_row(
    key: RowKey,
    schedule: GemmSchedule,
    timing: Timing,
    peer: tuple[str, float],
    environment: dict[str, Any],
) -> TableRow:
    """A row with its provenance.

    Args:
        peer: the best other provider of the same run and its time in µs.
        environment: fields of ``bench.results.Environment``.
    """
    provenance = {
        "kind": "measured",
        **{field: environment[field] for field in ("gpu", "date", "commit", "dsl")},
        "us": round(timing.us, 3),
        "peer": peer[0],
        "margin": round(peer[1] / timing.us - 1, 3),
    }
    return TableRow(row_name(key), key, schedule, tuple(sorted(provenance.items())))


def merge_rows(path: Path, arch: str, rows: Sequence[TableRow]) -> int:
    """Put ``rows`` into a table; a row of the same key is replaced but keeps its name.

    The file is replaced in one step, so that a reader never sees half a table.

    Returns:
        How many rows the table has.

    Raises:
        TableError: the file is no table, or it is for another arch.
    """
    old = _raw_rows(path, arch)
    new = {row.key: row for row in rows}
    lines: list[str] = []
    for raw in old:
        key = _key_of(raw)
        row = None if key is None else new.pop(key, None)
        lines.append(json.dumps(raw) if row is None else row_text(row, raw["name"]))
    lines += [row_text(row) for row in new.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(table_text(arch, lines), encoding="utf-8")
    draft.replace(path)
    return len(lines)


def row_text(row: TableRow, name: str | None = None) -> str:
    """One line of JSON; schedule fields at their defaults are left out."""
    value = row.to_json()
    if name is not None:
        value["name"] = name
    value["schedule"] = row.schedule.changed_json()
    return json.dumps(value)


def table_text(arch: str, lines: Iterable[str]) -> str:
    """The whole file."""
    body = ",\n".join(f"  {line}" for line in lines)
    return f'{{\n"arch": {json.dumps(arch)},\n"rows": [\n{body}\n]\n}}\n'


def _raw_rows(path: Path, arch: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows, found = list(content["rows"]), content.get("arch", arch)
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path.name} is not a table: {error!r}") from error
    if found != arch:
        raise TableError(f"{path.name} is for {found}, not for {arch}")
    return rows


def _key_of(raw: dict[str, Any]) -> RowKey | None:
    """None for a row that does not parse: it is kept, and skipped by readers."""
    try:
        return parse_row(raw).key
    except TableError:
        return None
