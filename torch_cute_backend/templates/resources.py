"""Resources of a dense GEMM kernel: roles, buffers, pipelines, barriers per arch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_cute_backend.arch import sm90, sm100
from torch_cute_backend.dtypes import E8M0, INT32
from torch_cute_backend.ir.values import (
    Buffer,
    NamedBarrier,
    Pipeline,
    PipelineKind,
    Role,
    Space,
)
from torch_cute_backend.problem import (
    SCALE_BLOCK,
    SCALE_NAMES,
    Accum,
    GemmProblem,
)
from torch_cute_backend.schedule import GemmSchedule

OFFSETS = Buffer("offsets", Space.GMEM, "int32")
"""Where each group of a ragged dimension ends."""
EPILOGUE_BARRIER_ID = 1
TURN_BARRIER_ID = 3
"""Each of the two instances of a role has a barrier of either kind."""
MMA_M = sm90.MMA_M
"""Rows of one wgmma."""
WARPS_PER_WARPGROUP = 4


@dataclass(frozen=True)
class Product:
    """One of the products with A: its B, staged, and its accumulators (see
    :class:`DenseResources`). ``part``: where tensor memory holds its accumulator."""

    b: Buffer
    s_b: Buffer
    acc: Buffer
    registers_acc: Buffer
    promote: Buffer | None = None
    part: int = 0


@dataclass(frozen=True)
class Scales:
    """Block scales of A and B: the tensors, staged, and in tensor memory for one k
    tile."""

    a: Buffer
    b: Buffer
    s_a: Buffer
    s_b: Buffer
    tmem: Buffer

    @property
    def staged(self) -> tuple[Buffer, ...]:
        return (self.s_a, self.s_b)

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        return (self.a, self.b)


@dataclass(frozen=True)
class DenseResources:
    """Everything the dense template refers to.

    ``mma`` and ``epilogue`` are the same role on wgmma. ``acc`` is what the MMA writes;
    ``registers_acc`` what the epilogue reads. ``promote`` holds the fp32 sums of exact
    FP8 accumulation; the epilogue then reads it instead of ``acc``, with which
    ``alternate`` may take turns. ``more`` are the products of A with further Bs.
    """

    load: Role
    mma: Role
    epilogue: Role
    a: Buffer
    b: Buffer
    s_a: Buffer
    s_b: Buffer
    acc: Buffer
    registers_acc: Buffer
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    registers_out: tuple[Buffer, ...]
    staging: Buffer | None
    ab: Pipeline
    epi_barrier: NamedBarrier
    turn_barrier: NamedBarrier | None = None
    acc_pipe: Pipeline | None = None
    promote: Buffer | None = None
    alternate: Buffer | None = None
    padding: Buffer | None = None
    tmem: Buffer | None = None
    tmem_columns: int = 0
    release_lag: int = 0
    more: tuple[Product, ...] = ()
    walk_end: Buffer | None = None
    offsets: Buffer | None = None
    scales: Scales | None = None

    @property
    def products(self) -> tuple[Product, ...]:
        first = Product(self.b, self.s_b, self.acc, self.registers_acc, self.promote)
        return (first, *self.more)

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(dict.fromkeys((self.load, self.mma, self.epilogue)))

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        return (self.ab,) if self.acc_pipe is None else (self.ab, self.acc_pipe)

    @property
    def barriers(self) -> tuple[NamedBarrier, ...]:
        turns = () if self.turn_barrier is None else (self.turn_barrier,)
        return (self.epi_barrier, *turns)

    @property
    def shared(self) -> tuple[Buffer, ...]:
        staged = () if self.staging is None else (self.staging,)
        scales = () if self.scales is None else self.scales.staged
        return (self.s_a, *(p.s_b for p in self.products), *scales, *staged)

    @property
    def tma_tensors(self) -> tuple[Buffer, ...]:
        stored = () if self.staging is None else (self.outputs[0],)
        return (*self.loaded, *stored)

    @property
    def loaded(self) -> tuple[Buffer, ...]:
        """Tensors that TMA loads from."""
        scales = () if self.scales is None else self.scales.tensors
        return (self.a, *(p.b for p in self.products), *scales)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        products = self.products
        promoted = (p.promote for p in products)
        scalars = (self.offsets, self.walk_end)
        optional = (*scalars, *promoted, self.alternate, self.padding, self.tmem)
        scales = () if self.scales is None else (self.scales.tmem,)
        everything = (
            *self.loaded,
            *scales,
            *self.inputs,
            *self.outputs,
            *self.shared,
            *(p.acc for p in products),
            *(p.registers_acc for p in products),
            *self.registers_out,
            *(b for b in optional if b is not None),
        )
        return tuple(dict.fromkeys(everything))


def _gmem(
    problem: GemmProblem,
) -> tuple[Buffer, Buffer, tuple[Buffer, ...], tuple[Buffer, ...]]:
    graph = problem.epilogue
    a = Buffer("A", Space.GMEM, problem.a_dtype.name)
    b = Buffer("B", Space.GMEM, problem.b_dtype.name)
    inputs = tuple(Buffer(i.name, Space.GMEM, i.dtype.name) for i in graph.inputs)
    outputs = tuple(Buffer(o.name, Space.GMEM, o.dtype.name) for o in graph.outputs)
    return a, b, inputs, outputs


def _shared(
    problem: GemmProblem, s: GemmSchedule
) -> tuple[Buffer, Buffer, Buffer | None]:
    """Staged A, staged B, and the staging of the output where TMA stores it."""
    a = Buffer(
        "sA", Space.SMEM, problem.a_dtype.name, (s.tile_m, s.tile_k), s.ab_stages
    )
    # The CTAs of a pair each load half of the B tile that both multiply with.
    b_rows = s.tile_n // s.cta_group
    b = Buffer("sB", Space.SMEM, problem.b_dtype.name, (b_rows, s.tile_k), s.ab_stages)
    if s.store == "direct":
        return a, b, None
    subtile = (s.tile_m, s.epi_n)
    out = problem.out_dtype.name
    staging = Buffer("sD", Space.SMEM, out, subtile, s.epi_stages, s.pingpong)
    return a, b, staging


def _stage_bytes(problem: GemmProblem, s: GemmSchedule) -> int:
    """What TMA brings to one full barrier: the leader's counts both CTAs of a pair."""
    a = s.tile_m * s.cta_group * problem.a_dtype.bytes
    b = s.tile_n * problem.b_dtype.bytes * problem.epilogue.products
    stage = (a + b) * s.tile_k
    if problem.block_scaled:
        stage += (s.tile_m + s.tile_n) * s.tile_k // SCALE_BLOCK
    return stage


