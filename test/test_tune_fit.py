"""The cost model's parts, and refitting its rates. Times are made up by the model
itself with other rates; nothing here is a measurement."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from build_helper import fp8
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.bench import results
from torch_cute_backend.bench.cases import Case, problem_of
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.build import build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.tuning import model, search
from torch_cute_backend.tuning.fit import complete
from torch_cute_backend.tuning.rates import RATES, Rates


def script(name: str):
    """A script of ``benchmarks/`` as a module."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


FIT = script("fit_model")
SHAPES = (
    (1, 4096, 4096),
    (64, 5120, 5120),
    (64, 2048, 2048),
    (64, 5120, 25600),
    (512, 4096, 2048),
    (2048, 4096, 4096),
    (4096, 4096, 4096),
)
START = Rates(
    source="a first guess",
    fp8_flops=1.45e15,
    half_flops=7.9e14,
    exact_factor=1.33,
    narrow_n=64.0,
    dram_bytes=4.5e12,
    l2_bytes=1.4e13,
    sm_bytes=9.5e10,
    latency_s=1e-06,
    start_s=2.2e-06,
    tile_s=7e-07,
    store_s=2e-11,
    k_tile_s=2e-08,
    cluster_s=1e-08,
    softness=6.0,
)
TRUE = replace(
    START, sm_bytes=6e10, tile_s=1.5e-6, start_s=3e-6, dram_bytes=3.6e12, k_tile_s=5e-8
)


def made_up(rates: Rates = TRUE, noise: float = 0.0) -> list:
    """Every candidate of some shapes, timed by the model with ``rates``."""
    generator = np.random.default_rng(0)
    shapes = []
    for kind in ("fp8", "bf16"):
        for shape in SHAPES:
            problem = problem_of(kind, shape)
            samples = []
            for s in model.tiles(problem, SM90):
                us = model.estimate(problem, s, SM90, rates).total * 1e6
                us *= math.exp(noise * generator.standard_normal())
                samples.append(FIT.Sample(problem, s, us))
            shapes.append(FIT.Shape(problem.describe(), tuple(samples)))
    return shapes


