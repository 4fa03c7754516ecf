"""Block scales on Blackwell: from shared memory to tensor memory, and into the MMA.

A k tile's scales of A and B come by TMA with its operands. The MMA's thread copies
them behind the accumulators in tensor memory (tcgen05.cp, four copies of 32 lanes, as
every warp's part of an MMA reads its own), and names them to each MMA. Copies and MMAs
of one thread run in the order they are issued in, so one k tile's room is enough.
"""

from __future__ import annotations

from dataclasses import replace

from torch_cute_backend.arch.sm100 import accumulator_columns, scale_columns
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import emits
from torch_cute_backend.codegen.emit_sm100_setup import Sm100SetupEmitter
from torch_cute_backend.codegen.shapes import shapes_of, stacked
from torch_cute_backend.dtypes import E8M0
from torch_cute_backend.ir import dataflow as flow
from torch_cute_backend.ir import sync
from torch_cute_backend.ir.values import Buffer
from torch_cute_backend.problem import SCALE_BLOCK

_ELEMENT = f"cutlass.{E8M0.cutlass}"


class ScaleEmitter(Sm100SetupEmitter):
    """See :class:`~torch_cute_backend.codegen.emit.Emitter`."""

    @emits(sync.AllocateShared)
    def allocate_shared(self, s: sync.AllocateShared) -> None:
        scales, others = _split(s.buffers)
        super().allocate_shared(replace(s, buffers=others))
        for b in scales:
            layout = names.smem_layout(b)
            self.out.line(f"{b.name} = storage.{b.name}.get_tensor({layout})")

    @emits(sync.PartitionTma)
    def partition_tma(self, s: sync.PartitionTma) -> None:
        scales, others = _split(s.buffers)
        super().partition_tma(replace(s, buffers=others))
        for b in scales:
            self._scale_boxes(b)

    def _scale_boxes(self, buffer: Buffer) -> None:
        """As an operand's; a block of K has one scale, the layouts' strides of 0 say,
        and TMA wants each once."""
        out, x = self.out, names.camel(buffer.name)
        rows = "TILE_M" if x[-1] == "A" else "TILE_N"
        shapes = shapes_of(self.problem)
        groups = stacked(shapes.a if x[-1] == "A" else shapes.b)
        every = "(None, None, None)" if groups else "(None, None)"
        tiles = f"cute.local_tile({names.gmem(buffer)}, ({rows}, TILE_K), {every})"
        out.call(f"tCg{x} = thr_mma.partition_{x[-1]}(", (tiles,))
        which = "tiles, k tiles, groups" if groups else "tiles, k tiles"
        out.comment(f"(box, stages), (box, {which})")
        out.call(
            f"t{x}s{x}, t{x}g{x} = cpasync.tma_partition(",
            (
                names.tma_atom(buffer),
                "0",
                "cute.make_layout(1)",
                f"cute.group_modes(s{x}, 0, 3)",
                f"cute.group_modes(tCg{x}, 0, 3)",
            ),
        )
        for side in ("s", "g"):
            out.line(f"t{x}{side}{x} = cute.filter_zeros(t{x}{side}{x})")

    @emits(sync.PartitionMma)
    def partition_mma(self, s: sync.PartitionMma) -> None:
        super().partition_mma(s)
        if s.scales is None:
            return
        self.out.call(
            "scale_atom = cute.make_copy_atom(",
            ("tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE)", _ELEMENT),
        )
        first = accumulator_columns(self.schedule)
        columns = scale_columns(self.problem, self.schedule)
        for staged, count in zip(s.staged_scales, columns, strict=True):
            self._view_scales(staged, first)
            self._partition_scale_copy(staged)
            first += count

    def _view_scales(self, staged: Buffer, column: int) -> None:
        """Tensor memory as the MMA reads an operand's scales: ``tCtScaleA``."""
        out, x, name = self.out, _operand(staged), _snake(staged)
        out.comment(f"(MMA, MMA_{'MN'[x[-1] == 'B']}, MMA_K)")
        out.call(
            f"{name}_tmem_layout = blockscaled.make_tmem_layout_sf{x[-1].lower()}(",
            (
                "tiled_mma",
                "(TILE_M, TILE_N, TILE_K)",
                f"{SCALE_BLOCK}",
                f"cute.slice_({names.smem_layout(staged)}, (None, None, None, 0))",
            ),
        )
        out.call(
            f"tCt{x} = cute.make_tensor(",
            (
                f"cute.recast_ptr(tmem_ptr + {column}, dtype={_ELEMENT})",
                f"{name}_tmem_layout",
            ),
        )

    def _partition_scale_copy(self, staged: Buffer) -> None:
        out, x, name = self.out, _operand(staged), _snake(staged)
        out.comment("Each scale once: blocks of K have strides of 0.")
        out.line(f"tCt{x}_once = cute.filter_zeros(tCt{x})")
        out.line(f"copy_{name} = tcgen05.make_s2t_copy(scale_atom, tCt{x}_once)")
        out.line(f"thr_{name} = copy_{name}.get_slice(0)")
        source = f"thr_{name}.partition_S(cute.filter_zeros({staged.name}))"
        out.call(f"t{x}s = tcgen05.get_s2t_smem_desc_tensor(", (f"copy_{name}", source))
        out.line(f"t{x}t = thr_{name}.partition_D(tCt{x}_once)")

    @emits(flow.ScaleCopy)
    def scale_copy(self, s: flow.ScaleCopy) -> None:
        stage = f"{names.consumer_state(s.pipeline)}.index"
        for staged in s.sources:
            x = _operand(staged)
            source = f"t{x}s[(None, None, None, None, {stage})]"
            self.out.call("cute.copy(", (f"copy_{_snake(staged)}", source, f"t{x}t"))

    def name_scales(self) -> None:
        """Tell the MMA of ``k_block`` where its scales are."""
        for x in ("A", "B"):
            self.out.call(
                "tiled_mma.set(",
                (
                    f"tcgen05.Field.SF{x}",
                    f"tCtScale{x}[(None, None, k_block)].iterator",
                ),
            )


def _operand(staged: Buffer) -> str:
    """``ScaleA`` of ``sScaleA``."""
    return staged.name.removeprefix("s")


def _snake(staged: Buffer) -> str:
    """``scale_a`` of ``sScaleA``."""
    return names.smem_layout(staged).removesuffix("_smem_layout")


def _split(
    buffers: tuple[Buffer, ...],
) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """Those that hold scales, and the others."""
    scales = tuple(b for b in buffers if b.dtype == E8M0.name)
    return scales, tuple(b for b in buffers if b not in scales)
