"""Child process of ``test_inductor_gpu``: runs one group of cases, one line each.

    python inductor_cases.py GROUP [PATTERN ...]    cases by name, as "grouped_*"

prints ``{"case": ..., "ok": ..., "detail": ...}`` lines. A case compiles a model
with ``torch.compile``, runs it on small integers (every sum exact), compares with fp32,
and reports how often kernels of ours were launched.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3 = torch.float8_e4m3fn
DEVICE = "cuda:0"

CASES: dict[str, dict[str, Callable[[], str]]] = {}


def case(*groups: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a case in some groups; it returns a line on what it saw."""

    def register(fn: Callable[[], str]) -> Callable[[], str]:
        for group in groups:
            CASES.setdefault(group, {})[fn.__name__] = fn
        return fn

    return register


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(dtype).to(DEVICE)


def powers(*shape: int, seed: int = 0) -> torch.Tensor:
    """fp32 scales that are powers of two: scaling is exact."""
    return 2.0 ** integers(*shape, seed=seed, dtype=F32)


def poison() -> None:
    """Leave NaN in the memory that the allocator hands out next."""
    blocks = [torch.full((n,), float("nan"), device=DEVICE) for n in (2**18, 2**24)]
    del blocks


def ours_launched() -> int:
    from torch_cute_backend.runtime import launch

    return sum(launch.launches().values())


def equal(got: Any, want: Any, tolerance: float = 0.0) -> None:
    """Every element right; 0 means equal. Zeros and 1.01x must not pass."""
    got = got if isinstance(got, (tuple, list)) else [got]
    want = want if isinstance(want, (tuple, list)) else [want]
    if len(got) != len(want):
        raise AssertionError(f"{len(got)} outputs, expected {len(want)}")
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.dtype != w.dtype or g.shape != w.shape:
            raise AssertionError(
                f"output {i}: {g.dtype} {tuple(g.shape)}, not {w.dtype}"
            )
        g, w = g.float(), w.float()
        bound = tolerance * w.abs() + tolerance * w.abs().max() * 2**-7
        bad = ~((g - w).abs() <= bound)
        if bad.any():
            where = tuple(bad.nonzero()[0].tolist())
            raise AssertionError(
                f"output {i}: {int(bad.sum())} of {bad.numel()} wrong, first at "
                f"{where}: {g[where].item()} instead of {w[where].item()}"
            )
        if tolerance and not ((w * 1.01 - w).abs() > bound).any():
            raise AssertionError(f"output {i}: the bound would let 1.01x pass")


def check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    want: Any,
    *,
    tolerance: float = 0.0,
    kernels: int = 1,
    **compile_options: Any,
) -> str:
    """Compile, run twice on poisoned memory, compare, count launches of ours."""
    torch._dynamo.reset()
    compile_options.setdefault("mode", "max-autotune-no-cudagraphs")
    compiled = torch.compile(fn, fullgraph=True, **compile_options)
    with torch.no_grad():
        compiled(*args)
        for _ in range(2):
            poison()
            before = ours_launched()
            got = compiled(*args)
            torch.cuda.synchronize()
            launched = ours_launched() - before
            equal(got, want, tolerance)
            if launched != kernels:
                raise AssertionError(f"{launched} launches of ours, expected {kernels}")
    return f"{launched} launch(es) a call"


def f32(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.float() for t in tensors]


# Bf16: mm and addmm with epilogues.


@case("decide", "compete")
def mm_plain() -> str:
    a, w = integers(128, 512), integers(256, 512)
    return check(lambda a, w: a @ w.t(), (a, w), (a.float() @ w.float().t()).to(BF16))


@case("decide", "compete")
def mm_relu() -> str:
    a, w = integers(512, 1024), integers(2048, 1024)
    want = torch.relu(a.float() @ w.float().t()).to(BF16)
    return check(lambda a, w: torch.relu(a @ w.t()), (a, w), want)


@case("decide")
def mm_majors() -> str:
    said = []
    for a_t in (False, True):
        for b_t in (False, True):
            a = integers(256, 128).t() if a_t else integers(128, 256)
            w = integers(256, 384) if b_t else integers(384, 256).t()
            want = (a.float() @ w.float()).to(BF16)
            said.append(check(lambda a, w: a @ w, (a, w), want))
    return "; ".join(said)


