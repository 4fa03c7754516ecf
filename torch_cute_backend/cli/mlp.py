"""The demo's model: an FP8 MLP block with the sizes of Qwen3-32B's, random weights.

In: tokens (M, 5120) in bf16. Out: (M, 5120) in bf16. Weights are quantised per output
channel once, activations per token at run time, both to e4m3 with fp32 scales.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN = 5120
INTERMEDIATE = 25600
E4M3_MAX = 448.0


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(R, C) to e4m3 and an (R, 1) fp32 scale, so that ``q * scale`` is about ``x``."""
    # A row of zeros gets the smallest normal scale and stays zero, not NaN.
    amax = x.abs().amax(dim=1, keepdim=True).float()
    scale = (amax / E4M3_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    q = (x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return q, scale


class Fp8Linear(nn.Module):
    """``x @ weight.t()`` by a rowwise-scaled FP8 GEMM."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        """``weight``: (N, K), float."""
        super().__init__()
        q, scale = quantize_rows(weight)
        self.register_buffer("weight", q)
        self.register_buffer("scale", scale.t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, scale = quantize_rows(x)
        out: torch.Tensor = torch._scaled_mm(
            q,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return out

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        """The same on dequantised values in fp32, cast once."""
        q, scale = quantize_rows(x)
        weight = self.weight.float() * self.scale.t()
        exact: torch.Tensor = (q.float() * scale) @ weight.t()
        return exact.to(torch.bfloat16)


class Fp8Mlp(nn.Module):
    """Up projection, SiLU, down projection."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator(device).manual_seed(seed)

        def weight(rows: int, cols: int) -> torch.Tensor:
            w = torch.randn(rows, cols, device=device, generator=generator)
            return w.div(cols**0.5)

        self.up = Fp8Linear(weight(INTERMEDIATE, HIDDEN))
        self.down = Fp8Linear(weight(HIDDEN, INTERMEDIATE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(F.silu(self.up(x)))
        return out

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = F.silu(self.up.reference(x).float())
        return self.down.reference(hidden.to(torch.bfloat16))


def worst_error(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest error of an element, as a multiple of what it may be; at most 1 is right.

    An element may be off by 2^-7 of itself (two bf16 roundings) plus 2^-5 of its row's
    root mean square: the hidden activations are quantised to e4m3 (relative step 2^-3),
    so a last-bit difference before that step moves single products by a whole step,
    which averages out over 25600 of them.
    """
    want, got = reference.float(), actual.float()
    rms = want.square().mean(dim=1, keepdim=True).sqrt()
    allowed = want.abs() * 2**-7 + rms * 2**-5
    # NaN compares false with everything, so it must be turned into a failure.
    ratio = ((got - want).abs() / allowed).nan_to_num(nan=float("inf"))
    return float(ratio.max())