class TestParts(TestCase):
    def test_counts(self):
        problem = problem_of("fp8", (100, 1000, 512))
        s = complete(problem, SM90, 64, 128, cluster_m=2, math_warpgroups=1)
        work = model.Work.of(problem, s, SM90, 64)
        self.assertEqual(work.tiles, 2 * 8)
        self.assertEqual(work.waves, 1)
        self.assertEqual(work.k_tiles, 4)
        self.assertEqual(work.stage_bytes, (64 + 128) * 128)
        # Both CTAs of the cluster use one B tile.
        self.assertEqual(work.pulled_bytes, (64 + 64) * 128)
        self.assertEqual(work.mma_flops, 2.0 * 64 * 128 * 128)
        self.assertEqual(work.input_bytes, 100 * 512 + 1000 * 512)
        self.assertEqual(work.output_bytes, 100 * 1000 * 2)

    def test_low_tiles_save_loads_but_no_mma(self):
        problem = problem_of("fp8", (8, 4096, 4096))
        low, full = (complete(problem, SM90, m, 64, k_bytes=256) for m in (8, 64))
        a, b = (model.Work.of(problem, s, SM90, 64) for s in (low, full))
        self.assertLess(a.stage_bytes, b.stage_bytes)
        self.assertEqual(a.mma_flops, b.mma_flops)

    def test_the_mainloop_is_at_least_its_largest_term(self):
        problem = problem_of("bf16", (512, 4096, 2048))
        for s in model.tiles(problem, SM90):
            e = model.estimate(problem, s, SM90)
            terms = (e.compute, e.ingest, e.l2, e.dram)
            self.assertGreaterEqual(e.mainloop, max(terms))
            self.assertLessEqual(e.mainloop, sum(terms))
            self.assertEqual(getattr(e, e.bound), max(terms))
            self.assertEqual(e.total, e.start + e.mainloop + e.epilogue)

    def test_the_raster_decides_what_dram_gives_twice(self):
        # A and B are 64 MB each: more than L2 keeps. 64 x 32 tiles, 132 at once.
        problem = problem_of("bf16", (8192, 8192, 4096))
        s = complete(problem, SM90, 128, 256, math_warpgroups=2)
        size = 8192 * 4096 * 2

        def loaded(shape: tuple[int, int, int], **changes: object) -> float:
            found = problem_of("bf16", shape)
            return model.Work.of(found, replace(s, **changes), SM90, 64).input_bytes

        big = (8192, 8192, 4096)
        # Two columns of tiles at a time: A comes 16 times.
        self.assertEqual(loaded(big), (16 + 1) * size)
        # Four rows at a time: B comes 16 times.
        self.assertEqual(loaded(big, raster="along_n"), (1 + 16) * size)
        # Bands of 8 rows stay in L2: B comes once a band.
        grouped = loaded(big, raster="grouped", group_m=8)
        self.assertEqual(grouped, (1 + 8) * size)
        # A small A stays, however often it is used.
        flat = (64, 51200, 5120)
        self.assertEqual(loaded(flat), (64 + 51200) * 5120 * 2)
        self.assertEqual(loaded((2048, 2048, 2048)), 2 * 2048 * 2048 * 2)

    def test_variants_are_valid_and_different(self):
        for shape in SHAPES:
            for kind in ("fp8", "bf16"):
                problem = problem_of(kind, shape)
                for s in model.rank(problem, SM90, 8):
                    made = model.variants(problem, s, SM90)
                    self.assertEqual(len({s, *made}), len(made) + 1)
                    for v in made:
                        self.assertTrue(v.validate(problem, SM90))
        problem = problem_of("fp8", (64, 5120, 5120))
        best = model.rank(problem, SM90, 1)[0]
        (other,) = model.variants(problem, best, SM90)
        self.assertEqual({best.l2_policy, other.l2_policy}, {"normal", "stream_b"})

    def test_other_roles_are_valid_ranked_and_searched(self):
        wanted = {"fast": ("math", "pingpong"), "exact": ("promotion", "overlap")}
        for accum, (field, value) in wanted.items():
            problem = fp8(4096, 4096, 4096, accum=Accum(accum))
            made = model.other_roles(problem, SM90)
            self.assertIn(value, {getattr(s, field) for s in made})
            for s in made:
                self.assertTrue(s.validate(problem, SM90))
                self.assertTrue(build_kernel(problem, s, SM90))
            self.assertEqual(set(made) - set(model.rank(problem, SM90, 1000)), set())
            self.assertEqual({s.store for s in made}, {"tma"})
            case = Case("tune", "fp8", (4096, 4096, 4096))
            found = search.candidates(case, Accum(accum), SM90)
            self.assertEqual(set(made) - set(found), set())
        problem = fp8(4096, 4096, 4096)
        self.assertEqual(model.other_roles(problem, SM100), [])
        for few in ((64, 5120, 5120), (64, 51200, 5120), (1024, 1024, 4096)):
            self.assertEqual(model.other_roles(fp8(*few), SM90), [])

    def test_pingpong_hides_all_epilogues_but_the_last(self):
        problem = fp8(4096, 32768, 4096)
        made = [s for s in model.other_roles(problem, SM90) if s.pingpong]
        pingpong = next(s for s in made if s.tile_m == 128)
        together = replace(pingpong, math="cooperative")
        a, b = (model.estimate(problem, s, SM90) for s in (pingpong, together))
        waves = model.Work.of(problem, pingpong, SM90, 64).waves
        self.assertGreater(waves, 8)
        self.assertLess(a.epilogue * waves / 2, b.epilogue * 1.01)
        self.assertLess(a.compute, b.compute)
        # A short mainloop hides only its own length.
        short = fp8(4096, 32768, 128)
        self.assertGreater(model.estimate(short, pingpong, SM90).epilogue, a.epilogue)

    def test_exact_sums_cost_less_where_they_overlap(self):
        problem = fp8(4096, 4096, 4096, accum=Accum.EXACT)
        made = model.other_roles(problem, SM90)
        overlap = next(s for s in made if s.promotion == "overlap")
        wait = replace(overlap, promotion="wait")
        a, b = (model.seconds(problem, s, SM90) for s in (overlap, wait))
        self.assertLess(a, b)

    def test_few_stages_limit_the_rate(self):
        problem = problem_of("fp8", (64, 5120, 5120))
        s = complete(problem, SM90, 64, 64)
        shallow = model.estimate(problem, replace(s, ab_stages=2), SM90)
        self.assertGreater(
            shallow.ingest, 1.5 * model.estimate(problem, s, SM90).ingest
        )

    def test_more_accumulator_stages_hide_epilogues(self):
        problem = problem_of("bf16", (8192, 8192, 512))
        s = complete(problem, SM100, 128, 256)
        self.assertEqual(s.acc_stages, 2)
        one = model.estimate(problem, replace(s, acc_stages=1), SM100)
        self.assertGreater(one.epilogue, 3 * model.estimate(problem, s, SM100).epilogue)

    def test_rates_say_where_they_are_from(self):
        self.assertIn("none measured", RATES["sm_100a"].source)
        for r in RATES.values():
            for name in FIT.FITTED:
                self.assertGreater(getattr(r, name), 0.0)


