"""Spans of time: kept in order of their ends, logged, also when the work fails."""

from __future__ import annotations

import logging
import time

from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import phases


class TestPhases(TestCase):
    def setUp(self) -> None:
        super().setUp()
        phases.clear()
        self.addCleanup(phases.clear)

    def test_nested_spans_in_order_of_their_ends(self) -> None:
        with phases.span("outer"), phases.span("inner", "of a kernel"):
            time.sleep(0.02)
        inner, outer = phases.recorded()
        self.assertEqual((inner.name, inner.detail), ("inner", "of a kernel"))
        self.assertEqual(outer.name, "outer")
        self.assertGreaterEqual(outer.seconds, inner.seconds)
        self.assertGreaterEqual(inner.seconds, 0.02)
        self.assertLessEqual(outer.begin, inner.begin)

    def test_logged_and_kept_when_the_work_fails(self) -> None:
        with (
            self.assertLogs("torch_cute_backend.phases", logging.INFO) as logs,
            self.assertRaisesRegex(ValueError, "boom"),
            phases.span("compile", "k"),
        ):
            raise ValueError("boom")
        self.assertRegex(logs.output[0], r"compile took \d\.\d{3} s \(k\)$")
        self.assertEqual([p.name for p in phases.recorded()], ["compile"])

    def test_a_long_lived_process_keeps_a_bounded_number(self) -> None:
        for i in range(5000):
            phases.record(str(i), "", time.perf_counter())
        kept = phases.recorded()
        self.assertLess(len(kept), 5000)
        self.assertEqual(kept[-1].name, "4999")


if __name__ == "__main__":
    run_tests()
