"""What a search tries beyond the model's list: valid, new, made to fit the GPU, and
never offered by the look-up."""

from __future__ import annotations

import math

from build_helper import fp8, grouped, mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import ARCHS, SM90
from torch_cute_backend.bench.cases import Case
from torch_cute_backend.dtypes import E4M3
from torch_cute_backend.problem import Accum, Grouping
from torch_cute_backend.tuning import fit, lookup, model, search
from torch_cute_backend.tuning.proposals import filling_width, proposals

EXACT = Accum.EXACT
PROBLEMS = {
    "wide": fp8(64, 25600, 5120),
    "decode": fp8(1, 2048, 6144),
    "long_k": mm(4096, 2112, 7168),
    "exact": fp8(4096, 32768, 512, accum=EXACT),
    "unaligned": fp8(300, 1000, 512, out_aligned=False),
    "tiny": mm(1, 8, 8),
    "groups": grouped(Grouping.M, 32768, 4096, 4096, 8, dtype=E4M3),
}


def tiles(name, arch=SM90):
    return {(s.tile_m, s.tile_n) for s in proposals(PROBLEMS[name], arch)}


class TestProposals(TestCase):
    @parametrize("arch", list(ARCHS))
    @parametrize("name", list(PROBLEMS))
    def test_they_are_valid_new_and_few(self, arch, name):
        spec, problem = ARCHS[arch], PROBLEMS[name]
        found = proposals(problem, spec)
        self.assertEqual(len(set(found)), len(found))
        self.assertLess(len(found), 40)
        self.assertEqual(set(found) & set(model.tiles(problem, spec)), set())
        for s in found:
            self.assertEqual(str(s.validate(problem, spec)), "ok")

    @parametrize("n,rows,slots,rounds", [(25600, 1, 132, 1), (2112, 32, 132, 3)])
    def test_widths_fill_their_rounds(self, n, rows, slots, rounds):
        width = filling_width(n, rows, slots, rounds)
        self.assertLessEqual(rows * math.ceil(n / width), slots * rounds)
        self.assertGreater(rows * math.ceil(n / (width - 8)), slots * rounds)

    def test_widths_beyond_the_list(self):
        # 128 tiles for 132 SMs, where 256 columns make 100 and 192 two rounds.
        self.assertIn((64, 200), tiles("wide"))
        self.assertIn((128, 176), tiles("long_k"))
        self.assertIsNone(filling_width(4096, 300, 132, 2))

    def test_every_width_of_an_mma_is_a_tile(self):
        problem = fp8(64, 25600, 5120)
        for width in range(8, 257, 8):
            s = fit.complete(problem, SM90, 64, width)
            self.assertEqual(str(s.validate(problem, SM90)), "ok", width)
        for s, reason in (
            (fit.complete(problem, SM90, 64, 100), "multiple of 8"),
            (fit.complete(fp8(4096), SM90, 64, 200, cluster_m=2), "multicast slice"),
        ):
            self.assertIn(reason, str(s.validate(problem, SM90)))

    def test_every_low_tile_is_tried_for_one_row(self):
        self.assertLessEqual({(16, 24), (32, 32)}, tiles("decode"))
        low = {s.tile_m for s in proposals(fp8(40, 2048, 6144), SM90)}
        self.assertEqual(low & {8, 16, 32}, set())

    def test_exact_sums_take_turns(self):
        found = [s for s in proposals(PROBLEMS["exact"], SM90) if s.pingpong]
        self.assertEqual({(s.tile_m, s.tile_n) for s in found}, {(64, 128), (64, 192)})
        self.assertEqual({s.promotion for s in found}, {"wait", "overlap"})
        fast = proposals(fp8(4096, 32768, 512), SM90)
        self.assertFalse(any(s.pingpong for s in fast))

    def test_groups_have_no_widths_but_take_turns(self):
        one_row = grouped(Grouping.M, 512, 4096, 4096, 8)
        self.assertEqual(proposals(one_row, SM90), [])
        large = PROBLEMS["groups"]
        found = proposals(large, SM90)
        self.assertTrue(found)
        self.assertTrue(all(s.pingpong for s in found))
        case = Case(search.SUITE, "fp8-grouped-m-g8", (32768, 4096, 4096))
        tried = search.candidates(case, Accum.FAST, SM90)
        self.assertLessEqual(set(found), set(tried))
        ragged_k = grouped(Grouping.K, 4096, 4096, 32768, 4)
        self.assertEqual(proposals(ragged_k, SM90), [])

    @parametrize("name", list(PROBLEMS))
    def test_the_look_up_does_not_offer_them(self, name):
        problem = PROBLEMS[name]
        found = set(proposals(problem, SM90))
        offered = {c.schedule for c in lookup.candidates(problem, SM90)}
        self.assertEqual(found & offered, set())

    def test_the_search_tries_them(self):
        case = Case(search.SUITE, "fp8", (64, 25600, 5120))
        listed = search.candidates(case, Accum.FAST, SM90)
        widths = {s.tile_n for s in listed[:16]}
        self.assertIn(200, widths)


instantiate_parametrized_tests(TestProposals)

if __name__ == "__main__":
    run_tests()
