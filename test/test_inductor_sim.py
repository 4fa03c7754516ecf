"""``torch.compile(backend="cute_sim")``: fused epilogues, numerically, without a GPU.

Each case goes through Dynamo, Inductor's lowering and scheduling and ours, runs the
kernel's real PTX in the simulator, and must equal fp32 torch: bit for bit on small
integers, within a bound per element where the epilogue has a transcendental function.
Every case says how many of our kernels a call launches and how many nodes they fuse,
so that no other kernel can pass for ours.
"""

from __future__ import annotations

import functools
import re
import unittest.mock
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_inductor_cache, run_and_get_code
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend import config
from torch_cute_backend.inductor import reasons
from torch_cute_backend.runtime import launch
from torch_cute_backend.sim import Fault, SimError
from torch_cute_backend.sim.child import SimChild

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
M, N, K = 40, 48, 64

arches = parametrize("arch", ["sm_90a", "sm_100a"])


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def powers(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> torch.Tensor:
    """Powers of two: scaling by them is exact."""
    return (2.0 ** integers(*shape, seed=seed, dtype=F32)).to(dtype)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.float() @ w.float().t()


def launched() -> int:
    return sum(launch.launches().values())


class SimTestCase(TestCase):
    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()
        reasons.clear()
        counters.clear()

    def compile(self, fn: Callable[..., Any], arch: str, **options: Any) -> Any:
        settings = {"sim_arch": arch, "fx_graph_cache": False, **options}
        return torch.compile(fn, backend="cute_sim", fullgraph=True, options=settings)

    def check(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        want: torch.Tensor | Sequence[torch.Tensor],
        arch: str,
        *,
        kernels: int = 1,
        fused: int | None = None,
        relative: float = 0.0,
    ) -> Any:
        """Compile, run, compare; returns the compiled function."""
        compiled = self.compile(fn, arch)
        before = launched()
        with torch.no_grad():
            got = compiled(*args)
        self.assertEqual(launched() - before, kernels, "launches of our kernels")
        self.assertEqual(reasons.not_simulated(), {}, str(reasons.recorded()))
        if fused is not None:
            self.assertEqual(counters["inductor"]["torch_cute_fused_nodes"], fused)
        self.compare(got, want, relative)
        return compiled

    def compare(self, got: Any, want: Any, relative: float = 0.0) -> None:
        """Every element within ``relative`` of its own size, and of a hundredth of the
        largest one; 0 means equal."""
        got = got if isinstance(got, (tuple, list)) else [got]
        want = want if isinstance(want, (tuple, list)) else [want]
        self.assertEqual(len(got), len(want))
        for g, w in zip(got, want, strict=True):
            self.assertEqual((g.shape, g.dtype), (w.shape, w.dtype))
            g, w = g.float(), w.float()
            self.assertGreater(w.abs().max(), 0)
            bound = relative * (w.abs() + w.abs().max() / 100)
            self.assertTrue(((g - w).abs() <= bound).all(), f"{g} is not {w}")
            if relative:
                self.assertFalse(((w * 1.03 - w).abs() <= bound).all(), "too wide")


class TestEpilogues(SimTestCase):
    @arches
    def test_bias_relu(self, arch: str) -> None:
        x, w, b = integers(M, K), integers(N, K), integers(N)
        want = torch.relu(product(x, w) + b).to(BF16)
        self.check(
            lambda x, w, b: torch.relu(F.linear(x, w, b)),
            (x, w, b),
            want,
            arch,
            fused=1,
        )

    def test_single_row(self) -> None:
        x, w, b = integers(1, K), integers(N, K), integers(N)
        want = torch.relu(product(x, w) + b).to(BF16)
        self.check(
            lambda x, w, b: torch.relu(F.linear(x, w, b)),
            (x, w, b),
            want,
            "sm_90a",
            fused=1,
        )

    @arches
    def test_gelu_both_and_silu(self, arch: str) -> None:
        """Three consumers and so three outputs of one kernel."""

        def fn(x: Any, w: Any) -> Any:
            y = (x @ w.t()).float() / 8
            return (
                F.gelu(y).to(BF16),
                F.gelu(y, approximate="tanh").to(BF16),
                F.silu(y).to(BF16),
            )

        x, w = integers(M, K), integers(N, K)
        want = [t.to(BF16) for t in fn(x.float(), w.float())]
        self.check(fn, (x, w), want, arch, relative=2**-7)

    @arches
    def test_residual_of_a_3d_linear(self, arch: str) -> None:
        x, w, r = integers(2, M // 2, K), integers(N, K), integers(2, M // 2, N)
        want = (torch.relu(x.float() @ w.float().t()) + r.float()).to(BF16)
        self.check(
            lambda x, w, r: torch.relu(F.linear(x, w)) + r,
            (x, w, r),
            want,
            arch,
            fused=1,
        )

    @arches
    def test_row_column_scalar_clamp(self, arch: str) -> None:
        x, w = integers(M, K), integers(N, K)
        row, col, one = (
            powers(M, 1, dtype=BF16),
            powers(N, seed=1, dtype=BF16),
            powers(1, seed=2, dtype=BF16),
        )

        def fn(x: Any, w: Any, row: Any, col: Any, one: Any) -> Any:
            return ((x @ w.t()) * row * col * one * 0.5).clamp(-40, 24)

        want = fn(x.float(), w.float(), row.float(), col.float(), one.float())
        self.assertTrue((want == -40).any())
        self.assertTrue((want == 24).any())
        self.check(fn, (x, w, row, col, one), want.to(BF16), arch, fused=1)

    @arches
    def test_addmm_and_its_fp8_copy(self, arch: str) -> None:
        def fn(x: Any, w: Any, r: Any) -> Any:
            y = torch.addmm(r, x, w.t(), alpha=0.5, beta=2)
            return y, (y * 0.125).clamp(-448, 448).to(E4M3)

        x, w, r = integers(M, K), integers(N, K), integers(M, N)
        y = 0.5 * product(x, w) + 2 * r.float()
        want = [y.to(BF16), (y * 0.125).clamp(-448, 448).to(E4M3)]
        self.check(fn, (x, w, r), want, arch, fused=1)

    @arches
    def test_scaled_mm_rowwise_bias(self, arch: str) -> None:
        def fn(a: Any, w: Any, sa: Any, sb: Any, bias: Any) -> Any:
            y = torch._scaled_mm(
                a, w.t(), sa, sb, bias=bias, out_dtype=BF16, use_fast_accum=True
            )
            return torch.relu(y)

        a, w = integers(M, K, dtype=E4M3), integers(N, K, dtype=E4M3)
        sa, sb, bias = powers(M, 1), powers(1, N, seed=1), integers(N)
        want = torch.relu(product(a, w) * sa * sb + bias.float()).to(BF16)
        self.check(fn, (a, w, sa, sb, bias), want, arch, fused=1)

    @arches
    def test_scaled_mm_tensorwise_bias(self, arch: str) -> None:
        def fn(a: Any, w: Any, sa: Any, sb: Any, bias: Any) -> Any:
            return torch._scaled_mm(a, w.t(), sa, sb, bias=bias, out_dtype=BF16)

        a, w = integers(M, K, dtype=E4M3), integers(N, K, dtype=E4M3)
        sa, sb, bias = torch.tensor(0.5), torch.tensor(0.25), integers(N)
        want = (product(a, w) * sa * sb + bias.float()).to(BF16)
        self.check(fn, (a, w, sa, sb, bias), want, arch)


class TestGraphs(SimTestCase):
    def test_groups(self) -> None:
        """One group is empty; offsets are read by the kernel alone."""
        x, w = integers(M, K), integers(3, N, K)
        ends = [24, 24, M]
        offs = torch.tensor(ends, dtype=torch.int32)
        parts = zip([0, *ends], ends, w, strict=False)
        want = torch.cat([product(x[begin:end], b) for begin, end, b in parts])
        self.check(
            lambda x, w, offs: torch._grouped_mm(x, w.transpose(1, 2), offs=offs),
            (x, w, offs),
            want.to(BF16),
            "sm_90a",
        )

    def test_dynamic_m(self) -> None:
        w, b = integers(N, K), integers(N)
        compiled = self.compile(lambda x, b: torch.relu(F.linear(x, w, b)), "sm_90a")
        before = launched()
        for m in (M, 80):
            x = integers(m, K)
            torch._dynamo.mark_dynamic(x, 0)
            with torch.no_grad():
                got = compiled(x, b)
            self.compare(got, torch.relu(product(x, w) + b).to(BF16))
        self.assertEqual(launched() - before, 2)
        self.assertEqual(counters["stats"]["unique_graphs"], 1)
        self.assertEqual(counters["inductor"]["torch_cute_gemm"], 1)

    def test_training_step(self) -> None:
        """Forward and backward graph: three GEMMs, all of them ours."""
        x, w, b = integers(M, K), integers(N, K), integers(N)
        exact = [t.float().requires_grad_() for t in (x, w, b)]
        torch.relu(F.linear(*exact)).sum().backward()
        args = [t.clone().requires_grad_() for t in (x, w, b)]
        before = launched()
        self.compile(lambda *a: torch.relu(F.linear(*a)).sum(), "sm_90a")(
            *args
        ).backward()
        self.assertEqual(launched() - before, 3)
        # Sums of gradients are reductions, which no epilogue takes.
        self.assertNotIn("lowering", reasons.not_simulated())
        self.compare([t.grad for t in args], [t.grad.to(BF16) for t in exact])

    def test_misaligned_input(self) -> None:
        """Graph inputs may start anywhere; TMA needs 16 bytes."""
        x = integers(M * K + 1)[1:].view(M, K)
        w = integers(N, K)
        self.assertNotEqual(x.data_ptr() % 16, 0)
        self.check(lambda x, w: x @ w.t(), (x, w), product(x, w).to(BF16), "sm_90a")

    def test_a_cached_graph_runs(self) -> None:
        x, w = integers(M, K), integers(N, K)
        want = product(x, w).neg().to(BF16)

        def run(arch: str) -> None:
            torch._dynamo.reset()
            fn = self.compile(lambda x, w: -(x @ w.t()), arch, fx_graph_cache=True)
            before = launched()
            with torch.no_grad():
                self.compare(fn(x, w), want)
            self.assertEqual(launched() - before, 1)

        with fresh_inductor_cache():
            for arch, hits in (("sm_90a", 0), ("sm_90a", 1), ("sm_100a", 1)):
                run(arch)
                self.assertEqual(counters["inductor"]["fxgraph_cache_hit"], hits, arch)

    def test_the_wrapper_says_that_it_simulates(self) -> None:
        x, w = integers(M, K), integers(N, K)
        compiled = self.compile(lambda x, w: x @ w.t(), "sm_100a")
        with torch.no_grad():
            _, (code,) = run_and_get_code(compiled, x, w)
        self.assertIn("''', 'simulator')", code)
        self.assertIn('"arch":"sm_100a"', code)
        self.assertIn("#   shared loop omitted", code)
        self.assertNotIn("extern_kernels.mm(", code)


class TestNothingIsSilent(SimTestCase):
    def test_a_finding_is_an_error(self) -> None:
        """The load warp no longer waits for a free stage: a race, whatever the sums."""
        wait = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, \[[^\]]*\], [^,]*, \d+;"
        fault = Fault("no wait", wait, "setp.eq.u32 P1, 0, 0;", every=True)
        faulty = functools.partialmethod(SimChild.simulate, faults=[fault])
        x, w = integers(M, K), integers(N, K)
        compiled = self.compile(lambda x, w: x @ w.t(), "sm_90a")
        before = launched()
        with (
            unittest.mock.patch.object(SimChild, "simulate", faulty),
            torch.no_grad(),
            self.assertRaisesRegex(SimError, "(?s)is not clean.*race"),
        ):
            compiled(x, w)
        self.assertEqual(launched(), before)

    def test_a_gemm_that_is_refused_is_logged_and_counted(self) -> None:
        x, w = integers(M, K, dtype=F32), integers(N, K, dtype=F32)
        compiled = self.compile(lambda x, w: (x @ w.t(), w @ w.t()), "sm_90a")
        before = launched()
        with (
            torch.no_grad(),
            self.assertLogs("torch_cute_backend", "WARNING") as logs,
        ):
            got = compiled(x, w)
        self.compare(got, (product(x, w), product(w, w)))
        self.assertEqual(launched(), before)
        self.assertEqual(reasons.not_simulated(), {"lowering": 2})
        self.assertIn("aten.mm: no kernel (lowering)", logs.output[0])

    def test_a_gemm_without_kernels_is_counted(self) -> None:
        x, w = integers(2, 8, 16), integers(2, 16, 8)
        compiled = self.compile(
            lambda x, w: torch.bmm(x, w), "sm_90a", max_autotune=False
        )
        with (
            torch.no_grad(),
            self.assertLogs("torch_cute_backend", "WARNING") as logs,
        ):
            got = compiled(x, w)
        self.compare(got, (x.float() @ w.float()).to(BF16))
        self.assertEqual(reasons.not_simulated(), {"lowering": 1})
        self.assertIn(
            "aten.bmm: no kernel (lowering): no kernels for it", logs.output[0]
        )

    def test_unknown_arch(self) -> None:
        with self.assertRaisesRegex(Exception, "unknown arch 'sm_80'"):
            self.compile(lambda x: x @ x, "sm_80")(integers(K, K))

    def test_not_enabled(self) -> None:
        with (
            config.patch(enabled=False),
            self.assertRaisesRegex(Exception, "nothing would be simulated"),
        ):
            self.compile(lambda x: x @ x, "sm_90a")(integers(K, K))

    def test_other_cpu_graphs_are_stock(self) -> None:
        """Installed but not asked for: the same code as without the package."""
        import torch_cute_backend

        x, w = integers(M, K), integers(N, K)

        def code() -> str:
            torch._dynamo.reset()
            compiled = torch.compile(
                lambda x, w: torch.relu(x @ w.t()),
                options={
                    "fx_graph_cache": False,
                    "max_autotune_gemm": True,
                    "max_autotune_gemm_backends": "ATEN",
                },
            )
            with torch.no_grad():
                _, (text,) = run_and_get_code(compiled, x, w)
            return re.sub(r"AOT ID: \['\d+", "", text)

        torch_cute_backend.enable()
        on = code()
        torch_cute_backend.disable()
        try:
            off = code()
        finally:
            torch_cute_backend.enable()
        self.assertIn("extern_kernels.mm(", on)
        self.assertEqual(on, off)


instantiate_parametrized_tests(TestEpilogues)

if __name__ == "__main__":
    run_tests()