@case("decide", "compete")
def linear_bias_relu_3d() -> str:
    x, w, b = integers(4, 32, 512), integers(384, 512), integers(384)
    want = torch.relu(F.linear(*f32(x, w, b))).to(BF16)
    return check(lambda x, w, b: torch.relu(F.linear(x, w, b)), (x, w, b), want)


@case("decide", "compete")
def linear_gelu() -> str:
    x, w, b = integers(128, 512), integers(384, 512), integers(384)
    want = F.gelu(F.linear(*f32(x, w, b)) / 16).to(BF16)
    return check(
        lambda x, w, b: F.gelu(F.linear(x, w, b) / 16),
        (x, w, b),
        want,
        tolerance=2**-7,
    )


@case("decide")
def mm_gelu_tanh() -> str:
    x, w = integers(128, 512), integers(384, 512)
    want = F.gelu((x.float() @ w.float().t()) / 16, approximate="tanh").to(BF16)
    return check(
        lambda x, w: F.gelu((x @ w.t()) / 16, approximate="tanh"),
        (x, w),
        want,
        tolerance=2**-7,
    )


@case("decide", "compete")
def mm_silu_gate() -> str:
    x, w, g = integers(128, 512), integers(384, 512), integers(128, 384)
    want = F.silu((x.float() @ w.float().t()) / 16) * g.float()
    return check(
        lambda x, w, g: F.silu((x @ w.t()) / 16) * g,
        (x, w, g),
        want.to(BF16),
        tolerance=2**-7,
    )


@case("decide", "compete")
def mm_residual() -> str:
    x, w, r = integers(200, 512), integers(384, 512), integers(200, 384)
    want = (torch.relu(x.float() @ w.float().t()) + r.float()).to(BF16)
    return check(lambda x, w, r: torch.relu(x @ w.t()) + r, (x, w, r), want)


@case("decide")
def addmm_residual() -> str:
    x, w, r = integers(200, 512), integers(384, 512), integers(200, 384)
    want = (x.float() @ w.float().t() + r.float()).to(BF16)
    return check(lambda x, w, r: torch.addmm(r, x, w.t()), (x, w, r), want)


@case("decide")
def addmm_alpha_beta() -> str:
    x, w, b = integers(200, 512), integers(384, 512), integers(200, 1)
    want = (0.5 * (x.float() @ w.float().t()) + 2 * b.float()).to(BF16)
    return check(
        lambda x, w, b: torch.addmm(b, x, w.t(), alpha=0.5, beta=2), (x, w, b), want
    )


@case("decide")
def addmm_beta_zero_drops_nan() -> str:
    x, w = integers(200, 512), integers(384, 512)
    b = torch.full((384,), float("nan"), dtype=BF16, device=DEVICE)
    want = (x.float() @ w.float().t()).to(BF16)
    return check(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0), (x, w, b), want)


@case("decide")
def mm_row_col_scalar() -> str:
    x, w = integers(200, 512), integers(384, 512)
    r, c, s = powers(200, 1).to(BF16), powers(384, seed=1).to(BF16), powers(1).to(BF16)
    want = (x.float() @ w.float().t()) * r.float() * c.float() * s.float()
    return check(
        lambda x, w, r, c, s: (x @ w.t()) * r * c * s, (x, w, r, c, s), want.to(BF16)
    )


@case("decide", "compete")
def mm_to_fp8() -> str:
    x, w = integers(200, 256), integers(384, 256)
    want = ((x.float() @ w.float().t()) * 0.25).clamp(-448, 448).to(E4M3)
    return check(
        lambda x, w: ((x @ w.t()) * 0.25).clamp(-448, 448).to(E4M3), (x, w), want
    )


@case("decide", "compete")
def unfused_second_consumer() -> str:
    def fn(x: Any, w: Any) -> Any:
        y = x @ w.t()
        return torch.relu(y), y.float().sum(0)

    x, w = integers(128, 512), integers(384, 512)
    y = x.float() @ w.float().t()
    return check(fn, (x, w), [torch.relu(y).to(BF16), y.to(BF16).float().sum(0)])


