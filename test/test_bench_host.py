"""Host time and time to the first result: what surrounds the measurement. No GPU."""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import config
from torch_cute_backend.bench import compare, host, pick_time, results
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.cli import bench_cmd
from torch_cute_backend.errors import UserError
from torch_cute_backend.runtime import toolchain

FACTS = dict.fromkeys(("gpu", "driver", "torch", "dsl", "commit", "date"), "made up")


class TestBareLaunch(TestCase):
    def test_the_loop_compiles_and_calls(self):
        """The C loop is built with triton's cuda.h and calls what it is given."""
        with tempfile.TemporaryDirectory() as folder:
            source, shared = Path(folder) / "bare.c", Path(folder) / "bare.so"
            source.write_text(host._C)
            command = [toolchain.linker(), "-Wall", "-Werror", "-shared", "-fPIC"]
            command += [f"-I{host._headers()}", str(source), "-o", str(shared)]
            subprocess.run(command, check=True)
            run = ctypes.CDLL(str(shared)).launch_us
        run.restype = ctypes.c_double
        run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint, ctypes.c_int]
        calls = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)

        def launch(*_: object) -> int:
            calls.append(1)
            return 0

        fake, failing = kind(launch), kind(lambda *_: 700)
        address = ctypes.cast(fake, ctypes.c_void_p)
        self.assertGreater(run(address, None, None, 132, 7), 0.0)
        self.assertEqual(len(calls), 7)
        self.assertEqual(
            run(ctypes.cast(failing, ctypes.c_void_p), None, None, 1, 7), -1
        )

    def test_a_python_batch_is_in_microseconds(self):
        us = host.python_batch(time.sleep, 1e-3)(5)
        self.assertGreaterEqual(us, 1000.0)


class TestHostRows(TestCase):
    def test_rows(self):
        reply = {
            "environment": FACTS,
            "us": {"cuLaunchKernelEx": [3.0, 2.9, 3.2], OURS: [4.2, 4.1, 4.5]},
            "kernel": "k",
            "schedule": {},
            "source": "model",
            "allocations": 0,
            "device_bytes": 0,
        }
        bare, ours = host.rows(reply, host.SHAPE)
        self.assertNotIn("allocations", bare)
        self.assertEqual((ours["us"], ours["allocations"]), (4.2, 0))
        goal = compare.goals([], [bare, ours])[-1]
        self.assertTrue(goal.reached)
        self.assertIn("1.20 µs", goal.figure)

    def test_a_child_that_fails_is_a_user_error(self):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(host, "WorkerProcess") as process,
        ):
            process.return_value.call.return_value = {"error": "no supported GPU"}
            with self.assertRaisesRegex(UserError, "no supported GPU"):
                host.run(Path(folder) / "x.jsonl")
            process.return_value.kill.assert_called_once()


