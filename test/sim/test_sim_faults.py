"""The checker is checked: every injected fault must be caught, the baseline must be
clean.

Caught means a finding, a wrong result, or a refused run, in ``lazy`` or one of two
random schedules.
"""

from __future__ import annotations

import _paths  # noqa: F401
import fault_list
from build_helper import build, fp8
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.problem import Accum
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.faults import Fault
from torch_cute_backend.sim.report import SimError

MODES = ("lazy", "random:1", "random:2")
SIZES = (300, 512, 1040)
STAGES = {"tile_m": 128, "tile_n": 128, "tile_k": 128, "ab_stages": 3, "epi_n": 32}
KERNELS = {
    "sm_90a": (SM90, GemmSchedule(**STAGES, math_warpgroups=2), 1),
    "sm_100a": (SM100, GemmSchedule(**STAGES, acc_stages=2), 1),
    "sm_90a_cluster": (SM90, GemmSchedule(**STAGES, math_warpgroups=2, cluster_m=2), 2),
    "sm_90a_pingpong": (
        SM90,
        GemmSchedule(**STAGES, math_warpgroups=2, math="pingpong"),
        1,
    ),
    "sm_90a_overlap": (
        SM90,
        GemmSchedule(
            **STAGES, math_warpgroups=2, registers="moved", promotion="overlap"
        ),
        1,
    ),
    "sm_90a_dependent": (
        SM90,
        GemmSchedule(**STAGES, math_warpgroups=2, launch="dependent"),
        1,
    ),
    "sm_100a_cluster": (SM100, GemmSchedule(**STAGES, acc_stages=2, cluster_m=2), 2),
}
FAULTS = {
    "sm_90a": fault_list.COMMON + fault_list.SM90,
    "sm_100a": fault_list.COMMON + fault_list.SM100,
    "sm_90a_cluster": fault_list.CLUSTER,
    "sm_90a_pingpong": fault_list.PINGPONG,
    "sm_90a_overlap": fault_list.OVERLAP,
    "sm_100a_cluster": fault_list.CLUSTER[:3],
    "sm_90a_dependent": fault_list.DEPENDENT,
}
ALL = [
    subtest(
        (kernel, fault),
        name=f"{kernel}_{fault.name}".replace(" ", "_").replace(".", "_"),
    )
    for kernel, faults in FAULTS.items()
    for fault in faults
]


class FaultsTest(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()
        cls.built = {}
        for name, (arch, schedule, _) in KERNELS.items():
            exact = Accum.EXACT if schedule.promotion == "overlap" else Accum.FAST
            made = build(fp8(*SIZES, accum=exact), schedule, arch)
            cls.built[name] = (made.source, gemm_case.make(made, *SIZES))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    def verdict(self, kernel: str, faults: list[Fault], mode: str) -> str:
        """What went wrong, or an empty string."""
        source, operands = self.built[kernel]
        operands.poison()
        ctas = KERNELS[kernel][2]
        try:
            report = self.child.simulate(
                source, operands.tensors, num_ctas=ctas, mode=mode, faults=faults
            )
        except SimError as error:
            self.assertNotIn(
                "fault ", str(error), "the fault does not apply to this PTX"
            )
            return str(error)
        found = sorted({f.kind for f in report.findings})
        return ", ".join(found if operands.exact() else [*found, "wrong result"])

    @parametrize("kernel", list(KERNELS))
    def test_baseline_is_clean(self, kernel: str):
        for mode in (*MODES, "eager"):
            self.assertEqual(self.verdict(kernel, [], mode), "", mode)

    @parametrize("kernel,fault", ALL)
    def test_fault_is_caught(self, kernel: str, fault: Fault):
        caught = ""
        for mode in MODES:
            caught = caught or self.verdict(kernel, [fault], mode)
        if (kernel, fault.name) in fault_list.SURVIVORS:
            self.assertEqual(
                caught, "", "a listed survivor is caught: take it off the list"
            )
        else:
            self.assertNotEqual(caught, "")


instantiate_parametrized_tests(FaultsTest)

if __name__ == "__main__":
    run_tests()
