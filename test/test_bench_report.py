"""Comparisons and the report, from rows made up here (no measurement)."""

from __future__ import annotations

import tempfile
import xml.dom.minidom
from pathlib import Path

from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import compare, plots, report, results, svg
from torch_cute_backend.bench.cases import problem_of
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.errors import UserError
from torch_cute_backend.tuning import lookup, model

SCHEDULE = {"tile_m": 64, "tile_n": 32, "tile_k": 128, "cluster_m": 1, "cluster_n": 2}


def row(provider: str, us: float, **changes: object) -> dict:
    base = {
        "suite": "headline",
        "shape": {"m": 64, "n": 5120, "k": 5120},
        "dtype": "float8_e4m3fn",
        "scaling": "rowwise",
        "accum": "fast",
        "provider": provider,
        "us": us,
        "us_min": us,
        "us_max": us,
        "protocol": "cold",
        "gpu": "made-up GPU",
        "driver": "1",
        "torch": "2",
        "dsl": "3",
        "commit": "abc",
        "date": "2000-01-01",
    }
    if provider == OURS:
        base |= {"schedule": SCHEDULE, "chosen": True, "kernel": "k"}
    return base | changes


def one(rows: list[dict]) -> compare.Comparison:
    (found,) = compare.compare(rows)
    return found


class TestCompare(TestCase):
    def test_ours_over_the_best_peer(self):
        found = one(
            [
                row(OURS, 10.0),
                row("aten", 16.0),
                row("helion", 12.0),
                row("t_read", 8.0),
            ]
        )
        self.assertEqual(found.speedup(), 1.2)
        self.assertEqual(found.speedup("aten"), 1.6)
        self.assertIsNone(found.speedup("vllm"))
        self.assertEqual(found.over_floor, 1.25)

    def test_the_floor_is_no_peer(self):
        found = one([row(OURS, 10.0), row("t_read", 8.0)])
        self.assertIsNone(found.speedup())

    def test_ours_is_the_chosen_schedule_not_the_fastest(self):
        found = one([row(OURS, 10.0), row(OURS, 9.0, chosen=False), row("aten", 18.0)])
        self.assertEqual(found.speedup(), 1.8)
        self.assertEqual(found.best_ours["us"], 9.0)

    def test_runs_are_not_mixed_and_the_last_counts(self):
        found = one(
            [
                row(OURS, 10.0, date="2000-01-02", commit="new"),
                row("aten", 15.0, date="2000-01-02", commit="new"),
                row("aten", 30.0),
                row("helion", 5.0),
            ]
        )
        self.assertEqual(found.speedup(), 1.5)
        self.assertEqual(set(found.peers), {"aten"})

    def test_protocols_accumulations_and_gpus_are_apart(self):
        rows = [
            row(OURS, 10.0),
            row(OURS, 9.0, protocol="warm"),
            row(OURS, 11.0, accum="exact"),
            row(OURS, 5.0, gpu="another"),
        ]
        self.assertEqual(len(compare.compare(rows)), 4)

    def test_candidates_of_a_search_are_not_compared(self):
        self.assertEqual(compare.compare([row(OURS, 1.0, suite="tune")]), [])

    def test_summary(self):
        found = compare.summarize([1.0, 4.0, None])
        self.assertEqual((found.mean, found.worst, found.count), (2.0, 1.0, 2))
        self.assertIsNone(compare.summarize([None]).mean)


