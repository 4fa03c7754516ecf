"""Programmatic dependent launch on a GPU, where the simulator cannot look: several
kernels at once.

A chain of GEMMs in one graph, each reading what the one before wrote. The weights are
permutation matrices, so the end is the beginning with its columns permuted, to the bit;
a kernel that reads before its predecessor has written finds poison.
"""

from __future__ import annotations

import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parent.parent))

from torch_cute_backend import config
from torch_cute_backend.bench import protocol
from torch_cute_backend.bench.cases import problem_of
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.runtime import device, gemm, launch
from torch_cute_backend.tuning import lookup

HAS_GPU = torch.cuda.is_available() and device.default_arch() is not None
KERNELS = 24
REPLAYS = 50


@unittest.skipUnless(HAS_GPU, "needs a GPU of a supported arch")
class TestDependentLaunch(TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(config.patch(cache_dir=Path(folder) / "cache"))
        launch.forget()
        self.addCleanup(launch.forget)
        # A graph keeps no memory alive: weights that are freed would be written over.
        self.weights: list[torch.Tensor] = []

    def build(self, m: int, size: int, how: str) -> KernelBuild:
        arch, problem = device.default_arch(), problem_of("bf16", (m, size, size))
        schedule = lookup.choose(problem, arch).schedule
        result = build_kernel(problem, replace(schedule, launch=how), arch)
        self.assertIsInstance(result, KernelBuild)
        return result

    def chain(self, m: int, size: int, how: str):
        """Tensors of the chain, first to last, the order of columns at its end, and a
        graph of it."""
        build = self.build(m, size, how)
        generator = torch.Generator("cuda").manual_seed(3)
        x = [torch.empty(m, size, device="cuda", dtype=torch.bfloat16)]
        order, calls = torch.arange(size, device="cuda"), []
        for _ in range(KERNELS):
            step = torch.randperm(size, device="cuda", generator=generator)
            weight = torch.eye(size, device="cuda", dtype=torch.bfloat16)[step]
            self.weights.append(weight)
            x.append(torch.empty_like(x[0]))
            # (x @ weight.t())[:, j] is x[:, step[j]].
            calls.append(gemm.bind(build, x[-2], weight.t(), out=[x[-1]]))
            order = order[step]
        graph, count = protocol.capture(calls)
        self.assertEqual(count, KERNELS)
        return x, order, graph

    @parametrize("m,size", [(1, 512), (64, 1024), (64, 4096), (512, 2048)])
    def test_a_chain_in_a_graph(self, m, size):
        x, order, graph = self.chain(m, size, "dependent")
        for i in range(REPLAYS):
            for tensor in x[1:]:
                tensor.fill_(float("nan"))
            x[0].copy_(torch.randint(-100, 101, x[0].shape, device="cuda"))
            graph.replay()
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(x[-1], x[0][:, order]), f"replay {i}")

    def test_it_saves_time_between_kernels(self):
        graphs = {
            how: (self.chain(64, 1024, how)[2], KERNELS)
            for how in ("plain", "dependent")
        }
        us = {how: t.us for how, t in protocol.time_graphs(graphs).items()}
        print(us)
        self.assertLess(us["dependent"], us["plain"])


instantiate_parametrized_tests(TestDependentLaunch)

if __name__ == "__main__":
    run_tests()
