"""Host text for MXFP8's block scales: their layouts and TMA descriptors.

The tensors are flat, or one row a group; what lies where follows from the operand's
sizes (:func:`~torch_cute_backend.problem.scale_count`). TMA moves pairs of scales,
since boxes of single bytes would be more than 256 wide.
"""

from __future__ import annotations

from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.ir.values import Buffer
from torch_cute_backend.problem import SCALE_BLOCK, SCALE_COLUMNS

IMPORT = "import cutlass.utils.blockscaled_layout as blockscaled"
LAYOUTS = tuple((f"scale_{x}_smem_layout", "cute.Layout") for x in ("a", "b"))
"""Kernel parameters with the staged layouts, and their type."""


def print_layouts(out: Writer) -> None:
    """Staged layouts, which the tiled MMA decides."""
    for x in ("a", "b"):
        out.call(
            f"scale_{x}_smem_layout = blockscaled.make_smem_layout_sf{x}(",
            ("tiled_mma", "mma_tiler", f"{SCALE_BLOCK}", "AB_STAGES"),
        )
        once = f"cute.filter_zeros(scale_{x}_smem_layout)"
        out.line(f"{count(f'scale_{x}')} = cute.cosize({once})")


def count(operand: str) -> str:
    """Scales that shared memory holds of ``scale_a`` or ``scale_b``."""
    return f"{operand}_count"


def print_atoms(
    out: Writer, scales: tuple[Buffer, ...], cta_group: str, grouped: bool
) -> None:
    """TMA atoms over the scales of ``a`` and ``b``, seen as large as those. Groups
    along M: A's have as many rows as there are scales, since each group's are padded,
    and B's are stacked."""
    out.line(f"scale_tile = blockscaled.BlockScaledBasicChunk({SCALE_BLOCK}).layout")
    for buffer, x in zip(scales, ("a", "b"), strict=True):
        layout = f"scale_{x}_layout"
        shape = _grouped_shape(out, x) if grouped else f"{x}.shape"
        out.line(f"{layout} = cute.tile_to_shape(scale_tile, {shape}, (2, 1))")
        if grouped and x == "b":
            stacks = "cute.select(scale_b.layout, mode=[0])"
            out.line(f"{layout} = cute.append({layout}, {stacks})")
        out.call(
            f"{names.tma_atom(buffer)}, {names.gmem(buffer)} = "
            f"cute.nvgpu.make_tiled_tma_atom_{x.upper()}(",
            (
                f"cpasync.CopyBulkTensorTileG2SOp({cta_group})",
                f"cute.make_tensor({buffer.name}.iterator, {layout})",
                f"cute.slice_(scale_{x}_smem_layout, (None, None, None, 0))",
                "mma_tiler",
                "tiled_mma",
                "(1, CLUSTER_M, CLUSTER_N, 1)",
                "internal_type=cutlass.Int16",
            ),
        )


def _grouped_shape(out: Writer, x: str) -> str:
    """Rows and K of the matrix whose scales these are, of one group or of all."""
    k = "cute.size(a, mode=[1])"
    if x == "b":
        return f"(cute.size(b, mode=[1]), {k})"
    across = f"cute.ceil_div({k}, {SCALE_BLOCK * SCALE_COLUMNS})"
    out.line(f"scale_rows = cute.size(scale_a) // ({SCALE_COLUMNS} * {across})")
    return f"(scale_rows, {k})"
