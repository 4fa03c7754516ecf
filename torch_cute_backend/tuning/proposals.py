"""Schedules that a search times and the look-up never takes unmeasured.

``model.tiles`` lists what an H200 has run. Here are tile widths made for a problem, so
that its tiles just fill the GPU once or a few times; low tiles for fewer rows than they
were tried on; exact accumulation, and groups, by two warpgroups in turns. Once a search
has timed one, a table row can hold it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import model
from torch_cute_backend.tuning.fit import complete, exact_fp8

Tile = tuple[int, int]
USUAL: Mapping[str, str] = MappingProxyType({})

ROUNDS = 4
"""Tiles a CTA, up to which one column of tiles less is worth a width of its own."""
CLUSTERS = ((1, 1), (2, 1), (1, 2), (1, 4))
WIDEST = 256
NARROWEST = 32
"""Columns below which two warpgroups have too little to do; one takes 8."""
MIN_SUBTILE = 16
"""Columns. An epilogue subtile costs two barriers, and widths of 8 times a prime above
7 have none wider than 8."""
MMA_ROWS = 64
LOW_TILES = (16, 32)
LOW_WIDTHS = (16, 24, 32, 40, 48, 64, 96)
_PINGPONG = {"math": "pingpong", "registers": "moved"}
EXACT_PINGPONG: tuple[tuple[int, Mapping[str, str]], ...] = (
    (128, {"math": "pingpong"}),
    (128, {**_PINGPONG, "promotion": "overlap"}),
    (192, _PINGPONG),
)
"""Widths and roles of 64-row tiles whose two or three accumulator sets fit beside the
other warpgroup's: what exact sums of a short K need to hide their epilogues."""

GROUPED_PINGPONG = ((128, 128), (64, 256))
"""Tiles that two warpgroups take in turns where dense problems profit."""


def proposals(problem: GemmProblem, arch: ArchSpec) -> list[GemmSchedule]:
    """Valid schedules beyond ``model.tiles``, each once, in a fixed order. No
    widths for groups, whose ends decide how many tiles there are."""
    if problem.is_grouped:
        return list(_grouped_pingpong(problem, arch))
    listed = set(model.tiles(problem, arch))
    kinds = (_filling, _taller, _exact_pingpong)
    made = dict.fromkeys(s for kind in kinds for s in kind(problem, arch))
    return [s for s in made if s not in listed]


def filling_width(
    n: int, rows: int, slots: int, rounds: int, columns_of: int = 1
) -> int | None:
    """The narrowest width of which ``rows`` rows of tiles fit into ``rounds`` rounds of
    ``slots`` tiles, or None where not even one column does.

    Args:
        n: columns of the output.
        columns_of: columns of tiles come in multiples of this (a cluster's).

    Returns:
        A multiple of 8, as an MMA's columns are.
    """
    columns = slots * rounds // rows // columns_of * columns_of
    return math.ceil(n / columns / 8) * 8 if columns else None


def _filling(problem: GemmProblem, arch: ArchSpec) -> Iterator[GemmSchedule]:
    m, n, _ = problem.group_sizes
    for tile_m in _heights(problem, arch):
        for cluster_m, cluster_n in CLUSTERS:
            if cluster_m > math.ceil(m / tile_m):
                continue
            rows = math.ceil(m / (tile_m * cluster_m))
            slots = arch.cluster_slots(cluster_m * cluster_n) * cluster_n
            least = 8 if tile_m <= MMA_ROWS else NARROWEST
            for rounds in range(1, ROUNDS + 1):
                width = filling_width(n, rows, slots, rounds, cluster_n)
                if width is not None and least <= width <= WIDEST:
                    tile, cluster = (tile_m, width), (cluster_m, cluster_n)
                    yield from _made(problem, arch, tile, cluster)


def _heights(problem: GemmProblem, arch: ArchSpec) -> list[int]:
    """Rows of the tiles to try: one low tile that holds all rows, and taller ones."""
    low = [t for t in (8, *LOW_TILES) if problem.m <= t and arch.mma == "wgmma"]
    return [*low[:1], MMA_ROWS, *([2 * MMA_ROWS] if problem.m > MMA_ROWS else [])]


def _taller(problem: GemmProblem, arch: ArchSpec) -> Iterator[GemmSchedule]:
    """Low tiles of at least twice the problem's rows, which the model's list leaves
    out: fewer rows to clear, more for TMA to pad."""
    if arch.mma != "wgmma":
        return
    for tile_m in LOW_TILES:
        for width in LOW_WIDTHS if problem.m <= tile_m // 2 else ():
            yield from _made(problem, arch, (tile_m, width), (1, 1))


def _exact_pingpong(problem: GemmProblem, arch: ArchSpec) -> Iterator[GemmSchedule]:
    if arch.mma != "wgmma" or not exact_fp8(problem):
        return
    rows = math.ceil(problem.m / MMA_ROWS)
    for width, roles in EXACT_PINGPONG:
        if rows * math.ceil(problem.n / width) <= arch.default_sms:
            continue
        for cluster in CLUSTERS[:3]:
            yield from _made(problem, arch, (MMA_ROWS, width), cluster, roles)


def _grouped_pingpong(problem: GemmProblem, arch: ArchSpec) -> Iterator[GemmSchedule]:
    if arch.mma != "wgmma" or exact_fp8(problem):
        return
    m, n, _ = problem.group_sizes
    for tile_m, tile_n in GROUPED_PINGPONG:
        tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
        if m <= tile_m or problem.groups * tiles <= arch.default_sms:
            continue
        for cluster in CLUSTERS[:3]:
            roles = {"math": "pingpong"}
            yield from _made(problem, arch, (tile_m, tile_n), cluster, roles)


def _made(
    problem: GemmProblem,
    arch: ArchSpec,
    tile: Tile,
    cluster: Tile,
    roles: Mapping[str, str] = USUAL,
) -> Iterator[GemmSchedule]:
    """The schedule with this tile, if it is valid and its epilogue not too fine."""
    tile_m, tile_n = tile
    both = arch.mma == "wgmma" and (tile_m > MMA_ROWS or "math" in roles)
    if both and exact_fp8(problem) and not roles:
        roles = {"registers": "moved"}
    small = tile_m <= MMA_ROWS and tile_n <= 96
    s = complete(
        problem,
        arch,
        tile_m,
        tile_n,
        k_bytes=256 if small else 128,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        math_warpgroups=2 if both else 1,
        roles=roles,
    )
    fine = s.epi_n < min(MIN_SUBTILE, tile_n)
    if not fine and s.ab_stages >= model.MIN_STAGES and s.validate(problem, arch):
        yield s
