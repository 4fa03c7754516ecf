"""When compiler processes start: before the first GEMM is lowered, and only then."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch._inductor import config as inductor_config
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import config
from torch_cute_backend.arch import arch_spec
from torch_cute_backend.bench.cases import problem_of
from torch_cute_backend.build import build_kernel
from torch_cute_backend.inductor import choice, early, timing
from torch_cute_backend.inductor.cachekey import PluginPass
from torch_cute_backend.problem import Grouping
from torch_cute_backend.runtime import device
from torch_cute_backend.runtime.validated import KernelClass
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup


def graph(target: object) -> torch.fx.GraphModule:
    built = torch.fx.Graph()
    x = built.placeholder("x")
    built.output(built.call_function(target, (x, x)))
    return torch.fx.GraphModule(torch.nn.Module(), built)


class TestFewer(TestCase):
    """How many kernels a GEMM is offered: each one is compiled."""

    def offered(self, problem) -> int:
        request = SimpleNamespace(problem=problem, device=None)
        spec = arch_spec("sm_90a")
        target = SimpleNamespace(arch=spec, name="sm_90a")

        def build(request, target, arch, schedule):
            return build_kernel(request.problem, schedule, arch)

        with (
            mock.patch.object(choice, "target_of", return_value=target),
            mock.patch.object(choice, "_checked_build", side_effect=build),
        ):
            found = choice.build_candidates(request)
        self.assertEqual(found[0].choice, lookup.choose(problem, spec))
        return len(found)

    def test_one_where_the_table_settles_it(self):
        self.assertEqual(self.offered(problem_of("fp8", (16, 4096, 4096))), 1)

    def test_four_where_it_does_not(self):
        self.assertEqual(self.offered(problem_of("fp8", (16, 4096, 4112))), 4)


GEMM = graph(torch.ops.aten.mm.default)
NO_GEMM = graph(torch.ops.aten.add.Tensor)


class TestEarly(TestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.root = Path(folder)
        self.enterContext(config.patch(cache_dir=self.root, compile_workers=3))
        self.warm = self.enterContext(mock.patch.object(timing, "warm"))
        self.enterContext(inductor_config.patch(max_autotune=True))
        self.patch_gpu(arch_spec("sm_90a"))

    def patch_gpu(self, arch: object) -> None:
        for owner, name, value in (
            (torch.cuda, "is_initialized", True),
            (device, "default_arch", arch),
        ):
            replaced = mock.patch.object(owner, name, return_value=value)
            self.enterContext(replaced)

    def fill_cache(self) -> None:
        (self.root / "entries" / "some_key").mkdir(parents=True)

    def started(self) -> list[int]:
        return [call.args[0] for call in self.warm.call_args_list]

    def test_an_empty_cache_starts_all_at_the_first_moment(self) -> None:
        early.on_key()
        self.assertEqual(self.started(), [3])

    def test_a_filled_cache_waits_for_a_graph_that_is_new(self) -> None:
        self.fill_cache()
        early.on_key()
        self.assertEqual(self.started(), [])
        early.on_graph(GEMM)
        self.assertEqual(self.started(), [1])

    def test_a_cache_that_cannot_be_read_stops_no_compilation(self) -> None:
        # What lowering makes of such a folder is a reason, not an exception.
        with config.patch(cache_dir=self.root / ("x" * 300)):
            early.on_key()
            early.on_graph(GEMM)
        self.assertEqual(self.started(), [1])

    def test_the_pass_of_the_cache_key_tells_both_moments(self) -> None:
        plugin = PluginPass(None)
        plugin.uuid()
        plugin(GEMM)
        self.assertEqual(self.started(), [3, 3])

    def test_not_for_a_graph_without_a_gemm(self) -> None:
        early.on_graph(NO_GEMM)
        self.assertEqual(self.started(), [])

    def assert_off(self) -> None:
        early.on_key()
        early.on_graph(GEMM)
        self.assertEqual(self.started(), [])

    def test_not_without_max_autotune(self) -> None:
        with inductor_config.patch(max_autotune=False, max_autotune_gemm=False):
            self.assert_off()

    def test_not_while_disabled(self) -> None:
        with config.patch(enabled=False):
            self.assert_off()

    def test_not_for_a_gpu_without_kernels(self) -> None:
        self.patch_gpu(None)
        self.assert_off()

    def test_not_where_our_backend_is_not_asked_for(self) -> None:
        with inductor_config.patch(max_autotune_gemm_backends="ATEN"):
            self.assert_off()

    def test_cuda_is_not_initialised_for_it(self) -> None:
        with mock.patch.object(torch.cuda, "is_initialized", return_value=False):
            self.assert_off()


class TestAsLaunched(TestCase):
    SCHEDULE = GemmSchedule(64, 64, 128, 6, epi_n=64)

    def test_off_by_default(self) -> None:
        problem = problem_of("fp8", (64, 512, 512))
        self.assertEqual(choice.as_launched(self.SCHEDULE, problem), self.SCHEDULE)

    def test_on_for_dense_kernels_only(self) -> None:
        problem = problem_of("fp8", (64, 512, 512))
        grouped = replace(problem, grouping=Grouping.M, groups=4)
        with config.patch(dependent_launch=True):
            dense = choice.as_launched(self.SCHEDULE, problem)
            self.assertEqual(dense, replace(self.SCHEDULE, launch="dependent"))
            self.assertTrue(dense.validate(problem, arch_spec("sm_90a")))
            ragged = choice.as_launched(self.SCHEDULE, grouped)
            self.assertEqual(ragged, self.SCHEDULE)

    def test_it_is_part_of_the_cache_key(self) -> None:
        plain = PluginPass(None).uuid()
        with config.patch(dependent_launch=True):
            self.assertNotEqual(PluginPass(None).uuid(), plain)

    def test_it_is_validated_apart(self) -> None:
        problem, arch = problem_of("fp8", (64, 512, 512)), arch_spec("sm_90a")
        dependent = replace(self.SCHEDULE, launch="dependent")
        plain = KernelClass.of(problem, self.SCHEDULE, arch)
        kernels = KernelClass.of(problem, dependent, arch)
        self.assertNotEqual(kernels, plain)
        self.assertTrue(str(kernels).endswith("single cluster, dependent launch"))


if __name__ == "__main__":
    run_tests()
