"""Comparison of simulator and GPU: sizes, data, verdicts, and the committed results."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent / "gpu"))
sys.path.insert(0, str(Path(__file__).parent))

import case_runs
import sanitize
import sim_vs_gpu
from case_runs import HOPPER, padding_kept, runs, span_of

from torch_cute_backend.runtime import gemm
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild

COMMITTED = sim_vs_gpu.RESULTS / "sim_vs_gpu.sim.jsonl"
MEASURED = sim_vs_gpu.RESULTS / "sim_vs_gpu.gpu.jsonl"
AGAIN = ("tensorwise_bias", "bf16_mn", "m32_kept_direct", "cluster_1x2")


class TestData(TestCase):
    def test_same_everywhere(self):
        """Digests hold for every torch, numpy and machine, or a comparison is void."""
        draw = gemm_case.Draw(3)
        first = [-2, 0, -2, 2, -2, -2, -2, 0, -2, 1, 2, 2]
        second = [-2, 0, 2, -1, 0, 0, 0, -1, -2, 1, -1, -2]
        self.assertEqual(draw.integers(-2, 3, (12,)).tolist(), first)
        self.assertEqual(draw.integers(-2, 3, (12,)).tolist(), second)
        values = draw.integers(-2, 3, (5000,))
        counts = torch.bincount(values.long() + 2, minlength=5).tolist()
        self.assertTrue(all(900 < count < 1100 for count in counts), str(counts))

    def test_fractions_are_not_integers(self):
        values = gemm_case.Draw(0, fractions=True).elements((1000,))
        self.assertGreater(int((values != values.round()).sum()), 900)
        self.assertLess(float(values.abs().max()), 2.0)

    def test_spans_keep_padding(self):
        build = next(c for c in HOPPER if c.name == "tensorwise_bias").build()
        operands = gemm_case.make(build, 65, 72, 128)
        (out,) = operands.outputs.values()
        self.assertEqual(out.stride(), (80, 1))
        self.assertEqual(span_of(out).numel(), 64 * 80 + 72)
        self.assertTrue(padding_kept(operands))
        span_of(out)[75] = 1
        self.assertFalse(padding_kept(operands))


class TestRuns(TestCase):
    @parametrize("index", range(len(HOPPER)))
    def test_entry_takes_the_sizes(self, index):
        case = HOPPER[index]
        build = case.build()
        s = build.schedule
        tails, short, many = runs(build)
        self.assertGreater(tails.k, s.ab_stages * s.tile_k)
        self.assertLess(short.k, s.ab_stages * s.tile_k)
        for run in (tails, many):
            tiles = -(-run.m // s.tile_m) * -(-run.n // s.tile_n)
            self.assertGreaterEqual(tiles, 2 * run.num_ctas, str(run))
            self.assertNotEqual(run.m % s.tile_m, 0)
        for run in runs(build):
            operands = gemm_case.make(build, *run.sizes, num_ctas=run.num_ctas)
            for arg, tensor in zip(build.source.args, operands.tensors, strict=True):
                self.assertIsNone(gemm._problem(arg, tensor), f"{case} {run}")


class TestCompare(TestCase):
    def rows(self):
        rows = sim_vs_gpu.read(COMMITTED)
        return rows, copy.deepcopy(rows)

    def test_same(self):
        rows, other = self.rows()
        verdict = sim_vs_gpu.compare(rows, other)
        self.assertEqual(verdict["different"], [])
        self.assertEqual(
            verdict["rows_identical"], sum(r["data"] == "integers" for r in rows)
        )

    @parametrize("field", ["outputs", "inputs", "source_sha256"])
    def test_a_difference_is_named(self, field):
        rows, other = self.rows()
        row = next(r for r in other if r["data"] == "integers")
        row[field] = {"d": "0"} if field == "outputs" else "0"
        (found,) = sim_vs_gpu.compare(rows, other)["different"]
        self.assertIn(row["case"], found)
        self.assertIn(field, found)

    def test_a_missing_row_is_a_difference(self):
        rows, other = self.rows()
        del other[0]
        (found,) = sim_vs_gpu.compare(rows, other)["different"]
        self.assertIn("only on one side", found)

    def test_fractions_may_differ_in_outputs_only(self):
        rows, other = self.rows()
        row = next(r for r in other if r["data"] == "fractions")
        row["outputs"] = {"d": "0"}
        self.assertEqual(sim_vs_gpu.compare(rows, other)["different"], [])
        row["inputs"] = "0"
        self.assertEqual(len(sim_vs_gpu.compare(rows, other)["different"]), 1)


class TestCommitted(TestCase):
    def test_simulated_rows(self):
        rows = sim_vs_gpu.read(COMMITTED)
        integers = [r for r in rows if r["data"] == "integers"]
        self.assertGreaterEqual(len({r["source_sha256"] for r in integers}), 25)
        for row in integers:
            self.assertTrue(row["exact"] or row["worst"] < 1e-6, row["case"])
            self.assertEqual(row["findings"], 0, row["case"])
            self.assertTrue(row["tiles_written_once"], row["case"])

    def test_the_gpu_agreed(self):
        """Both committed halves are of the same kernels, data and bytes."""
        measured = sim_vs_gpu.read(MEASURED)
        verdict = sim_vs_gpu.compare(sim_vs_gpu.read(COMMITTED), measured)
        self.assertEqual(verdict["different"], [])
        self.assertGreaterEqual(verdict["kernels_identical"], 25)
        self.assertEqual({row["on"] for row in measured}, {"NVIDIA H200"})

    def test_simulating_again_gives_the_same_bytes(self):
        """Exact results do not depend on the kernel, so they outlive its text."""
        committed = {
            (r["case"], r["label"], r["data"]): r for r in sim_vs_gpu.read(COMMITTED)
        }
        with SimChild() as child:
            for case in (c for c in HOPPER if c.name in AGAIN):
                build = case.build()
                run = runs(build)[0]
                row = sim_vs_gpu.row_of(
                    case, build, run, False, sim_vs_gpu.simulator(child)
                )
                old = committed[case.name, run.label, "integers"]
                for field in ("m", "n", "k", "num_ctas", "inputs", "outputs"):
                    self.assertEqual(row[field], old[field], f"{case} {field}")


class TestGpuHalf(TestCase):
    """The scripts from start to end, with the simulator in place of the GPU."""

    def run_script(self, main, corrupt, *arguments):
        def load(source):
            def launch(*call):
                child.simulate(source, call[:-1], num_ctas=call[-1])
                for arg, tensor in zip(source.args, call[:-1], strict=True):
                    if arg.output and corrupt:
                        tensor[-1, -1] = 1 - tensor[-1, -1].float()

            return launch

        with SimChild() as child, contextlib.ExitStack() as patches:
            for owner, name, value in (
                (torch.cuda, "is_available", lambda: True),
                (torch.cuda, "get_device_name", lambda *_: "stand-in"),
                (torch.cuda, "synchronize", lambda: None),
                (torch.Tensor, "cuda", torch.Tensor.clone),
                (case_runs, "load_kernel", load),
                (sys, "argv", ["script", "--compile", *arguments]),
            ):
                patches.enter_context(mock.patch.object(owner, name, value))
            patches.enter_context(contextlib.redirect_stderr(io.StringIO()))
            out = patches.enter_context(contextlib.redirect_stdout(io.StringIO()))
            return main(), out.getvalue()

    @parametrize("corrupt", [False, True])
    def test_sim_vs_gpu(self, corrupt):
        with tempfile.TemporaryDirectory() as folder:
            sim, gpu = Path(folder, "sim.jsonl"), Path(folder, "gpu.jsonl")
            # Of another text of the kernel maybe; its exact results are the same.
            build = next(c for c in HOPPER if c.name == "direct_store").build()
            rows = [
                json.dumps(r | {"source_sha256": build.source.sha256})
                for r in sim_vs_gpu.read(COMMITTED)
                if r["case"] == "direct_store"
            ]
            sim.write_text("\n".join(rows))
            arguments = ["--gpu", "--only", "direct_store"]
            arguments += ["--sim", str(sim), "--out", str(gpu)]
            code, text = self.run_script(sim_vs_gpu.main, corrupt, *arguments)
        self.assertEqual(code, int(corrupt))
        self.assertIn('"rows_identical": ' + ("0" if corrupt else "3"), text)

    @parametrize("corrupt", [False, True])
    def test_sanitize(self, corrupt):
        arguments = ["--only", "m16", "fused_direct"]
        code, text = self.run_script(sanitize.main, corrupt, *arguments)
        self.assertEqual(code, int(corrupt))
        *rows, last = [json.loads(line) for line in text.splitlines()]
        self.assertEqual([row["case"] for row in rows], ["m16", "fused_direct"])
        self.assertEqual(last, {"good": 0 if corrupt else 2, "of": 2})
        self.assertTrue(all(row["padding_kept"] for row in rows))


instantiate_parametrized_tests(TestGpuHalf)
instantiate_parametrized_tests(TestRuns)
instantiate_parametrized_tests(TestCompare)

if __name__ == "__main__":
    run_tests()
