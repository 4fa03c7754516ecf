"""A Triton kernel that reads a buffer once: the honest floor where weights dominate.

Each program adds up its share of 32-bit words and writes one partial sum, so that the
loads cannot be dropped and a test can see that every word was read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class ReadConfig:
    """Programs an SM, words a program loads at once, warps a program."""

    per_sm: int
    block: int
    warps: int

    def describe(self) -> str:
        return f"read_{self.per_sm}x{self.block}_w{self.warps}"


CONFIGS = (
    ReadConfig(1, 8192, 8),
    ReadConfig(2, 4096, 8),
    ReadConfig(2, 8192, 8),
    ReadConfig(4, 2048, 4),
    ReadConfig(4, 4096, 4),
    ReadConfig(8, 1024, 4),
    ReadConfig(8, 2048, 4),
)


@triton.jit  # type: ignore[untyped-decorator]
def _read(words, sums, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    program = tl.program_id(0)
    stride = tl.num_programs(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in tl.range(program * BLOCK, count, stride, num_stages=4):
        at = start + lanes
        total += tl.load(words + at, mask=at < count, other=0)
    tl.store(sums + program, tl.sum(total, axis=0))


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of 4 * n bytes as n int32 words."""
    return tensor.reshape(-1).view(torch.uint8).view(torch.int32)


def read(words: torch.Tensor, sums: torch.Tensor, config: ReadConfig) -> None:
    """Read ``words`` once; ``sums`` (int32, one a program) get wrapped partial sums."""
    _read[(sums.numel(),)](
        words, sums, words.numel(), BLOCK=config.block, num_warps=config.warps
    )


def sums_for(config: ReadConfig, sms: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(config.per_sm * sms, dtype=torch.int32, device=device)


def verify(words: torch.Tensor, sums: torch.Tensor) -> bool:
    """Do the partial sums add up to the sum of all words, modulo 2**32?"""
    want = int(words.sum(dtype=torch.int64))
    return (int(sums.sum(dtype=torch.int64)) - want) % 2**32 == 0
