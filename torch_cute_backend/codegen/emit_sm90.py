"""Hopper's statements: wgmma, register accumulators, their epilogue.

A wgmma accumulator holds, per thread, ``((2, 2, N/8), M tiles, 1)`` values: two
neighbouring columns ``c``, two rows ``r`` eight apart, and column groups ``j`` of eight
(PTX ISA, wgmma register fragments).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch_cute_backend.arch.sm90 import MMA_M, WARP_THREADS, WARPGROUP_THREADS
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import emits
from torch_cute_backend.codegen.emit_epilogue import emit_graph
from torch_cute_backend.codegen.emit_grouped import GroupedEmitter
from torch_cute_backend.codegen.shapes import (
    Where,
    input_index,
    output_index,
    where,
)
from torch_cute_backend.dtypes import dtype
from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir import dataflow as flow
from torch_cute_backend.ir import structure as st
from torch_cute_backend.ir import sync
from torch_cute_backend.ir.values import Buffer, Pipeline, Var

PANEL_BYTES = 128
"""Width of one swizzled panel of a K-major operand."""
CHUNK_BYTES = 16
ZERO_UNROLL = 4
"""Panels zeroed in one iteration, two to four stores each."""


class Sm90Emitter(GroupedEmitter):
    """See :class:`~torch_cute_backend.codegen.emit.Emitter`."""

    # --- set-up ----------------------------------------------------------------------

    @emits(sync.InitPipelines)
    def init_pipelines(self, s: sync.InitPipelines) -> None:
        for p in s.pipelines:
            self._init_pipeline(p)
        self.out.call(
            "pipeline.pipeline_init_arrive(",
            ("cluster_shape_mn=(CLUSTER_M, CLUSTER_N)", "is_relaxed=True"),
        )

    def _init_pipeline(self, p: Pipeline) -> None:
        group = "pipeline.CooperativeGroup(pipeline.Agent.Thread"
        self.out.call(
            f"{names.pipeline(p)} = pipeline.PipelineTmaAsync.create(",
            (
                f"barrier_storage=storage.{p.name}_barriers.data_ptr()",
                f"num_stages={p.stages}",
                f"producer_group={group})",
                f"consumer_group={group}, {p.consumer_arrivals})",
                f"tx_count={p.tx_bytes}",
                "cta_layout_vmnk=cute.make_layout((1, CLUSTER_M, CLUSTER_N, 1))",
                "defer_sync=True",
            ),
        )

    @emits(sync.PipelineStates)
    def pipeline_states(self, s: sync.PipelineStates) -> None:
        for p in s.pipelines:
            if s.role is not None and s.role.name == p.producer:
                self._state(names.producer_state(p), "Producer", p)
            else:
                self._state(names.consumer_state(p), "Consumer", p)
                self._state(names.release_state(p), "Consumer", p)
                if s.tile_stages is not None:
                    self._skip(p, f"instance * {s.tile_stages}")

    def _skip(self, p: Pipeline, stages: str) -> None:
        for name in (names.consumer_state(p), names.release_state(p)):
            self.out.line(f"{name}.advance({stages})")

    @emits(flow.SkipStages)
    def skip_stages(self, s: flow.SkipStages) -> None:
        self.out.comment("The other warpgroup's tile.")
        count = str(s.count) if s.others == 1 else f"{s.others} * {s.count}"
        self._skip(s.pipeline, count)

    def _state(self, name: str, side: str, p: Pipeline) -> None:
        self.out.call(
            f"{name} = pipeline.make_pipeline_state(",
            (f"pipeline.PipelineUserType.{side}", f"{p.stages}"),
        )

    @emits(sync.PartitionMma)
    def partition_mma(self, s: sync.PartitionMma) -> None:
        out = self.out
        groups = self.schedule.tile_warpgroups
        if self.schedule.pingpong:
            out.comment("Each warpgroup is an instance of the role.")
            out.line(
                f"instance = cute.arch.make_warp_uniform(tidx // {WARPGROUP_THREADS})"
            )
            out.line("thr_mma = tiled_mma.get_slice(0)")
        else:
            self._warpgroup_slice(groups)
        self._fragments(s)

    def _warpgroup_slice(self, groups: int) -> None:
        out = self.out
        out.comment("A wgmma reads shared memory for its whole warpgroup.")
        out.line(
            f"warpgroup_idx = cute.arch.make_warp_uniform(tidx // {WARPGROUP_THREADS})"
        )
        out.line(
            "thr_mma = tiled_mma.get_slice("
            f"cute.make_layout({groups}, stride={WARPGROUP_THREADS})(warpgroup_idx))"
        )

    def _fragments(self, s: sync.PartitionMma) -> None:
        out = self.out
        out.comment("(MMA, MMA_M, MMA_K, stages), (MMA, MMA_N, MMA_K, stages)")
        out.line(f"tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A({s.a}))")
        for b in (s.b, *s.more_b):
            fragment = f"tiled_mma.make_fragment_B(thr_mma.partition_B({b}))"
            out.line(f"{names.fragment(b)} = {fragment}")
        out.comment("((2 columns, 2 rows, TILE_N / 8), MMA_M, 1)")
        further = s.more_accumulators
        for buffer in (s.accumulator, s.promote, s.alternate, *further):
            if buffer is not None:
                self._accumulator(buffer)

    def _accumulator(self, buffer: Buffer) -> None:
        self.out.call(
            f"{names.registers(buffer)} = cute.make_rmem_tensor(",
            ("tiled_mma.partition_shape_C((MMA_ROWS, TILE_N))", "Float32"),
        )

    @emits(sync.PartitionEpilogue)
    def partition_epilogue(self, s: sync.PartitionEpilogue) -> None:
        out = self.out
        out.comment("This thread's coordinates and registers in a subtile.")
        out.call(
            f"tCcD = epi_mma.get_slice({self._thread()}).partition_C(",
            ("cute.make_identity_tensor((MMA_ROWS, EPI_N))",),
        )
        for target in s.targets:
            out.call(
                f"{names.registers(target)} = cute.make_rmem_tensor(",
                (
                    "epi_mma.partition_shape_C((MMA_ROWS, EPI_N))",
                    f"cutlass.{dtype(target.dtype).cutlass}",
                ),
            )
        if s.staging is not None:
            self._partition_staging(s.targets[0], s.staging)

    def _partition_staging(self, target: Buffer, staging: Buffer) -> None:
        out, x = self.out, names.camel(target.name)
        self._store_atom()
        out.line("copy_r2s = cute.make_tiled_copy_C(store_atom, epi_mma)")
        out.line(f"thr_r2s = copy_r2s.get_slice({self._thread()})")
        out.line(f"tRSs{x} = thr_r2s.partition_D({staging})")
        out.line(f"tRSr{x} = thr_r2s.retile({names.registers(target)})")
        if not self.problem.is_grouped:
            self._output_boxes(x, f"m{x}", "(None, None)")

    def select(self, x: str, tensor: str) -> None:
        if x in names.MODES:
            self.operand_boxes(x, tensor, "(0, None)")
        else:
            self._output_boxes(x, tensor, "(0, None)")

    def _output_boxes(self, x: str, tensor: str, tiles: str) -> None:
        """Subtiles of ``tensor`` for TMA: of all tiles, or ``tiles`` says of which."""
        out = self.out
        which = "tiles m, " if tiles == "(None, None)" else ""
        filled = self.named(self._filled(f"s{x}", "EPI_N"), f"s{x}_filled")
        out.comment(f"(box, stages), (box, {which}subtiles n)")
        out.call(f"g{x}_mn = cute.local_tile(", (tensor, "(TILE_M, EPI_N)", tiles))
        out.call(
            f"t{x}s{x}, t{x}g{x} = cpasync.tma_partition(",
            (
                f"tma_atom_{x.lower()}",
                "0",
                "cute.make_layout(1)",
                f"cute.group_modes({filled}, 0, 2)",
                f"cute.group_modes(g{x}_mn, 0, 2)",
            ),
        )

    def _store_atom(self) -> None:
        """stmatrix moves 8x8 blocks of 16-bit elements; other widths store the two
        neighbouring columns that a thread holds."""
        kind = self.problem.out_dtype
        args = [
            "cute.nvgpu.CopyUniversalOp()",
            f"cutlass.{kind.cutlass}",
            f"num_bits_per_copy={2 * kind.bits}",
        ]
        if kind.bits == 16:
            blocks = 4 if self.schedule.epi_n % 16 == 0 else 2
            args = [f"warp.StMatrix8x8x16bOp(False, {blocks})", args[1]]
        self.out.call("store_atom = cute.make_copy_atom(", tuple(args))

    @emits(sync.ZeroPadding)
    def zero_padding(self, s: sync.ZeroPadding) -> None:
        """A stage is a row of 128-byte wide panels of 64 rows; the swizzle stays within
        a row, so the rows below the tile are one run of bytes of each panel. Nothing
        hides this: each step is one store at a constant distance from the last."""
        out, tile_m = self.out, self.schedule.tile_m
        panel = MMA_M * PANEL_BYTES
        width = self.schedule.tile_k * self.problem.a_dtype.bytes
        panels = s.buffer.stages * width // PANEL_BYTES
        chunks = (MMA_M - tile_m) * PANEL_BYTES // CHUNK_BYTES
        threads = WARPGROUP_THREADS * self.schedule.tile_warpgroups
        each = next(t for t in range(threads, 0, -1) if chunks % t == 0)
        out.comment("Zero the rows of A that TMA does not fill: 16 bytes at a time.")
        out.line("raw_a = cute.recast_ptr(storage.sA.data_ptr(), dtype=cutlass.Uint8)")
        out.call(
            "sA_padding = cute.make_tensor(",
            (
                f"raw_a + {tile_m * PANEL_BYTES}",
                "cute.make_layout("
                f"({CHUNK_BYTES}, {each}, {chunks // each}, {panels}), "
                f"stride=(1, {CHUNK_BYTES}, {each * CHUNK_BYTES}, {panel}))",
            ),
        )
        out.line(f"zeros = cute.make_rmem_tensor(({CHUNK_BYTES},), cutlass.Uint8)")
        out.line("zeros.fill(0)")
        with ExitStack() as blocks:
            if each < threads:
                blocks.enter_context(out.block(f"if tidx < {each}:"))
            blocks.enter_context(
                out.block(f"for i in cutlass.range({panels}, unroll={ZERO_UNROLL}):")
            )
            blocks.enter_context(
                out.block(f"for j in range_constexpr({chunks // each}):")
            )
            out.line("cute.autovec_copy(zeros, sA_padding[(None, tidx, j, i)])")

    def _padded(self) -> bool:
        return self.schedule.tile_m < MMA_M

    def filled_operand(self, operand: str) -> str:
        name = f"s{operand}"
        return self._filled(name, "TILE_K") if operand == "A" else name

    def _filled(self, buffer: str, columns: str) -> str:
        """A staged buffer's rows that belong to the tile."""
        if not self._padded():
            return buffer
        return f"cute.local_tile({buffer}, (TILE_M, {columns}), (0, 0, None))"

    def _thread(self) -> str:
        """This thread among those that share its tile."""
        return f"tidx % {WARPGROUP_THREADS}" if self.schedule.pingpong else "tidx"

    @property
    def storing_thread(self) -> str:
        return self._thread()

    def store_warp(self) -> str:
        return (
            "warp_idx % 4 == STORE_WARP"
            if self.schedule.pingpong
            else (super().store_warp())
        )

    def staging_stage(self, subtile: str) -> str:
        """Each warpgroup has stages of its own in pingpong."""
        stage = super().staging_stage(subtile)
        if not self.schedule.pingpong:
            return stage
        own = "instance * EPI_STAGES"
        return own if stage == "0" else f"{own} + {stage}"

    # --- mainloop -----------------------------------------------------------------

    @emits(flow.AccumulatorClear)
    def accumulator_clear(self, s: flow.AccumulatorClear) -> None:
        self.out.line(f"{names.registers(s.accumulator)}.fill(0.0)")

    @emits(flow.ConsumerWait)
    def consumer_wait(self, s: flow.ConsumerWait) -> None:
        p = s.pipeline
        self.out.line(f"{names.pipeline(p)}.consumer_wait({names.consumer_state(p)})")

    @emits(flow.Mma)
    def mma(self, s: flow.Mma) -> None:
        acc = names.registers(s.accumulator)
        self._issue(s, acc)
        if s.promote is not None:
            self.out.comment("Exact: leave the tensor core's short accumulator.")
            self.out.line("warpgroup.wait_group(0)")
            self._promote(acc, s.promote)

    def _issue(self, s: flow.Mma, acc: str) -> None:
        """Zeroing the accumulator beforehand instead makes ptxas serialise the wgmmas
        of kernels that store it as it is (C7514; CUDA 13.0, 64 columns of bf16)."""
        out = self.out
        stage = f"{names.consumer_state(s.pipeline)}.index"
        first = "" if s.promote is not None else f" or {s.index} > 0"
        out.line("warpgroup.fence()")
        with out.block("for k_block in range_constexpr(cute.size(tCrA, mode=[2])):"):
            out.comment("The first wgmma of a sum overwrites the accumulator.")
            out.line(f"accumulate = k_block > 0{first}")
            out.line("tiled_mma.set(warpgroup.Field.ACCUMULATE, accumulate)")
            out.line(f"k_coord = (None, None, k_block, {stage})")
            b = names.fragment(s.b)
            out.call(
                "cute.gemm(", ("tiled_mma", acc, "tCrA[k_coord]", f"{b}[k_coord]", acc)
            )
        out.line("warpgroup.commit_group()")
        if not s.more:
            out.line(f"{names.consumer_state(s.pipeline)}.advance()")

    def _promote(self, acc: str, promote: Buffer) -> None:
        out, total = self.out, names.registers(promote)
        with out.block(f"for i in range_constexpr(cute.size({acc})):"):
            out.line(f"{total}[i] = {total}[i] + {acc}[i]")

    def _promote_here(self, acc: str, promote: Buffer) -> None:
        """As PTX, since LLVM would move plain additions behind the next wgmma, which
        overwrites what they read."""
        out, total = self.out, names.registers(promote)
        with out.block(f"for i in range_constexpr(cute.size({acc})):"):
            out.call(
                f"{total}[i] = cute.arch.inline_ptx(",
                (
                    '"add.f32 {$w0}, {$r0}, {$r1};"',
                    "write_only_types=[Float32]",
                    f"read_only_args=[{total}[i], {acc}[i]]",
                ),
            )

    @emits(st.KLoop)
    def k_loop(self, s: st.KLoop) -> None:
        for stmt in s.body:
            if isinstance(stmt, flow.Mma) and stmt.alternate is not None:
                self._alternating(s, stmt)
                return
        super().k_loop(s)

    def _alternating(self, s: st.KLoop, mma: flow.Mma) -> None:
        """Registers cannot be indexed at run time, so two k tiles make one iteration,
        behind the first one; an even count leaves one more."""
        if mma.promote is None or mma.alternate is None:
            raise CodegenError("alternating accumulators without a sum")
        out = self.out
        pair = tuple(names.registers(b) for b in (mma.accumulator, mma.alternate))
        out.comment("Exact: a k tile's sum is added while the next one's wgmma runs.")
        self._k_tile(s, mma, pair[0], None)
        with out.block(f"for _ in cutlass.range(({s.count} - 1) // 2, unroll=1):"):
            self._k_tile(s, mma, pair[1], pair[0])
            self._k_tile(s, mma, pair[0], pair[1])
        with out.block(f"if {s.count} % 2 == 0:"):
            self._k_tile(s, mma, pair[1], pair[0])
            out.line("warpgroup.wait_group(0)")
            self._promote_here(pair[1], mma.promote)
        with out.block("else:"):
            out.line("warpgroup.wait_group(0)")
            self._promote_here(pair[0], mma.promote)

    def _k_tile(self, s: st.KLoop, mma: flow.Mma, acc: str, before: str | None) -> None:
        """One k tile into ``acc``; ``before`` holds the previous one's sum, if any."""
        for stmt in s.body:
            if isinstance(stmt, flow.Mma):
                self._issue(stmt, acc)
            elif not isinstance(stmt, flow.ConsumerRelease):
                self.emit(stmt)
            elif before is not None and mma.promote is not None:
                self.out.line(f"warpgroup.wait_group({stmt.lag})")
                self._release(stmt.pipeline)
                self._promote_here(before, mma.promote)

    @emits(flow.ConsumerRelease)
    def consumer_release(self, s: flow.ConsumerRelease) -> None:
        out = self.out
        if not s.lag:
            self._release(s.pipeline)
            return
        out.comment(f"All but the newest {s.lag} wgmma group(s) have read their stage.")
        out.line(f"warpgroup.wait_group({s.lag})")
        with out.block(f"if {s.index} >= {s.lag}:"):
            self._release(s.pipeline)

    def _release(self, p: Pipeline) -> None:
        state = names.release_state(p)
        self.out.line(f"{names.pipeline(p)}.consumer_release({state})")
        self.out.line(f"{state}.advance()")

    @emits(flow.MmaDrain)
    def mma_drain(self, s: flow.MmaDrain) -> None:
        if s.promote is None:
            self.out.line("warpgroup.wait_group(0)")
        for _ in range(s.lag):
            self._release(s.pipeline)

    # --- epilogue -----------------------------------------------------------------

    def load_rows(self, source: Buffer, target: Buffer, place: Where) -> None:
        out, regs = self.out, names.registers(target)
        out.call(
            f"{regs} = cute.make_rmem_tensor(",
            (f"({2}, cute.size(tCcD, mode=[1]))", "Float32"),
        )
        row = _fragment("0", "r", "0", self.schedule.epi_n)
        with self._elements("i", "r"):
            out.line(f"row = {place.row} + tCcD[{row}][0]")
            at = input_index(self.problem, InputKind.ROW, place)
            out.call(f"{regs}[r, i] = {names.gmem(source)}[", at, "].to(Float32)")

    def load_columns(
        self, source: Buffer, target: Buffer, place: Where, subtile: Var | None
    ) -> None:
        """The tile's columns, one a lane: coalesced, and few registers. The threads
        that need a column get it by a shuffle."""
        if subtile is not None:
            raise CodegenError(f"columns of {source} are loaded once a tile")
        out, regs = self.out, names.registers(target)
        count = -(-self.schedule.tile_n // WARP_THREADS)
        out.line(f"{regs} = cute.make_rmem_tensor({count}, Float32)")
        with out.block(f"for i in range_constexpr({count}):"):
            out.line(f"col = {place.col} + i * {WARP_THREADS} + tidx % 32")
            at = input_index(self.problem, InputKind.COL, place)
            out.call(f"{regs}[i] = {names.gmem(source)}[", at, "].to(Float32)")

    def load_full(
        self, source: Buffer, target: Buffer, place: Where, subtile: Var | None
    ) -> None:
        if subtile is None:
            raise CodegenError(f"{source} is loaded a subtile at a time")
        out, regs = self.out, names.registers(target)
        out.line(f"{regs} = cute.make_rmem_tensor(tCcD.shape, Float32)")
        with self._elements("i", "j", "r", "c"):
            self._coordinates(place, subtile)
            at = input_index(self.problem, InputKind.FULL, place)
            out.call(
                f"{regs}[{self._element()}] = {names.gmem(source)}[",
                at,
                "].to(Float32)",
            )

    @emits(flow.EpilogueApply)
    def epilogue_apply(self, s: flow.EpilogueApply) -> None:
        group = "j" if self._one_subtile() else f"{s.subtile} * (EPI_N // 8) + j"
        element = _fragment("c", "r", group, self.schedule.tile_n)
        kinds = [i.kind for i in s.graph.inputs]
        columns = [
            b for b, k in zip(s.inputs, kinds, strict=True) if k is InputKind.COL
        ]
        with self._elements("j", "c"):
            for buffer in columns:
                self._shuffle_column(buffer, group)
            with self._elements("i", "r"):
                if s.more or self.problem.is_grouped:
                    self.out.line(f"element = {element}")
                    element = "element"
                emit_graph(
                    self.out,
                    s.graph,
                    [f"{names.registers(b)}[{element}]" for b in s.sources],
                    lambda i: self._input(kinds[i], s.inputs[i]),
                    lambda i, v: (
                        f"{names.registers(s.targets[i])}[{self._element()}] = {v}"
                    ),
                )

    def _shuffle_column(self, buffer: Buffer, group: str) -> None:
        """Lane t of a warp holds columns 2 * (t % 4) + c of each group of eight."""
        regs = names.registers(buffer)
        self.out.line(
            f"first = 8 * ({group}) + c" if "+" in group else "first = 8 * j + c"
        )
        self.out.call(
            f"{_column(buffer)} = cute.arch.shuffle_sync(",
            (
                f"{regs}[first // {WARP_THREADS}]",
                f"first % {WARP_THREADS} + 2 * (tidx % 4)",
            ),
        )

    def _one_subtile(self) -> bool:
        return self.schedule.tile_n == self.schedule.epi_n

    def _input(self, kind: InputKind, buffer: Buffer) -> str:
        if kind is InputKind.COL:
            return _column(buffer)
        at = {
            InputKind.SCALAR: "",
            InputKind.ROW: "[r, i]",
            InputKind.FULL: f"[{self._element()}]",
        }
        return names.registers(buffer) + at[kind]

    @emits(flow.SmemStore)
    def smem_store(self, s: flow.SmemStore) -> None:
        x = names.camel(s.source.name)
        stage = self.staging_stage(s.subtile.name)
        stored = f"tRSs{x}[(None, None, None, {stage})]"
        if self.schedule.pingpong:
            self.out.call("cute.copy(", ("copy_r2s", f"tRSr{x}", stored))
        else:
            self.out.line(f"cute.copy(copy_r2s, tRSr{x}, {stored})")

    @emits(flow.GmemStore)
    def gmem_store(self, s: flow.GmemStore) -> None:
        with self._elements("i", "j", "r", "c"):
            place = where(s.tile, s.origin, s.end, s.begin)
            self._coordinates(place, s.subtile)
            tile = "crd[0] < TILE_M and " if self._padded() else ""
            inside = f"{tile}{place.inside}"
            with self.out.block(f"if {inside}:"):
                at = output_index(self.problem, place)
                value = f"{names.registers(s.source)}[{self._element()}]"
                self.out.line(f"{names.gmem(s.target)}[{at}] = {value}")

    def _coordinates(self, place: Where, subtile: Var) -> None:
        self.out.line(f"crd = tCcD[{self._element()}]")
        self.out.line(f"row = {place.row} + crd[0]")
        self.out.line(f"col = {self._column(place, subtile)} + crd[1]")

    def _element(self) -> str:
        """Coordinate of element (i, j, r, c) in a subtile's fragment."""
        return _fragment("c", "r", "j", self.schedule.epi_n)

    def _column(self, place: Where, subtile: Var) -> str:
        base = place.col
        return base if self._one_subtile() else f"{base} + {subtile} * EPI_N"

    @contextmanager
    def _elements(self, *indices: str) -> Iterator[None]:
        """Nested unrolled loops over this thread's elements of a subtile."""
        extent = {
            "i": "cute.size(tCcD, mode=[1])",
            "j": "EPI_N // 8",
            "r": "2",
            "c": "2",
        }
        with ExitStack() as stack:
            for index in indices:
                header = f"for {index} in range_constexpr({extent[index]}):"
                stack.enter_context(self.out.block(header))
            yield


def _column(buffer: Buffer) -> str:
    """This column's value of a column input."""
    return f"{buffer.name.removeprefix('r_')}_col"


def _fragment(c: str, r: str, j: str, columns: int, i: str = "i") -> str:
    """Coordinate in the fragment of a tile ``columns`` wide. With a single group of
    eight columns the DSL drops that mode."""
    return f"(({c}, {r}, {j}), {i}, 0)" if columns > 8 else f"(({c}, {r}), {i}, 0)"
