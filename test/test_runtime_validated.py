"""Validation records and the golden self-test, without a GPU.

The child's part runs on one; here its checker is fed right and wrong kernels, and the
parent is fed children that pass, fail, crash and hang.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from build_helper import fp8, grouped
from grouped_reference import grouped_product
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend import config
from torch_cute_backend.arch import SM90
from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.problem import GemmProblem, Grouping, Major
from torch_cute_backend.runtime import device, selftest, validated
from torch_cute_backend.runtime.validated import KernelClass, Validation
from torch_cute_backend.schedule import GemmSchedule

SCHEDULE = GemmSchedule(64, 64, 128, ab_stages=4)
PROBLEM = GemmProblem(
    "scaled_mm",
    64,
    5120,
    5120,
    E4M3,
    E4M3,
    scaling="rowwise",
    epilogue=EpilogueGraph.linear(scale_a=InputKind.ROW, scale_b=InputKind.COL),
)
KERNELS = KernelClass.of(PROBLEM, SCHEDULE, SM90)


def request(**changes):
    row = validated.self_test_request(PROBLEM, SCHEDULE, "sm_90a", 0)
    return {**row, **changes}


class TestUsable(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for patch in (
            config.patch(cache_dir=Path(folder.name), self_test_timeout_s=120.0),
            mock.patch.object(device, "name_of", return_value="A GPU"),
            mock.patch.object(selftest, "prepare"),
        ):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)
        validated.forget()
        self.addCleanup(validated.forget)

    def verdict(self, behaviour):
        """Ask, with a child that shows this behaviour."""
        real = validated.run_self_test

        def run(kernels, row):
            row = {**row, "behaviour": behaviour}
            limit = 1.0 if behaviour == "hang" else 120.0
            with config.patch(self_test_timeout_s=limit):
                return real(kernels, row, child="selftest_child")

        with mock.patch.object(validated, "run_self_test", side_effect=run) as ran:
            return validated.usable(PROBLEM, SCHEDULE, SM90, 0), ran.call_count

    def test_a_record_for_this_gpu_needs_no_test(self):
        row = Validation(KERNELS, "A GPU", "0123abc", "test/gpu", "2026-11-30")
        with mock.patch.object(validated, "RECORDS", (row,)):
            verdict, runs = self.verdict("hang")
            self.assertIn("A GPU", validated.describe(KERNELS))
        self.assertTrue(verdict)
        self.assertEqual(runs, 0)

    def test_groups_in_turns_are_a_class_of_their_own(self):
        """No record of other grouped kernels speaks for them."""
        problem = grouped(Grouping.M, 32768, 4096, 4096, 8, dtype=E4M3)
        one = GemmSchedule(128, 128, 128, 6, epi_n=32, math_warpgroups=2)
        one = replace(one, scheduler="grouped_static")
        turns = replace(one, math="pingpong")
        kinds = [KernelClass.of(problem, s, SM90) for s in (one, turns)]
        self.assertIn("validated on NVIDIA H200", validated.describe(kinds[0]))
        self.assertEqual(validated.describe(kinds[1]), "never run on hardware")
        self.assertEqual(str(kinds[1]), f"{kinds[0]}, in turns")

    def test_low_tiles_are_a_class_of_their_own(self):
        kinds = [
            KernelClass.of(fp8(8), GemmSchedule(tile_m, 32, 128, 6), SM90)
            for tile_m in (64, 8)
        ]
        self.assertIn("validated on NVIDIA H200", validated.describe(kinds[0]))
        self.assertEqual(validated.describe(kinds[1]), "never run on hardware")
        self.assertEqual(str(kinds[1]), f"{kinds[0]}, low tiles")

    def test_a_record_for_another_gpu_does_not_count(self):
        row = Validation(KERNELS, "Another GPU", "0123abc", "test/gpu", "2026-11-30")
        with mock.patch.object(validated, "RECORDS", (row,)):
            verdict, runs = self.verdict("pass")
        self.assertTrue(verdict)
        self.assertEqual(runs, 1)

    def test_pass_is_kept_on_disk(self):
        self.assertTrue(self.verdict("pass")[0])
        self.assertEqual(self.verdict("pass"), (validated.Status.ok(), 0))
        validated.forget()
        self.assertEqual(self.verdict("fail"), (validated.Status.ok(), 0))

    @parametrize("behaviour", ["fail", "crash", "hang"])
    def test_failure_turns_the_class_off_with_one_warning(self, behaviour):
        words = {"fail": "7 elements", "crash": "died", "hang": "timed out"}
        start = time.monotonic()
        with self.assertLogs(validated.log, logging.WARNING) as logged:
            verdict, _ = self.verdict(behaviour)
            self.verdict("pass")
        # The hanging child sleeps for ten minutes unless it is killed.
        self.assertLess(time.monotonic() - start, 300)
        self.assertFalse(verdict)
        self.assertIn(words[behaviour], str(verdict))
        self.assertIn(str(KERNELS), str(verdict))
        self.assertEqual(len(logged.output), 1)
        validated.forget()
        self.assertFalse(self.verdict("pass")[0])

    def test_switched_off(self):
        with config.patch(self_test=False):
            self.assertEqual(self.verdict("fail"), (validated.Status.ok(), 0))

    def test_a_damaged_verdict_is_tested_again(self):
        self.verdict("pass")
        (path,) = (config.get().cache_dir / "selftest").iterdir()
        path.write_text("{}")
        validated.forget()
        with self.assertLogs(validated.log, logging.WARNING):
            self.assertEqual(self.verdict("pass")[1], 1)

    def test_an_unsafe_cache_folder_turns_the_class_off(self):
        self.verdict("pass")
        config.get().cache_dir.chmod(0o777)
        validated.forget()
        with self.assertLogs(validated.log, logging.WARNING):
            verdict, runs = self.verdict("pass")
        self.assertIn("writable by others", str(verdict))
        self.assertEqual(runs, 0)

    def test_never_run_on_hardware(self):
        with mock.patch.object(validated, "RECORDS", ()):
            self.assertEqual(validated.describe(KERNELS), "never run on hardware")

    def test_records_are_distinct(self):
        keys = [(r.kernels, r.gpu) for r in validated.RECORDS]
        self.assertEqual(len(keys), len(set(keys)))


class TestChecker(TestCase):
    """The child's checker must see a wrong kernel."""

    def setUp(self):
        super().setUp()
        problem, schedule = selftest.test_problem(request())
        self.built = SimpleNamespace(problem=problem, schedule=schedule)

    def check(self, wrong):
        def run(built, a, b, *scales, out, num_ctas):
            exact = a.float() @ b.float() * scales[0][:, None] * scales[1]
            out[0].copy_(wrong(exact, out[0]))

        return selftest.check(self.built, "cpu", run, (2, None))

    def test_right_kernel(self):
        self.assertIsNone(self.check(lambda exact, out: exact))

    @parametrize("fault", ["zeros", "scaled", "unwritten", "one_element", "one_row"])
    def test_wrong_kernel(self, fault):
        def wrong(exact, out):
            if fault == "zeros":
                return torch.zeros_like(exact)
            if fault == "scaled":
                return exact * 1.01
            if fault == "unwritten":
                return out
            exact = exact.clone()
            if fault == "one_element":
                exact[-1, -1] += 1
            else:
                exact[1] = exact[0]
            return exact

        self.assertIn("elements are wrong", self.check(wrong))

    def test_problem_is_of_the_kind_asked_for(self):
        problem = self.built.problem
        self.assertEqual(KernelClass.of(problem, SCHEDULE, SM90), KERNELS)
        self.assertTrue(SCHEDULE.validate(problem, SM90))
        self.assertNotEqual(problem.m % SCHEDULE.tile_m, 0)
        self.assertGreater(problem.m, 2 * SCHEDULE.tile_m)

    @parametrize("major", ["k", "mn"])
    def test_majors(self, major):
        kind = GemmProblem("mm", 8, 8, 8, a_major=Major(major), b_major=Major(major))
        problem, _ = selftest.test_problem(request(problem=kind.to_json()))
        (a, b), exact = selftest.operands(problem, "cpu")
        self.assertEqual(a.stride(1 if major == "k" else 0), 1)
        self.assertEqual(b.stride(0 if major == "k" else 1), 1)
        self.assertEqual(exact, (a.float() @ b.float()).bfloat16())


