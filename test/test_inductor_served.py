"""What generated wrappers load, how kernels are timed, and the text between them."""

from __future__ import annotations

import contextlib
import unittest.mock
from dataclasses import replace
from typing import Any

import torch
from build_helper import grouped
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT32
from torch_cute_backend.epilogue.graph import EpilogueBuilder, EpilogueGraph, InputKind
from torch_cute_backend.errors import CacheError, CompileError
from torch_cute_backend.inductor import reasons, served, timing
from torch_cute_backend.inductor.report import report
from torch_cute_backend.inductor.spec import KernelSpec, Variant
from torch_cute_backend.problem import Accum, GemmProblem, Grouping
from torch_cute_backend.runtime import device, launch
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import lookup


def rowwise_problem(m: int = 64) -> GemmProblem:
    b = EpilogueBuilder(
        EpilogueGraph.linear(BFLOAT16, InputKind.ROW, InputKind.COL, BFLOAT16)
    )
    b.output(b.op("relu", b.op("mul", b.outputs[0].node, b.const(-0.5))), E4M3, "d1")
    return GemmProblem(
        "scaled_mm",
        m,
        512,
        256,
        a_dtype=E4M3,
        b_dtype=E4M3,
        scaling="rowwise",
        accum=Accum.EXACT,
        epilogue=b.graph(),
    )


def built(problem: GemmProblem, m: int, limit: int | None) -> Variant:
    chosen = lookup.choose(replace(problem, m=m), SM90)
    if isinstance(chosen, Status):
        raise AssertionError(str(chosen))
    result = build_kernel(problem, chosen.schedule, SM90)
    if isinstance(result, Status):
        raise AssertionError(str(result))
    return Variant(limit, result.schedule, result.source.sha256)


def spec_of(*variants: tuple[int, int | None]) -> KernelSpec:
    problem = rowwise_problem()
    return KernelSpec(SM90, problem, tuple(built(problem, *v) for v in variants))


class TestSpec(TestCase):
    def test_text_and_back(self) -> None:
        spec = spec_of((64, 64), (4096, None))
        text = spec.to_json()
        self.assertEqual(KernelSpec.from_json(text), spec)
        self.assertEqual(KernelSpec.from_json(text).to_json(), text)
        self.assertNotIn("\n", text)
        self.assertNotIn("'", text, "it stands between quotes in the wrapper")
        self.assertNotEqual(replace(spec, arch=SM100).digest, spec.digest)

    def test_grouped_problem(self) -> None:
        spec = replace(spec_of((64, None)), problem=grouped(Grouping.K, dtype=E4M3))
        self.assertEqual(KernelSpec.from_json(spec.to_json()), spec)

    def test_malformed_text_is_named(self) -> None:
        good = spec_of((64, None)).to_json()
        for bad in (
            "",
            "[]",
            "{}",
            good.replace('"format":3', '"format":99'),
            good.replace('"op":"scaled_mm",', ""),
            good.replace('"float8_e4m3fn"', '"float9"', 1),
            good.replace('"tile_m"', '"tile_q"'),
            good.replace("sm_90a", "sm_00"),
        ):
            with self.assertRaises(CacheError, msg=bad):
                KernelSpec.from_json(bad)


