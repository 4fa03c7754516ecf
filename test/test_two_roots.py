"""Several roots, and a value used behind the loop: real kernels whose loop is kept.

That they run right is shown by ``sim/test_sim_matrix.py``, that they compile by
``test_cubins.py``.
"""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

import contextlib
import io
import json
from unittest import mock

import torch
from build_helper import COL, ROW, build, fp8, mm, swiglu, two_roots
from kernel_cases import CASES, Case
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.cli.main import main
from torch_cute_backend.dtypes import BFLOAT16
from torch_cute_backend.epilogue.graph import EpilogueBuilder
from torch_cute_backend.errors import UserError
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.runtime import gemm
from torch_cute_backend.runtime.validated import KernelClass
from torch_cute_backend.schedule import GemmSchedule

S90 = GemmSchedule(64, 64, 64, 4)
S100 = GemmSchedule(128, 64, 64, 4, acc_stages=2)
BY_ARCH = {"sm_90a": (SM90, S90), "sm_100a": (SM100, S100)}


def case(arch: str, name: str) -> Case:
    (found,) = (c for c in CASES if (c.arch.name, c.name) == (arch, name))
    return found


class TestRoots(TestCase):
    """Outputs that share an accumulator are one computation."""

    def test_roots(self):
        self.assertEqual(two_roots().roots, ("d", "d1"))
        self.assertEqual(two_roots(ROW, COL, BFLOAT16).products, 2)
        self.assertEqual(swiglu().roots, ("d",))
        self.assertEqual(swiglu().products, 2)
        self.assertEqual(mm().epilogue.roots, ("d",))

    def test_an_output_may_join_two(self):
        b = EpilogueBuilder()
        b.output(b.acc(), BFLOAT16)
        b.output(b.acc(1), BFLOAT16, "d1")
        b.output(b.op("add", b.acc(), b.acc(1)), BFLOAT16, "total")
        self.assertEqual(len(b.graph().roots), 1)

    def test_more_products_than_kernels_have(self):
        b = EpilogueBuilder()
        b.output(b.acc(2), BFLOAT16)
        self.assertIn("acc with attribute 2", str(b.graph().validate()))


