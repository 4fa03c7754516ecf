"""Statements to text: what both archs share.

An :class:`Emitter` walks a program and prints each statement with the handler that its
class registered by :func:`emits`. A handler prints only the operands it is given; a
statement without a handler raises.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, ClassVar, TypeVar

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.shapes import Where, where
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir import dataflow as flow
from torch_cute_backend.ir import structure as st
from torch_cute_backend.ir import sync
from torch_cute_backend.ir.expr import BinOp, Expr, Param
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.values import (
    Buffer,
    L2Policy,
    NamedBarrier,
    Role,
    SchedulerKind,
    Var,
)
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

BANNER_WIDTH = 80
Handler = Callable[[Any, Any], None]
H = TypeVar("H", bound=Handler)


def emits(*classes: type[Stmt]) -> Callable[[H], H]:
    """Marks a method as the handler of statement classes."""

    def mark(method: H) -> H:
        method.__dict__["emits"] = classes
        return method

    return mark


L2_CONSTANTS = (
    ("L2_EVICT_FIRST", "0x12F0000000000000  # createpolicy encodings, all lines"),
    ("L2_EVICT_LAST", "0x14F0000000000000"),
)
"""What ``createpolicy.fractional`` gives for a fraction of 1 (PTX ISA)."""

TILE_COUNTS = ("tiles_m", "tiles_n")

_VIEWS = (
    sync.PartitionTma,
    sync.PartitionMma,
    sync.PartitionEpilogue,
    sync.PipelineStates,
)


class Emitter:
    """Prints the kernel body of one program. Subclasses add an arch's handlers."""

    handlers: ClassVar[dict[type[Stmt], str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = dict(cls.handlers)
        cls._collect()

    @classmethod
    def _collect(cls) -> None:
        for name, method in vars(cls).items():
            for statement in getattr(method, "emits", ()):
                cls.handlers[statement] = name

    def __init__(
        self, problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
    ) -> None:
        self.problem = problem
        self.schedule = schedule
        self.arch = arch
        self.out = Writer()
        self._inline = False

    def kernel_body(self, program: Program) -> None:
        """All statements of ``program``, in order."""
        self._inline = program.form == "inline"
        self.body(program.prologue)
        for region in program.regions:
            self.emit(region)
        if program.loop is not None:
            if program.regions:
                self.out.blank()
                self.out.comment("Shared loop: what is left once the roles own theirs.")
            self.emit(program.loop)
        self.body(program.post)

    def body(self, statements: Body) -> None:
        """Statements in order; in the inline form, runs of one role share an ``if``."""
        runs = [(role, tuple(run)) for role, run in groupby(statements, self._guard)]
        for role, run in runs:
            if role is None:
                for s in run:
                    self.emit(s)
                continue
            with self.out.block(f"if {names.role_condition(role)}:"):
                self._inline = False
                for s in run:
                    self.emit(s)
                self._inline = True

    def _guard(self, s: Stmt) -> Role | None:
        """The role whose ``if`` must stand around ``s``. Inside a region everything is
        the role's already. In the inline form, views and counters are defined for all
        warps: the DSL does not let a name that an ``if`` defines be used after it."""
        return None if isinstance(s, _VIEWS) or not self._inline else s.role

    def emit(self, statement: Stmt) -> None:
        name = self.handlers.get(type(statement))
        if name is None:
            raise CodegenError(
                f"{type(self).__name__} has no text for {type(statement).__name__}"
            )
        getattr(self, name)(statement)

    # --- structure ----------------------------------------------------------------

    @emits(st.Let)
    def let(self, s: st.Let) -> None:
        """Divisions by a tile count use the host's multiplier: a run-time division
        costs every role some 25 instructions a tile, before its first load."""
        self.out.line(f"{s.var} = {by_multiplier(s.value)}")

    @emits(st.ScalarStore)
    def scalar_store(self, s: st.ScalarStore) -> None:
        with self.out.block("if tidx == 0:"):
            self.out.line(f"{names.gmem(s.buffer)}[{s.index}] = {s.value}")

    @emits(st.TileLoop)
    def tile_loop(self, s: st.TileLoop) -> None:
        start = str(s.first)
        if s.role is not None and s.role.instances > 1:
            step = next(b.step for b in s.body if isinstance(b, st.SchedulerAdvance))
            start += f" + instance * {step}"
        self.out.line(f"{s.work} = {start}")
        single = s.scheduler.kind is SchedulerKind.SINGLE_TILE
        with self.out.block(f"{'if' if single else 'while'} {s.work} < {s.limit}:"):
            self.body(s.body)

    @emits(st.SchedulerAdvance)
    def scheduler_advance(self, s: st.SchedulerAdvance) -> None:
        dealt = 1 if s.role is None else s.role.instances
        self.out.line(f"{s.work} += {f'{dealt} * ' if dealt > 1 else ''}{s.step}")

    @emits(st.KLoop)
    def k_loop(self, s: st.KLoop) -> None:
        with self.out.block(f"for {s.index} in cutlass.range({s.count}, unroll=1):"):
            self.body(s.body)

    @emits(st.SubtileLoop)
    def subtile_loop(self, s: st.SubtileLoop) -> None:
        with self.out.block(f"for {s.index} in range_constexpr({s.count}):"):
            self.body(s.body)

    @emits(st.If)
    def if_(self, s: st.If) -> None:
        with self.out.block(f"if {s.condition}:"):
            self.body(s.body)

    @emits(st.RoleRegion)
    def role_region(self, s: st.RoleRegion) -> None:
        if s.role is None:
            raise CodegenError("a role region without a role")
        self.out.blank()
        title = s.role.name.upper()
        self.out.line(f"# --- {title} ".ljust(BANNER_WIDTH, "-"))
        if not s.role.idle_warps:
            with self.out.block(f"if {names.role_condition(s.role)}:"):
                self.body(s.body)
            return
        # A whole warpgroup changes its registers; the role is one part of it.
        budget = tuple(b for b in s.body if isinstance(b, sync.SetRegisters))
        rest = tuple(b for b in s.body if b not in budget)
        last = s.role.first_warp + s.role.warps + s.role.idle_warps
        first = s.role.first_warp
        with self.out.block(f"if warp_idx >= {first} and warp_idx < {last}:"):
            self.body(budget)
            with self.out.block(f"if {names.role_condition(s.role)}:"):
                self.body(rest)

    @emits(st.Placeholder)
    def placeholder(self, s: st.Placeholder) -> None:
        self.out.comment(f"({s.of}: {s.count} statements moved to its own loop)")

    # --- synchronisation ----------------------------------------------------------

    @emits(sync.CtaBarrier)
    def cta_barrier(self, s: sync.CtaBarrier) -> None:
        comment = f"  # {s.why}" if s.why else ""
        self.out.line(f"cute.arch.sync_threads(){comment}")

    @emits(sync.NamedBarrierSync)
    def named_barrier_sync(self, s: sync.NamedBarrierSync) -> None:
        b = s.barrier
        self.out.line(
            f"cute.arch.barrier(barrier_id={self.barrier_id(b)}, "
            f"number_of_threads={b.threads})"
        )

    def barrier_id(self, barrier: NamedBarrier, other: int = 0) -> str:
        """This instance's barrier, or that of the one ``other`` places on."""
        if barrier.instances == 1:
            return str(barrier.id)
        if not other:
            return f"{barrier.id} + instance"
        return f"{barrier.id} + (instance + {other}) % {barrier.instances}"

    @emits(sync.TakeTurn)
    def take_turn(self, s: sync.TakeTurn) -> None:
        self.out.comment("In turn: a wait that comes a round early would see no wait.")
        with self.out.block(f"if {s.work} != {s.first}:"):
            self.out.call(
                "cute.arch.barrier(",
                (
                    f"barrier_id={self.barrier_id(s.barrier)}",
                    f"number_of_threads={s.barrier.threads}",
                ),
            )

    @emits(sync.PassTurn)
    def pass_turn(self, s: sync.PassTurn) -> None:
        with self.out.block(f"if {s.work} + {s.step} < {s.limit}:"):
            self.out.call(
                "cute.arch.barrier_arrive(",
                (
                    f"barrier_id={self.barrier_id(s.barrier, 1)}",
                    f"number_of_threads={s.barrier.threads}",
                ),
            )

    @emits(sync.ClusterArrive)
    def cluster_arrive(self, s: sync.ClusterArrive) -> None:
        self.out.line("cute.arch.cluster_arrive()")

    @emits(sync.ClusterWait)
    def cluster_wait(self, s: sync.ClusterWait) -> None:
        self.out.line("cute.arch.cluster_wait()")

    @emits(sync.Fence)
    def fence(self, s: sync.Fence) -> None:
        self.out.line('cute.arch.fence_proxy("async.shared", space="cta")')

    @emits(sync.SetRegisters)
    def set_registers(self, s: sync.SetRegisters) -> None:
        verb = "increase" if s.increase else "decrease"
        self.out.line(f"cute.arch.setmaxregister_{verb}({s.count})")

    @emits(sync.PdlWait)
    def pdl_wait(self, s: sync.PdlWait) -> None:
        self.out.line("cute.arch.griddepcontrol_wait()")

    @emits(sync.PdlLaunch)
    def pdl_launch(self, s: sync.PdlLaunch) -> None:
        self.out.line("cute.arch.griddepcontrol_launch_dependents()")

    @emits(sync.InitSync)
    def init_sync(self, s: sync.InitSync) -> None:
        self.out.line(
            "pipeline.pipeline_init_wait(cluster_shape_mn=(CLUSTER_M, CLUSTER_N))"
        )

    @emits(sync.AllocateShared)
    def allocate_shared(self, s: sync.AllocateShared) -> None:
        out = self.out
        out.blank()
        out.line("storage = SmemAllocator().allocate(shared_storage)")
        for buffer in s.buffers:
            layout = names.smem_layout(buffer)
            out.call(
                f"{buffer.name} = storage.{buffer.name}.get_tensor(",
                (f"{layout}.outer", f"swizzle={layout}.inner"),
            )

    @emits(sync.PrefetchDescriptors)
    def prefetch_descriptors(self, s: sync.PrefetchDescriptors) -> None:
        with self.out.block("if warp_idx == LOAD_WARP:"):
            for buffer in s.buffers:
                self.out.line(f"cpasync.prefetch_descriptor({names.tma_atom(buffer)})")

    # --- pipelines and TMA --------------------------------------------------------

    @emits(flow.ProducerAcquire)
    def producer_acquire(self, s: flow.ProducerAcquire) -> None:
        p = s.pipeline
        self.out.line(
            f"{names.pipeline(p)}.producer_acquire({names.producer_state(p)})"
        )

    @emits(flow.ProducerCommit)
    def producer_commit(self, s: flow.ProducerCommit) -> None:
        p = s.pipeline
        self.out.line(f"{names.pipeline(p)}.producer_commit({names.producer_state(p)})")
        self.out.line(f"{names.producer_state(p)}.advance()")

    @emits(flow.ProducerTail)
    def producer_tail(self, s: flow.ProducerTail) -> None:
        p = s.pipeline
        self.out.line(f"{names.pipeline(p)}.producer_tail({names.producer_state(p)})")

    @emits(flow.TmaLoad)
    def tma_load(self, s: flow.TmaLoad) -> None:
        x, p = names.camel(s.source.name), s.pipeline
        state = names.producer_state(p)
        coords = ", ".join(str(c) for c in s.coords)
        args = [
            names.tma_atom(s.source),
            f"t{x}g{x}[(None, {coords})]",
            f"t{x}s{x}[(None, {state}.index)]",
            f"tma_bar_ptr={names.pipeline(p)}.producer_get_barrier({state})",
        ]
        if self.multicast(x):
            args.append(f"mcast_mask={x.lower()}_mcast_mask")
        if s.l2 is not L2Policy.NORMAL:
            args.append(f"cache_policy=cutlass.Int64(L2_{s.l2.name})")
        self.out.call("cute.copy(", tuple(args))

    def multicast(self, operand: str) -> bool:
        """A is shared along the cluster's N, B along its M."""
        s = self.schedule
        return (s.cluster_n if operand == "A" else s.cluster_m) > 1

    def filled_operand(self, operand: str) -> str:
        """The staged operand as TMA fills it; an arch may stage more rows than that."""
        return f"s{operand}"

    def store_warp(self) -> str:
        """Is this the warp that issues TMA stores?"""
        return "warp_idx == STORE_WARP"

    @emits(flow.TmaStoreWait)
    def tma_store_wait(self, s: flow.TmaStoreWait) -> None:
        with self.out.block(f"if {self.store_warp()}:"):
            self.out.line(f"cute.arch.cp_async_bulk_wait_group({s.pending}, read=True)")

    @emits(flow.TmaStore)
    def tma_store(self, s: flow.TmaStore) -> None:
        x = names.camel(s.target.name)
        stage = self.staging_stage(s.subtile.name)
        args = (
            names.tma_atom(s.target),
            f"t{x}s{x}[(None, {stage})]",
            f"t{x}g{x}[(None, {self._stored_box(s)})]",
        )
        with self.out.block(f"if {self.store_warp()}:"):
            if s.spare is None:
                self.out.call("cute.copy(", args)
            else:
                with self.out.block(f"if {s.spare} >= 0:"):
                    self.out.call("cute.copy(", args)
            self.out.line("cute.arch.cp_async_bulk_commit_group()")

    def _stored_box(self, s: flow.TmaStore) -> str:
        """Tile row and column of subtiles, or the latter alone in a selected tile."""
        if not s.tile:
            return str(s.subtile)
        m, n = s.tile
        subtiles = self.schedule.tile_n // self.schedule.epi_n
        column = str(n) if subtiles == 1 else f"{n} * {subtiles} + {s.subtile}"
        return f"{m}, {column}"

    def staging_stage(self, subtile: str) -> str:
        """Staging buffers are taken in turn; their number divides a tile's subtiles."""
        stages = self.schedule.epi_stages
        return "0" if stages == 1 else f"{subtile} % {stages}"

    # --- epilogue inputs ------------------------------------------------------------

    @emits(flow.EpilogueLoad)
    def epilogue_load(self, s: flow.EpilogueLoad) -> None:
        """By kind; where a thread's elements lie is the arch's to say."""
        kinds = {i.name: i.kind for i in s.graph.inputs}
        place = where(s.tile, s.origin)
        for source, target in zip(s.inputs, s.targets, strict=True):
            kind = kinds[source.name]
            if kind is InputKind.SCALAR:
                self.out.line(
                    f"{names.registers(target)} = {names.gmem(source)}[0].to(Float32)"
                )
            elif kind is InputKind.ROW:
                self.load_rows(source, target, place)
            elif kind is InputKind.COL:
                self.load_columns(source, target, place, s.subtile)
            else:
                self.load_full(source, target, place, s.subtile)

    def load_rows(self, source: Buffer, target: Buffer, place: Where) -> None:
        """A value for each row of this thread."""
        raise NotImplementedError

    def load_columns(
        self, source: Buffer, target: Buffer, place: Where, subtile: Var | None
    ) -> None:
        """The columns of a subtile, or of the tile if ``subtile`` is None."""
        raise NotImplementedError

    def load_full(
        self, source: Buffer, target: Buffer, place: Where, subtile: Var | None
    ) -> None:
        """A value for each element of this thread."""
        raise NotImplementedError

    @emits(sync.PartitionTma)
    def partition_tma(self, s: sync.PartitionTma) -> None:
        for buffer in s.buffers:
            self._partition_operand(names.camel(buffer.name), names.gmem(buffer))

    def _partition_operand(self, x: str, tensor: str) -> None:
        """Boxes of all tiles, or a grouped kernel's mask alone: it selects tiles."""
        if not self.problem.is_grouped:
            self.operand_boxes(x, tensor, "(None, None)")
        if self.multicast(x):
            axis = 1 if x == "A" else 0
            self.out.line(
                f"{x.lower()}_mcast_mask = "
                f"cute.make_layout_image_mask(cluster_layout, cta_coord, mode={axis})"
            )

    def named(self, text: str, name: str) -> str:
        """``text``, or ``name`` given to it where it is more than a name."""
        if text.isidentifier():
            return text
        self.out.line(f"{name} = {text}")
        return name

    def operand_boxes(self, x: str, tensor: str, tiles: str) -> None:
        """Boxes of ``tensor`` for TMA: of all tiles, or ``tiles`` says of which."""
        rows = "TILE_M" if x == "A" else "TILE_N"
        mode = "mk" if x == "A" else "nk"
        across = "CLUSTER_N" if x == "A" else "CLUSTER_M"
        rank = "cta_n" if x == "A" else "cta_m"
        out = self.out
        which = "tiles, " if tiles == "(None, None)" else ""
        out.comment(f"({rows}, TILE_K, {which}k tiles)")
        tiler = f"({rows}, TILE_K)"
        out.call(f"g{x}_{mode} = cute.local_tile(", (tensor, tiler, tiles))
        filled = self.named(self.filled_operand(x), f"s{x}_filled")
        out.comment(f"(box, stages), (box, {which}k tiles)")
        out.call(
            f"t{x}s{x}, t{x}g{x} = cpasync.tma_partition(",
            (
                f"tma_atom_{x.lower()}",
                rank if self.multicast(x) else "0",
                f"cute.make_layout({across})",
                f"cute.group_modes({filled}, 0, 2)",
                f"cute.group_modes(g{x}_{mode}, 0, 2)",
            ),
        )


def by_multiplier(value: Expr) -> Expr:
    """``value`` with the divisors that the host prepares in their place."""
    if not isinstance(value, BinOp):
        return value
    left, right = by_multiplier(value.left), by_multiplier(value.right)
    counts = isinstance(right, Param) and right.name in TILE_COUNTS
    if value.op in ("//", "%") and counts:
        right = Param(names.divisor(str(right)))
    return BinOp(value.op, left, right)


Emitter._collect()
