"""The benchmark session: crashes and hangs cost one entry. The child is a stand-in."""

from __future__ import annotations

from unittest import mock

from bench_helper import fake_session, fault, requests
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.bench import session as session_module
from torch_cute_backend.bench.cases import Case
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Deadline, Entry, Outcome
from torch_cute_backend.schedule import GemmSchedule

CASE = Case("headline", "fp8", (64, 5120, 5120))


def schedule(tile_n: int) -> GemmSchedule:
    return GemmSchedule(64, tile_n, 128, ab_stages=4, epi_n=tile_n)


def ours(tile_n: int) -> Entry:
    return Entry(OURS, schedule=schedule(tile_n))


class TestSession(TestCase):
    def test_every_entry_gets_a_time(self):
        entries = [ours(32), ours(64), Entry("aten"), Entry("t_read")]
        with fake_session() as (session, log):
            outcome = session.measure(CASE, entries, rounds=7)
            opened = requests(log, "open")
            timed = requests(log, "time")
        self.assertEqual(set(outcome.timings), set(entries))
        self.assertEqual(outcome.failures, {})
        self.assertEqual(outcome.timings[ours(32)].us, 10.0 + 0.5 + 64 / 1024)
        self.assertEqual([r["shape"] for r in opened], [[64, 5120, 5120]])
        self.assertEqual([r["rounds"] for r in timed], [7])
        self.assertEqual(timed[0]["names"], [e.name for e in entries])

    def test_wrong_numbers_are_a_failure_and_are_not_timed(self):
        with fake_session({fault(64): "wrong"}) as (session, log):
            outcome = session.measure(CASE, [ours(32), ours(64)])
            timed = requests(log, "time")
        self.assertEqual(set(outcome.timings), {ours(32)})
        self.assertIn("wrong numbers", outcome.failures[ours(64)])
        self.assertEqual(timed[0]["names"], [ours(32).name])

    def test_a_crash_costs_one_entry(self):
        entries = [ours(32), ours(64), Entry("aten")]
        with fake_session({fault(64): "crash"}) as (session, log):
            outcome = session.measure(CASE, entries)
            opened = requests(log, "open")
            added = requests(log, "add")
        self.assertEqual(set(outcome.timings), {ours(32), Entry("aten")})
        self.assertIn("lost", outcome.failures[ours(64)])
        self.assertEqual(len(opened), 2)
        # The one before the crash is set up again in the new process.
        names = [ours(32).name, ours(64).name, ours(32).name, Entry("aten").name]
        self.assertEqual([r["name"] for r in added], names)

    def test_a_hang_is_cut_short(self):
        with (
            mock.patch.object(session_module, "ADD_TIMEOUT_S", 1.0),
            fake_session({fault(64): "hang"}) as (session, _),
        ):
            outcome = session.measure(CASE, [ours(64), ours(32)])
        self.assertEqual(set(outcome.timings), {ours(32)})
        self.assertIn("timed out", outcome.failures[ours(64)])

    def test_too_many_crashes_end_the_session(self):
        entries = [ours(8 * i) for i in range(1, 8)]
        with (
            mock.patch.object(session_module, "MAX_LOSSES", 2),
            fake_session({"tile_n": "crash"}) as (session, log),
        ):
            outcome = session.measure(CASE, entries)
            added = requests(log, "add")
        self.assertEqual(outcome.timings, {})
        self.assertEqual(len(outcome.failures), len(entries))
        self.assertEqual(len(added), 2)
        self.assertIn("not tried", outcome.failures[entries[-1]])

    def test_another_protocol_opens_the_case_again(self):
        with fake_session() as (session, log):
            session.measure(CASE, [Entry("aten")], cold=True)
            session.measure(CASE, [Entry("aten")], cold=True)
            session.measure(CASE, [Entry("aten")], cold=False)
            opened = requests(log, "open")
        self.assertEqual([r["cold"] for r in opened], [True, False])

    def test_entries_that_are_set_up_can_be_timed_again(self):
        entries = [ours(32), ours(64)]
        with fake_session() as (session, log):
            first, final = Outcome(), Outcome()
            session.add(CASE, entries, True, first)
            session.time(entries, 3, first)
            session.time(entries[:1], 20, final)
            timed = requests(log, "time")
        self.assertEqual([r["rounds"] for r in timed], [3, 20])
        self.assertEqual(set(final.timings), {ours(32)})

    def test_a_sweep_that_crashes_is_an_error(self):
        with fake_session({fault(64): "crash"}) as (session, _):
            bad = session.sweep("fp8", "fast", schedule(64), [(64, 64, 64)])
            good = session.sweep("fp8", "fast", schedule(32), [(64, 64, 64)])
        self.assertIn("lost", bad["error"])
        self.assertEqual(good, {"kernel": "k", "right": 1, "wrong": []})

    def test_names_tell_entries_apart(self):
        entries = [
            ours(32),
            ours(64),
            Entry(OURS, "exact", schedule(32)),
            Entry("aten"),
            Entry("aten", "exact"),
        ]
        self.assertEqual(len({e.name for e in entries}), len(entries))
        self.assertEqual(Entry("mine=folder/peer.py").label, "mine")


class TestDeadline(TestCase):
    def test_without_a_budget_it_never_passes(self):
        self.assertFalse(Deadline(None).passed)
        self.assertIsNone(Deadline(None).left)

    def test_it_passes(self):
        self.assertTrue(Deadline(0.0).passed)
        self.assertTrue(Deadline(-5.0).passed)
        self.assertEqual(Deadline(-5.0).left, 0.0)
        self.assertFalse(Deadline(60.0).passed)


if __name__ == "__main__":
    run_tests()
