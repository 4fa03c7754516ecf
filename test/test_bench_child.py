"""The process that runs kernels, its requests answered on the CPU: graphs are stood in
for by plain calls, our kernel by torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from unittest import mock

import torch
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import cases, child, protocol, providers
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.runtime import launch
from torch_cute_backend.tuning import model

SHAPE = [48, 64, 128]


class Graph:
    def replay(self) -> None:
        pass


def kernel(a, b, out, *rest) -> None:
    """What ours computes, on the CPU."""
    result = a.float() @ b.float().t()
    if len(rest) == 3:
        result = result * rest[0][:, None] * rest[1][None, :]
    out.copy_(result)


class TestChild(TestCase):
    def setUp(self):
        super().setUp()
        child._open.clear()
        self.kernel = kernel
        stack = self.enterContext(ExitStack())

        def patch(target: object, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        made = cases.make_inputs
        patch(child, "make_inputs", lambda p, n, **_: made(p, n, "cpu"))
        patch(child, "_arch", lambda: SM90)
        patch(child.device, "sm_count", lambda _: 132)
        patch(providers, "kernel_for", self.kernel_for)
        patch(protocol, "input_sets", lambda size, device, cold: 3 if cold else 1)
        patch(protocol, "capture", self.capture)
        patch(protocol, "time_graphs", self.time_graphs)
        for name in ("synchronize", "empty_cache"):
            patch(torch.cuda, name, lambda: None)
        patch(torch.cuda, "current_device", lambda: 0)

    def kernel_for(self, problem, schedule, arch, cached_only=False):
        return launch.counted(self.kernel, "the_kernel"), "the_kernel"

    def capture(self, calls):
        for call in calls:
            call()
        return Graph(), len(calls)

    def time_graphs(self, graphs, rounds):
        return {
            name: protocol.Timing(float(rounds), 1.0, count)
            for name, (_, count) in graphs.items()
        }

    def open(self, kind: str = "bf16", cold: bool = True) -> dict:
        request = {"op": "open", "suite": "headline", "kind": kind, "shape": SHAPE}
        return child.handle({**request, "cold": cold})

    def add(self, provider: str = OURS, name: str = "x", accum: str = "fast") -> dict:
        schedule = None
        if provider == OURS:
            problem = cases.problem_of("bf16", tuple(SHAPE))
            schedule = model.rank(problem, SM90, 1)[0].to_json()
        request = {"op": "add", "provider": provider, "name": name, "accum": accum}
        return child.handle({**request, "schedule": schedule})

    def test_open_add_time(self):
        self.assertEqual(self.open(), {"sets": 3})
        self.assertEqual(self.add()["kernel"], "the_kernel")
        self.assertIsNone(self.add("aten", "y")["kernel"])
        reply = child.handle({"op": "time", "names": ["x", "y"], "rounds": 7})
        self.assertEqual(reply["us"], {"x": [7.0, 1.0, 3], "y": [7.0, 1.0, 3]})

    def test_fp8_gets_its_scales(self):
        self.open("fp8", cold=False)
        self.assertEqual(self.add()["kernel"], "the_kernel")

    def test_wrong_numbers_are_refused(self):
        self.open()
        self.kernel = lambda a, b, out, *rest: out.zero_()
        self.assertIn("elements are wrong", self.add()["error"])
        reply = child._state().graphs
        self.assertEqual(reply, {})

    def test_an_unwritten_element_is_refused(self):
        self.open()

        def all_but_one(a, b, out, *rest) -> None:
            kept = out[47, 63].clone()
            kernel(a, b, out, *rest)
            out[47, 63] = kept

        self.kernel = all_but_one
        self.assertIn("1 of 3072 elements are wrong", self.add()["error"])

    def test_a_launch_that_is_not_ours_is_refused(self):
        self.open()
        uncounted = mock.patch.object(
            providers, "kernel_for", return_value=(kernel, "the_kernel")
        )
        with uncounted:
            self.assertIn("expected one launch", self.add()["error"])

    def test_requests_out_of_order_and_unknown_providers(self):
        self.assertIn("no case is open", self.add()["error"])
        self.open()
        self.assertIn("unknown provider", self.add("nobody")["error"])
        self.assertIn("not a Python file", self.add("mine=none.py")["error"])
        self.assertIn("is not installed", self.add("deep_gemm")["error"])

    def test_a_new_case_forgets_the_old(self):
        self.open()
        self.add()
        self.open("fp8")
        self.assertEqual(child._state().graphs, {})
        child.handle({"op": "drop", "names": ["x"]})

    def test_sweep(self):
        problem = cases.problem_of("bf16", tuple(SHAPE))
        schedule = model.rank(problem, SM90, 1)[0].to_json()
        request = {"op": "sweep", "kind": "fp8", "accum": "fast", "schedule": schedule}
        request["shapes"] = [[3, 16, 32], [65, 48, 112]]
        exact = child.check.sweep_exact

        def on_cpu(problem, shapes, run):
            return exact(problem, shapes, run, "cpu")

        with mock.patch.object(child.check, "sweep_exact", on_cpu):
            reply = child.handle(request)
        self.assertEqual(reply, {"kernel": "the_kernel", "right": 2, "wrong": []})

    def test_the_process_answers_without_a_gpu(self):
        environ = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        environ["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        done = subprocess.run(
            [sys.executable, "-m", "torch_cute_backend.bench.child"],
            input='{"op": "environment"}\n',
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(json.loads(done.stdout), {"error": "no supported GPU"})


if __name__ == "__main__":
    run_tests()
