"""The demo's model: an FP8 MLP block with the sizes of Qwen3-32B's, random weights.

In: tokens (M, 5120) in bf16. Out: (M, 5120) in bf16, and the quantised hidden
activations between the two GEMMs, so that each GEMM can be checked on its own inputs.
Weights are quantised per output channel once, activations per token at run time, both
to e4m3 with fp32 scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN = 5120
INTERMEDIATE = 25600
E4M3_MAX = 448.0
GAIN_BOUND = 2**-7
"""How far the output's overall gain may be from 1: less than a hundredth."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(R, C) to e4m3 and an (R, 1) fp32 scale, so that ``q * scale`` is about ``x``."""
    # A row of zeros gets the smallest normal scale and stays zero, not NaN.
    amax = x.abs().amax(dim=1, keepdim=True).float()
    scale = (amax / E4M3_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    q = (x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return q, scale


class Fp8Linear(nn.Module):
    """A rowwise-scaled FP8 GEMM with a quantised weight."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        """``weight``: (N, K), float."""
        super().__init__()
        q, scale = quantize_rows(weight)
        self.register_buffer("weight", q)
        self.register_buffer("scale", scale.t().contiguous())

    def forward(self, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """``q``: (M, K) e4m3; ``scale``: (M, 1). Returns (M, N) in bf16."""
        out: torch.Tensor = torch._scaled_mm(
            q,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return out

    def reference(self, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The same on dequantised values, in fp32, not rounded."""
        weight = self.weight.float() * self.scale.t()
        out: torch.Tensor = (q.float() * scale) @ weight.t()
        return out


@dataclass(frozen=True)
class Check:
    """How wrong a result is, as multiples of what it may be: at most 1 is right."""

    element: float
    gain: float

    @property
    def right(self) -> bool:
        return self.element <= 1 and self.gain <= 1

    def __str__(self) -> str:
        verdict = "right" if self.right else "WRONG"
        return (
            f"{verdict}: worst element at {self.element:.2f} of its bound, "
            f"gain at {self.gain:.2f}"
        )


class Fp8Mlp(nn.Module):
    """Up projection, SiLU, down projection."""

    def __init__(
        self,
        device: torch.device,
        hidden: int = HIDDEN,
        intermediate: int = INTERMEDIATE,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator(device).manual_seed(seed)

        def weight(rows: int, cols: int) -> torch.Tensor:
            w = torch.randn(rows, cols, device=device, generator=generator)
            return w.div(cols**0.5)

        self.up = Fp8Linear(weight(intermediate, hidden))
        self.down = Fp8Linear(weight(hidden, intermediate))

    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x``: (M, hidden). Returns the output, hidden activations, their scales."""
        hidden = F.silu(self.up(*quantize_rows(x)))
        q, scale = quantize_rows(hidden)
        return self.down(q, scale), q, scale

    def check(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        q: torch.Tensor,
        scale: torch.Tensor,
    ) -> dict[str, Check]:
        """Compare each GEMM with fp32 on the inputs that it really had.

        The hidden activations went through e4m3, whose half step is 2^-4 of an element
        (of the smallest normal, 2^-6, for smaller ones); the output through bf16. The
        tensor core's own sums add to that (see :func:`compare`).
        """
        hidden = F.silu(self.up.reference(*quantize_rows(x)))
        smallest = scale * 2**-10
        return {
            "up": compare(
                q.float() * scale, hidden, x.shape[1], 2**-4 + 2**-6, smallest
            ),
            "down": compare(
                y.float(), self.down.reference(q, scale), q.shape[1], 2**-7
            ),
        }


def compare(
    got: torch.Tensor,
    want: torch.Tensor,
    k: int,
    relative: float,
    absolute: torch.Tensor | float = 0.0,
) -> Check:
    """Each element may be off by ``relative`` of itself, by ``absolute``, and by a part
    of its row's root mean square: Hopper adds 32 FP8 products at a time to a sum of
    about 14 bits and truncates, so ``k`` products lose up to k/32 units of 2^-13. The
    gain, a mean over all elements, may be off by 2^-7."""
    rms = want.square().mean(dim=1, keepdim=True).sqrt()
    accumulation = 2**-7 + k / 32 * 2**-13
    allowed = want.abs() * relative + rms * accumulation + absolute
    # NaN compares false with everything, so it must be turned into a failure.
    ratio = ((got - want).abs() / allowed).nan_to_num(nan=float("inf"))
    gain = (got * want).sum() / want.square().sum() - 1
    gain = gain.abs().nan_to_num(nan=float("inf"))
    return Check(float(ratio.max()), float(gain) / GAIN_BOUND)
