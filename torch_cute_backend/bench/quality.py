"""How good are the look-up's candidates for shapes that nobody tuned?

In: rows of searches over random shapes. Out: for each shape, the time of the best of
the candidates over that of the best schedule found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch_cute_backend.arch import ARCHS, ArchSpec
from torch_cute_backend.bench.cases import RANDOM, Shape, problem_of
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.errors import TableError
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup

CLOSE = 1.03
GPUS = {"H200": "sm_90a", "H100": "sm_90a", "B200": "sm_100a"}
"""Part of a GPU's name to its arch."""


def arch_of(gpu: str) -> ArchSpec | None:
    """The arch of a GPU by its marketing name."""
    name = next((arch for part, arch in GPUS.items() if part in gpu), None)
    return None if name is None else ARCHS[name]


def of_candidates(rows: Iterable[dict[str, Any]]) -> list[float]:
    """One ratio a shape, at least 1; infinite where no candidate was measured.

    Times are of a search's second pass where a schedule has one: the best of many that
    were timed briefly is partly luck.
    """
    brief: dict[Place, Times] = {}
    final: dict[Place, Times] = {}
    passes = {"brief-cold": brief, "cold": final}
    for row in rows:
        if (row["suite"], row["provider"]) != (RANDOM, OURS):
            continue
        times = passes.get(row.get("protocol", ""))
        if times is None or not row.get("schedule"):
            continue
        try:
            schedule = GemmSchedule.from_json(row["schedule"])
        except TableError:
            continue
        size = row["shape"]
        kind = "fp8" if row["dtype"].startswith("float8") else "bf16"
        place = (row["gpu"], kind, (size["m"], size["n"], size["k"]))
        times.setdefault(place, {})[schedule] = float(row["us"])
    return [
        _loss(arch, kind, shape, times, final.get((gpu, kind, shape), times))
        for (gpu, kind, shape), times in brief.items()
        if (arch := arch_of(gpu)) is not None
    ]


Times = dict[GemmSchedule, float]
Place = tuple[str, str, Shape]
"""(GPU, kind, shape)"""


def _loss(arch: ArchSpec, kind: str, shape: Shape, brief: Times, final: Times) -> float:
    times = brief | final
    choices = lookup.candidates(problem_of(kind, shape), arch)
    tried = [times[c.schedule] for c in choices if c.schedule in times]
    return min(tried, default=math.inf) / min(final.values())