class TestGoals(TestCase):
    def goal(self, rows: list[dict], start: str) -> compare.Goal:
        lines = compare.compare(rows)
        (found,) = (g for g in compare.goals(lines, rows) if g.name.startswith(start))
        return found

    def test_without_rows_nothing_is_reached(self):
        for goal in compare.goals([], []):
            self.assertIsNone(goal.reached)
            self.assertEqual(goal.figure, "not measured")

    def test_small_m(self):
        name = "FP8 rowwise, M <= 64: best peer"
        good = [row(OURS, 10.0), row("aten", 12.0)]
        self.assertTrue(self.goal(good, name).reached)
        self.assertFalse(self.goal([row(OURS, 10.0), row("aten", 11.0)], name).reached)
        large = {"shape": {"m": 4096, "n": 64, "k": 64}}
        other = [row(OURS, 1.0, **large), row("aten", 2.0, **large)]
        self.assertIsNone(self.goal(other, name).reached)

    def test_one_slow_shape_is_enough_to_miss(self):
        bad = {"shape": {"m": 1, "n": 4096, "k": 4096}}
        rows = [row(OURS, 10.0), row("aten", 30.0)]
        rows += [row(OURS, 10.0, **bad), row("aten", 9.0, **bad)]
        goal = self.goal(rows, "FP8 rowwise, M <= 64: best peer")
        self.assertFalse(goal.reached)
        self.assertEqual(goal.figure, "1.64x, worst 0.90x, 2 shapes")

    def test_warm_rows_do_not_count(self):
        rows = [row(OURS, 1.0, protocol="warm"), row("aten", 9.0, protocol="warm")]
        self.assertIsNone(self.goal(rows, "FP8 rowwise, M <= 64: best").reached)

    def test_floor_by_weight(self):
        rows = [row(OURS, 10.0), row("t_read", 8.0)]
        self.assertTrue(
            self.goal(rows, "FP8 rowwise, M <= 64, weight of 20 to 100").reached
        )
        self.assertIsNone(
            self.goal(rows, "FP8 rowwise, M <= 64, weight over 100").reached
        )

    def test_exact_accumulation(self):
        large = {"shape": {"m": 4096, "n": 4096, "k": 4096}}
        fast = row(OURS, 100.0, **large)
        for us, reached in ((104.0, True), (110.0, False)):
            exact = row(OURS, us, accum="exact", **large)
            goal = self.goal([fast, exact], "FP8, M >= 512: exact")
            self.assertEqual(goal.reached, reached)

    def test_picking(self):
        def first(provider: str, seconds: float, state: str = "cold") -> dict:
            return row(
                provider,
                seconds * 1e6,
                suite="pick-time",
                protocol=f"first-call-{state}",
            )

        rows = [first(OURS, 7.0), first("stock", 40.0), first(f"stock+{OURS}", 44.0)]
        self.assertTrue(self.goal(rows, "first result").reached)
        self.assertFalse(self.goal(rows, "added to a stock run").reached)
        self.assertIsNone(self.goal(rows, "warm start").reached)
        rows += [first(OURS, 1.4, "warm"), first("stock", 1.0, "warm")]
        self.assertTrue(self.goal(rows, "warm start").reached)

    def test_candidates(self):
        shape = {"m": 96, "n": 4096, "k": 2048}
        problem = problem_of("fp8", (96, 4096, 2048))
        listed = [c.schedule for c in lookup.candidates(problem, SM90)]
        other = next(s for s in model.tiles(problem, SM90) if s not in listed)
        search = {
            "suite": "random",
            "protocol": "brief-cold",
            "gpu": "NVIDIA H200 (made up)",
            "shape": shape,
        }
        rows = [
            row(OURS, 10.0 + i, schedule=s.to_json(), **search)
            for i, s in enumerate(listed)
        ]
        name = "the look-up's candidates"
        for us, figure, reached in (
            (9.9, "100% of 1 shapes, mean 1.010x", True),
            (8.0, "0% of 1 shapes, mean 1.250x", False),
        ):
            best = row(OURS, us, schedule=other.to_json(), **search)
            goal = self.goal([*rows, best], name)
            self.assertEqual((goal.figure, goal.reached), (figure, reached))
        # Tuned shapes prove nothing.
        tuned = row(OURS, 1.0, schedule=other.to_json(), **{**search, "suite": "tune"})
        self.assertIsNone(self.goal([tuned], name).reached)

    def test_host(self):
        bare = row("cuLaunchKernelEx", 3.2, suite="host", protocol="host-enqueue")
        for us, allocations, reached in (
            (4.5, 0, True),
            (5.0, 0, False),
            (4.5, 1, False),
        ):
            ours = row(
                OURS, us, suite="host", protocol="host-enqueue", allocations=allocations
            )
            self.assertEqual(self.goal([bare, ours], "host").reached, reached)


ROWS = [
    row(OURS, 10.0),
    row("aten", 16.0),
    row("t_read", 8.0),
    row(OURS, 12.0, protocol="warm"),
    row("aten", 15.0, protocol="warm"),
    row(OURS, 7e6, suite="pick-time", protocol="first-call-cold", kernels=["cute"]),
    row("stock", 9e6, suite="pick-time", protocol="first-call-cold"),
    row(OURS, 4.5, suite="host", protocol="host-enqueue", allocations=0),
    row("cuLaunchKernelEx", 3.2, suite="host", protocol="host-enqueue"),
]