class TestTwoRoots(TestCase):
    maxDiff = None

    @parametrize("arch", list(BY_ARCH))
    def test_kept(self, arch):
        spec, schedule = BY_ARCH[arch]
        built = build(mm(epilogue=two_roots()), schedule, spec)
        self.assertEqual(
            (built.omission.decision, built.omission.rule), ("kept", "single_root")
        )
        self.assertEqual(built.before.roots, ("d", "d1"))
        (why,) = [r for r in built.omission.remarks if r.rule == "single_root"]
        self.assertEqual(why.message, "2 root programs share the loop: d, d1")
        # Everything else about the residual would have let it go.
        for remark in built.omission.remarks:
            if remark.rule == "residual_work":
                self.assertIn("the loop stays: rule single_root", remark.message)

    @parametrize("arch", list(BY_ARCH))
    def test_one_root_of_two_products_is_omitted(self, arch):
        spec, schedule = BY_ARCH[arch]
        built = build(mm(epilogue=swiglu()), schedule, spec)
        self.assertEqual(
            (built.omission.decision, built.omission.rule), ("omitted", None)
        )

    def test_text_sm90(self):
        built = build(mm(epilogue=two_roots()), S90, SM90)
        text = print_program(built.before)
        self.assertExpectedInline(
            text[text.index("regions:") :],
            """\
regions:
  role load:
    PartitionTma(buffers=(A, B, B1))
    PipelineStates(pipelines=(ab))
    tile loop load_tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      tile_m = tile_idx % tiles_m
      tile_n = tile_idx // tiles_m
      for k_tile in range(k_tiles):
        ProducerAcquire(pipeline=ab)
        TmaLoad(source=A, target=sA, pipeline=ab, coords=(tile_m, k_tile))
        TmaLoad(source=B, target=sB, pipeline=ab, coords=(tile_n, k_tile))
        TmaLoad(source=B1, target=sB1, pipeline=ab, coords=(tile_n, k_tile))
        ProducerCommit(pipeline=ab)
      advance load_tiles: tile_idx += clusters
    ProducerTail(pipeline=ab)
  role math:
    PartitionMma(a=sA, b=sB, accumulator=acc, more_b=(sB1), more_accumulators=(acc_1))
    PipelineStates(pipelines=(ab))
    PartitionEpilogue(source=acc, targets=(r_d, r_d1), staging=sD, more=(acc_1))
    tile loop math_tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      tile_m = tile_idx % tiles_m
      tile_n = tile_idx // tiles_m
      for k_tile in range(k_tiles):
        ConsumerWait(pipeline=ab)
        Mma(accumulator=acc, a=sA, b=sB, pipeline=ab, index=k_tile, more=True)
        Mma(accumulator=acc_1, a=sA, b=sB1, pipeline=ab, index=k_tile)
        ConsumerRelease(pipeline=ab, lag=1, index=k_tile)
      MmaDrain(pipeline=ab, lag=1)
      unrolled for subtile in range(2):
        EpilogueApply(acc, acc_1 -> r_d, r_d1, inputs=(), acc->acc, subtile=subtile)
        TmaStoreWait(pending=0)
        NamedBarrierSync(barrier=epi_barrier)
        SmemStore(source=r_d, target=sD, subtile=subtile)
        Fence()
        NamedBarrierSync(barrier=epi_barrier)
        TmaStore(source=sD, target=d, tile=(tile_m, tile_n), subtile=subtile)
        GmemStore(source=r_d1, target=d1, tile=(tile_m, tile_n), subtile=subtile)
      advance math_tiles: tile_idx += clusters
    TmaStoreWait(pending=0)
loop:
  tile loop tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
    tile_m = tile_idx % tiles_m
    tile_n = tile_idx // tiles_m
    placeholder (6 of load)
    placeholder (15 of math)
    CtaBarrier()  # tile hand-over
    advance tiles: tile_idx += clusters
""",
        )

    def test_text_sm100(self):
        built = build(mm(epilogue=two_roots()), S100, SM100)
        text = print_program(built.before)
        start, end = text.index("  role mma:"), text.index("loop:\n")
        self.assertExpectedInline(
            text[start:end],
            """\
  role mma: warp 4
  role epilogue: warps 0-3
  buffer A: gmem bfloat16
  buffer B: gmem bfloat16
  buffer B1: gmem bfloat16
  buffer d: gmem bfloat16
  buffer d1: gmem bfloat16
  buffer sA: smem bfloat16 128x64 x 4 stages
  buffer sB: smem bfloat16 64x64 x 4 stages
  buffer sB1: smem bfloat16 64x64 x 4 stages
  buffer sD: smem bfloat16 128x32
  buffer tAcc: tmem float32 128x128 x 2 stages
  buffer r_acc: rmem float32 128x32
  buffer r_acc_1: rmem float32 128x32
  buffer r_d: rmem bfloat16 128x32
  buffer r_d1: rmem bfloat16 128x32
  pipeline ab: tma_umma load -> mma, carries sA, sB, sB1, 4 stages, tx 32768 bytes, arrivals 1/1
  pipeline acc: umma_epilogue mma -> epilogue, carries tAcc, 2 stages, tx 0 bytes, arrivals 1/4
  barrier epi_barrier: id 1, 128 threads of epilogue
prologue:
  PrefetchDescriptors(buffers=(A, B, B1, d))
  AllocateShared(buffers=(sA, sB, sB1, sD))
  InitPipelines(pipelines=(ab, acc))
  TmemAlloc(buffer=tAcc, columns=256)
  InitSync(cluster=False)
regions:
  role load:
    PartitionTma(buffers=(A, B, B1))
    PipelineStates(pipelines=(ab))
    tile loop load_tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      tile_m = tile_idx % tiles_m
      tile_n = tile_idx // tiles_m
      for k_tile in range(k_tiles):
        ProducerAcquire(pipeline=ab)
        TmaLoad(source=A, target=sA, pipeline=ab, coords=(tile_m, k_tile))
        TmaLoad(source=B, target=sB, pipeline=ab, coords=(tile_n, k_tile))
        TmaLoad(source=B1, target=sB1, pipeline=ab, coords=(tile_n, k_tile))
        ProducerCommit(pipeline=ab)
      advance load_tiles: tile_idx += clusters
    ProducerTail(pipeline=ab)
  role mma:
    PartitionMma(a=sA, b=sB, accumulator=tAcc, more_b=(sB1))
    PipelineStates(pipelines=(ab, acc))
    tile loop mma_tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      ProducerAcquire(pipeline=acc)
      for k_tile in range(k_tiles):
        ConsumerWait(pipeline=ab)
        Mma(accumulator=tAcc, a=sA, b=sB, pipeline=ab, index=k_tile, more=True)
        Mma(accumulator=tAcc, a=sA, b=sB1, pipeline=ab, index=k_tile, product=1)
        ConsumerRelease(pipeline=ab)
      ProducerCommit(pipeline=acc)
      advance mma_tiles: tile_idx += clusters
    ProducerTail(pipeline=acc)
  role epilogue:
    PipelineStates(pipelines=(acc))
    PartitionEpilogue(source=tAcc, targets=(r_d, r_d1), staging=sD, more=(r_acc_1))
    tile loop epilogue_tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      tile_m = tile_idx % tiles_m
      tile_n = tile_idx // tiles_m
      ConsumerWait(pipeline=acc)
      unrolled for subtile in range(2):
        TmemLoad(source=tAcc, target=r_acc, pipeline=acc, subtile=subtile)
        TmemLoad(source=tAcc, target=r_acc_1, pipeline=acc, subtile=subtile, product=1)
        EpilogueApply(r_acc, r_acc_1 -> r_d, r_d1, inputs=(), acc->acc, subtile=subtile)
        TmaStoreWait(pending=0)
        NamedBarrierSync(barrier=epi_barrier)
        SmemStore(source=r_d, target=sD, subtile=subtile)
        Fence()
        NamedBarrierSync(barrier=epi_barrier)
        TmaStore(source=sD, target=d, tile=(tile_m, tile_n), subtile=subtile)
        GmemStore(source=r_d1, target=d1, tile=(tile_m, tile_n), subtile=subtile)
      ConsumerRelease(pipeline=acc)
      advance epilogue_tiles: tile_idx += clusters
    TmaStoreWait(pending=0)
    NamedBarrierSync(barrier=epi_barrier)
    TmemFree(buffer=tAcc, columns=256)
""",
        )

    def test_what_does_not_fit(self):
        wide = GemmSchedule(128, 256, 64, 3, acc_stages=2)
        self.assertTrue(wide.validate(mm(), SM100))
        status = wide.validate(mm(epilogue=two_roots()), SM100)
        self.assertIn("1024 TMEM columns exceed 512", str(status))
        wide = GemmSchedule(64, 256, 64, 2)
        self.assertTrue(wide.validate(mm(), SM90))
        status = wide.validate(mm(epilogue=two_roots()), SM90)
        self.assertIn("accumulators a thread x 2 set(s)", str(status))

    def test_not_covered_by_the_records_of_one_product(self):
        one = KernelClass.of(mm(), S90, SM90)
        two = KernelClass.of(mm(epilogue=two_roots()), S90, SM90)
        self.assertNotEqual(one, two)