class TestFit(TestCase):
    def test_it_finds_the_rates_that_made_the_times(self):
        shapes = made_up(noise=0.01)
        before = FIT.judge_model(shapes, SM90, START)
        found = FIT.fit(shapes, SM90, START)
        after = FIT.judge_model(shapes, SM90, found)
        self.assertGreater(before.error, 0.1)
        self.assertLess(after.error, 0.02)
        self.assertGreaterEqual(after.first, before.first)
        self.assertEqual(found.start_s, TRUE.start_s, rtol=0.1, atol=0)
        self.assertEqual(found.dram_bytes, TRUE.dram_bytes, rtol=0.1, atol=0)

    def test_rates_without_data_stay(self):
        shapes = [s for s in made_up() if "bfloat16(k) x" in s.name]
        self.assertEqual(len(shapes), len(SHAPES))
        found = FIT.fit(shapes, SM90, START)
        self.assertEqual(found.fp8_flops, START.fp8_flops, rtol=1e-6, atol=0)
        self.assertEqual(found.exact_factor, START.exact_factor, rtol=1e-6, atol=0)

    def test_unseen_shapes(self):
        quality = FIT.cross_validate(made_up(noise=0.01), SM90, START, 3)
        self.assertEqual(quality.shapes, 2 * len(SHAPES))
        self.assertGreater(quality.first, 0.9)

    def test_no_data_is_an_error(self):
        with self.assertRaises(UserError):
            FIT.fit([], SM90, START)

    def test_rates_stay_within_physical_limits(self):
        fast = replace(TRUE, fp8_flops=3.0e15, dram_bytes=9.0e12)
        shapes = made_up(noise=0.0, rates=fast)
        found = FIT.fit(shapes, SM90, START)
        for name, (low, high) in (FIT.LIMITS | FIT.PHYSICAL["sm_90a"]).items():
            self.assertGreaterEqual(getattr(found, name), low * (1 - 1e-9), name)
            self.assertLessEqual(getattr(found, name), high * (1 + 1e-9), name)

    def test_rates_in_use_are_within_physical_limits(self):
        for arch, limits in FIT.PHYSICAL.items():
            for name, (low, high) in limits.items():
                # Written with three digits.
                self.assertGreaterEqual(getattr(RATES[arch], name), low * 0.995, name)
                self.assertLessEqual(getattr(RATES[arch], name), high * 1.005, name)

    def test_more_large_clusters_than_run_at_once_teach_nothing(self):
        problem = problem_of("fp8", (4096, 4096, 4096))
        s = complete(problem, SM90, 128, 128, math_warpgroups=2)
        kept = {
            size: FIT._overfull(
                FIT.Sample(p, replace(s, cluster_n=size), 1.0), "sm_90a"
            )
            for size, p in ((1, problem), (2, problem), (4, problem))
        }
        self.assertEqual(kept, {1: False, 2: False, 4: True})
        few = FIT.Sample(
            problem_of("fp8", (128, 4096, 4096)), replace(s, cluster_n=4), 1
        )
        self.assertFalse(FIT._overfull(few, "sm_90a"))

    def test_the_rates_in_use_rank_the_measured_searches(self):
        shapes = FIT.read_shapes(FIT.RESULTS, "sm_90a")
        self.assertGreater(len(shapes), 80)
        quality = FIT.judge_model(shapes, SM90, RATES["sm_90a"])
        self.assertGreater(quality.first, 0.8)
        self.assertLess(quality.loss_first, 0.03)
        self.assertLess(quality.error, 0.2)

    def test_limits_hold_a_parameter(self):
        found = FIT.least_squares(
            lambda p: np.array([p[0] - 5.0, p[1] + p[0] - 1.0]),
            np.array([0.5, 0.0]),
            np.array([0.0, -9.0]),
            np.array([2.0, 9.0]),
        )
        self.assertEqual(found.tolist(), [2.0, -1.0], rtol=1e-4, atol=1e-4)

    def test_least_squares(self):
        x = np.linspace(0.0, 3.0, 30)
        y = 2.0 * np.exp(-1.3 * x)
        found = FIT.least_squares(
            lambda p: p[0] * np.exp(-p[1] * x) - y, np.array([1.0, 0.5])
        )
        self.assertEqual(found.tolist(), [2.0, 1.3], rtol=1e-4, atol=1e-4)


