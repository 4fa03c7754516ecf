"""What the cost model knows of each arch, as numbers.

``benchmarks/fit_model.py`` fits the measured entries and rewrites this file between the
marks; the rest is written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.arch import ARCHS, ArchSpec
from torch_cute_backend.errors import UserError


@dataclass(frozen=True)
class Rates:
    """Rates of one GPU. Constants for ranking, not promises.

    Attributes:
        source: where the numbers are from: measured, published or assumed.
        fp8_flops, half_flops: dense tensor-core rates of the whole GPU, FLOP/s.
        exact_factor: time of an FP8 MMA with its partial sums added in registers over
            one without.
        narrow_n: columns below which an MMA gets no faster.
        dram_bytes: stream rate, bytes/s; ``l2_bytes``: all that CTAs pull through L2.
        sm_bytes: what one CTA's loads bring into its shared memory, bytes/s.
        latency_s: from a load's issue to its arrival under load; with the stages it
            bounds a CTA's rate (Little's law).
        start_s: launch, descriptors, first bytes, last store.
        tile_s: hand-over between tiles where accumulators have one stage.
        store_s: seconds a byte of output costs one CTA.
        k_tile_s: barriers of one k tile; ``cluster_s``: what each doubling of the
            cluster adds, since its CTAs wait for one another.
        softness: exponent of the norm that joins the overlapping terms; large means
            that only the largest counts.
    """

    source: str
    fp8_flops: float
    half_flops: float
    exact_factor: float
    narrow_n: float
    dram_bytes: float
    l2_bytes: float
    sm_bytes: float
    latency_s: float
    start_s: float
    tile_s: float
    store_s: float
    k_tile_s: float
    cluster_s: float
    softness: float


# --- rates: written by benchmarks/fit_model.py
RATES: dict[str, Rates] = {
    "sm_90a": Rates(
        source="fitted: NVIDIA H200, 2026-11-30, 2788 runs; log error 0.18",
        fp8_flops=1.98e15,
        half_flops=7.9e14,
        exact_factor=1.19,
        narrow_n=55.3,
        dram_bytes=4.53e12,
        l2_bytes=1.43e13,
        sm_bytes=2.53e11,
        latency_s=4.49e-07,
        start_s=2.93e-06,
        tile_s=2.79e-07,
        store_s=1.15e-11,
        k_tile_s=1.05e-08,
        cluster_s=7.18e-09,
        softness=2.2,
    ),
    "sm_100a": Rates(
        source="B200: published flops and DRAM rate; the rest assumed, none measured",
        fp8_flops=4e15,
        half_flops=2e15,
        exact_factor=1.0,
        narrow_n=64.0,
        dram_bytes=6.5e12,
        l2_bytes=2e13,
        sm_bytes=1.2e11,
        latency_s=1e-06,
        start_s=2.2e-06,
        tile_s=4e-07,
        store_s=1.5e-11,
        k_tile_s=2e-08,
        cluster_s=1e-08,
        softness=6.0,
    ),
}
# --- rates: end


def rates_for(arch: ArchSpec) -> Rates:
    """The rates of ``arch``; of an arch with the same MMA where it has none yet."""
    if arch.name in RATES:
        return RATES[arch.name]
    kin = [a.name for a in ARCHS.values() if a.mma == arch.mma and a.name in RATES]
    if not kin:
        raise UserError(f"no rates for {arch.name}, nor for another {arch.mma} arch")
    return RATES[kin[0]]
