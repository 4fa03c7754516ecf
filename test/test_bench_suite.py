"""Suites: entries, rows, resuming, summaries; numbers checks; result files."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench_helper import fake_session, fault, requests
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import check, results, suite
from torch_cute_backend.bench.cases import (
    DECODE,
    KINDS,
    LARGE,
    SUITES,
    Case,
    Inputs,
    kind_of,
    make_inputs,
    parse_shapes,
    problem_of,
    random_shapes,
)
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.tuning import lookup, model, publish
from torch_cute_backend.tuning.table import RowKey, table

FACTS = ("gpu", "driver", "torch", "dsl", "commit", "date")
SHAPES = ((64, 5120, 5120), (16, 4096, 4096))


def options(out: Path, **changes: object) -> suite.Options:
    return suite.Options(**{"out": out, "shapes": SHAPES, **changes})


def silent(_: str) -> None:
    pass


class TestRun(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "results.jsonl"

    def rows(self) -> list[dict]:
        return results.read(self.out)

    def test_dependent_launch_has_rows_of_its_own(self):
        with fake_session() as (session, _):
            asked = options(self.out, protocols=("cold", suite.PDL))
            suite.run(SUITES["headline"], asked, session, silent)
        launches = {
            (r["protocol"], r["provider"], r.get("schedule", {}).get("launch"))
            for r in self.rows()
        }
        peers = {(p, x, None) for p in ("cold", "pdl-cold") for x in ("aten", "t_read")}
        ours = {("cold", OURS, "plain"), ("pdl-cold", OURS, "dependent")}
        self.assertEqual(launches, peers | ours)

    def test_rows_have_all_fields(self):
        with fake_session() as (session, _):
            written = suite.run(SUITES["headline"], options(self.out), session, silent)
        rows = self.rows()
        self.assertEqual(len(rows), written)
        common = {"suite", "shape", "dtype", "scaling", "accum", "provider", "protocol"}
        common |= {"us", "us_min", "us_max", *FACTS}
        for row in rows:
            extra = {"kernel"}
            if row["provider"] == OURS:
                extra |= {"schedule", "source", "chosen"}
            self.assertEqual(set(row), common | extra)
            self.assertLessEqual(row["us_min"], row["us"])
            self.assertLessEqual(row["us"], row["us_max"])
        first = rows[0]
        self.assertEqual(first["shape"], {"m": 64, "n": 5120, "k": 5120})
        self.assertEqual(
            (first["dtype"], first["scaling"]), ("float8_e4m3fn", "rowwise")
        )
        self.assertEqual(first["protocol"], "cold")

    def test_an_exact_suite_times_both_accumulations(self):
        with fake_session() as (session, _):
            suite.run(SUITES["headline"], options(self.out), session, silent)
        seen = {(r["provider"], r["accum"]) for r in self.rows()}
        wanted = {(p, a) for p in (OURS, "aten") for a in ("fast", "exact")}
        self.assertEqual(seen, wanted | {("t_read", "fast")})

    def test_our_chosen_schedule_is_marked(self):
        with fake_session() as (session, _):
            some = options(self.out, schedules="top:3")
            suite.run(SUITES["fp8-rowwise-decode"], some, session, silent)
        for m, n, k in SHAPES:
            ours = [
                r
                for r in self.rows()
                if r["provider"] == OURS and r["shape"] == {"m": m, "n": n, "k": k}
            ]
            self.assertEqual(len(ours), 3)
            self.assertEqual([r["chosen"] for r in ours], [True, False, False])
            choice = lookup.choose(problem_of("fp8", (m, n, k)), SM90)
            self.assertEqual(ours[0]["schedule"], choice.schedule.to_json())
            self.assertEqual(ours[0]["source"], choice.source)

    def test_a_second_run_measures_nothing(self):
        said: list[str] = []
        with fake_session() as (session, log):
            suite.run(SUITES["headline"], options(self.out), session, silent)
            before = len(requests(log, "time"))
            again = suite.run(
                SUITES["headline"], options(self.out), session, said.append
            )
            after = len(requests(log, "time"))
        self.assertEqual((again, before, after), (0, 2, 2))
        self.assertTrue(all("done before" in line for line in said))

    def test_again_measures_anew(self):
        with fake_session() as (session, log):
            suite.run(SUITES["headline"], options(self.out), session, silent)
            suite.run(
                SUITES["headline"], options(self.out, again=True), session, silent
            )
            self.assertEqual(len(requests(log, "time")), 4)

    def test_an_interrupted_run_goes_on(self):
        with fake_session() as (session, log):
            one = options(self.out, shapes=SHAPES[:1])
            suite.run(SUITES["headline"], one, session, silent)
            suite.run(SUITES["headline"], options(self.out), session, silent)
            self.assertEqual(len(requests(log, "time")), 2)

    def test_failures_are_noted_and_not_tried_again(self):
        choice = lookup.choose(problem_of("fp8", SHAPES[0]), SM90)
        said: list[str] = []
        some = options(self.out, shapes=SHAPES[:1])
        with fake_session({fault(choice.schedule.tile_n): "wrong"}) as (session, log):
            suite.run(SUITES["headline"], some, session, said.append)
            suite.run(SUITES["headline"], some, session, silent)
            self.assertEqual(len(requests(log, "time")), 1)
        self.assertNotIn(OURS, {r["provider"] for r in self.rows()})
        failed = results.read(suite.failures_path(self.out))
        self.assertEqual({r["provider"] for r in failed}, {OURS})
        self.assertIn("wrong numbers", failed[0]["error"])
        self.assertNotIn("us", failed[0])
        self.assertIn("FAILED", said[0])

    def test_no_time_left(self):
        said: list[str] = []
        with fake_session() as (session, _):
            none = options(self.out, budget_s=0.0)
            written = suite.run(SUITES["headline"], none, session, said.append)
        self.assertEqual(written, 0)
        self.assertEqual(self.rows(), [])
        self.assertIn("out of time", said[0])

    def test_a_table_adds_its_schedule(self):
        problem = problem_of("fp8", SHAPES[0])
        listed = model.rank(problem, SM90, 40)[-1]
        row = publish.measured_row(
            RowKey.of(problem),
            listed,
            results.Timing(1.0, 1.0, 1.0),
            ("aten", 2.0),
            {"gpu": "none", "date": "2000-01-01", "commit": "none", "dsl": "none"},
        )
        table = self.folder / "table.json"
        publish.merge_rows(table, "sm_90a", [row])
        with fake_session() as (session, _):
            one = options(self.out, shapes=SHAPES[:1], table=table)
            suite.run(SUITES["fp8-rowwise-decode"], one, session, silent)
        sources = {r["source"] for r in self.rows() if r["provider"] == OURS}
        self.assertIn("tuned", sources)

    def test_the_summary_compares_with_the_best_peer(self):
        said: list[str] = []
        with fake_session() as (session, _):
            one = options(self.out, shapes=SHAPES[:1])
            suite.run(SUITES["fp8-rowwise-decode"], one, session, said.append)
        ours = next(r["us"] for r in self.rows() if r["provider"] == OURS)
        self.assertIn(f"= {30.0 / ours:.2f}x best peer", said[0])


class TestOptions(TestCase):
    def test_malformed_schedules(self):
        case = Case("headline", "fp8", SHAPES[0])
        for text in ("top", "top:x", "best", "all:3", ""):
            with self.assertRaises(UserError):
                suite.schedules_for(case, Accum.FAST, SM90, text)

    def test_all_is_the_whole_list(self):
        case = Case("headline", "fp8", SHAPES[0])
        found = [s for s, _, _ in suite.schedules_for(case, Accum.FAST, SM90, "all")]
        self.assertEqual(len(found), len(set(found)))
        listed = set(model.tiles(case.problem(), SM90))
        self.assertTrue(listed <= set(found))

    def test_shapes(self):
        self.assertEqual(parse_shapes("1x2x3, 4X5X6"), ((1, 2, 3), (4, 5, 6)))
        for text in ("", "1x2", "1x2x0", "ax2x3", "1x2x3x4", "1x2x-3"):
            with self.assertRaises(UserError):
                parse_shapes(text)

    def test_random_shapes_are_the_same_everywhere_and_in_no_table(self):
        shapes = random_shapes()
        self.assertEqual(len(set(shapes)), 100)
        self.assertEqual(shapes[:2], random_shapes(2))
        keys = {(r.key.m, r.key.n, r.key.k) for r in table("sm_90a")}
        self.assertEqual(keys & set(shapes), set())
        for shape in shapes:
            self.assertTrue(problem_of("fp8", shape).validate())

    def test_suites_list_what_the_goals_name(self):
        for shape in ((64, 5120, 5120), (64, 5120, 25600), (64, 51200, 5120)):
            self.assertIn(shape, DECODE)
        for shape in ((2048, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 16384)):
            self.assertIn(shape, LARGE)
        self.assertEqual(len(set(DECODE)), len(DECODE))


class TestRowKeys(TestCase):
    def test_a_row_has_the_key_of_its_entry(self):
        environment = dict.fromkeys(FACTS, "x")
        timing = results.Timing(1.0, 0.9, 1.1)
        for name in ("headline", "bf16"):
            case = next(SUITES[name].cases())
            for entry in suite.entries_for(
                SUITES[name], case, SM90, options(Path("x"), schedules="top:2")
            ):
                row = suite.result_row(environment, case, entry, timing, "k", "cold")
                decoded = json.loads(json.dumps(row))
                self.assertEqual(
                    suite.row_key(decoded), suite.entry_key(case, entry, "cold")
                )


def inputs(kind: str, shape: tuple[int, int, int]) -> Inputs:
    return make_inputs(problem_of(kind, shape), 1, "cpu")[0]


class TestCheck(TestCase):
    @parametrize("kind", list(KINDS))
    def test_inputs_are_of_their_kind(self, kind):
        problem = problem_of(kind, (24, 32, 64))
        self.assertTrue(problem.validate())
        self.assertEqual(kind_of(problem), kind)
        x = inputs(kind, (24, 32, 64))
        self.assertEqual(tuple(x.a.shape), (24, 64))
        self.assertEqual(tuple(x.b.shape), (32, 64))
        self.assertEqual(x.b.stride(), (1, 32) if kind.endswith("-bn") else (64, 1))
        self.assertEqual(str(x.a.dtype), f"torch.{problem.a_dtype}")
        self.assertEqual(str(x.out.dtype), f"torch.{problem.out_dtype}")
        sizes = {"fp8": [24, 32], "fp8-tensorwise": [1, 1]}.get(kind, [])
        self.assertEqual([s.numel() for s in x.scales], sizes)

    @parametrize("kind", list(KINDS))
    def test_right_numbers_pass_and_wrong_ones_do_not(self, kind):
        shape = (48, 64, 256)
        problem = problem_of(kind, shape)
        x = inputs(kind, shape)
        want = check.reference(problem, x)

        def call(factor: float, rows: int = 48):
            def run() -> None:
                x.out[:rows].copy_(want[:rows] * factor)

            return run

        check.check(problem, x, call(1.0), want, "right")
        for wrong in (call(0.0), call(1.5), call(1.0, rows=47), call(float("nan"))):
            with self.assertRaisesRegex(ValueError, "elements are wrong"):
                check.check(problem, x, wrong, want, "wrong")

    def test_exact_accumulation_is_held_to_more(self):
        fast, exact = (check.slack(problem_of("fp8", SHAPES[0], a)) for a in Accum)
        self.assertGreater(fast, exact)

    def test_a_returned_tensor_is_what_counts(self):
        problem = problem_of("bf16", (8, 16, 32))
        x = inputs("bf16", (8, 16, 32))
        want = check.reference(problem, x)
        check.check(problem, x, lambda: want.bfloat16(), want, "right")

    @parametrize("kind", list(KINDS))
    def test_the_sweep_finds_one_wrong_element(self, kind):
        shapes = ((3, 16, 32), (65, 48, 112), (16, 16, 8192))
        problem = problem_of(kind, SHAPES[0])

        def run(a, b, out, *scales) -> None:
            result = a.float() @ b.float().t()
            if scales:
                result = result * scales[0][:, None] * scales[1][None, :]
            out.copy_(result)

        def off_by_one(a, b, out, *scales) -> None:
            run(a, b, out, *scales)
            if out.shape[0] == 65:
                out[64, 47] += 1

        def unwritten(a, b, out, *scales) -> None:
            rows = slice(0, max(1, out.shape[0] - 16))
            first = scales[:1] and (scales[0][rows],)
            run(a[rows], b, out[rows], *first, *scales[1:])

        right, wrong = check.sweep_exact(problem, shapes, run, "cpu")
        self.assertEqual((right, wrong), (3, []))
        right, wrong = check.sweep_exact(problem, shapes, off_by_one, "cpu")
        self.assertEqual((right, wrong), (2, ["65x48x112: 1 of 3120 elements"]))
        right, wrong = check.sweep_exact(problem, shapes, unwritten, "cpu")
        self.assertEqual(right, 0)
        self.assertEqual(wrong[1], "65x48x112: 768 of 3120 elements")


instantiate_parametrized_tests(TestCheck)


class TestResultFiles(TestCase):
    def setUp(self):
        super().setUp()
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = folder / "sub" / "results.jsonl"

    def test_rows_come_back(self):
        results.append(self.path, [{"a": 1}])
        results.append(self.path, [{"a": 2}, {"b": "x"}])
        self.assertEqual(results.read(self.path), [{"a": 1}, {"a": 2}, {"b": "x"}])

    def test_no_file_is_no_rows(self):
        self.assertEqual(results.read(self.path), [])

    def test_a_torn_line_is_left_out_and_spoils_no_other(self):
        results.append(self.path, [{"a": 1}])
        with self.path.open("a") as file:
            file.write('{"a": 2, "torn')
        with self.assertLogs("torch_cute_backend.bench.results", "WARNING"):
            self.assertEqual(results.read(self.path), [{"a": 1}])
        results.append(self.path, [{"a": 3}])
        with self.assertLogs("torch_cute_backend.bench.results", "WARNING"):
            self.assertEqual(results.read(self.path), [{"a": 1}, {"a": 3}])


if __name__ == "__main__":
    run_tests()
