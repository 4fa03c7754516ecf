"""Tuning: jobs, search by successive rounds, table rows, the command line."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from bench_helper import fake_session, fault, requests
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.bench import results, suite
from torch_cute_backend.bench.cases import Case, problem_of
from torch_cute_backend.bench.protocol import Timing
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Deadline
from torch_cute_backend.cli import tune_cmd
from torch_cute_backend.errors import TableError, UserError
from torch_cute_backend.problem import Accum, Major
from torch_cute_backend.tuning import lookup, model, model_shapes, publish, search
from torch_cute_backend.tuning.table import RowKey, load_table

SHAPE = (64, 5120, 5120)
CASE = Case(search.SUITE, "fp8", SHAPE)
ENVIRONMENT = {"gpu": "made-up", "date": "2000-01-01", "commit": "abc", "dsl": "4.8.1"}


class TestJobs(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def read(self, text: str) -> list[search.Job]:
        path = self.folder / "shapes.txt"
        path.write_text(text)
        return search.read_jobs(path)

    def test_lines(self):
        jobs = self.read(
            "# comment\n\nfp8 64x5120x5120\nfp8 64x5120x5120 exact  # twice\n"
            "bf16-bn 1x2048x4096,2x2048x4096\nfp8 64x5120x5120 fast\n"
        )
        texts = [job.describe() for job in jobs]
        self.assertEqual(
            texts,
            [
                "fp8 64x5120x5120",
                "fp8 64x5120x5120 exact",
                "bf16-bn 1x2048x4096",
                "bf16-bn 2x2048x4096",
            ],
        )
        self.assertIs(jobs[1].accum, Accum.EXACT)
        self.assertIs(jobs[2].case.problem().b_major, Major.MN)

    def test_malformed_lines_are_named(self):
        bad = ("fp8", "fp8 64x64", "fp4 64x64x64", "fp8 64x64x64 slow", "fp8 1x8x8")
        for line in bad:
            with self.assertRaisesRegex(UserError, "shapes.txt:2"):
                self.read(f"bf16 64x64x64\n{line}\n")

    def test_no_file(self):
        with self.assertRaises(UserError):
            search.read_jobs(self.folder / "none.txt")


class TestCandidates(TestCase):
    def test_the_chosen_one_comes_first_and_none_twice(self):
        found = search.candidates(CASE, Accum.FAST, SM90)
        choice = lookup.choose(CASE.problem(), SM90)
        self.assertEqual(found[0], choice.schedule)
        self.assertEqual(len(set(found)), len(found))
        for schedule in found:
            self.assertTrue(schedule.validate(CASE.problem(), SM90))

    def test_hopeless_ones_are_left_out(self):
        problem = CASE.problem()
        found = search.candidates(CASE, Accum.FAST, SM90)
        listed = [c.schedule for c in lookup.candidates(problem, SM90)]
        fastest = model.scored(problem, SM90)[0][0]
        for schedule in found:
            if schedule not in listed:
                estimate = model.seconds(problem, schedule, SM90)
                self.assertLessEqual(estimate, search.HOPELESS * fastest)

    def test_limit(self):
        self.assertEqual(len(search.candidates(CASE, Accum.FAST, SM90, 3)), 3)


class TestSearch(TestCase):
    def listed(self) -> list:
        found = search.candidates(CASE, Accum.FAST, SM90)
        return list({s.tile_n: s for s in found if s.tile_m == 64}.values())

    def test_the_fastest_of_all_wins(self):
        listed = self.listed()
        self.assertGreater(len(listed), search.FINALISTS)
        with fake_session() as (session, log):
            found = search.search(session, CASE, Accum.FAST, listed, rounds=11)
            timed = requests(log, "time")
        best, _ = found.ranking[0]
        # The stand-in's times grow with the tile.
        self.assertEqual(best.schedule, min(listed, key=lambda s: s.tile_n))
        self.assertEqual([r["rounds"] for r in timed], [search.BRIEF_ROUNDS, 11])
        self.assertEqual(len(timed[0]["names"]), len(listed))
        self.assertEqual(len(timed[1]["names"]), search.FINALISTS + 1)
        self.assertEqual(found.best_peer[0].provider, "aten")

    def test_a_crash_costs_one_candidate(self):
        listed = self.listed()
        bad = min(listed, key=lambda s: s.tile_n)
        with fake_session({fault(bad.tile_n) + "}": "crash"}) as (session, _):
            found = search.search(session, CASE, Accum.FAST, listed)
        self.assertEqual(len(found.brief.timings), len(listed) - 1)
        (failed,) = found.brief.failures
        self.assertEqual(failed.schedule, bad)
        rest = [s for s in listed if s != bad]
        best, _ = found.ranking[0]
        self.assertEqual(best.schedule, min(rest, key=lambda s: s.tile_n))

    def test_out_of_time_means_fewer_candidates(self):
        with fake_session() as (session, _):
            found = search.search(
                session, CASE, Accum.FAST, self.listed(), deadline=Deadline(0.0)
            )
        self.assertEqual(found.ranking, [])
        self.assertIsNone(search.table_row(found, ENVIRONMENT))

    def test_the_row_says_where_it_is_from(self):
        with fake_session() as (session, _):
            found = search.search(session, CASE, Accum.EXACT, self.listed()[:2])
        row = search.table_row(found, ENVIRONMENT)
        entry, timing = found.ranking[0]
        self.assertEqual(row.schedule, entry.schedule)
        self.assertEqual(row.key, RowKey.of(CASE.problem(Accum.EXACT)))
        self.assertEqual(row.name, "scale_mm_cute_exact_m64_k5120_n5120")
        provenance = dict(row.provenance)
        self.assertEqual(provenance["kind"], "measured")
        self.assertEqual(provenance["peer"], "aten")
        self.assertEqual(provenance["margin"], round(30.0 / timing.us - 1, 3))
        self.assertEqual({k: provenance[k] for k in ENVIRONMENT}, ENVIRONMENT)


class TestPublish(TestCase):
    def setUp(self):
        super().setUp()
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = folder / "tables" / "sm_90a.json"

    def row(self, shape: tuple[int, int, int], us: float = 10.0, kind: str = "fp8"):
        problem = problem_of(kind, shape)
        schedule = model.rank(problem, SM90, 1)[0]
        timing = Timing(us, us, us)
        return publish.measured_row(
            RowKey.of(problem), schedule, timing, ("aten", 15.0), ENVIRONMENT
        )

    def test_rows_come_back(self):
        rows = [
            self.row(SHAPE),
            self.row((1, 4096, 4096)),
            self.row(SHAPE, kind="bf16"),
        ]
        self.assertEqual(publish.merge_rows(self.path, "sm_90a", rows), 3)
        self.assertEqual(list(load_table(self.path)), rows)
        # One row a line.
        self.assertEqual(self.path.read_text().count("\n"), 3 + 5)

    def test_a_row_of_the_same_key_is_replaced_and_keeps_its_name(self):
        publish.merge_rows(
            self.path, "sm_90a", [self.row((1, 64, 64)), self.row(SHAPE)]
        )
        content = json.loads(self.path.read_text())
        content["rows"][1]["name"] = "a name that people know"
        self.path.write_text(json.dumps(content))
        publish.merge_rows(self.path, "sm_90a", [self.row(SHAPE, us=5.0)])
        first, second = load_table(self.path)
        self.assertEqual(first, self.row((1, 64, 64)))
        self.assertEqual(second.name, "a name that people know")
        self.assertEqual(dict(second.provenance)["us"], 5.0)

    def test_rows_that_do_not_parse_are_kept(self):
        publish.merge_rows(self.path, "sm_90a", [self.row(SHAPE)])
        content = json.loads(self.path.read_text())
        content["rows"].insert(0, {"name": "from a later version"})
        self.path.write_text(json.dumps(content))
        publish.merge_rows(self.path, "sm_90a", [self.row((1, 64, 64))])
        names = [r["name"] for r in json.loads(self.path.read_text())["rows"]]
        self.assertEqual(names[0], "from a later version")
        self.assertEqual(len(names), 3)

    def test_another_archs_table_is_refused(self):
        publish.merge_rows(self.path, "sm_90a", [self.row(SHAPE)])
        before = self.path.read_text()
        with self.assertRaises(TableError):
            publish.merge_rows(self.path, SM100.name, [self.row(SHAPE)])
        self.assertEqual(self.path.read_text(), before)

    def test_names(self):
        def name(kind: str) -> str:
            return publish.row_name(RowKey.of(problem_of(kind, SHAPE)))

        tail = "m64_k5120_n5120"
        self.assertEqual(name("fp8"), f"scale_mm_cute_{tail}")
        self.assertEqual(name("fp8-tensorwise"), f"scale_mm_tensorwise_cute_{tail}")
        self.assertEqual(name("bf16"), f"mm_bf16_cute_{tail}")
        self.assertEqual(name("bf16-bn"), f"mm_bf16_cute_bn_{tail}")


class TestCommand(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.jobs = [
            search.Job.of("fp8", SHAPE),
            search.Job.of("bf16", (16, 4096, 4096)),
        ]

    def tune(self, session, **changes: object) -> tuple[int, str]:
        args = {
            "arch": None,
            "table": self.folder / "table.json",
            "budget": None,
            "out": self.folder / "tune.jsonl",
            "limit": 3,
            "rounds": None,
        }
        said = io.StringIO()
        with redirect_stdout(said):
            code = tune_cmd.tune(
                argparse.Namespace(**args | changes), self.jobs, session
            )
        return code, said.getvalue()

    def test_it_writes_rows_and_goes_on(self):
        with fake_session() as (session, log):
            code, said = self.tune(session)
            self.assertEqual(code, 0)
            rows = load_table(self.folder / "table.json")
            self.assertEqual([r.key.k for r in rows], [5120, 4096])
            before = len(requests(log, "time"))
            code, said = self.tune(session)
            self.assertEqual(len(requests(log, "time")), before)
        self.assertEqual(said.count("done before"), 2)
        self.assertIn("[####################] 2/2", said)

    def test_every_measurement_is_kept(self):
        with fake_session() as (session, _):
            self.tune(session)
        rows = results.read(self.folder / "tune.jsonl")
        protocols = {r["protocol"] for r in rows}
        self.assertEqual(protocols, {search.PROTOCOL, search.BRIEF})
        brief = [r for r in rows if r["protocol"] == search.BRIEF]
        self.assertEqual(len(brief), 6)
        self.assertEqual({r["provider"] for r in brief}, {OURS})
        self.assertEqual({r["suite"] for r in rows}, {search.SUITE})

    def test_out_of_time(self):
        with fake_session() as (session, _):
            code, said = self.tune(session, budget=0.0)
        self.assertEqual(code, 1)
        self.assertIn("2 shapes left", said)

    def test_another_arch_than_the_gpus(self):
        with fake_session() as (session, _), self.assertRaises(UserError):
            self.tune(session, arch="sm_100a")

    def test_failures_are_known_too(self):
        listed = search.candidates(self.jobs[0].case, Accum.FAST, SM90, 3)
        with fake_session({"tile_n": "wrong"}) as (session, _):
            self.tune(session)
        known = suite.known_keys(self.folder / "tune.jsonl")
        self.assertTrue(search.is_known(known, self.jobs[0].case, Accum.FAST, listed))
        self.assertFalse((self.folder / "table.json").exists())

    def test_user_errors_are_one_line(self):
        for words in (
            ["tune"],
            ["tune", "--shapes", str(self.folder / "none")],
            ["tune", "--from-model", str(self.folder / "none.py")],
            ["bench", "nothing"],
            ["bench", "report", "--results", str(self.folder)],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "torch_cute_backend", *words],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


class TestModelShapes(TestCase):
    def test_a_problem_goes_there_and_back(self):
        for kind in ("fp8", "fp8-tensorwise", "bf16", "fp16-bn"):
            row = model_shapes.row_of(problem_of(kind, SHAPE))
            jobs, skipped = model_shapes.jobs_of(json.loads(json.dumps([row, row])))
            self.assertEqual(jobs, [search.Job.of(kind, SHAPE)])
            self.assertEqual(skipped, [])

    def test_other_kinds_are_named(self):
        from dataclasses import replace

        odd = replace(problem_of("bf16", SHAPE), a_major=Major.MN)
        jobs, skipped = model_shapes.jobs_of([model_shapes.row_of(odd)])
        self.assertEqual(jobs, [])
        self.assertEqual(skipped, [odd.describe()])

    def test_a_script_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "model.py"
            script.write_text("raise RuntimeError('no such model')\n")
            with self.assertRaisesRegex(UserError, "no such model"):
                model_shapes.of_script(script)

    def test_a_script_that_asks_for_candidates(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "model.py"
            script.write_text(
                "from torch_cute_backend.arch import SM90\n"
                "from torch_cute_backend.bench.cases import problem_of\n"
                "from torch_cute_backend.tuning import lookup\n"
                "found = lookup.candidates(problem_of('bf16', (64, 512, 256)), SM90)\n"
                "assert found == (), found\n"
            )
            jobs, skipped = model_shapes.of_script(script)
        self.assertEqual(jobs, [search.Job.of("bf16", (64, 512, 256))])
        self.assertEqual(skipped, [])


if __name__ == "__main__":
    run_tests()