class TestReport(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.results = self.folder / "results"
        self.out = self.folder / "report"
        self.readme = self.folder / "README.md"

    def write(self, rows: list[dict] = ROWS) -> None:
        results.append(self.results / "made-up.jsonl", rows)
        report.write(self.results, self.out, self.readme)

    def test_files(self):
        self.write()
        names = {path.name for path in self.out.iterdir()}
        wanted = {"report.md", "report.html", "roofline.svg", "first-result.svg"}
        wanted |= {"speedup-headline-cold.svg", "speedup-headline-warm.svg"}
        self.assertEqual(names, wanted)
        text = (self.out / "report.md").read_text()
        for svg_name in (n for n in wanted if n.endswith(".svg")):
            self.assertIn(f"]({svg_name})", text)
        self.assertIn("| 64, 5120, 5120 | fast | 10.00 | 64x32x128 c1x2 |", text)
        self.assertIn("made-up GPU", text)
        page = (self.out / "report.html").read_text()
        self.assertEqual(page.count("<svg"), 4)
        self.assertNotIn("![", page)

    def test_equal_rows_give_equal_bytes(self):
        self.write()
        before = {p.name: p.read_bytes() for p in self.out.iterdir()}
        report.write(self.results, self.out, self.readme)
        self.assertEqual(before, {p.name: p.read_bytes() for p in self.out.iterdir()})

    def test_failures_and_foreign_rows_are_left_out(self):
        foreign = [{"kernel": "static figures"}]
        results.append(self.results / "a.failures.jsonl", [row(OURS, 0.1)])
        results.append(self.results / "static.jsonl", foreign)
        self.write([row(OURS, 10.0), row("aten", 20.0)])
        text = (self.out / "report.md").read_text()
        self.assertIn("2.00x ATen", text)

    def test_no_rows_is_an_error(self):
        with self.assertRaises(UserError):
            report.write(self.results, self.out, self.readme)

    def test_readme_without_markers_is_left_alone(self):
        self.readme.write_text("# Title\n")
        self.write()
        self.assertEqual(self.readme.read_text(), "# Title\n")

    def test_readme_block_is_renewed(self):
        text = f"before\n{report.BEGIN}\nstale text\n{report.END}\nafter\n"
        self.readme.write_text(text)
        self.write()
        new = self.readme.read_text()
        self.assertTrue(new.startswith(f"before\n{report.BEGIN}\n"))
        self.assertTrue(new.endswith(f"\n{report.END}\nafter\n"))
        self.assertNotIn("stale text", new)
        self.assertIn("(report/speedup-headline-cold.svg)", new)
        self.assertIn("made-up GPU", new)
        report.write(self.results, self.out, self.readme)
        self.assertEqual(self.readme.read_text(), new)

    def test_readme_with_half_a_marker_is_an_error(self):
        self.readme.write_text(f"{report.BEGIN}\n")
        with self.assertRaises(UserError):
            self.write()

    def test_the_block_needs_the_headline_suite(self):
        text = f"{report.BEGIN}\nstale text\n{report.END}\n"
        self.readme.write_text(text)
        self.write([row(OURS, 1.0, suite="bf16")])
        self.assertEqual(self.readme.read_text(), text)


class TestPlots(TestCase):
    def test_they_are_well_formed(self):
        made = plots.make_plots(compare.compare(ROWS), ROWS)
        for text in made.values():
            xml.dom.minidom.parseString(text)

    def test_bars_are_as_long_as_their_values(self):
        text = svg.bars(
            "t", [svg.Bar("a<b", (1.0, 2.0)), svg.Bar("c", (None, 4.0))], "xy", "x"
        )
        rects = xml.dom.minidom.parseString(text).getElementsByTagName("rect")
        widths = [float(r.getAttribute("width")) for r in rects][3:]
        self.assertEqual(len(widths), 3)
        self.assertEqual(widths[1], 2 * widths[0], atol=0.2, rtol=0)
        self.assertEqual(widths[2], 4 * widths[0], atol=0.4, rtol=0)

    def test_scatter_points_lie_inside(self):
        series = [svg.Points("s", ((0.3, 5.0, "p"), (900.0, 700.0, "q")))]
        ceiling = svg.Ceiling("peak", 4.3, 790.0)
        page = xml.dom.minidom.parseString(
            svg.scatter("t", series, [ceiling], "x", "y")
        ).documentElement
        width, height = (float(page.getAttribute(a)) for a in ("width", "height"))
        circles = page.getElementsByTagName("circle")
        self.assertEqual(len(circles), 2)
        for circle in circles:
            self.assertTrue(0 < float(circle.getAttribute("cx")) < width)
            self.assertTrue(0 < float(circle.getAttribute("cy")) < height)


if __name__ == "__main__":
    run_tests()
