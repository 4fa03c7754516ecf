"""Peers: why one is missing, and that those at hand are called as they ask to be."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import arch_spec
from torch_cute_backend.bench import peers, providers
from torch_cute_backend.bench.cases import make_inputs, problem_of
from torch_cute_backend.bench.check import reference
from torch_cute_backend.errors import UserError

SHAPE = (5, 32, 64)
KIND = {"vllm": "fp8", "helion": "fp8"}
STUB = """
def scaled_mm(c, a, b, scale_a, scale_b):
    assert scale_a.shape == (a.shape[0], 1) and scale_b.shape == (b.shape[1], 1)
    c.copy_((a.float() @ b.float()) * scale_a * scale_b.t())
"""


def request(kind: str) -> providers.Request:
    problem = problem_of(kind, SHAPE)
    sets = make_inputs(problem, 2, device="cpu")
    return providers.Request(problem, arch_spec("sm_90a"), sets)


class TestPeers(TestCase):
    def setUp(self) -> None:
        super().setUp()
        peers.helion_scaled_mm.cache_clear()
        self.addCleanup(peers.helion_scaled_mm.cache_clear)

    @parametrize("name", sorted(peers.PEERS))
    def test_a_missing_package_is_said_with_how_to_get_it(self, name):
        package = name.removesuffix("_untuned")
        with (
            mock.patch.object(peers.importlib.util, "find_spec", return_value=None),
            self.assertRaisesRegex(UserError, rf"^{package} is not installed \(.+\)$"),
        ):
            providers.provider(name)(request(KIND.get(name, "bf16")))

    @parametrize("name", sorted(peers.PEERS))
    def test_another_kind_of_gemm_is_refused(self, name):
        kind = "bf16" if KIND.get(name) == "fp8" else "fp8"
        with self.assertRaisesRegex(UserError, f"is compared on .*, not on {kind}"):
            providers.provider(name)(request(kind))

    def test_a_package_that_cannot_be_imported_is_not_called_missing(self):
        with (
            mock.patch.object(peers.importlib.util, "find_spec"),
            mock.patch.object(
                peers.importlib, "import_module", side_effect=ImportError("no libcuda")
            ),
            self.assertRaisesRegex(UserError, "installed but quack.*: no libcuda"),
        ):
            peers.require("quack.gemm_interface")

    def modules(self, **found: object) -> None:
        named = {name.replace("__", "."): module for name, module in found.items()}
        self.enterContext(mock.patch.dict(sys.modules, named))

    def check_calls(self, kind: str, prepared: providers.Prepared, asked) -> None:
        self.assertEqual(len(prepared.calls), 2)
        for call, x in zip(prepared.calls, asked.sets, strict=True):
            x.out.fill_(float("nan"))
            call()
            want = reference(asked.problem, x)
            torch.testing.assert_close(x.out.float(), want, rtol=2e-2, atol=2e-2)

    def test_quack_is_called_tuned_or_not(self):
        seen = []

        def gemm(a, b, out, tuned):
            seen.append(tuned)
            torch.mm(a, b, out=out)

        self.modules(quack=types.ModuleType("quack"))
        self.modules(quack__gemm_interface=types.SimpleNamespace(gemm=gemm))
        for name in ("quack", "quack_untuned"):
            asked = request("bf16")
            self.check_calls("bf16", providers.provider(name)(asked), asked)
        self.assertEqual(seen, [True, True, False, False])

    def helion_file(self, text: str) -> Path:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        path = folder / f"stub_{self._testMethodName}.py"
        path.write_text(text)
        self.modules(helion=types.ModuleType("helion"))
        self.enterContext(mock.patch.dict(os.environ, {peers.HELION_FILE: str(path)}))
        self.enterContext(mock.patch.object(sys, "path", list(sys.path)))
        return path

    def test_helion_s_kernel_is_loaded_from_the_file_and_called(self):
        self.helion_file(STUB)
        asked = request("fp8")
        self.check_calls("fp8", providers.provider("helion")(asked), asked)

    def test_helion_without_its_file(self):
        self.helion_file(STUB).unlink()
        with self.assertRaisesRegex(UserError, "HELION_SCALED_MM=.*is not a file"):
            peers.helion_scaled_mm()

    def test_another_file_is_not_taken_for_helion_s(self):
        self.helion_file("answer = 42\n")
        with self.assertRaisesRegex(UserError, "defines no scaled_mm"):
            peers.helion_scaled_mm()

    def test_torch_without_intel_s_error_gets_a_stand_in(self):
        from torch._inductor.runtime import triton_compat

        self.helion_file(STUB)
        original = triton_compat.__dict__.get("IntelGPUError")
        if original is not None:
            del triton_compat.IntelGPUError
            self.addCleanup(setattr, triton_compat, "IntelGPUError", original)
        peers.helion_scaled_mm()
        self.assertTrue(issubclass(triton_compat.IntelGPUError, Exception))


instantiate_parametrized_tests(TestPeers)

if __name__ == "__main__":
    run_tests()
