"""Which source of candidates finds the best schedule: our model or NVIDIA's package?

    python benchmarks/compare_sources.py [--results DIR] [--arch sm_90a]

Judged on measured schedules only. A candidate that nobody measured is passed over, so
precompile and tune with ``precompile.py --heuristics 8`` first; the table says how many
of each source's first four were measured.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import fit_model
from fit_model import FIRST, RESULTS, Sample, Shape

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import heuristics, model

Source = Callable[[Shape], Sequence[GemmSchedule]]


def sources(arch: ArchSpec) -> dict[str, Source]:
    """Each source's schedules of a shape, best first."""

    def ours(shape: Shape) -> Sequence[GemmSchedule]:
        return model.rank(shape.samples[0].problem, arch, 64)

    def package(shape: Shape) -> Sequence[GemmSchedule]:
        return heuristics.candidates(shape.samples[0].problem, arch, 64)

    def both(shape: Shape) -> Sequence[GemmSchedule]:
        mixed = []
        for pair in zip(ours(shape), package(shape), strict=False):
            mixed += pair
        return list(dict.fromkeys(mixed))

    return {"model": ours, "package": package, "both in turn": both}


def measured(shape: Shape, listed: Sequence[GemmSchedule]) -> list[Sample]:
    """The listed schedules that were measured, in their order."""
    known = {s.schedule: s for s in shape.samples}
    return [known[s] for s in listed if s in known]


def coverage(shapes: Sequence[Shape], source: Source) -> float:
    """Share of a source's first four that were measured."""
    counts = [
        len(measured(shape, listed)) / len(listed)
        for shape in shapes
        if (listed := list(source(shape))[:FIRST])
    ]
    return sum(counts) / len(counts) if counts else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--arch", default="sm_90a")
    args = parser.parse_args()
    arch = arch_spec(args.arch)
    shapes = fit_model.read_shapes(args.results, arch.name)
    print(f"{len(shapes)} GEMMs, {sum(len(s.samples) for s in shapes)} schedules")
    for name, source in sources(arch).items():
        quality = fit_model.judge(shapes, lambda s, f=source: measured(s, f(s)))
        share = 100 * coverage(shapes, source)
        print(f"{name:13} {share:3.0f}% of its first {FIRST} measured; {quality}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