class TestPickTime(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "pick.jsonl"

    def run_with(self, child, **changes: object) -> tuple[int, list[str]]:
        said: list[str] = []
        options = pick_time.Options(
            self.out, **{"shapes": ((16, 4096, 4096),), **changes}
        )
        with mock.patch.object(pick_time, "_child", child):
            return pick_time.run(options, said.append), said

    def reply(self, first_s: float = 5.0) -> dict:
        return {
            "import_s": 4.0,
            "first_s": first_s,
            "host_us": [50.0, 49.0, 60.0],
            "kernels": ["cute_scaled_mm"],
            "cutlass_imported": False,
            "environment": FACTS,
            "phases": [
                ["compile", "cute_scaled_mm", 0.5, 1.25],
                ["choices", "scaled_mm", 0.25, 0.001],
            ],
            "inductor": {"GraphLowering.run": 2.5},
        }

    def test_every_way_runs_cold_then_warm_in_the_same_folders(self):
        seen = []

        def child(shape, environ, deadline):
            seen.append(environ)
            return self.reply(5.0 if len(seen) % 2 else 1.0)

        written, _ = self.run_with(child)
        self.assertEqual(len(seen), 8)
        self.assertEqual(written, 16)
        key = config.PREFIX + "CACHE_DIR"
        for cold, warm in zip(seen[::2], seen[1::2], strict=True):
            self.assertEqual(cold, warm)
        self.assertEqual(len({e[key] for e in seen}), 4)
        rows = results.read(self.out)
        first = {
            (r["provider"], r["protocol"]): r["us"]
            for r in rows
            if r["protocol"].startswith("first-call")
        }
        self.assertEqual(first[OURS, "first-call-cold"], 5e6)
        self.assertEqual(first["stock", "first-call-warm"], 1e6)
        protocols = {r["protocol"] for r in rows}
        self.assertIn("compiled-call-host-warm", protocols)

    def test_the_ways_differ_in_what_is_offered(self):
        found = {
            way.provider: pick_time.child_environ(way, self.folder, None)
            for way in pick_time.WAYS
        }
        on = config.PREFIX + "ENABLED"
        backends = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
        self.assertEqual(found["stock"][on], "0")
        self.assertEqual([found[w][on] for w in (OURS, f"stock+{OURS}")], ["1", "1"])
        self.assertEqual(found[OURS][backends], "ATEN,TORCH_CUTE")
        self.assertNotIn(backends, found["stock"])
        early = config.PREFIX + "DECIDE_EARLY"
        decides = [w for w, e in found.items() if e[early] == "1"]
        self.assertEqual(decides, [f"{OURS}-decide"])

    def test_a_failure_skips_the_warm_run_only(self):
        calls = []

        def child(shape, environ, deadline):
            calls.append(1)
            return {"error": "exit code 1: boom"} if len(calls) == 1 else self.reply()

        written, said = self.run_with(child)
        self.assertEqual((len(calls), written), (7, 12))
        self.assertIn("boom", said[0])

    def test_rows_and_log_say_where_the_time_went(self):
        _, said = self.run_with(lambda *_: self.reply())
        self.assertIn("       0.50 s +  1.25  compile: cute_scaled_mm", said)
        self.assertFalse([line for line in said if "choices" in line])
        self.assertTrue([line for line in said if "torch: GraphLowering" in line])
        for row in results.read(self.out):
            first = row["protocol"].startswith("first-call")
            self.assertEqual("phases" in row and "inductor" in row, first)

    def test_the_command_line_chooses_ways_and_shapes(self):
        args = argparse.Namespace(
            providers=f"stock,{OURS}", shapes="16x64x64", budget=9.0
        )
        found = bench_cmd._pick_time_options(args, self.out)
        self.assertEqual(found.ways, ("stock", OURS))
        self.assertEqual((found.shapes, found.budget_s), (((16, 64, 64),), 9.0))
        args = argparse.Namespace(providers="aten", shapes=None, budget=None)
        with self.assertRaisesRegex(UserError, "unknown way.* aten; known: "):
            bench_cmd._pick_time_options(args, self.out)

    def test_out_of_time(self):
        written, said = self.run_with(lambda *_: self.fail("ran"), budget_s=0.0)
        self.assertEqual((written, said), (0, ["pick-time: out of time"]))

    def test_a_real_child_without_a_gpu_is_an_error(self):
        environ = pick_time.child_environ(pick_time.WAYS[1], self.folder, None)
        environ["CUDA_VISIBLE_DEVICES"] = ""
        reply = pick_time._child((16, 64, 64), environ, pick_time.Deadline(None))
        self.assertIn("exit code 1", reply["error"])

    def test_the_child_prints_json(self):
        with (
            mock.patch.object(pick_time, "measure", return_value=self.reply()),
            mock.patch.object(sys, "argv", ["x", "16", "64", "64"]),
            mock.patch("builtins.print") as said,
        ):
            pick_time.main()
        self.assertEqual(json.loads(said.call_args.args[0]), self.reply())


if __name__ == "__main__":
    run_tests()
