"""Blackwell's set-up statements: barriers, tensor memory, partitions.

One tcgen05 MMA covers the CTA's tile, so A and B are partitioned by the MMA for TMA
too; with ``cta_group`` 2 each CTA of a pair then loads its half.
"""

from __future__ import annotations

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import emits
from torch_cute_backend.codegen.emit_grouped import GroupedEmitter
from torch_cute_backend.dtypes import dtype
from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir import sync
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.values import Buffer, Pipeline, PipelineKind
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

QUAD_ROWS = 16
"""Rows of a warp that one 16x256b load reads."""
STORE_BITS = 128
"""Widest store to shared memory."""


def _elementwise(problem: GemmProblem, schedule: GemmSchedule) -> bool:
    """Does the epilogue read or write global memory element by element?"""
    graph = problem.epilogue
    full = any(i.kind is InputKind.FULL for i in graph.inputs)
    return full or len(graph.outputs) > 1 or schedule.store == "direct"


class Sm100SetupEmitter(GroupedEmitter):
    """See :class:`~torch_cute_backend.codegen.emit.Emitter`."""

    def __init__(
        self, problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
    ) -> None:
        super().__init__(problem, schedule, arch)
        elementwise = _elementwise(problem, schedule)
        # A row a thread makes the widest shared-memory stores, but then a warp's access
        # to global memory touches 32 rows at once, where quads touch 8.
        self.quads = schedule.tile_m == 64 or elementwise
        # Unrolled, the addresses and predicates of all subtiles would crowd registers.
        self.rolled = elementwise and not self.one_subtile()
        self.products = problem.epilogue.products
        self.row_blocks = schedule.tile_m // (4 * QUAD_ROWS)
        self._whole_columns: dict[str, bool] = {}
        self._carriers: dict[Buffer, Pipeline] = {}

    def kernel_body(self, program: Program) -> None:
        self._carriers = {b: p for p in program.pipelines for b in p.carries}
        super().kernel_body(program)

    def carrier(self, buffer: Buffer) -> Pipeline:
        """The pipeline whose stages hold ``buffer``."""
        if buffer not in self._carriers:
            raise CodegenError(f"no pipeline carries {buffer}")
        return self._carriers[buffer]

    @property
    def pair(self) -> bool:
        """Do two CTAs share each MMA?"""
        return self.schedule.cta_group > 1

    @property
    def cluster_vmnk(self) -> str:
        """Shape of the cluster with the CTAs of one MMA as its first mode."""
        if self.pair:
            return "(2, CLUSTER_M // 2, CLUSTER_N, 1)"
        return "(1, CLUSTER_M, CLUSTER_N, 1)"

    @property
    def mma_rows(self) -> str:
        return "2 * TILE_M" if self.pair else "TILE_M"

    def multicast(self, operand: str) -> bool:
        """A is shared along the cluster's N, B along its M; a pair splits B."""
        s = self.schedule
        return (s.cluster_n if operand == "A" else s.cluster_m // s.cta_group) > 1

    def one_subtile(self) -> bool:
        return self.schedule.tile_n == self.schedule.epi_n

    # --- coordinates ---------------------------------------------------------------

    # --- barriers and memory ---------------------------------------------------------

    @emits(sync.InitPipelines)
    def init_pipelines(self, s: sync.InitPipelines) -> None:
        self.out.comment("(CTA of the MMA, MMA m, MMA n, k) -> CTA of the cluster")
        self.out.line(f"cluster_layout = cute.make_layout({self.cluster_vmnk})")
        for p in s.pipelines:
            self._init_pipeline(p)

    def _init_pipeline(self, p: Pipeline) -> None:
        kinds = {
            PipelineKind.TMA_UMMA: "PipelineTmaUmma",
            PipelineKind.UMMA_EPILOGUE: "PipelineUmmaAsync",
        }
        if p.kind not in kinds:
            raise CodegenError(f"pipeline {p} of kind {p.kind.value} on tcgen05")
        group = "pipeline.CooperativeGroup(pipeline.Agent.Thread"
        self.out.call(
            f"{names.pipeline(p)} = pipeline.{kinds[p.kind]}.create(",
            (
                f"barrier_storage=storage.{p.name}_barriers.data_ptr()",
                f"num_stages={p.stages}",
                f"producer_group={group}, {p.producer_arrivals})",
                f"consumer_group={group}, {p.consumer_arrivals})",
                *((f"tx_count={p.tx_bytes}",) if p.tx_bytes else ()),
                "cta_layout_vmnk=cluster_layout",
                "defer_sync=True",
            ),
        )

    @emits(sync.TmemAlloc)
    def tmem_alloc(self, s: sync.TmemAlloc) -> None:
        """The address lands in shared memory; the permit is given up at once, so that
        a kernel that starts behind this one can allocate."""
        out = self.out
        two = ("is_two_cta=True",) if self.pair else ()
        with out.block("if warp_idx == TMEM_WARP:"):
            if self.pair:
                with out.block("with cute.arch.elect_one():"):
                    out.line("cute.arch.mbarrier_init(storage.tmem_free.ptr, 1)")
            out.call(
                "cute.arch.alloc_tmem(",
                (f"{s.columns}", "storage.tmem_address.ptr", *two),
            )
            out.call("cute.arch.relinquish_tmem_alloc_permit(", two)

    @emits(sync.TmemFree)
    def tmem_free(self, s: sync.TmemFree) -> None:
        """A pair's MMAs write, and its CTAs free, the tensor memory of both: each waits
        until the other has read its last accumulator."""
        out = self.out
        two = ("is_two_cta=True",) if self.pair else ()
        with out.block("if warp_idx == TMEM_WARP:"):
            if self.pair:
                with out.block("with cute.arch.elect_one():"):
                    out.call(
                        "cute.arch.mbarrier_arrive(",
                        ("storage.tmem_free.ptr", "cta_rank ^ 1"),
                    )
                out.line("cute.arch.mbarrier_wait(storage.tmem_free.ptr, 0)")
            out.call("cute.arch.dealloc_tmem(", ("tmem_ptr", f"{s.columns}", *two))

    @emits(sync.InitSync)
    def init_sync(self, s: sync.InitSync) -> None:
        """Arrive only here and not relaxed: besides the barriers it publishes the
        address of tensor memory."""
        shape = "cluster_shape_mn=(CLUSTER_M, CLUSTER_N)"
        self.out.line(f"pipeline.pipeline_init_arrive({shape})")
        self.out.line(f"pipeline.pipeline_init_wait({shape})")

    @emits(sync.PipelineStates)
    def pipeline_states(self, s: sync.PipelineStates) -> None:
        for p in s.pipelines:
            producer = s.role is not None and s.role.name == p.producer
            name = names.producer_state(p) if producer else names.consumer_state(p)
            side = "Producer" if producer else "Consumer"
            self.out.call(
                f"{name} = pipeline.make_pipeline_state(",
                (f"pipeline.PipelineUserType.{side}", f"{p.stages}"),
            )

    # --- partitions ---------------------------------------------------------

    @emits(sync.PartitionTma)
    def partition_tma(self, s: sync.PartitionTma) -> None:
        cta = "cta_rank % 2" if self.pair else "0"
        self.out.line(f"thr_mma = tiled_mma.get_slice({cta})")
        for buffer in s.buffers:
            x = names.camel(buffer.name)
            if not self.problem.is_grouped:
                self._load_boxes(x, names.gmem(buffer), "(None, None)")
            self._multicast_mask(x)

    def select(self, x: str, tensor: str) -> None:
        if x in names.MODES:
            self._load_boxes(x, tensor, "(0, None)")
        else:
            self._output_boxes(x, tensor, "(0, None)")

    def _load_boxes(self, x: str, tensor: str, tiles: str) -> None:
        """Boxes of ``tensor`` for TMA: of all tiles, or ``tiles`` says of which."""
        rows = self.mma_rows if x == "A" else "TILE_N"
        half = " // 2" if self.pair else ""
        across = "CLUSTER_N" if x == "A" else f"CLUSTER_M{half}"
        rank = "cta_n" if x == "A" else f"cta_m{half}"
        out = self.out
        which = "tiles, " if tiles == "(None, None)" else ""
        out.comment(f"(MMA, MMA_{rows[-1]}, MMA_K, {which}k tiles)")
        boxes = f"cute.local_tile({tensor}, ({rows}, TILE_K), {tiles})"
        if self.problem.is_grouped:
            out.call(f"g{x} = cute.local_tile(", (tensor, f"({rows}, TILE_K)", tiles))
            boxes = f"g{x}"
        out.call(f"tCg{x} = thr_mma.partition_{names.operand(x)}(", (boxes,))
        out.comment(f"(box, stages), (box, {which}k tiles)")
        out.call(
            f"t{x}s{x}, t{x}g{x} = cpasync.tma_partition(",
            (
                f"tma_atom_{x.lower()}",
                rank if self.multicast(x) else "0",
                f"cute.make_layout({across})",
                f"cute.group_modes(s{x}, 0, 3)",
                f"cute.group_modes(tCg{x}, 0, 3)",
            ),
        )

    def _multicast_mask(self, x: str) -> None:
        if self.multicast(x):
            self.out.call(
                f"{x.lower()}_mcast_mask = cpasync.create_tma_multicast_mask(",
                (
                    "cluster_layout",
                    "cluster_layout.get_flat_coord(cta_rank)",
                    f"mcast_mode={2 if x == 'A' else 1}",
                ),
            )

    @emits(sync.PartitionMma)
    def partition_mma(self, s: sync.PartitionMma) -> None:
        out = self.out
        out.comment("(MMA, MMA_M, MMA_K, stages), (MMA, MMA_N, MMA_K, stages)")
        out.line(f"tCrA = tiled_mma.make_fragment_A({s.a})")
        for b in (s.b, *s.more_b):
            out.line(f"{names.fragment(b)} = tiled_mma.make_fragment_B({b})")
        self._view_accumulator(s.accumulator)

    def tmem_tensor(self, accumulator: Buffer) -> str:
        """Tensor memory as the MMA writes it: ``tCtAcc``."""
        return f"tC{accumulator.name}"

    def _view_accumulator(self, accumulator: Buffer) -> None:
        out = self.out
        out.call(
            "tmem_ptr = cute.arch.retrieve_tmem_ptr(",
            (
                "Float32",
                "alignment=16",
                "ptr_to_buffer_holding_addr=storage.tmem_address.ptr",
            ),
        )
        stages = accumulator.stages * self.products
        out.comment("(MMA, MMA_M, MMA_N, stages)")
        out.line(f"acc_shape = tiled_mma.partition_shape_C(({self.mma_rows}, TILE_N))")
        out.call(
            f"{self.tmem_tensor(accumulator)} = cute.make_tensor(",
            (
                "tmem_ptr",
                f"tiled_mma.make_fragment_C(cute.append(acc_shape, {stages})).layout",
            ),
        )

    def accumulator_stage(self, state: str, product: int) -> str:
        """The accumulators of one stage lie next to each other, by product."""
        if self.products == 1:
            return f"{state}.index"
        return f"{state}.index * {self.products} + {product}"

    @emits(sync.PartitionEpilogue)
    def partition_epilogue(self, s: sync.PartitionEpilogue) -> None:
        self._view_accumulator(s.source)
        self._partition_tmem_load(self.tmem_tensor(s.source))
        out = self.out
        out.comment("This thread's coordinates and registers in a subtile.")
        out.line("lane_idx = cute.arch.lane_idx()")
        out.call(
            "tCcD = thr_t2r.partition_D(",
            ("cute.make_identity_tensor((TILE_M, EPI_N))",),
        )
        out.line("tCrAcc = cute.make_rmem_tensor(tCcD.shape, Float32)")
        for further in s.more:
            regs = names.registers(further)
            out.line(f"{regs} = cute.make_rmem_tensor(tCcD.shape, Float32)")
        for target in s.targets:
            kind = f"cutlass.{dtype(target.dtype).cutlass}"
            regs = names.registers(target)
            out.line(f"{regs} = cute.make_rmem_tensor(tCcD.shape, {kind})")
        if s.staging is not None:
            self._partition_staging(s.targets[0], s.staging)

    def _partition_tmem_load(self, acc: str) -> None:
        out, columns = self.out, self.schedule.epi_n
        if self.quads:
            op = f"tcgen05.Ld16x256bOp(tcgen05.Repetition({columns // 8}))"
        else:
            op = f"tcgen05.Ld32x32bOp(tcgen05.Repetition({columns}))"
        out.comment("(TILE_M, EPI_N, subtiles, stages)")
        out.line(f"tAcc_mn = {acc}[((None, None), 0, 0, None)]")
        out.line("tAcc_epi = cute.flat_divide(tAcc_mn, (TILE_M, EPI_N))")
        out.line("tAcc_epi = cute.group_modes(tAcc_epi, 2, 4)")
        out.call(
            "copy_t2r = tcgen05.make_tmem_copy(",
            (f"cute.make_copy_atom({op}, Float32)", "tAcc_epi[(None, None, 0, 0)]"),
        )
        out.line("thr_t2r = copy_t2r.get_slice(tidx)")
        out.comment("(T2R, T2R_M, T2R_N, subtiles, stages)")
        out.line("tTRtAcc = thr_t2r.partition_S(tAcc_epi)")

    def _partition_staging(self, target: Buffer, staging: Buffer) -> None:
        out, x = self.out, names.camel(target.name)
        self._store_atom()
        out.line("copy_r2s = cute.make_tiled_copy_D(store_atom, copy_t2r)")
        out.line("thr_r2s = copy_r2s.get_slice(tidx)")
        out.line(f"tRSs{x} = thr_r2s.partition_D({staging})")
        out.line(f"tRSr{x} = thr_r2s.retile({names.registers(target)})")
        if not self.problem.is_grouped:
            self._output_boxes(x, f"m{x}", "(None, None)")

    def _output_boxes(self, x: str, tensor: str, tiles: str) -> None:
        """Subtiles of ``tensor`` for TMA: of all tiles, or ``tiles`` says of which."""
        out = self.out
        which = "tiles m, " if tiles == "(None, None)" else ""
        out.comment(f"(box, stages), (box, {which}subtiles n)")
        out.call(f"g{x}_mn = cute.local_tile(", (tensor, "(TILE_M, EPI_N)", tiles))
        out.call(
            f"t{x}s{x}, t{x}g{x} = cpasync.tma_partition(",
            (
                f"tma_atom_{x.lower()}",
                "0",
                "cute.make_layout(1)",
                f"cute.group_modes(s{x}, 0, 2)",
                f"cute.group_modes(g{x}_mn, 0, 2)",
            ),
        )

    def _store_atom(self) -> None:
        """Of a row, a thread holds a run of columns: store 16 bytes. Of quads,
        stmatrix moves 8x8 blocks of 16-bit elements; other widths store the two
        neighbouring columns that a thread holds."""
        kind = self.problem.out_dtype
        element = f"cutlass.{kind.cutlass}"
        head = "store_atom = cute.make_copy_atom("
        if self.quads and kind.bits == 16:
            blocks = 4 if self.schedule.epi_n % 16 == 0 else 2
            op = f"warp.StMatrix8x8x16bOp(False, {blocks})"
            self.out.call(head, (op, element))
            return
        bits = 2 * kind.bits if self.quads else STORE_BITS
        self.out.call(
            head,
            ("cute.nvgpu.CopyUniversalOp()", element, f"num_bits_per_copy={bits}"),
        )
