"""The cost model: valid and sensible schedules, fast, deterministic, and ordered as the
machine is: these are properties, not times."""

from __future__ import annotations

import time
from dataclasses import replace

from build_helper import fp8, mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import ARCHS, SM90, SM100
from torch_cute_backend.problem import Accum
from torch_cute_backend.tuning import fit, model

PROBLEMS = {
    "decode": fp8(1, 4096, 4096),
    "serving": fp8(64, 5120, 25600),
    "middle": fp8(512, 4096, 2048),
    "square": fp8(4096, 4096, 4096),
    "exact": fp8(4096, 4096, 4096, accum=Accum.EXACT),
    "bf16": mm(4096, 4096, 4096),
    "odd": mm(33, 1000, 200),
    "tiny": mm(1, 8, 8),
}


class TestModel(TestCase):
    @parametrize("arch", list(ARCHS))
    @parametrize("name", list(PROBLEMS))
    def test_ranked_schedules_are_valid_and_sorted(self, arch, name):
        spec, problem = ARCHS[arch], PROBLEMS[name]
        ranked = model.rank(problem, spec, 4)
        self.assertEqual(len(ranked), 4)
        times = [model.seconds(problem, s, spec) for s in ranked]
        self.assertEqual(times, sorted(times))
        best = min(model.seconds(problem, s, spec) for s in model.tiles(problem, spec))
        self.assertEqual(times[0], best)
        for s in ranked:
            self.assertEqual(str(s.validate(problem, spec)), "ok")

    @parametrize("arch", list(ARCHS))
    def test_every_listed_tile_is_valid_for_some_problem(self, arch):
        # A tile that no problem can take would be a typing error in the list.
        spec = ARCHS[arch]
        listed = model._SM90_TILES if spec is SM90 else model._SM100_TILES
        problems = (PROBLEMS["square"], *(fp8(m, 4096, 4096) for m in (8, 16, 32)))
        found = {
            (s.tile_m, s.tile_n, s.cta_group)
            for p in problems
            for s in model.tiles(p, spec)
        }
        wanted = {(m, n, 1) for m, n, _ in listed}
        if spec is SM100:
            wanted |= {(m, n, 2) for m, n in model._SM100_PAIRS}
        self.assertEqual(wanted - found, set())

    @parametrize("arch", list(ARCHS))
    def test_clusters_have_neighbours_to_share_with(self, arch):
        for s in model.tiles(fp8(1, 5120, 5120), ARCHS[arch]):
            self.assertEqual(s.cluster_m, 1)
        for s in model.tiles(fp8(4096, 8, 5120), ARCHS[arch]):
            self.assertEqual(s.cluster_n, 1)

    @parametrize("arch", list(ARCHS))
    def test_large_problems_take_large_tiles_and_small_ones_fill_the_gpu(self, arch):
        spec = ARCHS[arch]
        large = model.rank(PROBLEMS["square"], spec, 1)[0]
        self.assertGreaterEqual(large.tile_m * large.tile_n, 128 * 128)
        small = model.rank(fp8(64, 5120, 5120), spec, 1)[0]
        self.assertEqual(small.tile_m, 64)
        tiles = -(-5120 // small.tile_n)
        self.assertGreaterEqual(tiles, spec.default_sms // 2)

    def test_pairs_are_ranked_where_operands_bound_a_cta(self):
        # A pair stages half of B: no gain where one row of tiles streams the weight.
        pairs = {
            name: model.rank(problem, SM100, 1)[0].cta_group
            for name, problem in PROBLEMS.items()
        }
        self.assertEqual({pairs[x] for x in ("square", "exact", "bf16")}, {2})
        self.assertEqual({pairs[x] for x in ("decode", "serving", "odd", "tiny")}, {1})
        self.assertFalse(any(s.cta_group > 1 for s in model.tiles(fp8(4096), SM90)))

    def test_a_pair_lands_half_of_b(self):
        square = PROBLEMS["square"]
        shared = {"cluster_m": 2, "k_bytes": 128}
        one = fit.complete(square, SM100, 128, 256, **shared)
        pair = fit.complete(square, SM100, 128, 256, cta_group=2, **shared)
        works = [model.Work.of(square, s, SM100, 64.0) for s in (one, pair)]
        self.assertEqual([w.stage_bytes for w in works], [384 * 128, 256 * 128])
        self.assertEqual(works[0].pulled_bytes, works[1].pulled_bytes)
        self.assertGreater(pair.ab_stages, one.ab_stages)

    def test_more_work_takes_longer(self):
        s = fit.complete(fp8(), SM90, 128, 128, math_warpgroups=2)
        times = [
            model.seconds(fp8(m, n, k), s, SM90)
            for m, n, k in (
                (128, 4096, 4096),
                (128, 4096, 8192),
                (4096, 4096, 8192),
                (4096, 8192, 8192),
            )
        ]
        self.assertEqual(times, sorted(set(times)))

    def test_exact_accumulation_is_not_free(self):
        square = PROBLEMS["square"]
        s = fit.complete(square, SM90, 128, 192, cluster_m=2, math_warpgroups=2)
        exact = model.seconds(PROBLEMS["exact"], s, SM90)
        self.assertGreater(exact, model.seconds(square, s, SM90))

    def test_estimates_never_beat_the_memory_floor(self):
        for m, n, k in ((1, 4096, 4096), (64, 5120, 25600), (64, 51200, 5120)):
            problem = fp8(m, n, k)
            floor = (m * k + n * k) / model.RATES["sm_90a"].dram_bytes
            for s in model.tiles(problem, SM90):
                self.assertGreater(model.seconds(problem, s, SM90), floor)

    def test_ranking_is_quick(self):
        # Every candidate of every GEMM in a model goes through it at compile time.
        start = time.perf_counter()
        model.rank(PROBLEMS["serving"], SM90)
        self.assertLess(time.perf_counter() - start, 1.0)

    def test_ranking_is_repeatable(self):
        first, second = (model.rank(PROBLEMS["middle"], SM90, 50) for _ in range(2))
        self.assertEqual(first, second)
        self.assertEqual(len(set(first)), len(first))

    def test_sizes_only_steer(self):
        # Alignment and epilogue must not change which tiles there are to choose from.
        tiles = {s.describe() for s in model.tiles(fp8(512), SM90)}
        direct = model.tiles(replace(fp8(512), out_aligned=False), SM90)
        self.assertEqual({s.store for s in direct}, {"direct"})
        self.assertGreaterEqual(len(direct), len(tiles))


instantiate_parametrized_tests(TestModel)

if __name__ == "__main__":
    run_tests()
