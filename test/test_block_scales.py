"""MXFP8: where scales lie, what is taken and refused, and what the checks see of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from build_helper import build, fp8, grouped
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.dtypes import E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import UserError
from torch_cute_backend.ir.dataflow import ProducerCommit, ScaleCopy
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import KLoop
from torch_cute_backend.problem import Grouping, scale_count
from torch_cute_backend.runtime import block_scales, selftest, selftest_grouped
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup

PROBLEM = fp8(4096, 4096, 4096, scaling="mxfp8")
SCHEDULE = GemmSchedule(128, 128, 128, 4, acc_stages=2, epi_n=64, epi_stages=2)


def exponents(rows: int, blocks: int) -> torch.Tensor:
    values = torch.arange(rows * blocks, dtype=torch.int64) % 251
    return values.to(torch.uint8).view(rows, blocks)


class TestTiles(TestCase):
    @parametrize("rows,blocks", [(128, 4), (1, 1), (200, 11), (257, 8)])
    def test_there_and_back(self, rows, blocks):
        scales = exponents(rows, blocks).view(torch.float8_e8m0fnu)
        tiles = block_scales.to_tiles(scales)
        self.assertEqual(tiles.numel(), scale_count(rows, 32 * blocks))
        back = block_scales.from_tiles(tiles, rows, 32 * blocks)
        self.assertTrue(torch.equal(back[:, ::32], scales.float()))
        self.assertTrue(torch.equal(back[:, 31::32], scales.float()))

    def test_bytes(self):
        """Row r, block c of tile (i, j): byte 16 (r % 32) + 4 (r // 32) + c of it."""
        rows, blocks = 256, 8
        values = exponents(rows, blocks)
        tiles = block_scales.to_tiles(values.view(torch.float8_e8m0fnu))
        raw = tiles.view(torch.uint8)
        for r, c in ((0, 0), (31, 3), (32, 1), (127, 2), (128, 4), (255, 7)):
            tile = (r // 128) * (blocks // 4) + c // 4
            inside = 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4
            self.assertEqual(raw[512 * tile + inside], values[r, c])

    def test_mistakes(self):
        with self.assertRaisesRegex(UserError, "float8_e8m0fnu matrix, got 2-D"):
            block_scales.to_tiles(torch.zeros(4, 4))
        with self.assertRaisesRegex(UserError, "have 512 scales in tiles, got 4"):
            block_scales.from_tiles(torch.zeros(4), 1, 32)


class TestProblem(TestCase):
    def test_names(self):
        self.assertEqual(PROBLEM.family, "mxfp8")
        self.assertTrue(PROBLEM.validate())

    @parametrize(
        "problem,words",
        [
            (replace(PROBLEM, k=4112), "K in steps of 32, not 4112"),
            (
                fp8(epilogue=fp8().epilogue, scaling="mxfp8"),
                "called scale_a or scale_b",
            ),
            (
                grouped(
                    Grouping.K,
                    dtype=E4M3,
                    scaling="mxfp8",
                    epilogue=EpilogueGraph.linear(),
                ),
                "groups along k: only along m",
            ),
        ],
        name_fn=lambda problem, words: words.split()[0],
    )
    def test_refused(self, problem, words):
        self.assertRegex(str(problem.validate()), words)

    @parametrize(
        "change,words",
        [
            ({"tile_m": 64}, "tiles of 128 rows"),
            ({"tile_n": 192}, "a multiple of 128 columns"),
            ({"cluster_m": 2}, "clusters of one CTA"),
            ({"cluster_m": 2, "cta_group": 2}, "clusters of one CTA"),
            ({"tile_n": 256, "acc_stages": 2}, "1024 TMEM columns exceed 512"),
            ({"ab_stages": 7}, "bytes of shared memory exceed"),
        ],
        name_fn=lambda change, words: "_".join(f"{k}{v}" for k, v in change.items()),
    )
    def test_schedules(self, change, words):
        self.assertTrue(SCHEDULE.validate(PROBLEM, SM100))
        status = replace(SCHEDULE, **change).validate(PROBLEM, SM100)
        self.assertRegex(str(status), words)

    def test_look_up(self):
        self.assertRegex(str(SCHEDULE.validate(PROBLEM, SM90)), "MXFP8 needs tcgen05")
        self.assertRegex(str(lookup.choose(PROBLEM, SM90)), "MXFP8 needs tcgen05")
        for problem in (PROBLEM, fp8(1, 16, 32, scaling="mxfp8")):
            self.assertEqual(lookup.choose(problem, SM100).source, "model")

    def test_grouped_self_test(self):
        problem = replace(
            PROBLEM, op="scaled_grouped_mm", grouping=Grouping.M, groups=3
        )
        schedule = replace(SCHEDULE, scheduler="grouped_static")
        request = {"problem": problem.to_json(), "schedule": schedule.to_json()}
        problem, schedule = selftest.test_problem(request)
        self.assertTrue(schedule.validate(problem, SM100))
        made = selftest_grouped.operands(problem, schedule, "cpu")
        sizes = selftest_grouped.ragged_sizes(schedule, Grouping.M)
        each = [scale_count(size, problem.k) for size in sizes]
        self.assertGreaterEqual(made.inputs[0].numel(), sum(each))
        wide = (len(sizes), scale_count(problem.n, problem.k))
        self.assertEqual(tuple(made.inputs[1].shape), wide)

    def test_self_test_has_a_tail_in_every_size(self):
        request = {"problem": PROBLEM.to_json(), "schedule": SCHEDULE.to_json()}
        problem, _ = selftest.test_problem(request)
        self.assertTrue(problem.validate())
        tensors, exact = selftest.operands(problem, "cpu")
        self.assertEqual(len(tensors), 4)
        self.assertEqual([t.numel() for t in tensors[2:]], [1536 * 6, 1536 * 6])
        self.assertGreater(len(exact.unique()), 50)


class TestOrder(TestCase):
    """Tensor memory is freed behind the scales' last use, and the checks know why."""

    def setUp(self):
        super().setUp()
        self.program = build(PROBLEM, SCHEDULE, SM100).after

    def test_as_built(self):
        self.assertEqual(races(self.program), ())

    def test_behind_the_commit_nothing_waits_for_the_copy(self):
        found = races(edited(self.program, copy_behind_commit))
        self.assertRegex(" ".join(map(str, found)), "tScales.*free in.*TmemFree")

    def test_several_warps_would_have_no_order(self):
        wide = {r: replace(r, warps=2) for r in self.program.roles if r.name == "mma"}

        def widen(statements):
            return tuple(
                replace(s, role=wide[s.role]) if s.role in wide else s
                for s in statements
            )

        program = edited(self.program, widen)
        roles = tuple(wide.get(r, r) for r in program.roles)
        found = races(replace(program, roles=roles))
        self.assertRegex(" ".join(map(str, found)), "tScales")


def edited(program: Program, edit) -> Program:
    """``program`` with ``edit`` applied to each statement list, inner ones first."""

    def body(statements):
        deep = (
            s.with_body(body(s.bodies()[0])) if s.bodies() else s for s in statements
        )
        return edit(tuple(deep))

    return replace(program, regions=body(program.regions))


def copy_behind_commit(statements):
    """Take the copy out of the k loop, and put it behind the accumulator's commit."""
    copies = [
        s
        for loop in statements
        if isinstance(loop, KLoop)
        for s in loop.body
        if isinstance(s, ScaleCopy)
    ]
    if not copies:
        return statements
    found = []
    for s in statements:
        if isinstance(s, KLoop):
            s = s.with_body(tuple(b for b in s.body if b not in copies))
        found.append(s)
        if isinstance(s, ProducerCommit):
            found += copies
    return tuple(found)


instantiate_parametrized_tests(TestTiles)
instantiate_parametrized_tests(TestProblem)

if __name__ == "__main__":
    run_tests()
