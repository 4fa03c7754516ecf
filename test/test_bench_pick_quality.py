"""Judging the look-up's candidates: what is timed, resuming, and the ratio."""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from bench_helper import fake_session, requests
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import config
from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import manifest, quality, results
from torch_cute_backend.bench.cases import RANDOM, problem_of
from torch_cute_backend.bench.manifest import Kind, Listed
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup, model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import pick_quality


class TestPickQuality(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(config.patch(cache_dir=self.folder / "cache"))
        self.out = self.folder / "random.jsonl"

    def measure(self, shapes: int, budget: float | None = None) -> tuple[int, list]:
        args = argparse.Namespace(out=self.out, shapes=shapes, budget=budget)
        with fake_session() as (session, log), redirect_stdout(io.StringIO()):
            environment = session.environment()
            environment["environment"]["gpu"] = "NVIDIA H200 (made up)"
            session.environment = lambda: environment
            timed = pick_quality.measure(args, session)
            return timed, requests(log, "add")

    def test_kinds_take_turns_and_shapes_differ(self):
        cases = pick_quality.cases(100)
        self.assertEqual({c.kind for c in cases[::2]}, {"fp8"})
        self.assertEqual({c.kind for c in cases[1::2]}, {"bf16"})
        self.assertEqual(len({c.shape for c in cases}), 100)

    def test_the_space_holds_the_candidates_and_the_best_of_the_model(self):
        for case in pick_quality.cases(6):
            found = pick_quality.space(case, SM90)
            chosen = pick_quality.chosen(case, SM90)
            self.assertEqual(found[: len(chosen)], chosen)
            self.assertEqual(len(set(found)), len(found))
            everything = set(model.tiles(case.problem(), SM90)) | set(chosen)
            self.assertLessEqual(set(found), everything)
            self.assertGreater(len(found), len(everything) // 4)

    def test_all_are_timed_briefly_and_the_candidates_again(self):
        timed, _ = self.measure(2)
        self.assertEqual(timed, 2)
        case = pick_quality.cases(1)[0]
        space = pick_quality.space(case, SM90)
        rows = [
            r
            for r in results.read(self.out)
            if r["provider"] == OURS and r["shape"]["m"] == case.shape[0]
        ]
        brief, final = (
            {
                GemmSchedule.from_json(r["schedule"])
                for r in rows
                if r["protocol"] == protocol
            }
            for protocol in ("brief-cold", "cold")
        )
        self.assertEqual(brief, set(space))
        self.assertLessEqual(set(pick_quality.chosen(case, SM90)), final)
        self.assertLess(len(final), len(brief))
        losses = quality.of_candidates(results.read(self.out))
        self.assertEqual(len(losses), 2)
        self.assertTrue(all(1.0 <= loss < 10.0 for loss in losses))

    def test_a_second_run_goes_on(self):
        self.assertEqual(self.measure(1)[0], 1)
        timed, added = self.measure(2)
        self.assertEqual(timed, 1)
        self.assertEqual({a["name"].split("|")[0] for a in added}, {OURS, "aten"})
        self.assertEqual(self.measure(2)[0], 0)

    def test_out_of_time_leaves_no_half_shape(self):
        self.assertEqual(self.measure(2, budget=0.0)[0], 0)
        self.assertEqual(results.read(self.out), [])

    def test_kernels_that_fail_the_gate_are_no_choice(self):
        case = pick_quality.cases(1)[0]
        kind = Kind.of(case.problem())
        bad, good, *_ = pick_quality.space(case, SM90)
        root = config.get().cache_dir
        root.mkdir()
        listed = [
            (("sm_90a", kind, bad), Listed("k1", "n1", ("spilled",))),
            (("sm_90a", kind, good), Listed("k2", "n2")),
        ]
        manifest.write(root, listed)
        found = manifest.read(root)
        kept = list(pick_quality.passing(case, SM90, found, [bad, good]))
        self.assertEqual(kept, [good])


class TestRatio(TestCase):
    SHAPE = (96, 4096, 2048)

    def rows(self, protocol: str, times: dict[GemmSchedule, float]) -> list[dict]:
        m, n, k = self.SHAPE
        common = {
            "suite": RANDOM,
            "provider": OURS,
            "gpu": "NVIDIA H200",
            "dtype": "bfloat16",
            "shape": {"m": m, "n": n, "k": k},
            "protocol": protocol,
        }
        return [{**common, "schedule": s.to_json(), "us": t} for s, t in times.items()]

    def test_the_second_pass_decides_between_those_in_it(self):
        problem = problem_of("bf16", self.SHAPE)
        chosen = [c.schedule for c in lookup.candidates(problem, SM90)]
        others = [s for s in model.tiles(problem, SM90) if s not in chosen]
        brief = dict.fromkeys(chosen, 11.0) | {others[0]: 8.0, others[1]: 10.5}
        rows = self.rows("brief-cold", brief)
        self.assertEqual(quality.of_candidates(rows), [11.0 / 8.0])
        final = {chosen[1]: 10.1, others[0]: 10.0}
        rows += self.rows("cold", final)
        self.assertEqual(quality.of_candidates(rows), [10.1 / 10.0])


if __name__ == "__main__":
    run_tests()