class TestServed(TestCase):
    def load(self, spec: KernelSpec) -> tuple[Any, list[Any]]:
        """The loaded GEMM, and the list that its launches are recorded in."""
        calls: list[Any] = []

        def load_kernel(source: Any) -> Any:
            return lambda *args: calls.append((source.sha256, args))

        with (
            unittest.mock.patch.object(launch, "load_kernel", load_kernel),
            unittest.mock.patch.object(
                device, "sm_count", side_effect=lambda index: 132 + index
            ),
        ):
            return served.load_gemm(spec.to_json(), 1), calls

    def test_one_variant_is_called_straight(self) -> None:
        spec = spec_of((64, None))
        gemm, calls = self.load(spec)
        a, b = torch.empty(64, 8), torch.empty(16, 8)
        gemm.run(a, b, gemm.ctas)
        ((sha, args),) = calls
        self.assertEqual(sha, spec.variants[0].sha256)
        self.assertIs(args[0], a)
        self.assertIs(args[1], b)
        self.assertEqual(args[2:], (133,))

    def test_variants_are_chosen_by_m(self) -> None:
        spec = spec_of((64, 64), (256, 256), (4096, None))
        gemm, calls = self.load(spec)
        for m in (1, 64, 65, 256, 257, 10**6):
            gemm.run(torch.empty(m, 0), gemm.ctas)
        first, second, last = (v.sha256 for v in spec.variants)
        wanted = [first, first, second, second, last, last]
        self.assertEqual([sha for sha, _ in calls], wanted)

    def test_each_variant_has_its_own_count_of_ctas(self) -> None:
        seen: list[Any] = []
        kernels = [lambda *args, i=i: seen.append((i, args[-1])) for i in range(3)]
        run = served._by_m(kernels, [64, 256], [132, 130, 132])
        for m in (64, 65, 257):
            run(torch.empty(m, 0), 132)
        self.assertEqual(seen, [(0, 132), (1, 130), (2, 132)])

    def test_kernel_of_another_version_is_refused(self) -> None:
        spec = spec_of((64, None))
        old = replace(spec, variants=(replace(spec.variants[0], sha256="0" * 64),))
        with self.assertRaisesRegex(CacheError, "another version of the package"):
            self.load(old)

    def test_schedule_that_no_longer_builds_is_refused(self) -> None:
        spec = spec_of((64, None))
        bad = replace(spec.variants[0].schedule, tile_m=7)
        old = replace(spec, variants=(replace(spec.variants[0], schedule=bad),))
        with self.assertRaisesRegex(CacheError, "prints a .*tile"):
            self.load(old)

    def test_variant_without_limit_in_the_middle_is_refused(self) -> None:
        spec = spec_of((64, None), (4096, None))
        with self.assertRaisesRegex(CacheError, "no limit of M"):
            self.load(spec)