GROUPINGS = [
    (family, grouping)
    for family in ("bf16", "fp8")
    for grouping in (Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH)
]


class TestGroupedChecker(TestCase):
    """As :class:`TestChecker`, for grouped kernels."""

    def built(self, family, grouping):
        problem = grouped(grouping, dtype=E4M3 if family == "fp8" else BFLOAT16)
        schedule = replace(SCHEDULE, scheduler="grouped_static")
        row = validated.self_test_request(problem, schedule, "sm_90a", 0)
        row = json.loads(json.dumps(row))
        problem, schedule = selftest.test_problem(row)
        return SimpleNamespace(problem=problem, schedule=schedule)

    def check(self, built, wrong=lambda exact: exact):
        def run(built, a, b, *scales, offsets, out, num_ctas):
            grouping = built.problem.grouping
            exact = grouped_product(grouping, a, b.mT, scales, offsets)
            exact = torch.where(exact.isnan(), out[0].float(), exact)
            out[0].copy_(wrong(exact))

        return selftest.check(built, "cpu", run, (2, None))

    @parametrize("family,grouping", GROUPINGS)
    def test_right_kernel(self, family, grouping):
        built = self.built(family, grouping)
        self.assertEqual(str(built.problem.validate()), "ok")
        self.assertIsNone(self.check(built))

    @parametrize("family,grouping", GROUPINGS)
    def test_wrong_kernel(self, family, grouping):
        built = self.built(family, grouping)

        def one_element(exact):
            exact[tuple((~exact.isnan()).nonzero()[-1])] += 1
            return exact

        for wrong in (torch.zeros_like, lambda exact: exact * 1.01, one_element):
            self.assertIn("elements are wrong", self.check(built, wrong))
        if grouping in (Grouping.M, Grouping.N):
            spread = self.check(built, lambda exact: exact.nan_to_num())
            self.assertIn("elements are wrong", spread)


instantiate_parametrized_tests(TestUsable)
instantiate_parametrized_tests(TestGroupedChecker)
instantiate_parametrized_tests(TestChecker)

if __name__ == "__main__":
    run_tests()
