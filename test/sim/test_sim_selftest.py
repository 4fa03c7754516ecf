"""The golden self-test, on the kernels that a GPU would get: grouped ones, low tiles,
MXFP8."""

from __future__ import annotations

from dataclasses import replace

import _paths  # noqa: F401
from build_helper import fp8, grouped
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph
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

MX = GemmSchedule(128, 128, 128, 3, acc_stages=2, epi_n=64, epi_stages=2)
DENSE = {
    "low_8": ("sm_90a", fp8(8), GemmSchedule(8, 32, 128, 3, epi_n=32)),
    "low_16": ("sm_90a", fp8(16), GemmSchedule(16, 32, 256, 3, epi_n=32)),
    "low_32": ("sm_90a", fp8(32), GemmSchedule(32, 32, 128, 3, epi_n=32)),
    "mxfp8": ("sm_100a", fp8(scaling="mxfp8"), MX),
}


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

    @parametrize("name", list(DENSE))
    def test_dense(self, name):
        arch, problem, schedule = DENSE[name]
        request = validated.self_test_request(problem, schedule, arch, 0)
        built = selftest.build(request)
        self.assertGreater(built.problem.m, 2 * schedule.tile_m)
        self.assertNotEqual(built.problem.m % schedule.tile_m, 0)

        def run(_, a, b, *inputs, out, num_ctas):
            report = self.child.simulate(
                built.source, [a, b.mT, *out, *inputs], num_ctas=num_ctas
            )
            self.assertEqual(report.findings, ())

        self.assertIsNone(selftest.check(built, "cpu", run, (2, 8)))

    def test_mxfp8_groups(self):
        problem = grouped(
            Grouping.M, dtype=E4M3, scaling="mxfp8", epilogue=EpilogueGraph.linear()
        )
        schedule = replace(MX, scheduler="grouped_static")
        request = validated.self_test_request(problem, schedule, "sm_100a", 0)
        built = selftest.build(request)

        def run(_, a, b, *inputs, offsets, out, num_ctas):
            report = self.child.simulate(
                built.source, [a, b.mT, *out, *inputs, offsets], num_ctas=num_ctas
            )
            self.assertEqual({f.kind for f in report.findings}, {"missing_write"})

        def flat(built, a, b, scale_a, scale_b, **options):
            return run(built, a, b, scale_a.reshape(-1), scale_b, **options)

        self.assertIsNone(selftest.check(built, "cpu", flat, (2, 8)))


instantiate_parametrized_tests(TestSelfTest)

if __name__ == "__main__":
    run_tests()