class TestTiming(TestCase):
    """The GPU's part is replaced; what is tested is which tensors are timed."""

    def time(self, layouts: Any, buffers: Any, kernel: Any) -> Any:
        def replay(launch_one: Any) -> float:
            for i in range(timing.LAUNCHES):
                launch_one(i)
            return 0.5

        cpu = torch.device("cpu")
        with (
            unittest.mock.patch.object(launch, "load_kernel", return_value=kernel),
            unittest.mock.patch.object(timing, "_replay", replay),
            unittest.mock.patch.object(device, "sm_count", return_value=132),
            unittest.mock.patch.object(device, "device_index", return_value=0),
            unittest.mock.patch.object(
                torch.cuda, "device", return_value=contextlib.nullcontext()
            ),
        ):
            return timing.time_layouts(None, layouts, buffers, cpu)  # type: ignore[arg-type]

    def test_views_of_the_given_buffers_are_timed(self) -> None:
        base = torch.arange(6 * 4, dtype=torch.float32).reshape(6, 4)
        layouts = [
            ("w", torch.float32, ((4, 6), (1, 4), 0)),
            ("w", torch.float32, ((2, 2), (4, 1), 9)),
            ("x", torch.float32, ((3,), (2,), 1)),
        ]
        seen: list[Any] = []
        ms = self.time(layouts, {"w": base[2:]}, lambda *args: seen.append(args))
        self.assertEqual(ms, 0.5)
        transposed, window, fresh, ctas = seen[0]
        self.assertEqual(transposed, base.t())
        self.assertEqual(transposed.data_ptr(), base.data_ptr())
        self.assertEqual(window, base.flatten()[9:].as_strided((2, 2), (4, 1)))
        self.assertEqual((fresh.shape, fresh.stride()), ((3,), (2,)))
        self.assertEqual(ctas, 132)

    def test_operands_rotate_through_copies(self) -> None:
        seen: list[Any] = []
        layout = [("w", torch.float32, ((4, 6), (6, 1), 0))]
        self.time(layout, {}, lambda *args: seen.append(args[0].data_ptr()))
        self.assertEqual(len(set(seen)), timing.MAX_SETS)
        with unittest.mock.patch.object(timing, "FOOTPRINT_BYTES", 3 * 4 * 6 * 4):
            seen.clear()
            self.time(layout, {}, lambda *args: seen.append(args[0].data_ptr()))
        self.assertEqual(len(set(seen)), 3)

    def test_a_buffer_of_another_dtype_is_not_reinterpreted(self) -> None:
        buffers = {"w": torch.zeros(64, dtype=torch.int32)}
        seen: list[Any] = []
        layout = [("w", torch.bfloat16, ((4, 6), (6, 1), 0))]
        self.time(layout, buffers, lambda *args: seen.append(args[0]))
        self.assertEqual(seen[0].dtype, torch.bfloat16)
        self.assertNotEqual(seen[0].data_ptr(), buffers["w"].data_ptr())

    def test_random_numbers_of_the_program_are_kept(self) -> None:
        layout = [("w", torch.float32, ((4, 6), (6, 1), 0))]
        torch.manual_seed(5)
        first = torch.rand(3)
        torch.manual_seed(5)
        self.time(layout, {}, lambda *args: None)
        self.assertEqual(torch.rand(3), first)

    def test_a_kernel_that_fails_is_a_status(self) -> None:
        for error in (RuntimeError("launch failed"), ValueError("bad stride")):
            layout = [("w", torch.float32, ((1,), (1,), 0))]
            kernel = unittest.mock.Mock(side_effect=error)
            status = self.time(layout, {}, kernel)
            self.assertIsInstance(status, Status)
            self.assertIn(str(error), str(status))

    def test_compile_errors_are_statuses(self) -> None:
        class Pool:
            def submit(self, source: Any, gate: bool = True) -> Any:
                outcome: Any = unittest.mock.Mock()
                if source == "bad":
                    outcome.result.side_effect = CompileError("ptxas said no")
                return outcome

        with unittest.mock.patch.object(timing, "shared_pool", Pool):
            good, bad = timing.compiled(["good", "bad"])  # type: ignore[list-item]
        self.assertTrue(good)
        self.assertIn("ptxas said no", str(bad))


class TestReport(TestCase):
    def test_report_is_plain_data(self) -> None:
        import json

        import torch_cute_backend

        torch_cute_backend.enable()
        reasons.clear()
        reasons.record("aten.mm", "lowering", Status.no("too small"), "M=1")
        value = json.loads(json.dumps(report()))
        self.assertEqual(value["supported"], "ok")
        self.assertTrue(value["installed"])
        self.assertIn("aten.mm.default", value["ops"])
        self.assertIn("aten._scaled_mm.default", value["ops"])
        (refusal,) = value["refusals"]
        self.assertEqual(refusal["reason"], "too small")


class TestRealKernel(TestCase):
    def test_a_wrapper_s_kernel_compiles_and_loads_without_a_gpu(self) -> None:
        spec = spec_of((64, None))
        with unittest.mock.patch.object(device, "sm_count", return_value=132):
            gemm = served.load_gemm(spec.to_json(), 0)
        build = served.rebuild(spec, spec.variants[0])
        self.assertIsInstance(build, KernelBuild)
        names = [arg.name for arg in build.source.args]
        self.assertEqual(names[:4], ["a", "b", "d", "d1"])
        # The entry refuses CPU tensors, so it is the real one.
        tensors = [torch.zeros(64, 256).to(torch.float8_e4m3fn) for _ in names]
        with self.assertRaisesRegex(
            (ValueError, TypeError), "(?i)cuda|device|mismatch"
        ):
            gemm.run(*tensors, gemm.ctas)
        self.assertEqual(build.source.args[0].dtype, E4M3)
        self.assertEqual(build.source.args[-1].dtype, BFLOAT16)
        self.assertIn(FLOAT32, [arg.dtype for arg in build.source.args])


if __name__ == "__main__":
    run_tests()
