"""The text of programs, whole, and its determinism across hash seeds."""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ir_examples as ex
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.ir.printer import print_program, print_statement
from torch_cute_backend.ir.structure import Let

HERE = Path(__file__).parent


class TestPrinter(TestCase):
    maxDiff = None

    def test_inline_sm90(self):
        self.assertExpectedInline(
            print_program(ex.dense_sm90()),
            """\
program dense (sm_90a, inline)
  roots D
  role load: warp 4
  role math: warps 0-3
  buffer A: gmem bfloat16
  buffer B: gmem bfloat16
  buffer D: gmem bfloat16
  buffer offsets: gmem int32
  buffer sA: smem bfloat16 64x64 x 3 stages
  buffer sB: smem bfloat16 64x64 x 3 stages
  buffer sD: smem bfloat16 64x32 x 2 stages
  buffer r_acc: rmem float32 64x64
  buffer r_D: rmem bfloat16 64x32
  pipeline ab: tma_wgmma load -> math, carries sA, sB, 3 stages, tx 16384 bytes, arrivals 1/4
  barrier store: id 1, 128 threads of math
prologue:
  AllocateShared(buffers=(sA, sB, sD))
  InitPipelines(pipelines=(ab))
  InitSync(cluster=False)
loop:
  tile loop tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
    tile_m = tile % tiles_m
    tile_n = tile // tiles_m
    [load] for k in range(k_tiles):
      ProducerAcquire(pipeline=ab)
      TmaLoad(source=A, target=sA, pipeline=ab, coords=(tile_m, k))
      TmaLoad(source=B, target=sB, pipeline=ab, coords=(tile_n, k))
      ProducerCommit(pipeline=ab)
    [math] AccumulatorClear(accumulator=r_acc)
    [math] for k in range(k_tiles):
      ConsumerWait(pipeline=ab)
      Mma(accumulator=r_acc, a=sA, b=sB, pipeline=ab, index=k)
      ConsumerRelease(pipeline=ab, lag=1, index=k)
    [math] MmaDrain(pipeline=ab, lag=1)
    [math] unrolled for sub in range(2):
      EpilogueApply(r_acc -> r_D, inputs=(), acc, subtile=sub)
      TmaStoreWait(pending=1)
      NamedBarrierSync(barrier=store)
      SmemStore(source=r_D, target=sD, subtile=sub)
      Fence()
      NamedBarrierSync(barrier=store)
      TmaStore(source=sD, target=D, tile=(tile_m, tile_n), subtile=sub)
    CtaBarrier()  # tile hand-over
    advance tiles: tile += gridz
post:
  [load] ProducerTail(pipeline=ab)
  [math] TmaStoreWait(pending=0)
""",
        )

    def test_statement_is_one_line_with_its_role(self):
        program = ex.dense_sm100()
        for stmt in program.walk():
            text = print_statement(stmt)
            self.assertNotIn("\n", text)
            tagged = text.startswith(f"[{stmt.role}] ")
            self.assertEqual(tagged, stmt.role is not None)
        self.assertExpectedInline(
            print_statement(program.loop),
            """tile loop tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n""",
        )

    def test_roles_are_shown_where_they_change(self):
        body = print_program(ex.dense_sm100()).split("loop:\n")[1]
        self.assertIn("\n    [load] for k in range(k_tiles):\n", body)
        self.assertIn("\n      ProducerAcquire(pipeline=ab)\n", body)
        region = print_program(ex.kept("sm_100a")).split("regions:\n")[1]
        self.assertNotIn("[", region.split("\nloop:")[0])

    def test_let(self):
        let = Let(role=ex.MATH, var=ex.TILE_M, value=ex.coordinates()[0].value)
        self.assertExpectedInline(
            print_statement(let), """[math] tile_m = tile % tiles_m"""
        )

    def test_same_text_under_any_hash_seed(self):
        code = (
            "import ir_examples as ex\n"
            "from torch_cute_backend.ir.printer import print_program\n"
            "for arch in ex.EXAMPLES:\n"
            "    kept = ex.kept(arch)\n"
            "    after, omission = ex.omit(kept)\n"
            "    print(print_program(kept), print_program(after))\n"
            "    print(*omission.remarks, sep='\\n')\n"
        )
        texts = set()
        for seed in ("0", "1", "4242"):
            path = os.pathsep.join([str(HERE), str(HERE.parent)])
            env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=env,
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            texts.add(done.stdout)
        self.assertEqual(len(texts), 1)
        self.assertIn("APPLIED", texts.pop())


if __name__ == "__main__":
    run_tests()
