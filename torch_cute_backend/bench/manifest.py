"""Which cached kernel serves which schedule, without building its source again.

Kernels are generic in their sizes, so one serves every shape of a kind of GEMM. A
manifest beside a kernel cache maps (arch, kind of GEMM, schedule) to cache keys;
``benchmarks/precompile.py`` writes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend.errors import TableError, UserError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

log = logging.getLogger(__name__)

FILE = "manifest.json"


@dataclass(frozen=True)
class Kind:
    """What a kernel depends on besides its schedule and arch."""

    family: str
    accum: str
    a_major: str
    b_major: str
    out_dtype: str
    out_aligned: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> Kind:
        """Of a plain GEMM with its scales; ``UserError`` for a longer epilogue."""
        expected = {"none": 0, "tensorwise": 2, "rowwise": 2}[problem.scaling]
        if (
            len(problem.epilogue.inputs) != expected
            or len(problem.epilogue.outputs) > 1
        ):
            raise UserError("a manifest holds GEMMs without a fused epilogue only")
        return cls(
            problem.family,
            problem.accum.value,
            problem.a_major.value,
            problem.b_major.value,
            problem.out_dtype.name,
            problem.out_aligned,
        )


@dataclass(frozen=True)
class Listed:
    """One kernel: cache key and name, and what its build gate complained of."""

    key: str
    name: str
    gate: tuple[str, ...] = ()


Slot = tuple[str, Kind, GemmSchedule]
"""(arch, kind, schedule)"""


class Manifest:
    """Read-only; see :func:`write`."""

    def __init__(self, kernels: Mapping[Slot, Listed]) -> None:
        self._kernels = dict(kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def find(
        self, arch: str, problem: GemmProblem, schedule: GemmSchedule
    ) -> Listed | None:
        return self._kernels.get((arch, Kind.of(problem), schedule))

    def schedules(self, arch: str, problem: GemmProblem) -> Iterator[GemmSchedule]:
        """Everything that is listed for this kind of GEMM."""
        kind = Kind.of(problem)
        for found_arch, found_kind, schedule in self._kernels:
            if (found_arch, found_kind) == (arch, kind):
                yield schedule


def read(root: Path) -> Manifest:
    """The manifest of a kernel cache; empty if it has none.

    A row that this version cannot read is left out.
    """
    path = root / FILE
    if not path.exists():
        return Manifest({})
    kernels = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        try:
            slot = (row["arch"], Kind(**row["kind"]), _schedule(row))
        except (KeyError, TypeError, TableError) as error:
            log.warning("%s: a row is left out: %r", path, error)
            continue
        kernels[slot] = Listed(row["key"], row["name"], tuple(row["gate"]))
    return Manifest(kernels)


def _schedule(row: dict[str, Any]) -> GemmSchedule:
    return GemmSchedule.from_json(row["schedule"])


def write(root: Path, kernels: Iterable[tuple[Slot, Listed]]) -> None:
    """Replace the manifest of a kernel cache."""
    rows = [
        {
            "arch": arch,
            "kind": vars(kind),
            "schedule": schedule.to_json(),
            "key": listed.key,
            "name": listed.name,
            "gate": list(listed.gate),
        }
        for (arch, kind, schedule), listed in kernels
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    draft = root / f"{FILE}.tmp"
    draft.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    draft.replace(root / FILE)
