"""Small dense programs of both archs, written out by hand, and ways to edit programs.

The tests of the IR and of the passes start from these and break one thing at a time.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from types import UnionType

from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.ir.dataflow import (
    AccumulatorClear,
    ConsumerRelease,
    ConsumerWait,
    EpilogueApply,
    Mma,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
    SmemStore,
    TmaLoad,
    TmaStore,
    TmaStoreWait,
    TmemLoad,
)
from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    KLoop,
    Let,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import (
    AllocateShared,
    CtaBarrier,
    Fence,
    InitPipelines,
    InitSync,
    NamedBarrierSync,
    TmemAlloc,
    TmemFree,
)
from torch_cute_backend.ir.values import (
    Buffer,
    NamedBarrier,
    Pipeline,
    PipelineKind,
    Role,
    Scheduler,
    SchedulerKind,
    Space,
    Var,
)
from torch_cute_backend.passes import Omission, PassContext
from torch_cute_backend.passes.omit_shared_loop import OmitSharedLoop
from torch_cute_backend.passes.partition_roles import PartitionRoles

ROLES = {"sm_90a": ("load", "math"), "sm_100a": ("load", "mma", "epilogue")}

TILES = Scheduler("tiles", SchedulerKind.STATIC_PERSISTENT)
TILE, TILE_M, TILE_N = Var("tile"), Var("tile_m"), Var("tile_n")
K, SUB = Var("k"), Var("sub")
STAGES, SUBTILES = 3, 2

A = Buffer("A", Space.GMEM, "bfloat16")
B = Buffer("B", Space.GMEM, "bfloat16")
D = Buffer("D", Space.GMEM, "bfloat16")
OFFSETS = Buffer("offsets", Space.GMEM, "int32")
S_A = Buffer("sA", Space.SMEM, "bfloat16", (64, 64), STAGES)
S_B = Buffer("sB", Space.SMEM, "bfloat16", (64, 64), STAGES)
S_D = Buffer("sD", Space.SMEM, "bfloat16", (64, 32), 2)
R_ACC = Buffer("r_acc", Space.RMEM, "float32", (64, 64))
T_ACC = Buffer("tAcc", Space.TMEM, "float32", (64, 64), 2)
R_D = Buffer("r_D", Space.RMEM, "bfloat16", (64, 32))
TX_BYTES = (64 + 64) * 64 * 2

MATH = Role("math", 0, 4)
LOAD90 = Role("load", 4, 1)
EPILOGUE = Role("epilogue", 0, 4)
MMA = Role("mma", 4, 1)
LOAD100 = Role("load", 5, 1)

AB90 = Pipeline(
    "ab", PipelineKind.TMA_WGMMA, "load", "math", (S_A, S_B), STAGES, TX_BYTES, 1, 4
)
AB100 = Pipeline(
    "ab", PipelineKind.TMA_UMMA, "load", "mma", (S_A, S_B), STAGES, TX_BYTES, 1, 1
)
ACC = Pipeline(
    "acc", PipelineKind.UMMA_EPILOGUE, "mma", "epilogue", (T_ACC,), 2, 0, 1, 4
)
BAR90 = NamedBarrier("store", 1, 128, ("math",))
BAR100 = NamedBarrier("store", 1, 128, ("epilogue",))


def coordinates() -> Body:
    m = BinOp("%", Ref(TILE), Param("tiles_m"))
    n = BinOp("//", Ref(TILE), Param("tiles_m"))
    return Let(var=TILE_M, value=m), Let(var=TILE_N, value=n)


def load(role: Role, ab: Pipeline) -> Body:
    body = (
        ProducerAcquire(pipeline=ab),
        TmaLoad(source=A, target=S_A, pipeline=ab, coords=(Ref(TILE_M), Ref(K))),
        TmaLoad(source=B, target=S_B, pipeline=ab, coords=(Ref(TILE_N), Ref(K))),
        ProducerCommit(pipeline=ab),
    )
    return (KLoop(role=role, index=K, count=Param("k_tiles"), body=body),)


def mainloop(role: Role, ab: Pipeline, acc: Buffer, lag: int) -> Stmt:
    body = (
        ConsumerWait(pipeline=ab),
        Mma(accumulator=acc, a=S_A, b=S_B, pipeline=ab, index=K),
        ConsumerRelease(pipeline=ab, lag=lag, index=K if lag else None),
    )
    return KLoop(role=role, index=K, count=Param("k_tiles"), body=body)


def store(role: Role, barrier: NamedBarrier, first: Body) -> Stmt:
    tile = (Ref(TILE_M), Ref(TILE_N))
    body = (
        *first,
        EpilogueApply(
            graph=EpilogueGraph.identity(),
            source=R_ACC,
            inputs=(),
            targets=(R_D,),
            subtile=SUB,
        ),
        TmaStoreWait(pending=S_D.stages - 1),
        NamedBarrierSync(barrier=barrier),
        SmemStore(source=R_D, target=S_D, subtile=SUB),
        Fence(),
        NamedBarrierSync(barrier=barrier),
        TmaStore(source=S_D, target=D, tile=tile, subtile=SUB),
    )
    return SubtileLoop(role=role, index=SUB, count=SUBTILES, body=body)


def tile_loop(body: Body) -> TileLoop:
    end = (
        CtaBarrier(why="tile hand-over"),
        SchedulerAdvance(scheduler=TILES, work=TILE, step=Param("gridz")),
    )
    limit = BinOp("*", Param("tiles_m"), Param("tiles_n"))
    return TileLoop(
        scheduler=TILES,
        work=TILE,
        first=Param("bidz"),
        limit=limit,
        body=(*coordinates(), *body, *end),
    )


def dense_sm90() -> Program:
    """Inline form: TMA load warp and one math warpgroup."""
    body = (
        *load(LOAD90, AB90),
        AccumulatorClear(role=MATH, accumulator=R_ACC),
        mainloop(MATH, AB90, R_ACC, lag=1),
        MmaDrain(role=MATH, pipeline=AB90, lag=1),
        store(MATH, BAR90, ()),
    )
    return Program(
        name="dense",
        arch="sm_90a",
        roots=("D",),
        roles=(LOAD90, MATH),
        buffers=(A, B, D, OFFSETS, S_A, S_B, S_D, R_ACC, R_D),
        pipelines=(AB90,),
        barriers=(BAR90,),
        prologue=(
            AllocateShared(buffers=(S_A, S_B, S_D)),
            InitPipelines(pipelines=(AB90,)),
            InitSync(cluster=False),
        ),
        loop=tile_loop(body),
        post=(
            ProducerTail(role=LOAD90, pipeline=AB90),
            TmaStoreWait(role=MATH, pending=0),
        ),
    )


def dense_sm100() -> Program:
    """Inline form: TMA load warp, MMA warp, four epilogue warps."""
    read = TmemLoad(source=T_ACC, target=R_ACC, pipeline=ACC, subtile=SUB)
    body = (
        *load(LOAD100, AB100),
        ProducerAcquire(role=MMA, pipeline=ACC),
        mainloop(MMA, AB100, T_ACC, lag=0),
        ProducerCommit(role=MMA, pipeline=ACC),
        ConsumerWait(role=EPILOGUE, pipeline=ACC),
        store(EPILOGUE, BAR100, (read,)),
        ConsumerRelease(role=EPILOGUE, pipeline=ACC),
    )
    return Program(
        name="dense",
        arch="sm_100a",
        roots=("D",),
        roles=(LOAD100, MMA, EPILOGUE),
        buffers=(A, B, D, OFFSETS, S_A, S_B, S_D, T_ACC, R_ACC, R_D),
        pipelines=(AB100, ACC),
        barriers=(BAR100,),
        prologue=(
            AllocateShared(buffers=(S_A, S_B, S_D)),
            InitPipelines(pipelines=(AB100, ACC)),
            TmemAlloc(buffer=T_ACC, columns=128),
            InitSync(cluster=False),
        ),
        loop=tile_loop(body),
        post=(
            ProducerTail(role=LOAD100, pipeline=AB100),
            ProducerTail(role=MMA, pipeline=ACC),
            TmaStoreWait(role=EPILOGUE, pending=0),
            NamedBarrierSync(role=EPILOGUE, barrier=BAR100),
            TmemFree(role=EPILOGUE, buffer=T_ACC, columns=128),
        ),
    )


EXAMPLES = {"sm_90a": dense_sm90, "sm_100a": dense_sm100}


# --- running passes


def partition(program: Program) -> Program:
    """The kept form; raises with the reasons if partitioning is not legal."""
    result = PartitionRoles().run(program, PassContext(ROLES[program.arch]))
    if not hasattr(result, "program"):
        raise AssertionError(str(result))
    return result.program


@lru_cache
def kept(arch: str) -> Program:
    return partition(EXAMPLES[arch]())


def omit(program: Program, shared_loop: str = "auto") -> tuple[Program, Omission]:
    context = PassContext(ROLES[program.arch], shared_loop)
    result = OmitSharedLoop().run(program, context)
    if result.omission is None:
        raise AssertionError("omit_shared_loop gave no decision")
    return result.program, result.omission


# --- editing programs

Edit = Callable[[Stmt], "Stmt | Iterable[Stmt] | None"]


def edit_body(body: Body, edit: Edit) -> Body:
    """``edit`` of every statement, inner ones first: itself, another, several, none."""
    done: list[Stmt] = []
    for stmt in body:
        for nested in stmt.bodies():
            stmt = stmt.with_body(edit_body(nested, edit))
        result = edit(stmt)
        if result is None:
            continue
        done.extend((result,) if isinstance(result, Stmt) else result)
    return tuple(done)


def edited(program: Program, edit: Edit) -> Program:
    """The program with every statement edited, wherever it stands."""
    loop = program.loop
    return replace(
        program,
        prologue=edit_body(program.prologue, edit),
        regions=edit_body(program.regions, edit),
        loop=loop if loop is None else edit_body((loop,), edit)[0],
        post=edit_body(program.post, edit),
    )


def without(program: Program, kind: type[Stmt], **where: object) -> Program:
    """Take out every statement of ``kind`` whose fields have the given values."""

    def edit(stmt: Stmt) -> Stmt | None:
        hit = isinstance(stmt, kind) and all(
            getattr(stmt, name) == value for name, value in where.items()
        )
        return None if hit else stmt

    return edited(program, edit)


def with_residual(program: Program, *statements: Stmt) -> Program:
    """Put ``statements`` into the shared loop, before its barrier and step."""
    loop = program.loop
    at = next(i for i, s in enumerate(loop.body) if isinstance(s, CtaBarrier))
    body = (*loop.body[:at], *statements, *loop.body[at:])
    return replace(program, loop=loop.with_body(body))


def with_resource(program: Program, old: object, new: object) -> Program:
    """Replace a role, buffer, pipeline, barrier or scheduler wherever it occurs."""
    return _swap(program, old, new)


def _swap(value: typing.Any, old: object, new: object) -> typing.Any:
    if value == old:
        return new
    if isinstance(value, tuple):
        return tuple(_swap(v, old, new) for v in value)
    if is_dataclass(value) and not isinstance(value, (type, Enum)):
        changes = {
            f.name: _swap(getattr(value, f.name), old, new) for f in fields(value)
        }
        return replace(value, **changes)
    return value


# --- one sample of any statement class

_SAMPLES: dict[type, object] = {
    Role: None,
    Buffer: Buffer("other", Space.SMEM, "bfloat16", (8, 8)),
    Pipeline: replace(AB90, name="other_pipeline"),
    NamedBarrier: NamedBarrier("other_barrier", 2, 128, ("math",)),
    Scheduler: Scheduler("other_tiles", SchedulerKind.STATIC_PERSISTENT),
    Var: Var("fresh"),
    Expr: Const(1),
    EpilogueGraph: EpilogueGraph.identity(),
    int: 1,
    str: "text",
    bool: False,
    Stmt: None,
}


def sample(kind: type[Stmt]) -> Stmt:
    """An instance of ``kind`` built from its fields' types, so that a class written
    tomorrow has one too. An unknown field type is a KeyError to be fixed above."""
    hints = typing.get_type_hints(kind)
    return kind(**{f.name: _value(hints[f.name]) for f in fields(kind)})


def _value(hint: typing.Any) -> typing.Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return _value(next(a for a in args if a is not type(None)))
    if origin is tuple:
        items = args[:1] if args[-1] is Ellipsis else args
        return tuple(v for v in map(_value, items) if v is not None)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    return _SAMPLES[hint]
