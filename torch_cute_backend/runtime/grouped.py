"""Call a built grouped kernel on torch tensors, eagerly.

In: a ``KernelBuild`` of a grouped problem, tensors as ``torch._grouped_mm`` and
``torch._scaled_grouped_mm`` take them. Out: the kernel's outputs. As in :mod:`gemm`,
this is where the entry point's holes are closed for eager callers.

The offsets' values are never read on the host: no call synchronises, and a CUDA graph
follows offsets that are rewritten between replays. So they cannot be checked here. The
kernel reads and writes inside the tensors whatever they hold; what lies outside the
groups of ascending offsets stays as it is, while ATen leaves there what its allocator
gave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torch_cute_backend.codegen.shapes import SCALE_SYMBOLS
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Grouping, scale_count
from torch_cute_backend.runtime import gemm

if TYPE_CHECKING:
    from torch_cute_backend.build import KernelBuild

_DIMENSIONS = {
    Grouping.M: (2, 3),
    Grouping.N: (3, 2),
    Grouping.K: (2, 2),
    Grouping.BATCH: (3, 3),
}
"""Of a and b."""


def run(
    build: KernelBuild,
    a: torch.Tensor,
    b: torch.Tensor,
    *inputs: torch.Tensor,
    offsets: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    num_ctas: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """All groups' ``epilogue(a @ b)`` on torch's current stream.

    Args:
        a: (M, K), or (G, M, K) where it is stacked (groups along N, batch).
        b: (K, N), or (G, K, N) where it is stacked (groups along M, batch).
        inputs: the epilogue's inputs, in graph order: scales as ATen takes them. Before
            them MXFP8's: of A all groups' tiles one after the other, each group's
            padded by itself (:func:`.block_scales.to_tiles`), of B one row a group.
        offsets: int32 (G,), the groups' ends; none for a batch.
        out: tensors to write, in graph order; allocated, not cleared, if not given.
        num_ctas: CTAs to launch at most; by default one an SM.

    Raises:
        UserError: a tensor does not fit the kernel; the message names it.
    """
    sizes = sizes_of(build.problem.grouping, a, b, offsets)
    tail = () if offsets is None else (offsets,)
    gemm.check_devices(build, (a, b, *inputs, *tail))
    if 0 in (sizes["m"], sizes["n"], sizes["g"]):
        return tuple(out) if out is not None else gemm.allocate(build, sizes, a.device)
    if a.shape[-1] == 0 and b.shape[-2] == 0:
        gemm.check_padding(build)
        # An empty sum is 0, which a K of zeros gives too.
        a = a.new_zeros(*a.shape[:-1], gemm.K_PADDING)
        b = b.new_zeros(*b.shape[:-2], b.shape[-1], gemm.K_PADDING).mT
    with torch.cuda.device(a.device):
        return bind(build, a, b, *inputs, offsets=offsets, out=out, num_ctas=num_ctas)()


def bind(
    build: KernelBuild,
    a: torch.Tensor,
    b: torch.Tensor,
    *inputs: torch.Tensor,
    offsets: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    num_ctas: int | None = None,
) -> gemm.Launch:
    """Check, fit and order the arguments of :func:`run`; no size may be zero.

    Raises:
        UserError: as :func:`run`.
    """
    sizes = sizes_of(build.problem.grouping, a, b, offsets)
    if build.problem.block_scaled:
        sizes |= _scale_sizes(sizes, inputs)
    tail = () if offsets is None else (offsets,)
    return gemm.arrange(build, a, b.mT, inputs, out, sizes, num_ctas, tail)


def sizes_of(
    grouping: Grouping,
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None,
) -> dict[str, int]:
    """Sizes by symbol: m, n, k, the ragged one over all groups, and g groups.

    Raises:
        UserError: dimensions or offsets do not fit the grouping.
    """
    expected = _DIMENSIONS.get(grouping)
    if expected is None:
        raise UserError("the kernel is not of a grouped GEMM; use gemm.run")
    if (a.dim(), b.dim()) != expected:
        raise UserError(
            f"groups along {grouping.value} need a {expected[0]}-D a and a "
            f"{expected[1]}-D b, got {a.dim()}-D and {b.dim()}-D"
        )
    stacked = [t for t in (a, b) if t.dim() == 3]
    groups = _groups(grouping, stacked, offsets)
    for tensor in stacked:
        if tensor.shape[0] != groups:
            raise UserError(f"{groups} groups, but an operand holds {tensor.shape[0]}")
    m, n = a.shape[-2], b.shape[-1]
    return {
        "m": m,
        "n": n,
        "k": a.shape[-1],
        "g": groups,
        "gm": groups * m,
        "gn": groups * n,
    }


def _scale_sizes(
    sizes: dict[str, int], inputs: Sequence[torch.Tensor]
) -> dict[str, int]:
    """How many block scales A has, each group's padded, and B for each group. Only the
    device knows how many of A's are needed; it reads none beyond them."""
    row = scale_count(1, sizes["k"])
    count = inputs[0].numel() if inputs else 0
    if count == 0 or count % row:
        raise UserError(
            f"scale_a holds {count} scales, expected a multiple of {row}: whole tiles "
            f"for K={sizes['k']}"
        )
    values = (count, scale_count(sizes["n"], sizes["k"]))
    return dict(zip(SCALE_SYMBOLS, values, strict=True))


def _groups(
    grouping: Grouping, stacked: Sequence[torch.Tensor], offsets: torch.Tensor | None
) -> int:
    """How many there are, by the offsets' length or a batch's."""
    if grouping is Grouping.BATCH:
        if offsets is not None:
            raise UserError("a batch takes no offsets")
        return stacked[0].shape[0]
    if offsets is None:
        raise UserError(f"groups along {grouping.value} need offsets")
    if offsets.dtype is not torch.int32:
        raise UserError(f"offsets are {offsets.dtype}, expected torch.int32")
    if offsets.dim() != 1 or (offsets.shape[0] > 1 and offsets.stride(0) != 1):
        raise UserError(
            f"offsets must be a dense vector, got shape {tuple(offsets.shape)} and "
            f"strides {offsets.stride()}"
        )
    return offsets.shape[0]
