"""One function from problem and schedule to checked, printed kernel.

``build_kernel`` builds the tile program, partitions it into roles, runs the passes with
the loop-omission check, verifies, and prints. Inductor, the command line and the tests
all call it; nothing here needs a GPU, torch or cutlass.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