class TestWalkEnd(TestCase):
    @parametrize("arch", list(BY_ARCH))
    def test_kept(self, arch):
        built = case(arch, "walk_end").build()
        self.assertEqual(
            (built.omission.decision, built.omission.rule), ("kept", "post_loop_use")
        )
        last = built.omission.remarks[-1]
        self.assertEqual(
            (last.rule, last.message),
            ("post_loop_use", "uses tile_idx, which the shared loop defines"),
        )

    def test_needs_one_cta_a_cluster(self):
        s = GemmSchedule(64, 64, 64, 4, cluster_m=2, record="walk_end")
        self.assertIn("clusters of one CTA", str(s.validate(mm(), SM90)))


class TestApi(TestCase):
    """Without Inductor: the command line, and calling a kernel."""

    @parametrize("arch", list(BY_ARCH))
    def test_explain(self, arch):
        args = "explain scaled_mm --m 64 --n 1024 --k 5120 --products 2 --json --arch"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main([*args.split(), arch]), 0)
        report = json.loads(out.getvalue())
        omission = report["loop_omission"]
        self.assertEqual(
            (omission["decision"], omission["rule"]), ("kept", "single_root")
        )
        self.assertEqual(report["problem"]["products"], 2)

    @mock.patch.object(gemm, "check_devices")
    @mock.patch.object(gemm, "load_kernel")
    def test_call_order(self, load, devices):
        built = build(fp8(epilogue=two_roots(ROW, COL)), S90_FP8, SM90)
        names = [arg.name for arg in built.source.args]
        self.assertEqual(
            names, ["a", "b", "b1", "d", "d1", "scale_a", "scale_b", "scale_b1"]
        )
        a, b, b1 = (
            torch.zeros(s, dtype=torch.float8_e4m3fn)
            for s in ((48, 64),) + ((32, 64),) * 2
        )
        scales = torch.ones(48), torch.ones(32), torch.ones(32)
        launch = gemm.bind(built, a, (b.t(), b1.t()), *scales, num_ctas=4)
        pointers = [t.data_ptr() for t in launch.arguments[:3]]
        self.assertEqual(pointers, [a.data_ptr(), b.data_ptr(), b1.data_ptr()])
        self.assertEqual([tuple(t.shape) for t in launch.outputs], [(48, 32)] * 2)
        with self.assertRaisesRegex(UserError, "takes 2 b, got 1"):
            gemm.bind(built, a, b.t(), *scales, num_ctas=4)

    @mock.patch.object(gemm, "check_devices")
    @mock.patch.object(gemm, "load_kernel")
    def test_recorded_walk_has_an_element_a_cta(self, load, devices):
        built = case("sm_90a", "walk_end").build()
        a, b = torch.zeros(200, 64), torch.zeros(64, 128)
        args = (a.bfloat16(), b.bfloat16())
        for num_ctas, ctas in ((4, 4), (100, 8)):
            launch = gemm.bind(built, *args, num_ctas=num_ctas)
            self.assertEqual(launch.outputs[1].dtype, torch.int32)
            self.assertEqual(tuple(launch.outputs[1].shape), (ctas,))


S90_FP8 = GemmSchedule(64, 64, 128, 4)

for cls in (TestTwoRoots, TestWalkEnd, TestApi):
    instantiate_parametrized_tests(cls)

if __name__ == "__main__":
    run_tests()