@case("decide")
def inexpressible_consumer() -> str:
    x, w = integers(128, 512), integers(384, 512)
    want = torch.sin((x.float() @ w.float().t()).to(BF16).float()).to(BF16)
    return check(lambda x, w: torch.sin(x @ w.t()), (x, w), want, tolerance=2**-7)


@case("decide")
def fp16_and_fp32_out() -> str:
    a, w = integers(128, 512, dtype=F16), integers(256, 512, dtype=F16)
    y = a.float() @ w.float().t()
    first = check(lambda a, w: a @ w.t(), (a, w), y.to(F16))

    def fn(a: Any, w: Any) -> Any:
        return torch.mm(a, w.t(), out_dtype=torch.float32)

    return first + "; fp32 out: " + check(fn, (a, w), y)


@case("decide")
def padded_pitches() -> str:
    a, w = integers(256, 1024)[:128, 64:576], integers(256, 640)[:, :512]
    want = (a.float() @ w.float().t()).to(BF16)
    return check(lambda a, w: a @ w.t(), (a, w), want)


@case("decide")
def ragged_sizes() -> str:
    # M = 1 never arrives: max-autotune decomposes it into a pointwise sum.
    said = []
    for m, n, k in ((2, 16, 16), (3, 48, 112), (33, 256, 256), (257, 1000, 1032)):
        a, w = integers(m, k), integers(n, k, seed=1)
        want = torch.relu(a.float() @ w.float().t()).to(BF16)
        said.append(check(lambda a, w: torch.relu(a @ w.t()), (a, w), want))
    return "; ".join(said)


# FP8.


def scaled(out: torch.dtype = BF16, fast: bool = True, post: Any = None) -> Any:
    def fn(a: Any, w: Any, sa: Any, sb: Any, bias: Any = None) -> Any:
        y = torch._scaled_mm(
            a, w.t(), sa, sb, bias=bias, out_dtype=out, use_fast_accum=fast
        )
        return y if post is None else post(y)

    return fn


def scaled_args(m: int, n: int, k: int, rowwise: bool = True) -> list[torch.Tensor]:
    a, w = integers(m, k, dtype=E4M3), integers(n, k, seed=1, dtype=E4M3)
    if rowwise:
        return [a, w, powers(m, 1), powers(1, n, seed=1)]
    half, quarter = torch.tensor(0.5), torch.tensor(0.25)
    return [a, w, half.to(DEVICE), quarter.to(DEVICE)]


def scaled_want(a: Any, w: Any, sa: Any, sb: Any, bias: Any = None) -> torch.Tensor:
    y = (a.float() @ w.float().t()) * sa * sb
    return y if bias is None else y + bias.float()


@case("decide", "compete")
def scaled_rowwise() -> str:
    said = []
    for fast in (True, False):
        args = scaled_args(64, 512, 512)
        said.append(check(scaled(fast=fast), args, scaled_want(*args).to(BF16)))
    return "; ".join(said)


@case("decide")
def scaled_tensorwise() -> str:
    said = []
    for out in (BF16, F16, F32):
        args = scaled_args(64, 512, 512, rowwise=False)
        said.append(check(scaled(out), args, scaled_want(*args).to(out)))
    return "; ".join(said)


@case("decide", "compete")
def scaled_bias_relu() -> str:
    args = [*scaled_args(65, 528, 512), integers(528)]
    want = torch.relu(scaled_want(*args)).to(BF16)
    return check(scaled(post=torch.relu), args, want)


@case("decide", "compete")
def scaled_requantise() -> str:
    def post(y: Any) -> Any:
        y = torch.relu(y)
        return y, (y * 0.25).clamp(-448, 448).to(E4M3)

    args = scaled_args(128, 512, 256)
    y = torch.relu(scaled_want(*args))
    want = [y.to(BF16), (y * 0.25).clamp(-448, 448).to(E4M3)]
    return check(scaled(post=post), args, want)


@case("decide")
def scale_result_fp8() -> str:
    def fn(a: Any, w: Any, sa: Any, sb: Any, sr: Any) -> Any:
        return torch._scaled_mm(
            a, w.t(), sa, sb, scale_result=sr, out_dtype=E4M3, use_fast_accum=True
        )

    args = [*scaled_args(64, 256, 16, rowwise=False), torch.tensor(0.5, device=DEVICE)]
    return check(fn, args, (scaled_want(*args[:4]) * 0.5).to(E4M3))


