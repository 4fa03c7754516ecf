"""Choosing schedules: exact row, nearest row, model; and fitting rows to problems."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from build_helper import fp8, gelu_residual, grouped, mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import ARCHS, SM90, SM100
from torch_cute_backend.dtypes import E4M3, FLOAT16, FLOAT32
from torch_cute_backend.problem import Accum, Grouping, Major
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import fit, lookup, model
from torch_cute_backend.tuning.table import RowKey, TableRow

S = GemmSchedule(64, 48, 128, 7, epi_n=48, raster="along_n")
MODEL = (("kind", "model"),)


def row(problem, schedule=S, name="row"):
    return TableRow(name, RowKey.of(problem), schedule, MODEL)


def with_rows(*rows):
    """Look-ups see these rows instead of the shipped ones."""
    return mock.patch.object(lookup, "table", return_value=rows)


class TestChoose(TestCase):
    def test_exact_row_is_taken_as_it_stands(self):
        problem = fp8(64, 5120, 5120)
        with with_rows(row(fp8(64, 5120, 4096)), row(problem, name="this")):
            choice = lookup.choose(problem, SM90)
        self.assertEqual(choice.source, "pretuned-exact")
        self.assertEqual(choice.row.name, "this")
        self.assertEqual(choice.schedule, S)

    def test_nearest_row_of_the_same_kind(self):
        rows = (
            row(fp8(64, 5120, 10240), name="k"),
            row(fp8(128, 5120, 5120), name="m"),
            row(fp8(64, 8192, 5120), name="n"),
        )
        with with_rows(*rows):
            choice = lookup.choose(fp8(64, 5120, 5120), SM90)
        # Octaves weigh 2 for M, 1 for N, 0.5 for K: 2, 0.68 and 0.5.
        self.assertEqual((choice.source, choice.row.name), ("pretuned-nearest", "k"))

    def test_rows_at_equal_distance_are_taken_by_name(self):
        rows = [row(fp8(64, 5120, k), name=x) for k, x in ((2560, "b"), (10240, "a"))]
        for order in (rows, rows[::-1]):
            with with_rows(*order):
                choice = lookup.choose(fp8(64, 5120, 5120), SM90)
            self.assertEqual(choice.row.name, "a")

    @parametrize("grouping", [Grouping.M, Grouping.N, Grouping.K])
    def test_rows_of_groups_are_near_by_the_size_of_a_group(self, grouping):
        size = grouping.value

        def key(groups: int, total: int) -> RowKey:
            sizes = {"m": 1024, "n": 2048, "k": 4096, size: total}
            return RowKey.of(grouped(grouping, groups=groups, **sizes))

        this, fewer, larger = key(8, 8192), key(4, 4096), key(8, 16384)
        self.assertEqual(lookup._distance(this, fewer), 0.25)
        weight = {"m": 2.0, "n": 1.0, "k": 0.5}[size]
        self.assertEqual(lookup._distance(this, larger), weight)

    @parametrize(
        "problem",
        [
            fp8(64, 5120, 5120, scaling="tensorwise"),
            fp8(64, 5120, 5120, accum=Accum.EXACT),
            mm(64, 5120, 5120),
            fp8(512, 5120, 5120),
        ],
        name_fn=lambda p: f"{p.family}_{p.accum.value}_{p.m}",
    )
    def test_a_row_of_another_kind_or_far_away_says_nothing(self, problem):
        with with_rows(row(fp8(64, 5120, 5120))):
            choice = lookup.choose(problem, SM90)
        self.assertEqual((choice.source, choice.row), ("model", None))

    def test_majors_are_part_of_the_kind(self):
        with with_rows(row(mm(), GemmSchedule(64, 48, 64, 7, epi_n=48))):
            self.assertEqual(lookup.choose(mm(), SM90).source, "pretuned-exact")
            other = lookup.choose(mm(b_major=Major.MN), SM90)
        self.assertEqual(other.source, "model")

    def test_a_row_that_cannot_be_made_valid_is_passed_over(self):
        bad = row(fp8(64, 5120, 5120), replace(S, tile_n=36), name="bad")
        near = row(fp8(64, 5120, 4096), name="near")
        with with_rows(bad, near):
            choice = lookup.choose(fp8(64, 5120, 5120), SM90)
        self.assertEqual((choice.source, choice.row.name), ("pretuned-nearest", "near"))

    def test_unsupported_problem_gives_its_reasons(self):
        status = lookup.choose(fp8(k=24), SM90)
        self.assertIsInstance(status, Status)
        self.assertEqual(status, fp8(k=24).validate())

    def test_no_schedule_gives_a_reason(self):
        with (
            with_rows(),
            mock.patch.object(model, "rank", return_value=[]),
        ):
            status = lookup.choose(fp8(), SM90)
        self.assertIsInstance(status, Status)
        self.assertIn("no schedule of sm_90a fits scaled_mm M=64", str(status))

    @parametrize("arch", list(ARCHS))
    def test_candidates_are_few_different_and_valid(self, arch):
        for problem in (fp8(64, 5120, 5120), mm(300, 264, 1000), fp8(1, 8, 16)):
            found = lookup.candidates(problem, ARCHS[arch])
            self.assertLessEqual(len(found), 4)
            self.assertGreaterEqual(len(found), 1)
            schedules = [c.schedule for c in found]
            self.assertEqual(len(set(schedules)), len(schedules))
            for schedule in schedules:
                self.assertTrue(schedule.validate(problem, ARCHS[arch]))

    def test_table_first_then_the_model_without_repeats(self):
        problem = fp8(64, 5120, 5120)
        ranked = model.rank(problem, SM90, 4)
        with with_rows(row(problem, ranked[1])):
            found = lookup.candidates(problem, SM90, 3)
        self.assertEqual([c.schedule for c in found], [ranked[i] for i in (1, 0, 2)])
        self.assertEqual(
            [c.source for c in found], ["pretuned-exact", "model", "model"]
        )


class TestSettled(TestCase):
    """Which rows are offered without others of ours beside them."""

    def settled(self, problem, margin=0.2, schedule=S, kind="measured"):
        how = (("kind", kind), ("margin", margin))
        exact = fp8(64, 5120, 5120)
        with with_rows(TableRow("row", RowKey.of(exact), schedule, how)):
            return [c.settled for c in lookup.candidates(problem, SM90)]

    def test_a_measured_row_with_margin_and_nothing_else(self):
        problem = fp8(64, 5120, 5120)
        self.assertEqual(self.settled(problem), [True, False, False, False])
        self.assertFalse(any(self.settled(problem, margin=0.04)))
        self.assertFalse(any(self.settled(problem, kind="model")))
        self.assertFalse(any(self.settled(fp8(64, 5120, 4096))))

    def test_a_row_that_had_to_be_changed_is_not_settled(self):
        self.assertFalse(any(self.settled(fp8(64, 5120, 5120, out_aligned=False))))


OUTPUTS = {
    "fp32": {"out": FLOAT32},
    "fp16": {"out": FLOAT16},
    "e4m3": {"out": E4M3},
    "unaligned": {"out_aligned": False},
}


class TestFit(TestCase):
    @parametrize(
        "schedule",
        [
            replace(S, epi_n=16, epi_stages=3),
            replace(S, ab_stages=2),
            replace(S, store="direct", epi_n=8),
            replace(S, shared_loop="keep"),
        ],
    )
    def test_a_schedule_that_fits_is_not_touched(self, schedule):
        self.assertTrue(schedule.validate(fp8(), SM90))
        self.assertEqual(fit.refit(fp8(), SM90, schedule), schedule)

    @parametrize("arch", list(ARCHS))
    @parametrize("output", list(OUTPUTS))
    def test_rows_of_bf16_serve_every_output(self, arch, output):
        spec = ARCHS[arch]
        rows = {c.schedule for m in (16, 64, 4096) for c in self.wide(m, spec)}
        for schedule in rows:
            problem = fp8(4096, 5120, 5120, **OUTPUTS[output])
            fitted = fit.refit(problem, spec, schedule)
            self.assertEqual(str(fitted.validate(problem, spec)), "ok")
            kept = (
                "tile_m",
                "tile_n",
                "tile_k",
                "cluster_m",
                "cluster_n",
                "acc_stages",
            )
            for field in kept:
                self.assertEqual(getattr(fitted, field), getattr(schedule, field))
            self.assertLessEqual(fitted.ab_stages, schedule.ab_stages)

    def wide(self, m, spec):
        return lookup.candidates(fp8(m, 5120, 5120), spec)

    def test_a_heavy_epilogue_narrows_the_subtile(self):
        wide = GemmSchedule(128, 128, 128, 6, epi_n=64, epi_stages=2)
        wide = replace(wide, math_warpgroups=2)
        self.assertTrue(wide.validate(fp8(), SM90))
        fused = fp8(epilogue=gelu_residual())
        self.assertIn("epilogue of about", str(wide.validate(fused, SM90)))
        fitted = fit.refit(fused, SM90, wide)
        self.assertTrue(fitted.validate(fused, SM90))
        self.assertEqual((fitted.epi_n, fitted.store), (16, "tma"))

    @parametrize("arch", list(ARCHS))
    @parametrize("m", [16, 64, 512, 4096])
    def test_every_shape_has_a_schedule_for_a_heavy_epilogue(self, arch, m):
        # Large tiles hold too many accumulators for it; smaller ones must be found.
        fused = fp8(m, 5120, 5120, epilogue=gelu_residual())
        choice = lookup.choose(fused, ARCHS[arch])
        self.assertTrue(choice.schedule.validate(fused, ARCHS[arch]))

    def test_unaligned_output_is_stored_directly(self):
        fitted = fit.refit(fp8(out_aligned=False), SM90, S)
        self.assertEqual(fitted.store, "direct")
        self.assertEqual(fitted.ab_stages, S.ab_stages)

    def test_wider_outputs_take_shared_memory_from_the_pipeline(self):
        full = GemmSchedule(128, 128, 128, 6, epi_n=64, math_warpgroups=2)
        self.assertTrue(full.validate(fp8(), SM90))
        fitted = fit.refit(fp8(out=FLOAT32), SM90, full)
        self.assertTrue(fitted.validate(fp8(out=FLOAT32), SM90))
        self.assertEqual((fitted.epi_n, fitted.epi_stages), (32, 2))

    def test_complete_uses_shared_memory_up(self):
        for spec, problem in ((SM90, fp8()), (SM100, fp8()), (SM90, mm())):
            s = fit.complete(problem, spec, 64, 128)
            self.assertTrue(s.validate(problem, spec))
            deeper = replace(s, ab_stages=s.ab_stages + 1)
            self.assertGreater(spec.smem_used(problem, deeper), spec.smem_bytes)

    def test_complete_takes_widths_that_tensor_memory_loads_have(self):
        # bf16 rows of 48 columns would fit a 96-wide tile, but no tcgen05.ld does.
        s = fit.complete(fp8(), SM100, 128, 96)
        self.assertEqual((s.epi_n, s.store), (32, "tma"))
        self.assertTrue(s.validate(fp8(), SM100))

    def test_narrow_fp8_output_cannot_be_staged(self):
        s = fit.complete(fp8(out=E4M3), SM90, 64, 40)
        self.assertEqual((s.store, s.epi_n), ("direct", 40))


instantiate_parametrized_tests(TestChoose)
instantiate_parametrized_tests(TestFit)

if __name__ == "__main__":
    run_tests()
