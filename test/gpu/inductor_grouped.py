"""Grouped GEMMs under ``torch.compile``: cases for ``inductor_cases``, whose helpers
they use. Groups as experts have them: of odd sizes, one of them empty.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from grouped_reference import grouped_product

from torch_cute_backend.problem import Grouping

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
DEVICE = "cuda:0"
G = 4
ENDS = (48, 48, 176, 256)
"""Multiples of 16, which ATen needs of groups along K."""


def grouped(a: Any, b: Any, offs: Any = None) -> Any:
    return torch._grouped_mm(a, b, offs=offs)


def scaled(a: Any, b: Any, sa: Any, sb: Any, offs: Any, fast: bool = True) -> Any:
    return torch._scaled_grouped_mm(
        a, b, sa, sb, offs=offs, out_dtype=BF16, use_fast_accum=fast
    )


def ends() -> torch.Tensor:
    return torch.tensor(ENDS, dtype=torch.int32, device=DEVICE)


def operands(helpers: ModuleType, grouping: Grouping, **kw: Any) -> list[torch.Tensor]:
    """A and B as the kernel takes them, b with N before K."""
    m, n, k = 256, 256, 256
    a_groups = (G,) if grouping in (Grouping.N, Grouping.BATCH) else ()
    b_groups = (G,) if grouping in (Grouping.M, Grouping.BATCH) else ()
    a = helpers.integers(*a_groups, m, k, **kw)
    return [a, helpers.integers(*b_groups, n, k, seed=1, **kw)]


def bf16(helpers: ModuleType, grouping: Grouping) -> str:
    a, b = operands(helpers, grouping)
    if grouping is Grouping.K:
        # As a backward pass has them: the contiguous modes are M and N.
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    offs = () if grouping is Grouping.BATCH else (ends(),)
    want = grouped_product(grouping, a, b, (), *offs).to(BF16)
    said: str = helpers.check(grouped, (a, b.mT, *offs), want)
    return said


def fp8(helpers: ModuleType, grouping: Grouping, fast: bool) -> str:
    a, b = operands(helpers, grouping, dtype=E4M3)
    sa = helpers.powers(*a.shape[:-1])
    sb = helpers.powers(*b.shape[:-1], seed=1)
    offs = ends()
    want = grouped_product(grouping, a, b, (sa, sb), offs).to(BF16)

    def function(a: Any, b: Any, sa: Any, sb: Any, offs: Any) -> Any:
        return scaled(a, b, sa, sb, offs, fast)

    said: str = helpers.check(function, (a, b.mT, sa, sb, offs), want)
    return said


def consumer_in_its_own_kernel(helpers: ModuleType) -> str:
    """Rows beyond the last group get the value that the consumer gives them."""
    a, b = operands(helpers, Grouping.M)
    offs = torch.tensor([48, 48, 176, 240], dtype=torch.int32, device=DEVICE)

    def fn(a: Any, b: Any, offs: Any) -> Any:
        y = torch._grouped_mm(a, b, offs=offs)
        rows = torch.arange(y.shape[0], device=y.device)
        return torch.where((rows < offs[-1])[:, None], torch.relu(y), 1.0)

    want = torch.relu(grouped_product(Grouping.M, a, b, (), offs))
    want[240:] = 1
    said: str = helpers.check(fn, (a, b.mT, offs), want.to(BF16))
    return said


def dynamic_rows(helpers: ModuleType) -> str:
    torch._dynamo.reset()
    _, b = operands(helpers, Grouping.M)
    compiled = torch.compile(grouped, mode="max-autotune-no-cudagraphs")
    for m in (256, 300, 2, 5000):
        x = helpers.integers(m, 256, seed=m)
        torch._dynamo.mark_dynamic(x, 0)
        offs = torch.tensor([m // 3, m // 3, m - 1, m], dtype=torch.int32).to(DEVICE)
        helpers.poison()
        before = helpers.ours_launched()
        with torch.no_grad():
            got = compiled(x, b.mT, offs)
        want = grouped_product(Grouping.M, x, b, (), offs).to(BF16)
        helpers.equal(got, want)
        if helpers.ours_launched() - before != 1:
            raise AssertionError(f"no launch of ours at M={m}")
    return "4 sizes"


def cuda_graphs_follow_the_offsets(helpers: ModuleType) -> str:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    a, b = operands(helpers, Grouping.M)
    compiled = torch.compile(grouped, mode="max-autotune")
    launched = []
    with torch.no_grad():
        for step in range(6):
            offs = torch.tensor([16 * step, 100, 100 + step, 256], dtype=torch.int32)
            offs = offs.to(DEVICE)
            torch.compiler.cudagraph_mark_step_begin()
            before = helpers.ours_launched()
            got = compiled(a, b.mT, offs).clone()
            torch.cuda.synchronize()
            launched.append(helpers.ours_launched() - before)
            want = grouped_product(Grouping.M, a, b, (), offs).to(BF16)
            helpers.equal(got, want)
    skips = counters["inductor"]["cudagraph_skips"]
    if skips or not launched[0] or any(launched[-2:]):
        raise AssertionError(f"{skips} skips, launches by step {launched}")
    return f"launches by step {launched}"


def training_step_of_experts(helpers: ModuleType) -> str:
    """Forward, gradient of the input (groups of M), of the weights (groups of K)."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(256, 128, device=DEVICE, dtype=BF16).requires_grad_()
    w = torch.randn(G, 192, 128, device=DEVICE, dtype=BF16).mul_(0.1).requires_grad_()
    offs = ends()

    def model(x: Any, w: Any, offs: Any) -> Any:
        return torch._grouped_mm(x, w.mT, offs=offs)

    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", fullgraph=True)
    grad = torch.randn(256, 192, device=DEVICE, dtype=BF16)
    for _ in range(2):
        x.grad = w.grad = None
        before = helpers.ours_launched()
        compiled(x, w, offs).backward(grad)
        torch.cuda.synchronize()
        launched = helpers.ours_launched() - before
    if x.grad is None or w.grad is None:
        raise AssertionError("a gradient is missing")
    dx = grouped_product(Grouping.M, grad, w.detach().mT, (), offs)
    dw = grouped_product(Grouping.K, grad.mT, x.detach().mT, (), offs)
    helpers.close(x.grad, dx)
    helpers.close(w.grad, dw)
    if launched != 3:
        raise AssertionError(f"{launched} launches of ours, expected 3")
    return f"{launched} launches"


def register(helpers: ModuleType) -> None:
    """Add the cases to groups ``decide`` and ``compete`` of ``helpers.CASES``."""
    cases: dict[str, Any] = {
        f"grouped_bf16_{g.value}": partial(bf16, helpers, g)
        for g in (Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH)
    }
    for g in (Grouping.M, Grouping.N):
        for fast in (True, False):
            name = f"grouped_fp8_{g.value}_{'fast' if fast else 'exact'}"
            cases[name] = partial(fp8, helpers, g, fast)
    for fn in (
        consumer_in_its_own_kernel,
        dynamic_rows,
        cuda_graphs_follow_the_offsets,
        training_step_of_experts,
    ):
        cases[f"grouped_{fn.__name__}"] = partial(fn, helpers)
    for group in ("decide", "compete"):
        helpers.CASES.setdefault(group, {}).update(cases)
