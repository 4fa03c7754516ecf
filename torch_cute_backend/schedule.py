"""``GemmSchedule``: HOW a problem is computed. One frozen value, one JSON row.

What a schedule may be is decided in one place, :meth:`GemmSchedule.validate`, from the
facts of an :class:`~torch_cute_backend.arch.spec.ArchSpec`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.errors import TableError
from torch_cute_backend.problem import GemmProblem, Grouping
from torch_cute_backend.schedulers import SCHEDULERS, TileScheduler
from torch_cute_backend.status import Status

CHOICES: dict[str, tuple[str, ...]] = {
    "raster": ("along_m", "along_n", "grouped"),
    "l2_policy": ("normal", "stream_b"),
    "store": ("tma", "direct"),
    "registers": ("even", "moved"),
    "promotion": ("wait", "overlap"),
    "math": ("cooperative", "pingpong"),
    "launch": ("plain", "dependent"),
    "shared_loop": ("auto", "keep", "inline"),
    "record": ("none", "walk_end"),
    "dead_loads": ("keep", "drop"),
}
"""What the fields that are words may say; ``scheduler`` is a word of its registry."""


@dataclass(frozen=True)
class GemmSchedule:
    """Tile sizes, stages, warps and scheduler of one kernel.

    Attributes:
        tile_m, tile_n, tile_k: CTA tile in elements (with ``cta_group`` 2, of one CTA).
        ab_stages: A/B pipeline depth.
        acc_stages: accumulator buffers (TMEM on tcgen05; always 1 on wgmma).
        epi_n: columns of one epilogue subtile; ``epi_stages`` of them are staged.
        cluster_m, cluster_n: cluster shape in CTAs; loads are multicast across it.
        cta_group: CTAs that share one tcgen05 MMA, 1 or 2.
        math_warpgroups: wgmma warpgroups of a CTA.
        math: ``"cooperative"``: they split ``tile_m``; ``"pingpong"``: two, each with
            every other tile, so that one's epilogue passes behind the other's mainloop.
        scheduler: a name of ``schedulers.SCHEDULERS``, as ``"static_persistent"``.
        raster: ``"along_m"`` or ``"along_n"``: which tile index runs fastest;
            ``"grouped"``: along M within bands of ``group_m`` cluster rows, so that
            the tiles of one wave share more of A and B in L2.
        l2_policy: ``"normal"``, or ``"stream_b"`` where each CTA reads its own part of
            B once: L2 drops B first and keeps A.
        store: ``"tma"`` (through shared memory) or ``"direct"`` (predicated).
        registers: ``"even"``: every warp has as many; ``"moved"``: the load warp's
            warpgroup hands most of its registers to the math warps (sm_90a).
        promotion: exact FP8 accumulation on wgmma: ``"wait"`` adds a k tile's sum
            before the next one's MMA is issued, ``"overlap"`` while it runs.
        launch: ``"dependent"``: programmatic dependent launch: CTAs start while the
            kernel before them drains, and wait for its end before they touch a tensor.
        shared_loop: ``"auto"`` runs the loop-omission check, ``"keep"`` keeps the loop,
            ``"inline"`` prints the unpartitioned kernel.
        record: ``"walk_end"``: after its last tile each CTA stores the work tile at
            which its walk ended to an int32 output of one element a CTA, for harnesses
            that check who ran what. It is the shared loop's value, which keeps it.
        dead_loads: ``"keep"``, or ``"drop"``: take dead read-only scalar loads out of
            the shared loop before the check.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    ab_stages: int
    acc_stages: int = 1
    epi_n: int = 32
    epi_stages: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    cta_group: int = 1
    math_warpgroups: int = 1
    scheduler: str = "static_persistent"
    raster: str = "along_m"
    group_m: int = 1
    l2_policy: str = "normal"
    store: str = "tma"
    registers: str = "even"
    promotion: str = "wait"
    math: str = "cooperative"
    launch: str = "plain"
    shared_loop: str = "auto"
    record: str = "none"
    dead_loads: str = "keep"

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n

    def ctas(self, m: int, n: int, num_ctas: int) -> int:
        """CTAs of a launch: whole clusters, no more than have a tile, unless there is
        one for every tile."""
        rows = -(-m // (self.tile_m * self.cluster_m))
        clusters = rows * -(-n // (self.tile_n * self.cluster_n))
        if self.scheduler != "single_tile":
            clusters = min(clusters, max(num_ctas // self.cluster_size, 1))
        return clusters * self.cluster_size

    @property
    def pingpong(self) -> bool:
        return self.math == "pingpong"

    @property
    def tile_warpgroups(self) -> int:
        """Math warpgroups that work on one tile."""
        return 1 if self.pingpong else self.math_warpgroups

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def changed_json(self) -> dict[str, Any]:
        """:meth:`to_json` without the fields at their defaults, which
        :meth:`from_json` fills in: a new field changes no row and no kernel's text."""
        defaults = {f.name: f.default for f in fields(self)}
        return {k: v for k, v in self.to_json().items() if v != defaults[k]}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> GemmSchedule:
        """Inverse of :meth:`to_json`. Fields with a default may be left out; an
        unknown or missing key, or a value of another type, is a ``TableError``."""
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(row) - names)
        if unknown:
            raise TableError(f"unknown schedule field(s): {', '.join(unknown)}")
        for name, value in row.items():
            if not _well_typed(name, value):
                raise TableError(f"schedule: {name} may not be {value!r}")
        try:
            return cls(**row)
        except TypeError as error:
            raise TableError(f"schedule: {error}") from error

    def describe(self) -> str:
        """Short name for logs and profilers: ``128x256x128_c2x1_s4``."""
        text = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        if self.cluster_size > 1:
            text += f"_c{self.cluster_m}x{self.cluster_n}"
        if self.cta_group > 1:
            text += f"_{self.cta_group}cta"
        text += f"_s{self.ab_stages}"
        extras = {
            "moved": self.registers,
            "overlap": self.promotion,
            "pingpong": self.math,
            "dependent": self.launch,
        }
        return text + "".join(f"_{k}" for k, v in extras.items() if k == v)

    def validate(self, problem: GemmProblem, arch: ArchSpec) -> Status:
        """Does this schedule fit the problem and the arch? Reasons name the numbers."""
        order = SCHEDULERS.get(self.scheduler)
        if order is None:
            known = ", ".join(SCHEDULERS)
            return Status.no(f"scheduler {self.scheduler!r} is unknown; known: {known}")
        status = problem.validate() & arch.check_problem(problem)
        status &= self._check_grouping(problem, order)
        status = status & self._check_words()
        return arch.check_schedule(problem, self) if status else status

    def _check_grouping(self, problem: GemmProblem, order: TileScheduler) -> Status:
        """What goes with groups, or with groups of this kind, and what does not."""
        grouped = problem.is_grouped
        return Status.check(
            (
                problem.grouping in order.groupings,
                f"scheduler {self.scheduler!r} does not hand out the tiles of "
                f"grouping {problem.grouping.value!r}",
            ),
            (
                not grouped
                or (self.record == "none" and problem.epilogue.products == 1),
                "a grouped kernel has one product and records no walk",
            ),
            (
                not grouped or self.launch == "plain",
                "a grouped kernel reads its groups' ends first, so it is launched "
                "plainly",
            ),
            (
                problem.grouping is not Grouping.K or not self.pingpong,
                "pingpong passes over the other warpgroup's stages, whose number "
                "differs from tile to tile with ragged K",
            ),
            (
                problem.grouping is not Grouping.K or self.promotion == "wait",
                f"promotion {self.promotion!r} does not go with ragged K",
            ),
        )

    def _check_words(self) -> Status:
        said = {name: getattr(self, name) for name in CHOICES}
        return Status.check(
            *(
                (word in CHOICES[name], f"{name} {word!r} is unknown")
                for name, word in said.items()
            )
        )


def _well_typed(name: str, value: object) -> bool:
    """JSON has only the types text and number; a bool would pass for a number."""
    if name == "scheduler" or name in CHOICES:
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
