"""Kernels printed for sm_100a, and what ptxas makes of them. No GPU.

Golden texts; which text follows from which schedule; budgets on the machine code of
each role. Cubins and simulator runs of all ``kernel_cases`` are tests of their own.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from build_helper import build, fp8, gelu_residual
from golden_helper import assert_golden, assert_no_stale_golden, golden_cases
from kernel_cases import HEADLINE
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import sass_loops

from torch_cute_backend.arch import SM100
from torch_cute_backend.dtypes import E4M3, FLOAT32
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.runtime.compile import compile_kernel
from torch_cute_backend.schedule import GemmSchedule

S64 = GemmSchedule(64, 64, 128, 6, 2, 64, 1)
S128 = GemmSchedule(128, 128, 128, 5, 2, 32, 2)
PAIR = replace(S128, cluster_m=2, cta_group=2)
FORMS = ("auto", "keep", "inline")


def text(schedule: GemmSchedule, problem: GemmProblem | None = None) -> str:
    return build(problem or fp8(), schedule, SM100).source.text


def kernel(source: str) -> ast.FunctionDef:
    """The ``@cute.kernel`` function of a module's text."""
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    return next(f for f in functions if f.name != "gemm")


def code(schedule: GemmSchedule, problem: GemmProblem | None = None) -> sass_loops.Code:
    compiled = compile_kernel(build(problem or fp8(), schedule, SM100).source)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.cubin)
        return sass_loops.disassemble(path)


class TestGolden(TestCase):
    @parametrize("case", golden_cases("sm_100a"), name_fn=lambda c: c.name)
    def test_golden(self, case):
        assert_golden(self, case)

    def test_nothing_stale(self):
        assert_no_stale_golden(self, "sm_100a")

    def test_spread(self):
        names = [c.name for c in golden_cases("sm_100a")]
        for name in (HEADLINE, "pair", "kept", "inline"):
            self.assertIn(name, names)


