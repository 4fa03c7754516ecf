"""Where a GEMM's kernel runs: a GPU, or the simulator for CPU tensors.

The rest of this folder asks a device's :class:`Target` instead of telling devices
apart; :mod:`served` does the same for the generated wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.inductor import compat, timing
from torch_cute_backend.inductor.served import SIMULATOR
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.runtime import device, validated
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status


class Target(Protocol):
    """What compilation asks of the place where a kernel will run."""

    @property
    def arch(self) -> ArchSpec | None:
        """None if there are no kernels for it."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def place(self) -> str:
        """Second argument of ``served.load_gemm``, as text."""

    @property
    def times_choices(self) -> bool:
        """Can kernels be timed against Inductor's other choices?"""

    def usable(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        """May kernels of this class run here?"""

    def compiled(self, sources: Sequence[KernelSource]) -> list[Status]:
        """Compile; for each source ok, or why not."""


@dataclass(frozen=True)
class Gpu:
    """CUDA device ``index``."""

    index: int

    @property
    def arch(self) -> ArchSpec | None:
        return device.arch_of(self.index)

    @property
    def name(self) -> str:
        return device.name_of(self.index)

    @property
    def place(self) -> str:
        return str(self.index)

    @property
    def times_choices(self) -> bool:
        return True

    def usable(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        if self.arch is None:
            return Status.no(f"no kernels for {self.name}")
        return validated.usable(problem, schedule, self.arch, self.index)

    def compiled(self, sources: Sequence[KernelSource]) -> list[Status]:
        return timing.compiled(sources)


@dataclass(frozen=True)
class Simulator:
    """Serves CPU tensors as a GPU of ``arch`` would serve its own."""

    arch: ArchSpec

    @property
    def name(self) -> str:
        return f"simulated {self.arch.name}"

    @property
    def place(self) -> str:
        return repr(SIMULATOR)

    @property
    def times_choices(self) -> bool:
        return False

    def usable(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        """Every launch is checked, so there is nothing to vouch for beforehand."""
        return Status.ok()

    def compiled(self, sources: Sequence[KernelSource]) -> list[Status]:
        """The simulator compiles at the first launch; a failure there is an error."""
        return [Status.ok()] * len(sources)


def target_of(place: torch.device | None) -> Target | Status:
    """The target that serves tensors of ``place``, or why none does."""
    simulated = compat.simulated_arch()
    wanted = "cuda" if simulated is None else "cpu"
    if place is None or place.type != wanted:
        return Status.no(f"device {place} is not {wanted}")
    if simulated is not None:
        return Simulator(arch_spec(simulated))
    return Gpu(device.device_index(place))
