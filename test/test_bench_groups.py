"""The grouped suite: kinds, group sizes, inputs, references, sweeps, rows. No GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest import mock

import torch
from bench_helper import fake_session
from grouped_reference import grouped_product
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import check, compare, groups, results, suite
from torch_cute_backend.bench.cases import (
    GROUPED,
    GROUPED_KINDS,
    SUITES,
    Case,
    kind_named,
    kind_of,
    make_inputs,
    problem_of,
    sweep_kind,
)
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, Grouping, Major
from torch_cute_backend.tuning import lookup, search
from torch_cute_backend.tuning.table import RowKey, TableRow

KINDS = [f"{base}-g4{end}" for base in GROUPED_KINDS for end in ("", "-skewed")]
SHAPE = (64, 96, 128)


class TestKinds(TestCase):
    def test_name_says_groups_and_skew(self):
        spec = kind_named("fp8-grouped-m-g12-skewed")
        self.assertEqual((spec.groups, spec.skewed), (12, True))
        self.assertIs(spec.grouping, Grouping.M)
        self.assertIs(kind_named("bf16-wgrad-g3").a_major, Major.MN)

    @parametrize(
        "name", ["fp8-grouped-m", "fp8-grouped-m-g0", "fp8-g4", "fp8-grouped-x-g4"]
    )
    def test_unknown(self, name):
        with self.assertRaisesRegex(UserError, f"unknown kind '{name}'; known: fp8,"):
            kind_named(name)

    @parametrize("kind", KINDS)
    def test_problem_is_of_its_kind(self, kind):
        problem = problem_of(kind, SHAPE)
        self.assertEqual(str(problem.validate()), "ok")
        self.assertEqual(kind_of(problem), kind.removesuffix("-skewed"))
        self.assertEqual(sweep_kind(kind), kind.split("-g4")[0] + "-g5")
        self.assertEqual(problem.groups, 4)

    def test_dense_kinds_are_swept_as_they_are(self):
        self.assertEqual(sweep_kind("fp8"), "fp8")


class TestInputs(TestCase):
    def test_ends(self):
        problem = problem_of("bf16-grouped-m-g4", (128, 96, 128))
        self.assertEqual(groups.ends_of(problem), [32, 64, 96, 128])
        self.assertEqual(groups.ends_of(problem, skewed=True), [0, 16, 64, 128])
        one = problem_of("bf16-grouped-m-g1", (120, 96, 128))
        self.assertEqual(groups.ends_of(one, skewed=True), [120])
        batch = problem_of("bf16-grouped-batch-g4", SHAPE)
        self.assertEqual(groups.ends_of(batch), [])

    @parametrize("kind", KINDS)
    def test_reference_is_the_definition(self, kind):
        case = Case(GROUPED, kind, SHAPE)
        problem = case.problem()
        (x,) = make_inputs(problem, 1, "cpu", case.is_skewed)
        want = grouped_product(problem.grouping, x.a, x.b, x.scales, x.offsets)
        got = check.reference(problem, x)
        self.assertEqual(got, want, atol=1e-3, rtol=1e-5)
        self.assertFalse(bool(got.isnan().any()))
        self.assertEqual(x.out.shape, got.shape)
        self.assertEqual(x.a.stride(-1 if problem.a_major is Major.K else -2), 1)

    @parametrize("kind", [k for k in KINDS if k.startswith("bf16")])
    def test_aten_agrees(self, kind):
        case = Case(GROUPED, kind, SHAPE)
        problem = case.problem()
        (x,) = make_inputs(problem, 1, "cpu", case.is_skewed)
        want = check.reference(problem, x)
        check.check(problem, x, groups.aten_call(problem, x), want, "aten")
        with self.assertRaisesRegex(ValueError, "elements are wrong"):
            check.check(problem, x, lambda: 0 * want, want, "zeros")

    def test_dense_problems_have_no_grouped_call(self):
        with self.assertRaisesRegex(UserError, "mm is not grouped"):
            groups.aten_function(problem_of("bf16", SHAPE))


class TestSweep(TestCase):
    SHAPES = ((64, 48, 112), (80, 16, 256), (16, 16, 8192))

    def sweep(self, kind, spoil=None):
        problem = problem_of(sweep_kind(kind), SHAPE)

        def run(a, b, out, *rest) -> None:
            scales = rest[:2] if problem.a_dtype.is_fp8 else ()
            offsets = rest[-1] if problem.has_offsets else None
            value = grouped_product(problem.grouping, a, b, scales, offsets)
            out.copy_(torch.where(value.isnan(), out.float(), value))
            if spoil is not None:
                spoil(out, offsets)

        return check.sweep_exact(problem, self.SHAPES, run, "cpu")

    @parametrize("kind", KINDS)
    def test_right_numbers_pass(self, kind):
        self.assertEqual(self.sweep(kind), (3, []))

    @parametrize("kind", KINDS)
    def test_one_wrong_element_is_found(self, kind):
        def off_by_one(out, offsets):
            covered = (~out.isnan()).nonzero()
            where = tuple(covered[len(covered) // 2])
            out[where] += 1

        right, wrong = self.sweep(kind, off_by_one)
        self.assertEqual(right, 0)
        self.assertRegex(wrong[0], r"64x48x112: 1 of \d+ elements")

    @parametrize("kind", [k for k in KINDS if "-m-" in k or "-n-" in k])
    def test_writing_beyond_the_last_group_is_found(self, kind):
        def spread(out, offsets):
            out[out.isnan()] = 0

        self.assertEqual(self.sweep(kind, spread)[0], 0)

    def test_shapes_that_no_kernel_takes_are_left_out(self):
        problem = problem_of("bf16-wgrad-g5", SHAPE)
        right, wrong = check.sweep_exact(
            problem, [(3, 48, 112)], lambda *_: None, "cpu"
        )
        self.assertEqual((right, wrong), (0, []))


class TestSuite(TestCase):
    def test_lists_what_the_goal_names(self):
        cases = {(c.kind, c.shape) for c in SUITES[GROUPED].cases()}
        for dtype in ("fp8", "bf16"):
            for g, m in ((4, 8192), (8, 4096)):
                for n, k in ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)):
                    self.assertIn((f"{dtype}-grouped-m-g{g}", (g * m, n, k)), cases)
        kinds = {kind for kind, _ in cases}
        self.assertTrue(any(k.endswith("-skewed") for k in kinds))
        self.assertTrue(any(k.startswith("bf16-wgrad") for k in kinds))

    def test_other_shapes_in_each_kind(self):
        cases = list(SUITES[GROUPED].cases([SHAPE]))
        self.assertEqual(len({c.kind for c in cases}), len(cases))
        self.assertEqual({c.shape for c in cases}, {SHAPE})

    def test_rows(self):
        out = Path(self.enterContext(tempfile.TemporaryDirectory())) / "results.jsonl"
        options = suite.Options(out, ("torch_cute_backend", "aten", "inductor"))
        with fake_session() as (session, _):
            suite.run(SUITES[GROUPED], options, session, lambda _: None)
            written = len(results.read(out))
            again = suite.run(SUITES[GROUPED], options, session, lambda _: None)
        self.assertEqual(again, 0)
        rows = results.read(out)
        self.assertEqual(len(rows), written)
        self.assertTrue(all("groups" in r["shape"] for r in rows))
        self.assertEqual({r["sizes"] for r in rows}, {"equal", "skewed"})
        self.assertEqual({r["grouping"] for r in rows}, {"m", "k"})
        lines = [c for c in compare.compare(rows) if c.ours is not None]
        self.assertEqual(len(lines), len(list(SUITES[GROUPED].cases())))
        labels = {c.key.label for c in lines}
        self.assertIn("2048, 4096, 7168; 32 skewed groups of M", labels)
        (goal,) = (g for g in compare.goals(lines, rows) if g.name[:7] == "Grouped")
        self.assertIsNotNone(goal.reached)

    def test_ours_is_grouped_static(self):
        case = next(SUITES[GROUPED].cases())
        options = suite.Options(Path("x"), (OURS,))
        (entry, *_) = suite.entries_for(SUITES[GROUPED], case, SM90, options)
        self.assertEqual(entry.schedule.scheduler, "grouped_static")

    def test_figures_of_a_grouped_line(self):
        problem = problem_of("fp8-grouped-m-g4", (512, 256, 128))
        row = {
            "gpu": "x",
            "suite": GROUPED,
            "protocol": "cold",
            "dtype": "float8_e4m3fn",
            "scaling": "rowwise",
            "accum": "fast",
            "shape": {"m": 512, "n": 256, "k": 128, "groups": 4},
            "grouping": "m",
        }
        key = compare.Key.of(json.loads(json.dumps(row)))
        self.assertEqual(key.flops, 2 * 512 * 256 * 128)
        self.assertEqual(key.weight_bytes, 4 * 256 * 128)
        self.assertEqual(key.bytes, (512 + 4 * 256) * 128 + 512 * 256 * 2)
        self.assertEqual(RowKey.of(problem).groups, 4)


GROUPED_CASES = list(SUITES[GROUPED].cases())


def _label(case):
    return case.describe().replace(" ", "_")


class TestSchedules(TestCase):
    """What the look-up and a search try for grouped problems."""

    @parametrize(
        "case", GROUPED_CASES, name_fn=lambda c: c.describe().replace(" ", "_")
    )
    def test_chosen_kernel_can_be_built(self, case):
        for accum in Accum if case.is_fp8 else (Accum.FAST,):
            problem = case.problem(accum)
            found = lookup.candidates(problem, SM90)
            self.assertEqual(len(found), 4)
            first = found[0].schedule
            self.assertEqual(first.scheduler, "grouped_static")
            self.assertIsInstance(build_kernel(problem, first, SM90), KernelBuild)

    def test_large_groups_get_large_tiles_and_small_ones_small(self):
        shapes = {"large": (32768, 4096, 7168), "small": (512, 4096, 7168)}
        found = {
            name: lookup.choose(problem_of("fp8-grouped-m-g32", shape), SM90).schedule
            for name, shape in shapes.items()
        }
        large, small = found["large"], found["small"]
        self.assertGreaterEqual(large.tile_m * large.tile_n, 128 * 192)
        self.assertEqual(large.math_warpgroups, 2)
        self.assertLessEqual(small.tile_m, 64)

    @parametrize("kind", ["fp8-grouped-m-g8", "bf16-wgrad-g8", "bf16-grouped-n-g8"])
    def test_a_search_tries_many_kernels_that_can_be_built(self, kind):
        case = Case(GROUPED, kind, (8192, 4096, 8192))
        listed = search.candidates(case, Accum.FAST, SM90)
        self.assertGreater(len(listed), 12)
        self.assertGreater(len({s.raster for s in listed}), 1)
        for schedule in listed[:12]:
            built = build_kernel(case.problem(), schedule, SM90)
            self.assertIsInstance(built, KernelBuild, schedule.describe())

    def test_a_row_is_for_its_number_of_groups(self):
        problem = problem_of("fp8-grouped-m-g8", (8192, 4096, 4096))
        schedule = lookup.choose(problem, SM90).schedule
        row = TableRow("row", RowKey.of(problem), schedule, (("kind", "model"),))
        with mock.patch.object(lookup, "table", return_value=(row,)):
            for groups, m, source in (
                (8, 8192, "pretuned-exact"),
                (16, 16384, "pretuned-nearest"),
                (8, 65536, "model"),
            ):
                other = problem_of(f"fp8-grouped-m-g{groups}", (m, 4096, 4096))
                self.assertEqual(lookup.choose(other, SM90).source, source)
            dense = problem_of("fp8", (8192, 4096, 4096))
            self.assertEqual(lookup.choose(dense, SM90).source, "model")


instantiate_parametrized_tests(TestKinds)
instantiate_parametrized_tests(TestInputs)
instantiate_parametrized_tests(TestSweep)
instantiate_parametrized_tests(TestSchedules)

if __name__ == "__main__":
    run_tests()
