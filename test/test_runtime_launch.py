"""Loading and the compile pool, on a machine without a GPU.

What can be seen without one: which path loads, that the entry checks its arguments,
that cutlass stays out of a warm process, that a stuck compiler is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import torch
from runtime_kernels import scale_source, spill_source
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import config, phases
from torch_cute_backend.errors import CacheError, CompileError
from torch_cute_backend.runtime import compile as rt
from torch_cute_backend.runtime import launch, pool, serial, toolchain
from torch_cute_backend.runtime.cache import KernelCache

WARM = """
import json, sys
from torch_cute_backend.runtime import launch, serial
source = serial.source_from_json(json.load(sys.stdin))
loaded = launch.load(source)
print(json.dumps({
    "how": loaded.how,
    "compiled": loaded.compiled,
    "callable": callable(loaded.function),
    "cutlass": "cutlass" in sys.modules,
}))
"""


class RuntimeTestCase(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "cache"
        patch = config.patch(cache_dir=self.root)
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)
        launch.forget()
        self.addCleanup(launch.forget)


class TestLoad(RuntimeTestCase):
    def test_cold_then_warm_process(self):
        source = scale_source()
        cold = launch.load(source)
        self.assertTrue(cold.compiled)
        self.assertIs(launch.load(source), cold)
        self.assertIs(launch.load(cold.entry.key), cold)
        warm = self.warm_process(source)
        self.assertEqual(
            warm,
            {
                "how": "shared object",
                "compiled": False,
                "callable": True,
                "cutlass": False,
            },
        )

    def warm_process(self, source):
        environ = pool.child_environ()
        environ["TORCH_CUTE_BACKEND_CACHE_DIR"] = str(self.root)
        done = subprocess.run(
            [sys.executable, "-c", WARM],
            input=json.dumps(serial.source_to_json(source)),
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    def test_object_serves_where_there_is_no_linker(self):
        with mock.patch.object(toolchain, "linker", return_value=None):
            entry = KernelCache().store(rt.compile_kernel(scale_source()))
        self.assertIsNone(entry.shared)
        loaded = launch.load(scale_source())
        self.assertEqual((loaded.how, loaded.compiled), ("object", False))
        with self.assertRaisesRegex(ValueError, "cuda"):
            loaded.function(*self.cpu_arguments())

    def cpu_arguments(self):
        x = torch.zeros(4, 8, dtype=torch.bfloat16)
        return x, torch.ones(1), torch.empty_like(x), 4

    def test_entry_checks_arguments(self):
        function = launch.load_kernel(scale_source())
        with self.assertRaisesRegex(ValueError, "device_type=cuda"):
            function(*self.cpu_arguments())
        with self.assertRaisesRegex(TypeError, "num_ctas"):
            function(torch.ones(1))

    def test_launch_counter(self):
        launch.reset_launches()
        with config.patch(count_launches=True):
            function = launch.load_kernel(scale_source())
        with self.assertRaises(ValueError):
            function(*self.cpu_arguments())
        self.assertEqual(launch.launches(), {})
        counted = launch.counted(lambda *args: None, "scale")
        counted()
        counted()
        self.assertEqual(launch.launches(), {"scale": 2})

    def test_bare_function_without_counter(self):
        import tvm_ffi

        self.assertIsInstance(launch.load_kernel(scale_source()), tvm_ffi.Function)

    def test_several_at_once(self):
        sources = [scale_source(note=str(i)) for i in range(3)]
        functions = launch.load_kernels(sources)
        self.assertEqual(functions, [launch.load_kernel(s) for s in sources])
        self.assertEqual(len({id(f) for f in functions}), 3)

    def test_threads_share_one_load(self):
        source = scale_source()
        with ThreadPoolExecutor(4) as threads:
            loaded = list(threads.map(launch.load, [source] * 8))
        self.assertEqual(len({id(one) for one in loaded}), 1)

    def test_unknown_key(self):
        with self.assertRaisesRegex(CacheError, "no intact cache entry"):
            launch.load_kernel("f" * 64)

    def test_corrupt_entry_is_compiled_again(self):
        entry = pool.compile_isolated(scale_source())
        entry.object.write_bytes(b"")
        loaded = launch.load(scale_source())
        self.assertTrue(loaded.compiled)
        self.assertEqual(KernelCache().verify(), {})


class TestPool(RuntimeTestCase):
    def test_gate_and_ungated(self):
        with self.assertRaisesRegex(CompileError, "spilled"):
            pool.compile_isolated(spill_source())
        entry = pool.compile_isolated(spill_source(), gate=False)
        self.assertFalse(entry.gate)
        with self.assertRaisesRegex(CompileError, "spilled"):
            pool.compile_isolated(spill_source())

    def test_jobs_share_children_and_futures(self):
        compilers = pool.CompilePool(workers=1)
        self.addCleanup(compilers.close)
        sources = [scale_source(note=str(i)) for i in range(3)]
        futures = [compilers.submit(s) for s in sources]
        self.assertIs(compilers.submit(sources[2]), futures[2])
        entries = [f.result(timeout=120) for f in futures]
        self.assertEqual(len({e.key for e in entries}), 3)
        self.assertEqual(len(compilers._children), 1)

    def test_jobs_with_and_without_a_gate_share_one_compilation(self):
        compilers = pool.CompilePool(workers=1)
        self.addCleanup(compilers.close)
        phases.clear()
        gated = compilers.submit(spill_source())
        ungated = compilers.submit(spill_source(), gate=False)
        self.assertFalse(ungated.result(timeout=120).gate)
        with self.assertRaisesRegex(CompileError, "spilled"):
            gated.result(timeout=120)
        again = compilers.submit(spill_source())
        with self.assertRaisesRegex(CompileError, "spilled"):
            again.result(timeout=120)
        compiled = [p for p in phases.recorded() if p.name == "compile"]
        self.assertEqual(len(compiled), 1)

    def test_children_started_early_serve_the_jobs(self):
        compilers = pool.CompilePool(workers=2)
        self.addCleanup(compilers.close)
        phases.clear()
        compilers.warm(1)
        compilers.warm(1)
        entry = compilers.submit(scale_source()).result(timeout=120)
        compilers.warm(9)
        compilers._threads.shutdown(wait=True)
        self.assertEqual(len(compilers._children), 2)
        spans = [(p.name, p.detail) for p in phases.recorded()]
        self.assertEqual([name for name, _ in spans].count("compiler start"), 2)
        (compiled,) = [detail for name, detail in spans if name == "compile"]
        self.assertRegex(compiled, rf"{entry.name}, \d+\.\d\d s in it")

    def test_a_child_that_cannot_start_is_said_by_the_job(self):
        compilers = pool.CompilePool(workers=1)
        self.addCleanup(compilers.close)
        with mock.patch.object(pool.sys, "executable", "/bin/false"):
            compilers.warm(1)
            future = compilers.submit(scale_source())
            with self.assertRaisesRegex(CompileError, "the child process died"):
                future.result(timeout=60)

    def test_a_process_that_the_system_refuses_is_an_error_of_the_job(self):
        compilers = pool.CompilePool(workers=1)
        self.addCleanup(compilers.close)
        refused = BlockingIOError(11, "Resource temporarily unavailable")
        with mock.patch.object(pool.subprocess, "Popen", side_effect=refused):
            future = compilers.submit(scale_source())
            with self.assertRaisesRegex(CompileError, "temporarily unavailable"):
                future.result(timeout=60)

    def test_timeout_kills_the_child(self):
        compilers = pool.CompilePool(workers=1, timeout_s=0.3)
        self.addCleanup(compilers.close)
        start = time.monotonic()
        future = compilers.submit(spill_source())
        with self.assertRaisesRegex(CompileError, "spill .*timed out after 0.3 s"):
            future.result(timeout=60)
        # Compiling it takes seconds, on a loaded machine many.
        self.assertLess(time.monotonic() - start, 60)
        self.assertFalse(compilers._children[0].alive())

    def test_child_that_dies(self):
        child = pool.WorkerProcess(module="torch_cute_backend.version")
        self.addCleanup(child.kill)
        with self.assertRaisesRegex(CompileError, "died"):
            child.call({}, timeout_s=30)

    def test_native_crash_says_where(self):
        child = pool.WorkerProcess(module="selftest_child")
        self.addCleanup(child.kill)
        with self.assertRaisesRegex(CompileError, "Aborted(.|\n)*selftest_child.py"):
            child.call({"behaviour": "abort"}, timeout_s=60)

    def test_bad_source_says_why(self):
        source = scale_source()
        bad = type(source)("bad", "import no_such_module", "f", "sm_90a", ())
        with self.assertRaisesRegex(CompileError, "no_such_module"):
            pool.compile_isolated(bad)

    def test_child_does_not_load_torch(self):
        child = pool.WorkerProcess()
        self.addCleanup(child.kill)
        child.call({"ready": True}, timeout_s=60)
        loaded = Path(f"/proc/{child._process.pid}/maps").read_text(encoding="utf-8")
        self.assertIn("libtvm_ffi", loaded)
        self.assertNotIn("libtorch", loaded)

    def test_child_sees_no_gpu_and_no_plugin(self):
        environ = pool.child_environ()
        self.assertEqual(environ["CUDA_VISIBLE_DEVICES"], "")
        self.assertEqual(environ["TORCH_CUTE_BACKEND_ENABLED"], "0")
        self.assertNotIn("", environ["PYTHONPATH"].split(os.pathsep))


if __name__ == "__main__":
    run_tests()
