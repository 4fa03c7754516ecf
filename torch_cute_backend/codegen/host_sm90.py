"""Hopper's kernel signature, constants and host entry point.

The entry point builds layouts, TMA descriptors and the grid from run-time sizes and
launches. Everything static is a module constant, everything else an argument.
"""

from __future__ import annotations

from torch_cute_backend.arch.sm90 import MMA_M
from torch_cute_backend.codegen import host_grouped, host_scales, names
from torch_cute_backend.codegen.emit import L2_CONSTANTS
from torch_cute_backend.codegen.emit_grouped import RAGGED_SIZES
from torch_cute_backend.codegen.shapes import Shape, shapes_of, stacked
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.dtypes import E8M0, DType, dtype
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import TileLoop
from torch_cute_backend.ir.sync import AllocateShared, PdlWait
from torch_cute_backend.ir.values import Buffer, SchedulerKind, Space
from torch_cute_backend.problem import SCALE_NAMES, GemmProblem, Major
from torch_cute_backend.schedule import GemmSchedule

OFFSETS_NAME = "offsets"
_SWIZZLE_BYTES = (128, 64, 32)


class Sm90Host:
    """Everything of the module around the kernel body."""

    def __init__(
        self, program: Program, problem: GemmProblem, schedule: GemmSchedule
    ) -> None:
        self.program = program
        self.problem = problem
        self.schedule = schedule
        self.staged = schedule.store == "tma"
        self.padded = schedule.tile_m < MMA_M
        gmem = [b for b in program.buffers if b.space is Space.GMEM]
        self.inputs = tuple(
            b for b in gmem if b.name in {i.name for i in problem.epilogue.inputs}
        )
        self.outputs = tuple(
            b for b in gmem if b.name in {o.name for o in problem.epilogue.outputs}
        )
        self.records = tuple(b for b in gmem if b.name == "walk_end")
        self.operands = tuple(b for b in gmem if names.operand(b.name) in names.MODES)
        self.offsets = tuple(b for b in gmem if b.name == OFFSETS_NAME)
        self.scales = tuple(
            b for b in gmem if problem.block_scaled and b.name in SCALE_NAMES
        )
        # Ragged tiles are stored by element, past TMA.
        self.plain_output = self.staged and problem.grouping in RAGGED_SIZES

    def imports(self) -> tuple[str, ...]:
        return (
            "import cutlass",
            "import cutlass.cute as cute",
            "import cutlass.pipeline as pipeline",
            "import cutlass.utils.hopper_helpers as sm90_utils",
            "from cutlass import Float32, Int32, range_constexpr",
            "from cutlass.cute.nvgpu import cpasync, warp, warpgroup",
            "from cutlass.memory import SmemAllocator",
        )

    def constants(self) -> tuple[tuple[str, str], ...]:
        s = self.schedule
        load, math = self.program.role("load"), self.program.role("math")
        load_warp = 0 if load is None else load.first_warp
        math_warps = 0 if math is None else math.all_warps
        each = " (of each warpgroup)" if self.schedule.pingpong else ""
        idle = 0 if load is None else load.idle_warps
        return (
            ("TILE_M, TILE_N, TILE_K", f"{s.tile_m}, {s.tile_n}, {s.tile_k}"),
            *self._row_constants(),
            ("AB_STAGES", f"{s.ab_stages}"),
            ("EPI_N, EPI_STAGES", f"{s.epi_n}, {s.epi_stages}"),
            ("CLUSTER_M, CLUSTER_N", f"{s.cluster_m}, {s.cluster_n}"),
            ("MATH_WARPS", f"{math_warps}  # warps 0 to {math_warps - 1}"),
            ("STORE_WARP", f"0  # the math warp{each} that issues TMA stores"),
            ("LOAD_WARP", f"{load_warp}"),
            ("THREADS", f"{(load_warp + 1 + idle) * 32}"),
            *self._l2_constants(),
        )

    def _l2_constants(self) -> tuple[tuple[str, str], ...]:
        return () if self.schedule.l2_policy == "normal" else L2_CONSTANTS

    def _row_constants(self) -> tuple[tuple[str, str], ...]:
        """Rows that shared memory and accumulators hold: 64 for a lower tile."""
        comment = "  # a wgmma's; TMA fills TILE_M of them" if self.padded else ""
        rows = f"{MMA_M}" if self.padded else "TILE_M"
        return (("MMA_ROWS", f"{rows}{comment}"),)

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the kernel's parameters."""
        atom, tensor, mma = "cute.CopyAtom", "cute.Tensor", "cute.TiledMma"
        layout = "cute.ComposedLayout"
        rows: list[tuple[str, str]] = []
        for operand in self.operands:
            rows += [(names.tma_atom(operand), atom), (names.gmem(operand), tensor)]
        for i, out in enumerate(self.outputs):
            if self.staged and i == 0:
                rows.append((names.tma_atom(out), atom))
            rows.append((names.gmem(out), tensor))
        if self.plain_output:
            rows.append((names.plain(self.outputs[0]), tensor))
        for b in self.scales:
            rows += [(names.tma_atom(b), atom), (names.gmem(b), tensor)]
        others = (*self.records, *self.inputs, *self.offsets)
        rows.extend((names.gmem(b), tensor) for b in others)
        rows += [("tiled_mma", mma), ("epi_mma", mma)]
        rows += [(f"{x}_smem_layout", layout) for x in self._staged_names()]
        rows += host_scales.LAYOUTS if self.scales else ()
        sizes = ("tiles_m", "tiles_n", "m", "n")
        groups = ("groups",) if self.problem.is_grouped else ()
        rows += [(x, "Int32") for x in (*sizes, *groups)]
        rows += [
            (names.divisor(size), "cute.FastDivmodDivisorV2") for size in self._divisors
        ]
        rows.append(("shared_storage", "cutlass.Constexpr"))
        return tuple(rows)

    @property
    def _divisors(self) -> tuple[str, ...]:
        """Tile counts that turn a work tile into coordinates; those along a ragged
        dimension are the group's own."""
        raster = {"along_m": ("tiles_m",), "along_n": ("tiles_n",)}
        ragged = f"tiles_{self.problem.grouping.value}"
        found = [x for x in raster.get(self.schedule.raster, ()) if x != ragged]
        if self.scales and self.problem.is_grouped:
            found.append("tiles_n")
        return tuple(dict.fromkeys(found))

    def _staged_names(self) -> tuple[str, ...]:
        return ("a", "b", "d") if self.staged else ("a", "b")

    def preamble(self, out: Writer) -> None:
        """Indices every warp needs, before the program's prologue."""
        out.line("tidx, _, _ = cute.arch.thread_idx()")
        out.line("warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())")
        self._cluster_indices(out)
        self._k_tiles(out)
        if self.schedule.cluster_size > 1:
            out.line("cluster_layout = cute.make_layout((CLUSTER_M, CLUSTER_N, 1))")
            out.line(
                "cta_rank = cute.arch.make_warp_uniform("
                "cute.arch.block_idx_in_cluster())"
            )
            out.line("cta_coord = cluster_layout.get_flat_coord(cta_rank)")
            out.line("cta_m, cta_n = cta_coord[0], cta_coord[1]")

    def _k_tiles(self, out: Writer) -> None:
        """A loop that is known to run leaves LLVM no merge of paths behind it. It would
        sink the epilogue's first operation into both, ahead of the wait for wgmma."""
        out.line("k_extent = cute.size(mA_mk, mode=[1])")
        out.line("k_tiles = cutlass.max(cute.ceil_div(k_extent, TILE_K), 1)")

    def _cluster_indices(self, out: Writer) -> None:
        """Clusters are counted along x, the only grid axis without a limit of 65535."""
        out.line("bidx, _, _ = cute.arch.block_idx()")
        out.line("gridx, _, _ = cute.arch.grid_dim()")
        width = self.schedule.cluster_m
        per = " // CLUSTER_M" if width > 1 else ""
        out.line(f"cluster_id, clusters = bidx{per}, gridx{per}")

    # --- host entry point ------------------------------------------------------------

    def entry(self, out: Writer, kernel: str) -> None:
        """The ``@cute.jit`` function ``gemm``."""
        out.line("@cute.jit")
        tensors = [b.name.lower() for b in self.operands]
        others = (*self.outputs, *self.records, *self.scales)
        tensors += [b.name for b in (*others, *self.inputs, *self.offsets)]
        parameters = [f"{t}: cute.Tensor" for t in tensors]
        out.call("def gemm(", (*parameters, "num_ctas: Int32", "stream"), "):")
        with out.indent():
            self._layouts(out)
            self._mmas(out)
            self._tma(out)
            self._storage(out)
            self._launch(out, kernel)

    def _layouts(self, out: Writer) -> None:
        p, s = self.problem, self.schedule
        self._operand_layout(out, "a", "MMA_ROWS", s.tile_m, p.a_major, p.a_dtype.name)
        self._operand_layout(out, "b", "TILE_N", s.tile_n, p.b_major, p.b_dtype.name)
        if self.staged:
            self._staging_layout(out)

    def _operand_layout(
        self, out: Writer, x: str, rows: str, extent: int, major: Major, name: str
    ) -> None:
        kind = dtype(name)
        contiguous = self.schedule.tile_k if major is Major.K else extent
        prefix = "K" if major is Major.K else "MN"
        order = "0, 1" if major is Major.K else "1, 0"
        self._smem_atom(
            out, x, f"{prefix}_{swizzle_name(contiguous * kind.bytes)}", kind
        )
        out.call(
            f"{x}_smem_layout = cute.tile_to_shape(",
            (f"{x}_smem_atom", f"({rows}, TILE_K, AB_STAGES)", f"order=({order}, 2)"),
        )
        # Not a slice of the staged layout: CuTe DSL 4.8.1 aborts on slicing one whose
        # stage stride is an odd multiple of 1 or 2 KiB (bf16, 24 or 40 columns).
        out.call(
            f"{x}_smem_stage = cute.tile_to_shape(",
            (f"{x}_smem_atom", f"({rows}, TILE_K)", f"order=({order})"),
        )

    def _smem_atom(self, out: Writer, x: str, atom: str, kind: DType) -> None:
        out.call(
            f"{x}_smem_atom = warpgroup.make_smem_layout_atom(",
            (f"warpgroup.SmemLayoutAtomKind.{atom}", f"cutlass.{kind.cutlass}"),
        )

    def _staging_layout(self, out: Writer) -> None:
        """Row-major staging, swizzled where a row is 32, 64 or 128 bytes."""
        kind = self.problem.out_dtype
        stages = "2 * EPI_STAGES" if self.schedule.pingpong else "EPI_STAGES"
        row_bytes = self.schedule.epi_n * kind.bytes
        if row_bytes in _SWIZZLE_BYTES:
            self._smem_atom(out, "d", f"K_{swizzle_name(row_bytes)}", kind)
            out.call(
                "d_smem_layout = cute.tile_to_shape(",
                ("d_smem_atom", f"(MMA_ROWS, EPI_N, {stages})", "order=(0, 1, 2)"),
            )
            return
        out.call(
            "d_smem_plain = cute.make_layout(",
            (
                f"(MMA_ROWS, EPI_N, {stages})",
                "stride=(EPI_N, 1, MMA_ROWS * EPI_N)",
            ),
        )
        out.call(
            "d_smem_layout = cute.make_composed_layout(",
            ("cute.make_swizzle(0, 4, 3)", "0", "d_smem_plain"),
        )

    def _mmas(self, out: Writer) -> None:
        p, s = self.problem, self.schedule

        def mma(name: str, columns: str) -> None:
            out.call(
                f"{name} = sm90_utils.make_trivial_tiled_mma(",
                (
                    f"cutlass.{p.a_dtype.cutlass}",
                    f"cutlass.{p.b_dtype.cutlass}",
                    f"cute.nvgpu.OperandMajorMode.{p.a_major.name}",
                    f"cute.nvgpu.OperandMajorMode.{p.b_major.name}",
                    "Float32",
                    f"({s.tile_warpgroups}, 1, 1)",
                    f"tiler_mn=(64, {columns})",
                ),
            )

        mma("tiled_mma", "TILE_N")
        out.comment("Never issued: it partitions one epilogue subtile as wgmma would.")
        mma("epi_mma", "EPI_N")

    def _tma(self, out: Writer) -> None:
        s = self.schedule
        a, *bs = self.operands
        self._load_atom(out, "a", names.gmem(a), "TILE_M", s.cluster_n)
        for b in bs:
            x = b.name.lower()
            self._load_atom(out, x, names.gmem(b), "TILE_N", s.cluster_m)
        if self.staged:
            d = self.outputs[0]
            out.call(
                f"{names.tma_atom(d)}, {names.gmem(d)} = cpasync.make_tiled_tma_atom(",
                (
                    "cpasync.CopyBulkTensorTileS2GOp()",
                    self._view(out, d.name, shapes_of(self.problem).d),
                    self._box(
                        "cute.slice_(d_smem_layout, (None, None, 0))",
                        "(TILE_M, EPI_N)",
                    ),
                    "(TILE_M, EPI_N)",
                ),
            )

    def _load_atom(
        self, out: Writer, x: str, tensor: str, rows: str, multicast: int
    ) -> None:
        op = (
            "CopyBulkTensorTileG2SMulticastOp"
            if multicast > 1
            else ("CopyBulkTensorTileG2SOp")
        )
        out.call(
            f"tma_atom_{x}, {tensor} = cpasync.make_tiled_tma_atom(",
            (
                f"cpasync.{op}()",
                self._operand_view(out, x),
                self._box("a_smem_stage", "(TILE_M, TILE_K)")
                if x == "a"
                else "b_smem_stage",
                f"({rows}, TILE_K)",
                f"num_multicast={multicast}",
            ),
        )

    def _operand_view(self, out: Writer, x: str) -> str:
        shapes = shapes_of(self.problem)
        return self._view(out, x, shapes.a if x == "a" else shapes.b)

    def _view(self, out: Writer, tensor: str, shape: Shape) -> str:
        """The tensor as TMA gets it, its group mode last."""
        if not stacked(shape):
            return tensor
        return host_grouped.group_last(out, tensor, f"{tensor}_{''.join(shape[1:])}g")

    def _box(self, stage: str, shape: str) -> str:
        """The part of a stage that TMA moves: its first TILE_M rows."""
        return f"cute.composition({stage}, {shape})" if self.padded else stage

    def _storage(self, out: Writer) -> None:
        out.blank()
        out.line("@cute.struct")
        with out.block("class SharedStorage:"):
            out.lines(*self._barrier_fields())
            for b in self._shared_buffers():
                kind = f"cutlass.{dtype(b.dtype).cutlass}"
                layout = names.smem_layout(b)
                size = f"cute.cosize({layout})"
                if b.dtype == E8M0.name:
                    size = host_scales.count(layout.removesuffix("_smem_layout"))
                out.call(
                    f"{b.name}: cute.struct.Align[",
                    (f"cute.struct.MemRange[{kind}, {size}]", "1024"),
                    "]",
                )
        out.blank()

    def _barrier_fields(self) -> tuple[str, ...]:
        """Fields of shared memory before the staged buffers."""
        return tuple(
            f"{p.name}_barriers: cute.struct.MemRange[cutlass.Int64, {2 * p.stages}]"
            for p in self.program.pipelines
        )

    def _shared_buffers(self) -> tuple[Buffer, ...]:
        for s in self.program.prologue:
            if isinstance(s, AllocateShared):
                return s.buffers
        raise CodegenError(f"{self.program.name} allocates no shared memory")

    def _single_tile(self) -> bool:
        """Is there a cluster for every tile?"""
        return any(
            isinstance(s, TileLoop) and s.scheduler.kind is SchedulerKind.SINGLE_TILE
            for s in self.program.walk()
        )

    def _waits_for_predecessor(self) -> bool:
        """May the grid start early? Only one that waits before it touches a tensor."""
        return any(isinstance(s, PdlWait) for s in self.program.prologue)

    def _launch(self, out: Writer, kernel: str) -> None:
        d = self.outputs[0].name
        align = self.problem.ragged_align(self.staged)
        host_grouped.print_sizes(out, self.problem, d, align)
        work = host_grouped.work_items(self.problem)
        if self._single_tile():
            out.line(f"clusters = {work}")
        else:
            out.line("room = cutlass.max(num_ctas // (CLUSTER_M * CLUSTER_N), 1)")
            out.line(f"clusters = cutlass.min({work}, room)")
        args = []
        for name, _ in self.parameters():
            args.append(self._argument(name))
        out.line(f"{kernel}(")
        with out.indent():
            for arg in args:
                out.line(f"{arg},")
        out.line(").launch(")
        with out.indent():
            out.lines(
                "grid=(clusters * CLUSTER_M, CLUSTER_N, 1),",
                "block=(THREADS, 1, 1),",
                "cluster=(CLUSTER_M, CLUSTER_N, 1),",
                "min_blocks_per_mp=1,",
                "stream=stream,",
            )
            if self._waits_for_predecessor():
                out.line("use_pdl=True,")
        out.line(")")

    def _argument(self, parameter: str) -> str:
        """What the entry point passes for a kernel parameter."""
        if parameter == "shared_storage":
            return "SharedStorage"
        for size in self._divisors:
            if parameter == names.divisor(size):
                return f"cute.FastDivmodDivisorV2({size})"
        others = (*self.records, *self.inputs, *self.offsets)
        for i, b in enumerate((*self.outputs, *others)):
            if parameter == names.gmem(b):
                return parameter if self.staged and i == 0 else b.name
            if parameter == names.plain(b):
                return b.name
        return parameter


def swizzle_name(contiguous_bytes: int) -> str:
    """The widest swizzle whose span divides a row of this many bytes."""
    for span in _SWIZZLE_BYTES:
        if contiguous_bytes % span == 0:
            return f"SW{span}"
    return "INTER"
