"""Turning the plugin on and off: what of torch changes, and that it changes back."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import unittest.mock
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

import torch_cute_backend
from torch_cute_backend import config
from torch_cute_backend.inductor import install
from torch_cute_backend.runtime import toolchain

HERE = Path(__file__).parent
_scratch = tempfile.TemporaryDirectory()
OUR_OPS = 9
"""Entries of the lowering table that torch 2.11 has; 2.13 adds _scaled_mm_v2."""


def _environ(**extra: str) -> dict[str, str]:
    paths = [str(HERE.parent), str(HERE)]
    cache = {"TORCH_CUTE_BACKEND_CACHE_DIR": str(Path(_scratch.name) / "cache")}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **cache, **extra}


def child(how: str) -> dict[str, Any]:
    extra = {"TORCH_CUTE_BACKEND_ENABLED": "0"} if how == "off" else {}
    done = subprocess.run(
        [sys.executable, str(HERE / "inductor_child.py"), how],
        env=_environ(**extra),
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise AssertionError(f"{how}: {done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class TestAgainstStock(TestCase):
    def test_off_is_stock_and_on_is_not(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            kinds = ("stock", "off", "disabled", "on")
            stock, off, disabled, on = pool.map(child, kinds)
        for name, code in stock["code"].items():
            self.assertNotIn("torch_cute", code)
            self.assertEqual(off["code"][name], code, f"{name}: off differs")
            self.assertEqual(disabled["code"][name], code, f"{name}: disabled differs")
            self.assertIn("torch_cute_load_gemm", on["code"][name], name)
        self.assertEqual(off["key"], stock["key"])
        self.assertEqual(disabled["key"], stock["key"])
        self.assertNotEqual(on["key"], stock["key"])

    def test_import_is_light_and_takes_effect_later(self) -> None:
        program = (
            "import sys, torch_cute_backend\n"
            "heavy = ('torch._dynamo', 'torch._inductor', 'cutlass', 'tvm_ffi')\n"
            "assert not [m for m in heavy if m in sys.modules], sorted(sys.modules)\n"
            "from torch_cute_backend.inductor import install\n"
            "assert not install.installed()\n"
            "import torch._inductor.compile_fx\n"
            "assert install.installed()\n"
            "import inspect\n"
            "source = inspect.getsource(torch._inductor.compile_fx)\n"
            "assert 'def compile_fx(' in source\n"
            "from torch._dynamo.backends.registry import lookup_backend\n"
            "assert lookup_backend('cute').__name__\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=_environ(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)


class TestInstall(TestCase):
    def setUp(self) -> None:
        super().setUp()
        import torch._inductor.compile_fx  # noqa: F401

        torch_cute_backend.enable()

    def tearDown(self) -> None:
        torch_cute_backend.enable()
        super().tearDown()

    def _state(self) -> tuple[Any, ...]:
        from torch._inductor.codegen import common
        from torch._inductor.lowering import lowerings

        return (
            dict(lowerings),
            dict(common.device_codegens),
            dict(common.custom_backend_passes),
            [f for f in sys.meta_path if isinstance(f, install._Finder)],
        )

    def test_uninstall_restores_everything(self) -> None:
        torch_cute_backend.disable()
        before = self._state()
        torch_cute_backend.enable()
        self.assertTrue(install.installed())
        changed = self._state()
        torch_cute_backend.disable()
        self.assertFalse(install.installed())
        self.assertEqual(self._state(), before)
        differing = [k for k, v in changed[0].items() if before[0][k] is not v]
        self.assertIn(len(differing), (OUR_OPS, OUR_OPS + 1), str(differing))
        replaced = {k for k, v in changed[1].items() if before[1][k] is not v}
        self.assertEqual(replaced, {"cuda", "cpu"})

    def test_enable_twice_is_enable_once(self) -> None:
        once = self._state()
        torch_cute_backend.enable()
        self.assertEqual(self._state(), once)

    def test_a_failing_step_undoes_the_others(self) -> None:
        torch_cute_backend.disable()
        before = self._state()
        failing = unittest.mock.patch.object(
            install, "_register_cache_key", side_effect=ImportError("another torch")
        )
        with failing, self.assertRaisesRegex(ImportError, "another torch"):
            torch_cute_backend.enable()
        self.assertFalse(install.installed())
        self.assertEqual(self._state()[:3], before[:3])

    @parametrize(
        "name,value,environ,reason",
        [
            subtest(
                ("TORCH_VERSIONS", ("2.9", "2.10"), {}, "is not one of 2.9 to 2.10"),
                "torch",
            ),
            subtest(("dsl_version", lambda: "4.9.0", {}, "-dsl is 4.9.0"), "dsl"),
            subtest(("dsl_version", lambda: None, {}, "not installed"), "no_dsl"),
            subtest(
                (
                    "RUNTIME_LIBRARY",
                    toolchain.RUNTIME_LIBRARY,
                    {"TORCH_CUTE_BACKEND_COMPILE_WORKERS": "many"},
                    "COMPILE_WORKERS='many' is not",
                ),
                "variable",
            ),
        ],
    )
    def test_torch_stays_stock_with_one_warning(
        self, name: str, value: Any, environ: dict[str, str], reason: str
    ) -> None:
        from torch_cute_backend.inductor import reasons

        torch_cute_backend.disable()
        reasons.clear()
        with (
            unittest.mock.patch.object(toolchain, name, value),
            unittest.mock.patch.dict(os.environ, environ),
            unittest.mock.patch.object(config, "_current", []),
            self.assertLogs("torch_cute_backend", "WARNING") as logs,
        ):
            torch_cute_backend.enable()
        self.assertFalse(install.installed())
        (refusal,) = reasons.recorded()
        self.assertEqual(refusal.step, "install")
        self.assertIn(reason, refusal.reason)
        self.assertEqual(len(logs.output), 1, logs.output)

    def test_another_plugin_scheduling_is_kept(self) -> None:
        import dataclasses

        from torch._inductor.codegen import common

        torch_cute_backend.disable()
        stock = common.device_codegens["cuda"]
        other = unittest.mock.MagicMock(name="other scheduling")
        common.device_codegens["cuda"] = dataclasses.replace(
            stock, scheduling=lambda scheduler: other
        )
        try:
            torch_cute_backend.enable()
            self.assertIs(common.device_codegens["cuda"].scheduling(None), other)
            torch_cute_backend.disable()
        finally:
            common.device_codegens["cuda"] = stock

    def test_scheduling_is_ours_for_triton_cuda_only(self) -> None:
        from torch._inductor.codegen import common

        from torch_cute_backend.inductor.scheduling import CuteScheduling

        made = common.device_codegens["cuda"].scheduling(None)
        self.assertIs(type(made), CuteScheduling)
        with torch._inductor.config.patch(cuda_backend="halide"):
            made = common.device_codegens["cuda"].scheduling(None)
        self.assertIsNot(type(made), CuteScheduling)


class TestCacheKey(TestCase):
    def test_key_names_versions_code_and_switches(self) -> None:
        from torch_cute_backend.inductor.cachekey import PluginPass, package_digest

        key = PluginPass(None).uuid()
        self.assertIn(torch_cute_backend.__version__, key)
        self.assertIn(package_digest(), key)
        with config.patch(decide_early=not config.get().decide_early):
            self.assertNotEqual(PluginPass(None).uuid(), key)

    def test_an_earlier_pass_still_runs_and_still_counts(self) -> None:
        from torch._inductor.custom_graph_pass import CustomGraphModulePass

        from torch_cute_backend.inductor.cachekey import PluginPass

        class Inner(CustomGraphModulePass):
            name: Any = "inner"
            seen = 0

            def __call__(self, gm: Any) -> None:
                self.seen += 1

            def uuid(self) -> Any:
                return self.name

        inner = Inner()
        ours = PluginPass(inner)
        ours(torch.fx.symbolic_trace(torch.nn.Identity()))
        self.assertEqual(inner.seen, 1)
        first = ours.uuid()
        inner.name = "other"
        self.assertNotEqual(ours.uuid(), first)
        inner.name = None
        self.assertIsNone(ours.uuid(), "a pass without identity turns caching off")

    def test_another_key_in_the_timing_cache_for_other_code(self) -> None:
        from torch_cute_backend.inductor import cachekey

        with unittest.mock.patch.object(
            cachekey, "package_digest", return_value="another version"
        ):
            other = cachekey.plugin_id()
        self.assertNotEqual(other, cachekey.plugin_id())


class TestBackend(TestCase):
    def _patches(self, **kwargs: Any) -> dict[str, Any]:
        from torch_cute_backend.inductor.backend import compile_cute

        with unittest.mock.patch("torch._inductor.compile_fx.compile_fx") as compile_fx:
            compile_cute(torch.fx.symbolic_trace(torch.nn.Identity()), [], **kwargs)
        patches: dict[str, Any] = compile_fx.call_args.kwargs["config_patches"]
        return patches

    def test_patches(self) -> None:
        import torch._inductor.compile_fx  # noqa: F401

        self.assertEqual(
            self._patches(),
            {
                "max_autotune": True,
                "max_autotune_gemm_backends": "ATEN,TRITON,CPP,TORCH_CUTE",
            },
        )
        graphs = self._patches(mode="max-autotune")
        self.assertTrue(graphs["triton.cudagraphs"])
        chosen = {"max_autotune_gemm_backends": "torch_cute", "max_autotune": False}
        self.assertEqual(self._patches(options=chosen), chosen)


instantiate_parametrized_tests(TestInstall)

if __name__ == "__main__":
    run_tests()
