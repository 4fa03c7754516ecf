"""When Inductor is offered our kernels, and when it is not."""

from __future__ import annotations

from typing import Any

import torch
from fake_gpu import empty, fake_mode
from inductor_helper import InductorTestCase, integers, lowered_request, node
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from wrapper_runner import kernel_names

import torch_cute_backend
from torch_cute_backend import config
from torch_cute_backend.inductor.request import OpCall

M, N, K = 96, 256, 128


class TestSwitches(InductorTestCase):
    def names(self, **kw: Any) -> str:
        compiled = self.compile(
            lambda a, w: torch.relu(a @ w.t()), [integers(M, K), integers(N, K)], **kw
        )
        return ";".join(kernel_names(compiled.code))

    def test_only_under_max_autotune(self) -> None:
        self.assertNotIn("torch_cute", self.names(options={"max_autotune": False}))
        options = {"max_autotune": False, "max_autotune_gemm": True}
        self.assertIn("torch_cute", self.names(options=options))

    @parametrize(
        "backends,offered",
        [
            ("ATEN,TRITON,CPP", True),
            ("ATEN,TRITON", False),
            ("TRITON", False),
            ("ATEN,TORCH_CUTE", True),
            ("torch_cute", True),
        ],
    )
    def test_backend_list(self, backends: str, offered: bool) -> None:
        names = self.names(options={"max_autotune_gemm_backends": backends})
        self.assertEqual("torch_cute" in names, offered, names)
        self.assertEqual("does not name TORCH_CUTE" in self.reasons(), not offered)

    def test_disabled_by_config_and_by_call(self) -> None:
        with config.patch(enabled=False):
            self.assertNotIn("torch_cute", self.names())
        torch_cute_backend.disable()
        try:
            self.assertNotIn("torch_cute", self.names())
        finally:
            torch_cute_backend.enable()
        self.assertIn("torch_cute", self.names())

    @parametrize(
        "option,reason",
        [
            ("autotune_in_subproc", "autotune_in_subproc is on"),
            ("multi_kernel_hints", "multi_kernel_hints is set"),
        ],
    )
    def test_modes_without_us(self, option: str, reason: str) -> None:
        from torch_cute_backend.inductor import compat

        value = [64] if option == "multi_kernel_hints" else True
        with torch._inductor.config.patch({option: value}):
            self.assertIn(reason, str(compat.benchmarks_elsewhere()))

    @parametrize(
        "change,reason",
        [
            ({"cpp_wrapper": True}, "cpp_wrapper or AOTInductor"),
            ({"aot_mode": True}, "cpp_wrapper or AOTInductor"),
            ({"parent": object()}, "nested graph"),
        ],
    )
    def test_graphs_without_us(self, change: dict[str, Any], reason: str) -> None:
        with fake_mode():
            nodes = [node(empty(M, K)), node(empty(N, K).t())]
            status = lowered_request(OpCall("mm", {}), nodes, **change)
        self.assertIn(reason, str(status))

    def test_unbacked_sizes(self) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        with fake_mode():
            nodes = [node(empty(M, K)), node(empty(N, K).t())]
            size = ShapeEnv().create_unbacked_symint().node.expr
            nodes[0].layout.size[0] = size
            status = lowered_request(OpCall("mm", {}), nodes)
        self.assertIn("unbacked symbolic sizes", str(status))

    def test_no_place_for_kernels(self) -> None:
        self.cache_dir.write_text("a file")
        self.assertNotIn("torch_cute", self.names())
        self.assertIn("cannot make cache folder", self.reasons())

    def test_unknown_gpu(self) -> None:
        self.assertNotIn("torch_cute", self.names(capability=(8, 0)))
        self.assertIn("no kernels for NVIDIA A100", self.reasons())

    def test_each_reason_is_logged_once(self) -> None:
        with self.assertLogs("torch_cute_backend", "INFO") as logs:
            for _ in range(2):
                self.names(options={"max_autotune_gemm_backends": "ATEN"})
        said = [line for line in logs.output if "does not name" in line]
        self.assertEqual(len(said), 1, logs.output)


instantiate_parametrized_tests(TestSwitches)

if __name__ == "__main__":
    run_tests()
