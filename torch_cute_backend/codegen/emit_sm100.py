"""Blackwell's statements: tcgen05 MMA, tensor memory, and the epilogue that reads it.

A thread gets its share of a subtile in one of two layouts (PTX ISA, tcgen05.ld), both
indexed by one number ``e`` that runs over its registers:

=======  ==============  ==========================================================
layout   instruction     register ``e`` of a thread
=======  ==============  ==========================================================
rows     32x32b          column ``e`` of the thread's one row
quads    16x256b         row ``16 i + 8 r + lane / 4`` of the warp's rows, column
                         ``8 j + 2 (lane % 4) + c``; ``e`` counts c, r, j, i
=======  ==============  ==========================================================

An accumulator of 64 rows fills half of each warp's lanes, which only ``quads`` reads.
``quads`` also puts four threads on neighbouring columns, which serves whatever goes to
or comes from global memory element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch_cute_backend.arch.sm100 import WARP_THREADS
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import emits
from torch_cute_backend.codegen.emit_epilogue import emit_graph
from torch_cute_backend.codegen.emit_scales import ScaleEmitter
from torch_cute_backend.codegen.shapes import (
    Where,
    input_index,
    output_index,
    where,
)
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.ir import dataflow as flow
from torch_cute_backend.ir import structure as st
from torch_cute_backend.ir import sync
from torch_cute_backend.ir.expr import BinOp, Const, Param
from torch_cute_backend.ir.values import Buffer, Var


class Sm100Emitter(ScaleEmitter):
    """See :class:`~torch_cute_backend.codegen.emit.Emitter`."""

    # --- TMA and mainloop ---------------------------------------------------------

    @emits(flow.TmaLoad)
    def tma_load(self, s: flow.TmaLoad) -> None:
        """A is cut into the rows of an MMA, which a pair shares; ``coords`` count the
        tiles of a CTA."""
        if self.pair and s.source.name == "A" and not self.problem.is_grouped:
            row, *rest = s.coords
            s = replace(s, coords=(BinOp("//", row, Const(2)), *rest))
        super().tma_load(s)

    @emits(flow.ConsumerWait)
    def consumer_wait(self, s: flow.ConsumerWait) -> None:
        p = s.pipeline
        self.out.line(f"{names.pipeline(p)}.consumer_wait({names.consumer_state(p)})")

    @emits(flow.ConsumerRelease)
    def consumer_release(self, s: flow.ConsumerRelease) -> None:
        """The MMA warp releases by tcgen05.commit, which follows its MMAs in order; the
        epilogue by one arrival a warp, as the pipeline's count says."""
        p, state = s.pipeline, names.consumer_state(s.pipeline)
        release = f"{names.pipeline(p)}.consumer_release({state})"
        if p.tx_bytes:
            self.out.line(release)
        else:
            with self.out.block("with cute.arch.elect_one():"):
                self.out.line(release)
        self.out.line(f"{state}.advance()")

    @emits(flow.Mma)
    def mma(self, s: flow.Mma) -> None:
        out = self.out
        acc = self.tmem_tensor(s.accumulator)
        state = names.producer_state(self.carrier(s.accumulator))
        acc_stage = self.accumulator_stage(state, s.product)
        stage = f"{names.consumer_state(s.pipeline)}.index"
        out.line(f"{acc}_stage = {acc}[(None, None, None, {acc_stage})]")
        with out.block("for k_block in range_constexpr(cute.size(tCrA, mode=[2])):"):
            out.comment("The tile's first MMA overwrites the accumulator.")
            out.line(f"accumulate = k_block > 0 or {s.index} > 0")
            out.line("tiled_mma.set(tcgen05.Field.ACCUMULATE, accumulate)")
            if s.scales is not None:
                self.name_scales()
            out.line(f"k_coord = (None, None, k_block, {stage})")
            out.call(
                "cute.gemm(",
                (
                    "tiled_mma",
                    f"{acc}_stage",
                    "tCrA[k_coord]",
                    f"{names.fragment(s.b)}[k_coord]",
                    f"{acc}_stage",
                ),
            )

    @emits(flow.SelectTile)
    def select_tile(self, s: flow.SelectTile) -> None:
        """The rows of A that a pair shares start with the leader's."""
        if self.pair and s.buffer.name == "A":
            behind = BinOp(
                "*", BinOp("%", Param("cta_rank"), Const(2)), Param("TILE_M")
            )
            row, *rest = s.origin
            s = replace(s, origin=(BinOp("-", row, behind), *rest))
        super().select_tile(s)

    # --- tails of K ---------------------------------------------------------------

    mma_thread = "tidx % 32"

    @emits(flow.ZeroTail)
    def zero_tail(self, s: flow.ZeroTail) -> None:
        """The MMA's layout of an operand, seen as rows and columns."""
        for buffer in (s.a, s.b):
            self.out.comment("(rows, (MMA's k, MMA_K), stages)")
            view = f"cute.group_modes({buffer}[((None, None), 0, None, None)], 1, 3)"
            self.out.line(f"{self.rows_of(buffer)} = {view}")
        super().zero_tail(s)

    def rows_of(self, staged: Buffer) -> str:
        return f"{staged}_rows" if names.camel(staged.name) != "SD" else f"{staged}"

    @emits(sync.Fence)
    def fence(self, s: sync.Fence) -> None:
        """The MMA is issued by one lane, on behalf of what all lanes have written."""
        super().fence(s)
        if s.role is not None and s.role.warps == 1:
            self.out.line("cute.arch.sync_warp()")

    # --- epilogue ---------------------------------------------------------

    @emits(flow.TmemLoad)
    def tmem_load(self, s: flow.TmemLoad) -> None:
        """The fence is tcgen05.wait::ld: before it the registers hold nothing."""
        stage = self.accumulator_stage(names.consumer_state(s.pipeline), s.product)
        subtile = f"{s.subtile}, {stage}"
        self.out.call(
            "cute.copy(",
            (
                "copy_t2r",
                f"tTRtAcc[(None, None, None, {subtile})]",
                names.registers(s.target),
            ),
        )
        self.out.line("cute.arch.fence_view_async_tmem_load()")

    def load_rows(self, source: Buffer, target: Buffer, place: Where) -> None:
        """A value for each row of this thread, in registers ``[r, i]``."""
        out, regs = self.out, names.registers(target)
        rows = f"(2, {self.row_blocks})" if self.quads else "1"
        out.line(f"{regs} = cute.make_rmem_tensor({rows}, Float32)")
        with self._rows():
            at = "r, i" if self.quads else "0"
            out.line(f"row = {place.row} + tCcD[e][0]")
            value = input_index(self.problem, InputKind.ROW, place)
            out.call(f"{regs}[{at}] = {names.gmem(source)}[", value, "].to(Float32)")

    def load_columns(
        self, source: Buffer, target: Buffer, place: Where, subtile: Var | None
    ) -> None:
        """One column a lane, whatever the layout: coalesced, and few registers. The
        threads that need a column get it by a shuffle."""
        out, regs = self.out, names.registers(target)
        whole = subtile is None or self.one_subtile()
        width = self.schedule.tile_n if whole else self.schedule.epi_n
        self._whole_columns[target.name] = whole
        count = -(-width // WARP_THREADS)
        out.line(f"{regs} = cute.make_rmem_tensor({count}, Float32)")
        base = place.col
        if not whole:
            base += f" + {subtile} * EPI_N"
        with out.block(f"for i in range_constexpr({count}):"):
            out.line(f"col = {base} + i * {WARP_THREADS} + lane_idx")
            at = input_index(self.problem, InputKind.COL, place)
            out.call(f"{regs}[i] = {names.gmem(source)}[", at, "].to(Float32)")

    def load_full(
        self, source: Buffer, target: Buffer, place: Where, subtile: Var | None
    ) -> None:
        out, regs = self.out, names.registers(target)
        out.line(f"{regs} = cute.make_rmem_tensor(tCcD.shape, Float32)")
        with out.block("for e in range_constexpr(cute.size(tCcD)):"):
            self._coordinates(place, subtile)
            at = input_index(self.problem, InputKind.FULL, place)
            out.call(
                f"{regs}[e] = {names.gmem(source)}[",
                at,
                "].to(Float32)",
            )

    @emits(st.SubtileLoop)
    def subtile_loop(self, s: st.SubtileLoop) -> None:
        loop = "cutlass.range" if self.rolled else "range_constexpr"
        unroll = ", unroll=1" if self.rolled else ""
        with self.out.block(f"for {s.index} in {loop}({s.count}{unroll}):"):
            self.body(s.body)

    @emits(flow.EpilogueApply)
    def epilogue_apply(self, s: flow.EpilogueApply) -> None:
        columns = [
            buffer
            for buffer, entry in zip(s.inputs, s.graph.inputs, strict=True)
            if entry.kind is InputKind.COL
        ]
        if self.rolled:
            for buffer in columns:
                self._select_columns(buffer, s.subtile)
        with self._columns():
            for buffer in columns:
                self._shuffle_column(buffer, s.subtile)
            with self._rows_of_column():
                emit_graph(
                    self.out,
                    s.graph,
                    [f"{names.registers(b)}[e]" for b in s.sources],
                    lambda i: self._input(s.graph, i, s.inputs[i]),
                    lambda i, v: f"{names.registers(s.targets[i])}[e] = {v}",
                )

    def _select_columns(self, buffer: Buffer, subtile: Var) -> None:
        """A rolled loop cannot index registers: pick this subtile's by comparison."""
        if not self._whole_columns[buffer.name]:
            return
        out, regs = self.out, names.registers(buffer)
        each = max(1, self.schedule.epi_n // WARP_THREADS)
        groups = -(-self.schedule.tile_n // (each * WARP_THREADS))
        out.line(f"{regs}_now = cute.make_rmem_tensor({each}, Float32)")
        with out.block(f"for i in range_constexpr({each}):"):
            out.line(f"{regs}_now[i] = {regs}[i]")
            with out.block(f"for part in range_constexpr(1, {groups}):"):
                out.line(f"here = {subtile} * EPI_N // {each * WARP_THREADS} == part")
                out.call(
                    f"{regs}_now[i] = cutlass.select_(",
                    ("here", f"{regs}[part * {each} + i]", f"{regs}_now[i]"),
                )

    def _shuffle_column(self, buffer: Buffer, subtile: Var) -> None:
        """``col`` is the column's static part, counted from the first loaded one."""
        out, regs = self.out, names.registers(buffer)
        column = "8 * j + c" if self.quads else "e"
        lane = f"col % {WARP_THREADS}"
        if self._whole_columns[buffer.name] and not self.one_subtile():
            if not self.rolled:
                column = f"{subtile} * EPI_N + {column}"
            elif self.schedule.epi_n < WARP_THREADS:
                lane = f"({subtile} * EPI_N + col) % {WARP_THREADS}"
            regs += "_now" if self.rolled else ""
        if self.quads:
            lane += " + 2 * (lane_idx % 4)"
        out.line(f"col = {column}")
        out.call(
            f"{self._column_name(buffer)} = cute.arch.shuffle_sync(",
            (f"{regs}[col // {WARP_THREADS}]", lane),
        )

    @staticmethod
    def _column_name(buffer: Buffer) -> str:
        return f"{buffer.name.removeprefix('r_')}_col"

    def _input(self, graph: EpilogueGraph, index: int, buffer: Buffer) -> str:
        kind = graph.inputs[index].kind
        if kind is InputKind.COL:
            return self._column_name(buffer)
        at = {
            InputKind.SCALAR: "",
            InputKind.ROW: "[r, i]" if self.quads else "[0]",
            InputKind.FULL: "[e]",
        }
        return names.registers(buffer) + at[kind]

    @emits(flow.SmemStore)
    def smem_store(self, s: flow.SmemStore) -> None:
        x = names.camel(s.source.name)
        stage = self.staging_stage(s.subtile.name)
        self.out.line(
            f"cute.copy(copy_r2s, tRSr{x}, tRSs{x}[(None, None, None, {stage})])"
        )

    @emits(flow.GmemStore)
    def gmem_store(self, s: flow.GmemStore) -> None:
        with self.out.block("for e in range_constexpr(cute.size(tCcD)):"):
            place = where(s.tile, s.origin, s.end, s.begin)
            self._coordinates(place, s.subtile)
            inside = place.inside
            with self.out.block(f"if {inside}:"):
                at = output_index(self.problem, place)
                value = f"{names.registers(s.source)}[e]"
                self.out.line(f"{names.gmem(s.target)}[{at}] = {value}")

    def _coordinates(self, place: Where, subtile: Var | None) -> None:
        column = place.col
        if subtile is not None and not self.one_subtile():
            column += f" + {subtile} * EPI_N"
        self.out.line(f"row = {place.row} + tCcD[e][0]")
        self.out.line(f"col = {column} + tCcD[e][1]")

    # --- loops over this thread's elements ------------------------------------------

    @contextmanager
    def _rows(self) -> Iterator[None]:
        """Once for each row of this thread; ``e`` is an element of it."""
        if not self.quads:
            self.out.line("e = 0")
            yield
            return
        with self._quad_rows():
            self.out.line("e = i * (EPI_N // 2) + 2 * r")
            yield

    @contextmanager
    def _columns(self) -> Iterator[None]:
        """Once for each column of this thread in a subtile."""
        if not self.quads:
            with self.out.block("for e in range_constexpr(EPI_N):"):
                yield
            return
        with (
            self.out.block("for j in range_constexpr(EPI_N // 8):"),
            self.out.block("for c in range_constexpr(2):"),
        ):
            yield

    @contextmanager
    def _rows_of_column(self) -> Iterator[None]:
        """Inside :meth:`_columns`: once for each row; ``e`` is the element."""
        if not self.quads:
            yield
            return
        with self._quad_rows():
            self.out.line("e = i * (EPI_N // 2) + 4 * j + 2 * r + c")
            yield

    @contextmanager
    def _quad_rows(self) -> Iterator[None]:
        with (
            self.out.block(f"for i in range_constexpr({self.row_blocks}):"),
            self.out.block("for r in range_constexpr(2):"),
        ):
            yield
