"""The golden self-test of grouped kernels, on the kernels that a GPU would get."""

from __future__ import annotations

from dataclasses import replace

import _paths  # noqa: F401
from build_helper import grouped
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.problem import Grouping
from torch_cute_backend.runtime import selftest, validated
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim.child import SimChild

SCHEDULE = GemmSchedule(64, 32, 128, 3, epi_n=32, scheduler="grouped_static")
SCHEDULES = {"sm_90a": SCHEDULE, "sm_100a": replace(SCHEDULE, tile_m=128, acc_stages=2)}
CASES = [
    (E4M3, Grouping.M, 2),
    (E4M3, Grouping.N, 1),
    (E4M3, Grouping.K, 1),
    (BFLOAT16, Grouping.M, 1),
    (BFLOAT16, Grouping.K, 2),
    (BFLOAT16, Grouping.BATCH, 1),
]


class TestSelfTest(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    @parametrize("arch", list(SCHEDULES))
    @parametrize("dtype,grouping,cluster", CASES)
    def test_passes(self, dtype, grouping, cluster, arch):
        schedule = replace(
            SCHEDULES[arch], tile_k=128 // dtype.bytes, cluster_m=cluster, ab_stages=3
        )
        problem = grouped(grouping, dtype=dtype)
        request = validated.self_test_request(problem, schedule, arch, 0)
        built = selftest.build(request)

        def run(_, a, b, *scales, offsets, out, num_ctas):
            tail = () if offsets is None else (offsets,)
            report = self.child.simulate(
                built.source, [a, b.mT, *out, *scales, *tail], num_ctas=num_ctas
            )
            # What is in no group is not written.
            kinds = {f.kind for f in report.findings}
            ragged = grouping in (Grouping.M, Grouping.N)
            self.assertEqual(kinds, {"missing_write"} if ragged else set())

        self.assertIsNone(selftest.check(built, "cpu", run, (2 * cluster, 8)))


instantiate_parametrized_tests(TestSelfTest)

if __name__ == "__main__":
    run_tests()
