"""Blackwell's kernel signature, constants and host entry point.

The same shape as Hopper's; the layouts and TMA atoms follow the tcgen05 MMA, whose
operands are partitioned by it.
"""

from __future__ import annotations

from torch_cute_backend.arch.sm100 import TMEM_WARP
from torch_cute_backend.codegen import host_scales, names
from torch_cute_backend.codegen.host_sm90 import Sm90Host, swizzle_name
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.dtypes import E8M0
from torch_cute_backend.problem import SCALE_BLOCK


class Sm100Host(Sm90Host):
    """Everything of the module around the kernel body."""

    def imports(self) -> tuple[str, ...]:
        scales = (host_scales.IMPORT,) if self.scales else ()
        return (
            "import cutlass",
            "import cutlass.cute as cute",
            "import cutlass.pipeline as pipeline",
            "import cutlass.utils.blackwell_helpers as sm100_utils",
            *scales,
            "from cutlass import Float32, Int32, range_constexpr",
            "from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warp",
            "from cutlass.memory import SmemAllocator",
        )

    def constants(self) -> tuple[tuple[str, str], ...]:
        s = self.schedule
        roles = {r.name: r for r in self.program.roles}
        epilogue, mma, load = roles["epilogue"], roles["mma"], roles["load"]
        return (
            ("TILE_M, TILE_N, TILE_K", f"{s.tile_m}, {s.tile_n}, {s.tile_k}"),
            ("AB_STAGES", f"{s.ab_stages}"),
            ("EPI_N, EPI_STAGES", f"{s.epi_n}, {s.epi_stages}"),
            ("CLUSTER_M, CLUSTER_N", f"{s.cluster_m}, {s.cluster_n}"),
            ("EPILOGUE_WARPS", f"{epilogue.warps}  # warps 0 to {epilogue.warps - 1}"),
            ("STORE_WARP", "0  # the epilogue warp that issues TMA stores"),
            ("TMEM_WARP", f"{TMEM_WARP}  # the epilogue warp that allocates and frees"),
            ("MMA_WARP", f"{mma.first_warp}"),
            ("LOAD_WARP", f"{load.first_warp}"),
            ("THREADS", f"{sum(r.threads for r in roles.values())}"),
            *self._l2_constants(),
        )

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """As Hopper's, without the epilogue's own tiled MMA."""
        return tuple(row for row in super().parameters() if row[0] != "epi_mma")

    def preamble(self, out: Writer) -> None:
        """Indices every warp needs, before the program's prologue."""
        out.line("tidx, _, _ = cute.arch.thread_idx()")
        out.line("warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())")
        self._cluster_indices(out)
        self._k_tiles(out)
        if self.schedule.cluster_size > 1:
            out.line(
                "cta_rank = cute.arch.make_warp_uniform("
                "cute.arch.block_idx_in_cluster())"
            )
            out.line("cta_m, cta_n = cta_rank % CLUSTER_M, cta_rank // CLUSTER_M")
        if self.schedule.cta_group > 1:
            out.line("is_leader = cta_rank % 2 == 0  # of the pair that shares MMAs")

    # --- host entry point ---------------------------------------------------------

    def _layouts(self, out: Writer) -> None:
        p = self.problem
        blocks = "blockscaled_" if self.scales else ""
        sums: tuple[str, ...] = ("Float32",)
        if self.scales:
            sums = (f"cutlass.{E8M0.cutlass}", f"{SCALE_BLOCK}")
        out.call(
            f"tiled_mma = sm100_utils.make_{blocks}trivial_tiled_mma(",
            (
                f"cutlass.{p.a_dtype.cutlass}",
                f"cutlass.{p.b_dtype.cutlass}",
                f"OperandMajorMode.{p.a_major.name}",
                f"OperandMajorMode.{p.b_major.name}",
                *sums,
                self._cta_group,
                f"({self._mma_rows}, TILE_N)",
            ),
        )
        out.line(f"mma_tiler = ({self._mma_rows}, TILE_N, TILE_K)")
        out.comment("(MMA, MMA_M, MMA_K, stages), (MMA, MMA_N, MMA_K, stages)")
        for x, kind in (("a", p.a_dtype), ("b", p.b_dtype)):
            out.call(
                f"{x}_smem_layout = sm100_utils.make_smem_layout_{x}(",
                ("tiled_mma", "mma_tiler", f"cutlass.{kind.cutlass}", "AB_STAGES"),
            )
        if self.scales:
            host_scales.print_layouts(out)
        if self.staged:
            self._staging_layout(out)

    def _tma(self, out: Writer) -> None:
        super()._tma(out)
        if self.scales:
            grouped = self.problem.is_grouped
            host_scales.print_atoms(out, self.scales, self._cta_group, grouped)

    def _staging_layout(self, out: Writer) -> None:
        """Row-major staging with the widest swizzle that its rows allow."""
        kind = self.problem.out_dtype
        atom = f"K_{swizzle_name(self.schedule.epi_n * kind.bytes)}"
        out.call(
            "d_smem_atom = tcgen05.make_smem_layout_atom(",
            (f"tcgen05.SmemLayoutAtomKind.{atom}", f"cutlass.{kind.cutlass}"),
        )
        out.comment("(TILE_M, EPI_N, stages)")
        out.call(
            "d_smem_layout = cute.tile_to_shape(",
            ("d_smem_atom", "(TILE_M, EPI_N, EPI_STAGES)", "order=(0, 1, 2)"),
        )

    def _mmas(self, out: Writer) -> None:
        """The tiled MMA comes first, in :meth:`_layouts`, which need it."""

    @property
    def _cta_group(self) -> str:
        pair = self.schedule.cta_group > 1
        return f"tcgen05.CtaGroup.{'TWO' if pair else 'ONE'}"

    @property
    def _mma_rows(self) -> str:
        return "2 * TILE_M" if self.schedule.cta_group > 1 else "TILE_M"

    def _load_atom(
        self, out: Writer, x: str, tensor: str, rows: str, multicast: int
    ) -> None:
        group = self.schedule.cta_group
        operand = names.operand(x)
        if operand == "b":
            multicast //= group
        kind = "MulticastOp" if multicast > 1 else "Op"
        across_m = "CLUSTER_M" if group == 1 else "CLUSTER_M // 2"
        out.call(
            f"tma_atom_{x}, {tensor} = "
            f"cute.nvgpu.make_tiled_tma_atom_{operand.upper()}(",
            (
                f"cpasync.CopyBulkTensorTileG2S{kind}({self._cta_group})",
                self._operand_view(out, x),
                f"cute.slice_({operand}_smem_layout, (None, None, None, 0))",
                "mma_tiler",
                "tiled_mma",
                f"({group}, {across_m}, CLUSTER_N, 1)",
            ),
        )

    def _barrier_fields(self) -> tuple[str, ...]:
        pair = self.schedule.cta_group > 1
        free = ("tmem_free: cutlass.Int64",) if pair else ()
        return (*super()._barrier_fields(), *free, "tmem_address: cutlass.Int32")