class TestJudge(TestCase):
    def shape(self, times: list[float]):
        problem = problem_of("fp8", (64, 5120, 5120))
        listed = model.tiles(problem, SM90)[: len(times)]
        samples = tuple(
            FIT.Sample(problem, s, t) for s, t in zip(listed, times, strict=True)
        )
        return FIT.Shape("s", samples)

    def test_best_among_the_first_four(self):
        shape = self.shape([20.0, 15.0, 12.0, 10.2, 10.0, 30.0])
        q = FIT.judge([shape], lambda s: s.samples)
        self.assertEqual((q.shapes, q.first), (1, 1.0))
        self.assertEqual(q.loss_one, 1.0)
        self.assertEqual(q.loss_first, 0.02)

    def test_best_behind_them(self):
        shape = self.shape([20.0, 15.0, 12.0, 10.4, 10.0, 30.0])
        self.assertEqual(FIT.judge([shape], lambda s: s.samples).first, 0.0)

    def test_four_of_four_prove_nothing(self):
        q = FIT.judge([self.shape([1.0, 2.0, 3.0, 4.0])], lambda s: s.samples)
        self.assertEqual(q.shapes, 0)


class TestFiles(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def row(self, schedule, us: float, **changes: object) -> dict:
        base = {
            "suite": "tune",
            "shape": {"m": 64, "n": 5120, "k": 5120},
            "dtype": "float8_e4m3fn",
            "scaling": "rowwise",
            "accum": "fast",
            "provider": OURS,
            "us": us,
            "protocol": "brief-cold",
            "gpu": "NVIDIA H200 (made up)",
            "date": "2000-01-01",
            "commit": "abc",
            "schedule": schedule.to_json(),
        }
        return base | changes

    def test_rows_become_shapes(self):
        problem = problem_of("fp8", (64, 5120, 5120))
        a, b = model.tiles(problem, SM90)[:2]
        rows = [
            self.row(a, 12.0),
            self.row(a, 11.0, protocol="cold"),
            self.row(b, 13.0),
            self.row(b, 1.0, protocol="warm"),
            self.row(b, 1.0, provider="aten"),
            self.row(b, 1.0, gpu="NVIDIA B200 (made up)"),
            {**self.row(b, 1.0), "schedule": {"tile_m": "?"}},
        ]
        results.append(self.folder / "x.jsonl", rows)
        (shape,) = FIT.read_shapes(self.folder, "sm_90a")
        times = {s.schedule: s.us for s in shape.samples}
        self.assertEqual(times, {a: 11.0, b: 13.0})
        self.assertEqual(shape.samples[0].problem, problem)

    def test_rates_are_written_between_the_marks(self):
        source = Path(model.__file__).with_name("rates.py")
        path = self.folder / "rates.py"
        path.write_text(source.read_text())
        new = {**RATES, "sm_90a": replace(START, sm_bytes=1.23e11, source='a "b"')}
        FIT.write_rates(path, new)
        spec = importlib.util.spec_from_file_location("written_rates", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["written_rates"] = module
        spec.loader.exec_module(module)
        written = module.RATES["sm_90a"]
        self.assertEqual(written.sm_bytes, 1.23e11)
        self.assertEqual(written.source, "a 'b'")
        self.assertEqual(vars(module.RATES["sm_100a"]), vars(RATES["sm_100a"]))
        path.write_text("RATES = {}\n")
        with self.assertRaises(UserError):
            FIT.write_rates(path, new)

    def test_the_shipped_file_is_as_it_would_be_written(self):
        source = Path(model.__file__).with_name("rates.py")
        path = self.folder / "rates.py"
        path.write_text(source.read_text())
        FIT.write_rates(path, RATES)
        self.assertEqual(path.read_text(), source.read_text())

    def test_literals_come_back(self):
        for value in (1.0, 6.0, 16.0, 1e-6, 1.45e15, 0.25, 132.0):
            self.assertEqual(json.loads(FIT._literal(value)), value)
            self.assertIsInstance(eval(FIT._literal(value)), float)


if __name__ == "__main__":
    run_tests()
