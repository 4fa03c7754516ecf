"""Loading and launching on a GPU: numbers, streams, capture, threads, the self-test.

A small element-wise kernel stands for all of them here, except where the question is
about a GEMM.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parent.parent))

from runtime_kernels import scale_source

from torch_cute_backend import config
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import SCALE_INPUTS, GemmProblem
from torch_cute_backend.runtime import (
    device,
    gemm,
    launch,
    pool,
    selftest,
    serial,
    validated,
)
from torch_cute_backend.tuning.lookup import choose

HAS_GPU = torch.cuda.is_available() and device.default_arch() is not None

FIRST_CALL = """
import json, sys
import torch
from torch_cute_backend.runtime import launch, serial
loaded = launch.load(serial.source_from_json(json.load(sys.stdin)))
x = torch.randn(64, 256, device="cuda").bfloat16()
s, y = torch.full((1,), 2.0, device="cuda"), torch.full_like(x, float("nan"))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loaded.function(x, s, y, 8)
graph.replay()
torch.cuda.synchronize()
print(json.dumps([loaded.how, bool((y == 2 * x).all()), "cutlass" in sys.modules]))
"""


@unittest.skipUnless(HAS_GPU, "needs a GPU of a supported arch")
class GpuTestCase(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        patch = config.patch(cache_dir=Path(folder.name) / "cache")
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)
        launch.forget()
        self.addCleanup(launch.forget)
        self.arch = device.default_arch()


class TestLaunch(GpuTestCase):
    def arguments(self, rows=64, cols=256):
        x = torch.randn(rows, cols, device="cuda").bfloat16()
        return x, torch.full((1,), 2.0, device="cuda"), torch.full_like(x, torch.nan)

    def kernel(self):
        return launch.load_kernel(scale_source(self.arch.name))

    @parametrize("rows", [1, 3, 64, 1000])
    @parametrize("ctas", [1, 132])
    def test_numbers_at_any_size(self, rows, ctas):
        x, s, y = self.arguments(rows, 8 * rows)
        self.kernel()(x, s, y, ctas)
        self.assertEqual(y, 2 * x, rtol=0, atol=0)

    def test_padded_views(self):
        x, s, _ = self.arguments()
        base = torch.full((64, 512), 7.0, device="cuda", dtype=torch.bfloat16)
        self.kernel()(x, s, base[:, 128:384], 8)
        self.assertEqual(base[:, 128:384], 2 * x, rtol=0, atol=0)
        self.assertTrue((base[:, :128] == 7).all() and (base[:, 384:] == 7).all())

    def test_current_stream(self):
        """Behind a sleeping kernel on a side stream the result must wait for it."""
        kernel, (x, s, y) = self.kernel(), self.arguments()
        kernel(x, s, y, 8)
        x.zero_()
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            x.fill_(3)
            kernel(x, s, y, 8)
        side.synchronize()
        self.assertTrue((y == 6).all())

    def test_argument_checks(self):
        kernel, (x, s, y) = self.kernel(), self.arguments()
        bad = {
            "dtype": (x.half(), s, y, 8),
            "shape": (x[:, :128], s, y, 8),
            "column major": (x.t().contiguous().t(), s, y, 8),
            "misaligned": (x[:, 1:249], s, y[:, :248], 8),
        }
        for name, arguments in bad.items():
            with self.subTest(name), self.assertRaises(ValueError):
                kernel(*arguments)

    def test_first_call_in_a_capture_of_a_warm_process(self):
        source = scale_source(self.arch.name)
        self.kernel()
        environ = pool.child_environ(gpu=True)
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CALL],
            input=json.dumps(serial.source_to_json(source)),
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), ["shared object", True, False])

    def test_no_allocation_and_no_sync(self):
        kernel, (x, s, y) = self.kernel(), self.arguments()
        kernel(x, s, y, 8)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(100):
                kernel(x, s, y, 8)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        after = torch.cuda.memory_stats()["allocation.all.allocated"]
        self.assertEqual(after, before)

    def test_threads(self):
        kernel = self.kernel()
        results = []

        def work():
            x, s, y = self.arguments()
            for _ in range(50):
                kernel(x, s, y, 8)
            results.append(bool((y == 2 * x).all()))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [True] * 8)

    def test_counter(self):
        launch.reset_launches()
        with config.patch(count_launches=True):
            kernel = self.kernel()
        for _ in range(3):
            kernel(*self.arguments(), 8)
        self.assertEqual(launch.launches(), {"scale": 3})


class TestGemm(GpuTestCase):
    def build(self, m=64, n=256, k=256) -> KernelBuild:
        epilogue = EpilogueGraph.linear(BFLOAT16, *SCALE_INPUTS["rowwise"])
        problem = GemmProblem(
            "scaled_mm", m, n, k, E4M3, E4M3, scaling="rowwise", epilogue=epilogue
        )
        return build_kernel(problem, choose(problem, self.arch).schedule, self.arch)

    def tensors(self, m, n, k):
        a = torch.randint(-2, 3, (m, k), device="cuda").to(torch.float8_e4m3fn)
        b = torch.randint(-2, 3, (n, k), device="cuda").to(torch.float8_e4m3fn).t()
        scale_a = 2.0 ** torch.randint(-1, 2, (m, 1), device="cuda").float()
        scale_b = 2.0 ** torch.randint(-1, 2, (1, n), device="cuda").float()
        exact = (a.float() @ b.float()) * scale_a * scale_b
        return (a, b, scale_a, scale_b), exact.to(torch.bfloat16)

    @parametrize("m", [1, 3, 64, 65, 257])
    def test_exact_on_small_integers(self, m):
        tensors, exact = self.tensors(m, 256, 512)
        (out,) = gemm.run(self.build(), *tensors)
        self.assertEqual(out, exact, rtol=0, atol=0)

    @parametrize("sizes", [(0, 256, 256), (64, 0, 256), (0, 0, 0), (64, 256, 0)])
    def test_empty_sizes(self, sizes):
        m, n, _ = sizes
        tensors, _ = self.tensors(*sizes)
        (out,) = gemm.run(self.build(), *tensors)
        self.assertEqual(out, torch.zeros(m, n, device="cuda", dtype=torch.bfloat16))

    def test_size_one_rows_of_any_stride(self):
        (a, *rest), exact = self.tensors(1, 256, 256)
        (out,) = gemm.run(self.build(), a.as_strided((1, 256), (3, 1)), *rest)
        self.assertEqual(out, exact, rtol=0, atol=0)

    def test_refused(self):
        (a, b, *scales), _ = self.tensors(64, 256, 256)
        with self.assertRaisesRegex(UserError, "one CUDA device"):
            gemm.run(self.build(), a.cpu(), b, *scales)
        with self.assertRaisesRegex(UserError, "no gradient"):
            gemm.run(self.build(), a, b, scales[0].requires_grad_(), scales[1])
        with self.assertRaisesRegex(UserError, "num_ctas=0"), torch.no_grad():
            gemm.run(self.build(), a, b, *scales, num_ctas=0)


class TestSelfTest(GpuTestCase):
    @parametrize("scaling", ["none", "tensorwise", "rowwise"])
    def test_child_passes(self, scaling):
        kind = BFLOAT16 if scaling == "none" else E4M3
        problem = GemmProblem(
            "mm" if scaling == "none" else "scaled_mm",
            64,
            5120,
            5120,
            kind,
            kind,
            scaling=scaling,
            epilogue=EpilogueGraph.linear(BFLOAT16, *SCALE_INPUTS[scaling]),
        )
        schedule = choose(problem, self.arch).schedule
        index = torch.cuda.current_device()
        row = validated.self_test_request(problem, schedule, self.arch.name, index)
        kernels = validated.KernelClass.of(problem, schedule, self.arch)
        verdict = validated.run_self_test(kernels, row)
        self.assertTrue(verdict, str(verdict))

    def test_a_wrong_kernel_fails(self):
        problem = TestGemm.build(self).problem
        schedule = choose(problem, self.arch).schedule
        row = validated.self_test_request(problem, schedule, self.arch.name, 0)
        built = selftest.build(row)

        def wrong(*arguments, **options):
            gemm.run(*arguments, **options)
            options["out"][0][-1, -1] += 1

        self.assertIsNone(selftest.check(built, "cuda", gemm.run, (None,)))
        self.assertIn("1 of", selftest.check(built, "cuda", wrong, (None,)))


instantiate_parametrized_tests(TestLaunch)
instantiate_parametrized_tests(TestGemm)
instantiate_parametrized_tests(TestSelfTest)

if __name__ == "__main__":
    run_tests()