@case("pretuned")
def pretuned_shape_is_not_benchmarked() -> str:
    from torch._dynamo.utils import counters

    args = scaled_args(64, 5120, 5120)
    counters.clear()
    said = check(scaled(post=torch.relu), args, torch.relu(scaled_want(*args)).to(BF16))
    timed = counters["inductor"]["select_algorithm_autotune"]
    if timed:
        raise AssertionError(f"{timed} autotuning(s) for a pretuned shape")
    return said


# A model, CUDA graphs, dynamic shapes, training.


class Fp8Mlp(torch.nn.Module):
    """Two rowwise FP8 linear layers with a quantisation between, as served."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        up = torch.randn(hidden, width, generator=generator) / width**0.5
        down = torch.randn(width, hidden, generator=generator) / hidden**0.5
        for name, weight in (("up", up), ("down", down)):
            scale = weight.abs().amax(1, keepdim=True) / 448
            self.register_buffer(name, (weight / scale).to(E4M3).to(DEVICE))
            self.register_buffer(f"{name}_scale", scale.t().contiguous().to(DEVICE))

    def quantise(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
        return (x.float() / scale).clamp(-448, 448).to(E4M3), scale

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        q, scale = self.quantise(x)
        weight, weight_scale = getattr(self, name), getattr(self, f"{name}_scale")
        return torch._scaled_mm(
            q, weight.t(), scale, weight_scale, out_dtype=BF16, use_fast_accum=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.silu(self.linear(x, "up")), "down")

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        def linear(x: torch.Tensor, name: str) -> torch.Tensor:
            q, scale = self.quantise(x)
            weight, weight_scale = getattr(self, name), getattr(self, f"{name}_scale")
            return ((q.float() @ weight.float().t()) * scale * weight_scale).to(BF16)

        return linear(F.silu(linear(x, "up")), "down")


def close(got: torch.Tensor, want: torch.Tensor, limit: float = 0.02) -> None:
    """Relative error of the whole, for results that pass a quantisation."""
    error = ((got.float() - want.float()).norm() / want.float().norm()).item()
    if not error < limit:
        raise AssertionError(f"relative error {error}")


@case("decide", "compete")
def fp8_mlp() -> str:
    model = Fp8Mlp(1024, 2048)
    x = torch.randn(64, 1024, dtype=BF16, device=DEVICE)
    torch._dynamo.reset()
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", fullgraph=True)
    with torch.no_grad():
        compiled(x)
        poison()
        before = ours_launched()
        close(compiled(x), model.reference(x), 0.05)
    launched = ours_launched() - before
    if launched != 2:
        raise AssertionError(f"{launched} launches of ours, expected 2")
    return f"{launched} launches"


@case("decide", "compete")
def cuda_graphs() -> str:
    """mode="max-autotune": captured, right on new inputs, no skip."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    w, b = integers(384, 512), integers(384)
    compiled = torch.compile(
        lambda x, w, b: torch.relu(F.linear(x, w, b)), mode="max-autotune"
    )
    launched = []
    with torch.no_grad():
        for step in range(6):
            x = integers(128, 512, seed=step)
            torch.compiler.cudagraph_mark_step_begin()
            before = ours_launched()
            got = compiled(x, w, b).clone()
            torch.cuda.synchronize()
            launched.append(ours_launched() - before)
            equal(got, torch.relu(F.linear(*f32(x, w, b))).to(BF16))
    skips = counters["inductor"]["cudagraph_skips"]
    if skips or not launched[0] or any(launched[-2:]):
        raise AssertionError(f"{skips} skips, launches by step {launched}")
    return f"launches by step {launched}"