def _scales(problem: GemmProblem, s: GemmSchedule) -> Scales | None:
    """A scale for each row of a tile and each block of its K."""
    if not problem.block_scaled:
        return None
    kind, blocks = E8M0.name, s.tile_k // SCALE_BLOCK

    def staged(name: str, rows: int) -> Buffer:
        return Buffer(name, Space.SMEM, kind, (rows, blocks), s.ab_stages)

    return Scales(
        a=Buffer(SCALE_NAMES[0], Space.GMEM, kind),
        b=Buffer(SCALE_NAMES[1], Space.GMEM, kind),
        s_a=staged("sScaleA", s.tile_m),
        s_b=staged("sScaleB", s.tile_n),
        tmem=Buffer("tScales", Space.TMEM, kind, (s.tile_m + s.tile_n, blocks)),
    )


def _walk_end(s: GemmSchedule) -> Buffer | None:
    """Where each CTA leaves its work tile when its shared loop has ended."""
    if s.record == "none":
        return None
    return Buffer("walk_end", Space.GMEM, INT32.name)


def _numbered(buffer: Buffer, product: int) -> Buffer:
    """``B1``, ``sB1``, ``acc_1``: a further product's own buffer."""
    apart = "_" if buffer.space is Space.RMEM else ""
    return replace(buffer, name=f"{buffer.name}{apart}{product}")


def _registers_out(problem: GemmProblem, s: GemmSchedule) -> tuple[Buffer, ...]:
    shape = (s.tile_m, s.epi_n)
    return tuple(
        Buffer(f"r_{o.name}", Space.RMEM, o.dtype.name, shape)
        for o in problem.epilogue.outputs
    )