class TestText(TestCase):
    @parametrize("raster,size", [("along_m", "tiles_m"), ("along_n", "tiles_n")])
    def test_tile_coordinates_divide_by_a_multiplier(self, raster, size):
        source = text(replace(S64, raster=raster))
        body = source[source.index("\n@cute.kernel") :]
        for op in ("%", "//"):
            self.assertEqual(body.count(f"tile_idx {op} {size}_divisor"), 2)
            self.assertNotIn(f"tile_idx {op} {size}\n", body)
        self.assertIn(f"        cute.FastDivmodDivisorV2({size}),", body)

    @parametrize("form,loops", [("auto", 3), ("keep", 4), ("inline", 1)])
    def test_persistent_loops(self, form, loops):
        tree = kernel(text(replace(S64, shared_loop=form)))
        found = [n for n in ast.walk(tree) if isinstance(n, ast.While)]
        self.assertEqual(len(found), loops)

    @parametrize("form", FORMS)
    def test_cta_barriers_stand_only_in_the_shared_loop(self, form):
        source = text(replace(S64, shared_loop=form))
        self.assertEqual(source.count("sync_threads"), 0 if form == "auto" else 1)

    @parametrize(
        "schedule,problem,load",
        [
            (S64, fp8(), "Ld16x256bOp(tcgen05.Repetition(8))"),
            (S128, fp8(), "Ld32x32bOp(tcgen05.Repetition(32))"),
            (
                replace(S128, store="direct"),
                fp8(),
                "Ld16x256bOp(tcgen05.Repetition(4))",
            ),
            (
                replace(S128, epi_n=16),
                fp8(epilogue=gelu_residual()),
                "Ld16x256bOp(tcgen05.Repetition(2))",
            ),
        ],
        name_fn=lambda s, p, load: f"{s.tile_m}_{s.epi_n}_{s.store}",
    )
    def test_tmem_load(self, schedule, problem, load):
        # 64 rows fill half of a warp's lanes; element-wise traffic wants neighbouring
        # threads on neighbouring columns; otherwise a thread takes a row.
        self.assertIn(load, text(schedule, problem))

    @parametrize(
        "out,schedule,atom",
        [
            (None, S64, "StMatrix8x8x16bOp(False, 4)"),
            (None, replace(S64, tile_n=24, epi_n=8), "StMatrix8x8x16bOp(False, 2)"),
            (None, S128, "num_bits_per_copy=128"),
            (FLOAT32, replace(S64, epi_n=32), "num_bits_per_copy=64"),
            (E4M3, S64, "num_bits_per_copy=16"),
        ],
        name_fn=lambda out, s, atom: f"{out or 'bfloat16'}_{s.tile_m}x{s.epi_n}",
    )
    def test_staging_store(self, out, schedule, atom):
        problem = fp8() if out is None else fp8(out=out)
        self.assertIn(atom, text(schedule, problem))

    @parametrize("form", FORMS)
    def test_every_tmem_load_is_waited_for(self, form):
        source = text(replace(S128, shared_loop=form))
        self.assertEqual(source.count("copy_t2r,\n"), 1)
        self.assertEqual(source.count("fence_view_async_tmem_load()"), 1)
        load = source.index("tTRtAcc[(None, None, None, subtile")
        wait = source.index("fence_view_async_tmem_load()")
        self.assertLess(load, wait)
        self.assertLess(wait, source.index("acc = tCrAcc"))

    def test_columns_are_loaded_before_the_accumulator_is_waited_for(self):
        source = text(S128)
        self.assertLess(
            source.index("= mScaleB["), source.index("acc_pipeline.consumer_wait")
        )

    def test_initial_barrier_publishes_the_tmem_address(self):
        # A relaxed cluster arrival would not.
        source = text(replace(S128, cluster_m=2))
        self.assertNotIn("is_relaxed", source)
        alloc = source.index("alloc_tmem(")
        arrive = source.index("pipeline_init_arrive(")
        retrieve = source.index("retrieve_tmem_ptr(")
        self.assertTrue(alloc < arrive < retrieve)

    @parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)])
    @parametrize("group", [1, 2])
    def test_multicast_only_across_ctas_that_share(self, cluster, group):
        m, n = cluster
        if group > m:
            return
        source = text(replace(S128, cluster_m=m, cluster_n=n, cta_group=group))
        self.assertEqual("mcast_mask=a_mcast_mask" in source, n > 1)
        self.assertEqual("mcast_mask=b_mcast_mask" in source, m // group > 1)

    @parametrize(
        "schedule,problem,rolled",
        [
            (S128, fp8(), False),
            (replace(S128, store="direct"), fp8(), True),
            (replace(S128, epi_n=16), fp8(epilogue=gelu_residual()), True),
            (replace(S64, store="direct"), fp8(), False),
        ],
        name_fn=lambda s, p, rolled: f"{s.tile_m}_{s.epi_n}_{s.store}",
    )
    def test_element_wise_subtiles_are_rolled(self, schedule, problem, rolled):
        # Unrolled, their addresses and predicates crowd registers; see docs/0005.
        source = text(schedule, problem)
        count = schedule.tile_n // schedule.epi_n
        loop = f"for subtile in cutlass.range({count}, unroll=1):"
        self.assertEqual(loop in source, rolled)
        self.assertEqual("tCrScaleB_now[i] = cutlass.select_(" in source, rolled)

    @parametrize("form", FORMS)
    def test_pair(self, form):
        source = text(replace(PAIR, shared_loop=form))
        self.assertIn("if warp_idx == MMA_WARP and is_leader:", source)
        self.assertNotIn("if warp_idx == MMA_WARP:", source)
        self.assertEqual(source.count("is_two_cta=True"), 3)
        self.assertIn("tcgen05.CtaGroup.TWO", source)
        self.assertNotIn("tcgen05.CtaGroup.ONE", source)
        # Each CTA frees only after its peer has read its last accumulator.
        meet = source.index("mbarrier_wait(storage.tmem_free.ptr, 0)")
        self.assertLess(meet, source.index("dealloc_tmem("))

    def test_single_ctas_have_no_leader(self):
        source = text(replace(S128, cluster_m=2))
        for name in ("is_leader", "is_two_cta", "tmem_free"):
            self.assertNotIn(name, source)

    @parametrize("form", FORMS)
    def test_lines_fit(self, form):
        fused = fp8(epilogue=gelu_residual())
        for schedule in (S64, PAIR, replace(S128, cluster_n=2, epi_n=16)):
            source = text(replace(schedule, epi_n=16, shared_loop=form), fused)
            long = [line for line in source.splitlines() if len(line) > 88]
            self.assertEqual(long, [])


class TestMachineCode(TestCase):
    """What ptxas makes of the loops; ``test_static_sm100`` bounds their size."""

    @parametrize("schedule", [S64, S128], name_fn=lambda s: s.describe())
    def test_omission_removes_the_loop_and_its_barrier(self, schedule):
        omitted, kept = (
            code(replace(schedule, shared_loop=form)) for form in ("auto", "keep")
        )
        self.assertEqual(sass_loops.residual_loops(omitted), ())
        (shared,) = sass_loops.residual_loops(kept)
        self.assertEqual(sass_loops.count(shared, sass_loops.CTA_BARRIER), 1)
        self.assertLess(len(omitted), len(kept))
        for role in sass_loops.MARKERS:
            self.assertEqual(
                len(sass_loops.innermost(omitted, role)),
                len(sass_loops.innermost(kept, role)),
            )


instantiate_parametrized_tests(TestGolden)
instantiate_parametrized_tests(TestText)
instantiate_parametrized_tests(TestMachineCode)

if __name__ == "__main__":
    run_tests()
