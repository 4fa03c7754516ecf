"""A grouped kernel in the simulator: clean, exact, and written where its groups are."""

from __future__ import annotations

import _paths  # noqa: F401
import torch
from build_helper import build
from torch.testing._internal.common_utils import TestCase

from torch_cute_backend.arch import SM90, ArchSpec
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import grouped_case
from torch_cute_backend.sim.child import SimChild


class GroupedSimTest(TestCase):
    """One simulator process for all of a class's runs."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    def check(
        self,
        problem: GemmProblem,
        schedule: GemmSchedule,
        ends: tuple[int, ...] = (),
        num_ctas: int = 3,
        modes: tuple[str, ...] = ("random:3",),
        arch: ArchSpec = SM90,
    ) -> list[torch.Tensor]:
        """Run it clean and exact in each mode; the outputs' bytes."""
        kernel = build(problem, schedule, arch)
        operands = grouped_case.make(kernel, problem, ends)
        for mode in modes:
            operands.poison()
            report = self.child.simulate(
                kernel.source,
                operands.tensors,
                num_ctas=num_ctas * schedule.cluster_size,
                mode=mode,
            )
            # What no group has is never written; nothing else is to be said.
            found = [(f.kind, f.message.split()[0]) for f in report.findings]
            missing = [("missing_write", str(operands.untouched))]
            self.assertEqual(found, missing if operands.untouched else [], mode)
            self.assertTrue(operands.exact(), f"{mode}: {operands.worst():.1e}")
            self.assertEqual([str(n) for n in report.notes if n.kind == "build"], [])
        return [o.contiguous().view(torch.uint8) for o in operands.outputs.values()]