def resources_sm90(problem: GemmProblem, s: GemmSchedule) -> DenseResources:
    """One TMA warp after the math warps, so that those start at warp 0 (a warpgroup
    starts at a multiple of four)."""
    math_warps = WARPS_PER_WARPGROUP * s.tile_warpgroups
    instances = 2 if s.pingpong else 1
    moved = sm90.MOVED_REGISTERS if s.registers == "moved" else {}
    math = Role("math", 0, math_warps, registers=moved.get("math"), instances=instances)
    load = Role(
        "load",
        math.all_warps,
        1,
        registers=moved.get("load"),
        idle_warps=WARPS_PER_WARPGROUP - 1 if moved else 0,
    )
    a, b, inputs, outputs = _gmem(problem)
    s_a, s_b, staging = _shared(problem, s)
    tile = (s.tile_m, s.tile_n)
    padded = s.tile_m < MMA_M
    padding = Buffer(
        "sA_padding",
        Space.SMEM,
        problem.a_dtype.name,
        (MMA_M - s.tile_m, s.tile_k),
        s.ab_stages,
    )
    exact = problem.accum is Accum.EXACT and problem.a_dtype.is_fp8
    acc = Buffer("acc_k" if exact else "acc", Space.RMEM, "float32", tile)
    promote = Buffer("acc", Space.RMEM, "float32", tile) if exact else None
    overlap = s.promotion == "overlap"
    alternate = Buffer("acc_j", Space.RMEM, "float32", tile) if overlap else None
    more = tuple(
        Product(
            b=_numbered(b, i),
            s_b=_numbered(s_b, i),
            acc=_numbered(acc, i),
            registers_acc=_numbered(promote or acc, i),
            promote=None if promote is None else _numbered(promote, i),
        )
        for i in range(1, problem.epilogue.products)
    )
    ab = Pipeline(
        name="ab",
        kind=PipelineKind.TMA_WGMMA,
        producer=load.name,
        consumer=math.name,
        carries=(s_a, s_b, *(p.s_b for p in more)),
        stages=s.ab_stages,
        tx_bytes=_stage_bytes(problem, s),
        producer_arrivals=1,
        # One arrival a math warp, from every CTA this one's stages are multicast to.
        consumer_arrivals=math_warps * (s.cluster_m + s.cluster_n - 1),
    )
    return DenseResources(
        load=load,
        mma=math,
        epilogue=math,
        a=a,
        b=b,
        s_a=s_a,
        s_b=s_b,
        acc=acc,
        registers_acc=promote or acc,
        inputs=inputs,
        outputs=outputs,
        registers_out=_registers_out(problem, s),
        offsets=OFFSETS if problem.has_offsets else None,
        staging=staging,
        ab=ab,
        epi_barrier=NamedBarrier(
            "epi_barrier", EPILOGUE_BARRIER_ID, math.threads, (math.name,), instances
        ),
        turn_barrier=_turn_barrier(math),
        promote=promote,
        alternate=alternate,
        padding=padding if padded else None,
        # Exact accumulation that waits for each k tile's sum has nothing in flight when
        # the stage is released.
        release_lag=0 if exact and not overlap else 1,
        more=more,
        walk_end=_walk_end(s),
    )


def _turn_barrier(role: Role) -> NamedBarrier | None:
    """One instance waits while another arrives."""
    if role.instances == 1:
        return None
    both = 2 * role.threads
    return NamedBarrier(
        "turn_barrier", TURN_BARRIER_ID, both, (role.name,), role.instances
    )


def resources_sm100(problem: GemmProblem, s: GemmSchedule) -> DenseResources:
    """Epilogue warps 0-3 (each reads its own quarter of TMEM lanes), then MMA, TMA."""
    epilogue = Role("epilogue", 0, sm100.EPILOGUE_WARPS)
    mma = Role("mma", sm100.EPILOGUE_WARPS, 1, leader=s.cta_group > 1)
    load = Role("load", sm100.EPILOGUE_WARPS + 1, 1)
    a, b, inputs, outputs = _gmem(problem)
    s_a, s_b, staging = _shared(problem, s)
    products = problem.epilogue.products
    columns = s.tile_n * products
    acc = Buffer("tAcc", Space.TMEM, "float32", (s.tile_m, columns), s.acc_stages)
    registers_acc = Buffer("r_acc", Space.RMEM, "float32", (s.tile_m, s.epi_n))
    more = tuple(
        Product(
            b=_numbered(b, i),
            s_b=_numbered(s_b, i),
            acc=acc,
            registers_acc=_numbered(registers_acc, i),
            part=i,
        )
        for i in range(1, products)
    )
    scales = _scales(problem, s)
    ab = Pipeline(
        name="ab",
        kind=PipelineKind.TMA_UMMA,
        producer=load.name,
        consumer=mma.name,
        carries=(
            *(s_a, s_b, *(p.s_b for p in more)),
            *(() if scales is None else scales.staged),
        ),
        stages=s.ab_stages,
        tx_bytes=_stage_bytes(problem, s),
        producer_arrivals=1,
        # One tcgen05.commit arrival from every MMA that reads a multicast stage.
        consumer_arrivals=s.cluster_m // s.cta_group + s.cluster_n - 1,
    )
    acc_pipe = Pipeline(
        name="acc",
        kind=PipelineKind.UMMA_EPILOGUE,
        producer=mma.name,
        consumer=epilogue.name,
        carries=(acc,),
        stages=s.acc_stages,
        tx_bytes=0,
        producer_arrivals=1,
        consumer_arrivals=epilogue.warps * s.cta_group,
    )
    return DenseResources(
        load=load,
        mma=mma,
        epilogue=epilogue,
        a=a,
        b=b,
        s_a=s_a,
        s_b=s_b,
        acc=acc,
        registers_acc=registers_acc,
        inputs=inputs,
        outputs=outputs,
        registers_out=_registers_out(problem, s),
        offsets=OFFSETS if problem.has_offsets else None,
        staging=staging,
        ab=ab,
        acc_pipe=acc_pipe,
        epi_barrier=NamedBarrier(
            "epi_barrier", EPILOGUE_BARRIER_ID, epilogue.threads, (epilogue.name,)
        ),
        tmem=acc,
        tmem_columns=sm100.tmem_columns(problem, s),
        scales=scales,
        more=more,
        walk_end=_walk_end(s),
    )