@case("decide", "compete")
def dynamic_m() -> str:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    w = integers(384, 512)
    compiled = torch.compile(
        lambda x, w: torch.relu(x @ w.t()), mode="max-autotune-no-cudagraphs"
    )
    with torch.no_grad():
        for m in (64, 100, 257, 4096, 2, 1025):
            x = integers(m, 512, seed=m)
            torch._dynamo.mark_dynamic(x, 0)
            poison()
            before = ours_launched()
            equal(compiled(x, w), torch.relu(x.float() @ w.float().t()).to(BF16))
            if ours_launched() - before < 1:
                raise AssertionError(f"no launch of ours at M={m}")
    graphs = counters["stats"]["unique_graphs"]
    if graphs != 1:
        raise AssertionError(f"{graphs} graphs, expected 1")
    return "6 sizes, 1 graph"


@case("decide", "compete")
def training_step() -> str:
    """Backward is lowered in an autograd thread; gradients against eager fp32."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(256, 512, device=DEVICE, dtype=BF16)
    weights = [
        torch.randn(n, k, device=DEVICE, dtype=BF16).mul_(k**-0.5).requires_grad_()
        for n, k in ((768, 512), (512, 768))
    ]

    def model(x: Any, w1: Any, w2: Any) -> Any:
        return torch.relu(x @ w1.t()) @ w2.t()

    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", fullgraph=True)
    grad = torch.randn(256, 512, device=DEVICE, dtype=BF16)
    for _ in range(2):
        # The second step only launches; the first also compiles and may benchmark.
        for weight in weights:
            weight.grad = None
        before = ours_launched()
        compiled(x, *weights).backward(grad)
        torch.cuda.synchronize()
        launched = ours_launched() - before
    masters = [w.detach().float().requires_grad_() for w in weights]
    model(x.float(), *masters).backward(grad.float())
    for weight, master in zip(weights, masters, strict=True):
        if weight.grad is None or master.grad is None:
            raise AssertionError("a gradient is missing")
        close(weight.grad, master.grad)
    if launched != 5:
        raise AssertionError(f"{launched} launches of ours, expected 5")
    return f"{launched} launches"


@case("decide")
def backend_cute() -> str:
    a, w = integers(128, 512), integers(256, 512)
    want = torch.relu(a.float() @ w.float().t()).to(BF16)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, w: torch.relu(a @ w.t()), backend="cute")
    with torch.no_grad():
        compiled(a, w)
        before = ours_launched()
        equal(compiled(a, w), want)
    if ours_launched() == before:
        raise AssertionError("no launch of ours")
    return "backend='cute'"


@case("decide")
def side_stream() -> str:
    a, w = integers(512, 1024), integers(2048, 1024)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, w: a @ w, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        compiled(a, w.t())
        stream = torch.cuda.Stream()
        x = torch.zeros_like(a)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.copy_(a)
            got = compiled(x, w.t())
        stream.synchronize()
    equal(got, (a.float() @ w.float().t()).to(BF16))
    return "ordered behind the stream's own work"


@case("open")
def open_competition() -> str:
    """All choices compete; whoever wins, numbers are right and ours were timed."""
    from torch_cute_backend.inductor import choice

    timed: list[tuple[str, float]] = []
    original = choice.CuteCaller.benchmark

    def benchmark(self: Any, *args: Any, out: Any) -> float:
        ms = original(self, *args, out=out)
        timed.append((self.name, ms))
        return ms

    choice.CuteCaller.benchmark = benchmark  # type: ignore[method-assign]
    args = scaled_args(64, 5120, 5120)
    torch._dynamo.reset()
    fn = scaled(post=torch.relu)
    compiled = torch.compile(fn, mode="max-autotune-no-cudagraphs", fullgraph=True)
    with torch.no_grad():
        compiled(*args)
        before = ours_launched()
        equal(compiled(*args), torch.relu(scaled_want(*args)).to(BF16), 2**-7)
    if not timed or any(not 0 < ms < 1 for _, ms in timed):
        raise AssertionError(f"timings of ours: {timed}")
    best = min(ms for _, ms in timed)
    won = ours_launched() - before
    return f"ours best {best * 1e3:.2f} us of {len(timed)}, launched {won}"


# Caches: three processes, one case each.


def cached_model() -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    args = [integers(128, 512), integers(256, 512), integers(256)]
    want = torch.relu(F.linear(*f32(*args))).to(BF16)
    return lambda x, w, b: torch.relu(F.linear(x, w, b)), args, want


def run_cached() -> dict[str, int]:
    """``lowered`` counts graphs that Inductor really lowered here: its own counters
    are restored with a cached graph, as if it had."""
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering

    lowered = 0
    run = GraphLowering.run

    def counted(self: Any, *args: Any) -> Any:
        nonlocal lowered
        lowered += 1
        return run(self, *args)

    fn, args, want = cached_model()
    compiled = torch.compile(fn, mode="max-autotune-no-cudagraphs", fullgraph=True)
    with torch.no_grad(), mock.patch.object(GraphLowering, "run", counted):
        poison()
        equal(compiled(*args), want)
    c = counters["inductor"]
    hits = c["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return {"hits": hits, "lowered": lowered, "launched": ours_launched()}


@case("cache_first")
def cache_first() -> str:
    from torch_cute_backend.inductor.cachekey import PluginPass

    seen = run_cached()
    if seen["lowered"] != 1 or not seen["launched"]:
        raise AssertionError(str(seen))
    uuid = PluginPass(None).uuid()
    with open(os.environ["CUTE_TEST_UUID"], "w") as file:
        json.dump(uuid, file)
    return str(seen)


@case("cache_second")
def cache_second() -> str:
    seen = run_cached()
    if not seen["hits"] or seen["lowered"] or not seen["launched"]:
        raise AssertionError(str(seen))
    return str(seen)


@case("cache_without_plugin")
def cache_without_plugin() -> str:
    """Same key by hand, plugin never imported: the wrapper loads what it needs."""
    from torch._inductor.codegen import common
    from torch._inductor.custom_graph_pass import CustomGraphModulePass

    with open(os.environ["CUTE_TEST_UUID"]) as file:
        uuid = tuple(json.load(file))

    class SameKey(CustomGraphModulePass):
        def __call__(self, gm: Any) -> None:
            pass

        def uuid(self) -> Any:
            return uuid

    common.init_backend_registration()
    common.custom_backend_passes["cuda"] = SameKey()
    if "torch_cute_backend" in sys.modules:
        raise AssertionError("the plugin is already imported")
    seen = run_cached()
    if not seen["hits"] or seen["lowered"] or not seen["launched"]:
        raise AssertionError(str(seen))
    return str(seen)


if sys.argv[1:2] != ["cache_without_plugin"]:
    # In that group nothing may import our package.
    import inductor_grouped

    inductor_grouped.register(sys.modules[__name__])


def prepare(group: str) -> None:
    """How choices are made in this process."""
    if group == "cache_without_plugin":
        return
    import torch_cute_backend

    torch_cute_backend.enable()
    if group == "decide":
        from torch_cute_backend.inductor import choice

        # Path A for every shape, not only those of the pretuned table.
        choice.decides = lambda candidate: True
    if group in ("compete", "open"):
        from torch._inductor.async_compile import AsyncCompile

        # With the pool up, fused trials take the path through it.
        AsyncCompile.wait_pool_ready()


def main(group: str, names: Sequence[str]) -> int:
    prepare(group)
    failed = 0
    for name, fn in CASES[group].items():
        if names and not any(fnmatch(name, pattern) for pattern in names):
            continue
        begin = time.perf_counter()
        try:
            ok, detail = True, fn()
        except Exception:
            ok, detail = False, traceback.format_exc()[-4000:]
        failed += not ok
        seconds = round(time.perf_counter() - begin, 1)
        row = {"case": name, "ok": ok, "seconds": seconds, "detail": detail}
        print(json.dumps(row), flush=True)
        record(group, name, ok, seconds)
    return 1 if failed else 0


def record(group: str, name: str, ok: bool, seconds: float) -> None:
    """A result row as ``conftest`` writes them, where a file for them is named."""
    path = os.environ.get("TORCH_CUTE_BACKEND_GPU_RESULTS")
    if not path:
        return
    # The group without our plugin must not import it, for its own test's sake.
    if "torch_cute_backend" not in sys.modules:
        return
    from torch_cute_backend.bench import results

    row = {
        "suite": "gpu-tests",
        "test": f"test/gpu/inductor_cases.py {group} {name}",
        "outcome": "passed" if ok else "failed",
        "seconds": seconds,
        **vars(results.environment()),
    }
    results.append(Path(path), [row])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
