"""Happens-before on declared effects: what orders two accesses, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ir_examples as ex
from ordering_statements import LostWrite, PlainRead, PlainWrite
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    GmemStore,
    Mma,
    MmaDrain,
    ProducerTail,
    SmemStore,
    TmaLoad,
    TmaStore,
    TmaStoreWait,
)
from torch_cute_backend.ir.expr import Const, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import If, KLoop, RoleRegion, SubtileLoop
from torch_cute_backend.ir.sync import (
    ClusterArrive,
    ClusterWait,
    CtaBarrier,
    Fence,
    InitSync,
    NamedBarrierSync,
    TmemFree,
)
from torch_cute_backend.ir.values import Buffer, Pipeline, PipelineKind, Space


def roles_only(arch: str) -> Program:
    return replace(ex.kept(arch), loop=None)


def sm90() -> Program:
    return roles_only("sm_90a")


def sm100() -> Program:
    return roles_only("sm_100a")


def store_loop(program: Program, edit: Callable[[Body], Body]) -> Program:
    """Edit the body of the epilogue's subtile loop."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, SubtileLoop):
            return stmt.with_body(edit(stmt.body))
        return stmt

    return ex.edited(program, visit)


def drop(kind: type[Stmt], nth: int = 0) -> Callable[[Body], Body]:
    """Take out the nth ``kind`` of a body."""

    def edit(body: Body) -> Body:
        hits = [s for s in body if isinstance(s, kind)]
        gone = hits[nth]
        at = [i for i, s in enumerate(body) if s is gone][-1 if nth else 0]
        return (*body[:at], *body[at + 1 :])

    return edit


def subtiles(program: Program, count: int) -> Program:
    def visit(stmt: Stmt) -> Stmt:
        return replace(stmt, count=count) if isinstance(stmt, SubtileLoop) else stmt

    return ex.edited(program, visit)


def conditional_barriers(body: Body) -> Body:
    return tuple(
        If(condition=Const(1), body=(s,)) if isinstance(s, NamedBarrierSync) else s
        for s in body
    )


def in_a_branch(program: Program) -> Program:
    """The whole epilogue under a CTA-uniform condition: its barriers run with it."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, SubtileLoop):
            return If(role=stmt.role, condition=Param("flag"), body=(stmt,))
        return stmt

    return ex.edited(program, visit)


def change(program: Program, kind: type[Stmt], **fields: object) -> Program:
    def visit(stmt: Stmt) -> Stmt:
        return replace(stmt, **fields) if isinstance(stmt, kind) else stmt

    return ex.edited(program, visit)


def last_to_front(program: Program, kind: type[Stmt]) -> Program:
    """Move the release in front of the MMA."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, KLoop) and any(isinstance(s, kind) for s in stmt.body):
            first, mma, release = stmt.body
            return stmt.with_body((first, release, mma))
        return stmt

    return ex.edited(program, visit)


def twice(program: Program, kind: type[Stmt]) -> Program:
    def visit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        return (stmt, stmt) if isinstance(stmt, kind) else stmt

    return ex.edited(program, visit)


def in_region(program: Program, role: str, *statements: Stmt) -> Program:
    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, RoleRegion) and str(stmt.role) == role:
            return stmt.with_body((*stmt.body, *statements))
        return stmt

    return ex.edited(program, visit)


def direct_store(program: Program) -> Program:
    """Store from registers: no staging, hence no barrier in the loop."""
    staging = (Fence, NamedBarrierSync, SmemStore, TmaStore, TmaStoreWait)
    tile = (Ref(ex.TILE_M), Ref(ex.TILE_N))
    direct = GmemStore(source=ex.R_D, target=ex.D, tile=tile, subtile=ex.SUB)

    def body(statements: Body) -> Body:
        return (*(s for s in statements if not isinstance(s, staging)), direct)

    return store_loop(program, body)


def plain_fill(program: Program) -> Program:
    """Fill sA with ordinary stores instead of TMA."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, TmaLoad) and stmt.target == ex.S_A:
            return PlainWrite(role=stmt.role, buffer=ex.S_A)
        return stmt

    return ex.edited(program, visit)


FREE = TmemFree(buffer=ex.T_ACC, columns=128)


def free(program: Program, *post: Stmt, role: str | None = None) -> Program:
    """Free tensor memory elsewhere: behind all roles, or at the end of one."""
    program = ex.without(program, TmemFree)
    if role is not None:
        return in_region(program, role, *post)
    return replace(program, post=post)


def early_tail(program: Program, role: str, pipeline: Pipeline) -> Program:
    """Move the producer's tail in front of its loop."""
    tail = ProducerTail(pipeline=pipeline)

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, RoleRegion) and str(stmt.role) == role:
            return stmt.with_body((replace(tail, role=stmt.role), *stmt.body))
        return stmt

    program = ex.without(program, ProducerTail, pipeline=pipeline)
    return ex.edited(program, visit)


LOOSE = Buffer("loose", Space.SMEM, "float32", (32,))


def replace_leaf(
    program: Program, kind: type[Stmt], edit: Callable[[Stmt], Stmt | Body]
) -> Program:
    def visit(stmt: Stmt) -> Stmt | Body:
        return edit(stmt) if isinstance(stmt, kind) else stmt

    return ex.edited(program, visit)


def plain_accumulator(program: Program) -> Program:
    """Ordinary writes where tcgen05.commit only covers MMAs."""
    write = PlainWrite(role=ex.MMA, buffer=ex.T_ACC)
    return replace_leaf(program, Mma, lambda s: (s, write))


def change_stage(program: Program) -> Program:
    store = SmemStore(role=ex.MATH, source=ex.R_D, target=ex.S_A, subtile=ex.K)
    return replace_leaf(program, Mma, lambda s: (s, store))


def loads_in_a_loop(program: Program) -> Program:
    """Each stage is loaded several times over."""

    def again(stmt: Stmt) -> Stmt:
        index = replace(ex.K, name="again")
        return KLoop(role=stmt.role, index=index, count=Param("n"), body=(stmt,))

    return replace_leaf(program, TmaLoad, again)


def branches(program: Program) -> Program:
    """Producer and consumer take and give stages under one condition; the MMA reads
    whether that holds or not."""

    def maybe(*body: Stmt) -> If:
        return If(role=body[0].role, condition=Param("flag"), body=body)

    def visit(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, KLoop):
            return stmt
        if any(isinstance(s, TmaLoad) for s in stmt.body):
            return stmt.with_body((maybe(*stmt.body),))
        wait, mma, release = stmt.body
        return stmt.with_body((maybe(wait), mma, maybe(release)))

    return ex.edited(program, visit)


def pair(program: Program) -> Program:
    program = change(program, InitSync, cluster=True)
    return replace(program, cluster_size=2, cluster_shape=(2, 1), cta_group=2)


def cluster(program: Program) -> Program:
    return replace(program, cluster_size=2, cluster_shape=(2, 1))


def other_kind(program: Program) -> Program:
    """wgmma reads released as if tcgen05.commit tracked them."""
    pipeline = replace(ex.AB90, kind=PipelineKind.TMA_UMMA)
    return ex.with_resource(program, ex.AB90, pipeline)


@dataclass(frozen=True)
class Case:
    name: str
    program: Callable[[], Program]
    race: str | None
    """Text that a found race must hold; None if there must be none."""


CASES = (
    Case("staging_sm90", sm90, None),
    Case("staging_sm100", sm100, None),
    Case("no_fence", lambda: store_loop(sm90(), drop(Fence)), "sD"),
    Case("no_reuse_barrier", lambda: store_loop(sm90(), drop(NamedBarrierSync)), "sD"),
    Case(
        "no_complete_barrier",
        lambda: store_loop(sm90(), drop(NamedBarrierSync, -1)),
        "sD",
    ),
    Case("no_store_wait", lambda: store_loop(sm90(), drop(TmaStoreWait)), "sD"),
    Case(
        "too_many_pending",
        lambda: store_loop(
            sm90(),
            lambda b: (TmaStoreWait(pending=ex.S_D.stages), *drop(TmaStoreWait)(b)),
        ),
        "sD",
    ),
    # Stages are subtile % stages, so an odd count uses stage 0 twice in a row, at the
    # end of one tile and the start of the next.
    Case("odd_subtiles", lambda: subtiles(sm90(), 3), "sD"),
    Case("one_subtile", lambda: subtiles(sm90(), 1), "sD"),
    Case("four_subtiles", lambda: subtiles(sm90(), 4), None),
    Case("whole_store_in_a_branch", lambda: in_a_branch(sm90()), None),
    Case("conditional_barrier", lambda: store_loop(sm90(), conditional_barriers), "sD"),
    Case(
        "exit_before_store_has_read",
        lambda: ex.without(sm90(), TmaStoreWait, pending=0),
        "the CTA may exit before it has read: read in [math] TmaStore",
    ),
    Case(
        "pipeline_does_not_carry",
        lambda: ex.with_resource(sm90(), ex.AB90, replace(ex.AB90, carries=(ex.S_A,))),
        "unordered accesses of sB",
    ),
    Case(
        "bytes_counted_elsewhere",
        lambda: change(sm90(), TmaLoad, pipeline=replace(ex.AB90, name="elsewhere")),
        "unordered accesses of sA",
    ),
    Case("read_after_release", lambda: last_to_front(sm90(), Mma), "sA"),
    Case("released_without_wgmma_wait", lambda: other_kind(sm90()), "sA"),
    Case("out_of_step", lambda: twice(sm90(), ConsumerRelease), "sA"),
    Case("two_loads_of_one_stage", lambda: twice(sm90(), TmaLoad), "sA"),
    Case("generic_write_for_the_tensor_core", lambda: plain_fill(sm90()), "sA"),
    Case(
        "lost_write",
        lambda: in_region(sm90(), "math", LostWrite(buffer=ex.S_D)),
        "sD",
    ),
    Case(
        "no_prologue_barrier",
        lambda: ex.without(sm90(), InitSync),
        "barriers of ab used unpublished",
    ),
    Case(
        "cta_barrier_for_a_cluster",
        lambda: cluster(sm90()),
        "barriers of ab used unpublished",
    ),
    Case(
        "cluster_barrier",
        lambda: cluster(change(sm90(), InitSync, cluster=True)),
        None,
    ),
    Case(
        "cluster_wait_without_arrive",
        lambda: replace(
            ex.without(sm90(), InitSync),
            prologue=(*ex.without(sm90(), InitSync).prologue, ClusterWait()),
        ),
        "barriers of ab used unpublished",
    ),
    Case(
        "cluster_arrive_and_wait",
        lambda: replace(
            ex.without(sm90(), InitSync),
            prologue=(
                *ex.without(sm90(), InitSync).prologue,
                ClusterArrive(),
                ClusterWait(),
            ),
        ),
        None,
    ),
    Case(
        "peer_gone_before_release",
        lambda: ex.without(
            cluster(change(sm90(), InitSync, cluster=True)), ProducerTail
        ),
        "the CTA may exit before this arrives: write in [math] ConsumerRelease",
    ),
    Case(
        "cluster_meets_at_the_end",
        lambda: replace(
            ex.without(cluster(change(sm90(), InitSync, cluster=True)), ProducerTail),
            post=(ClusterArrive(), ClusterWait()),
        ),
        None,
    ),
    Case("no_tail_one_cta", lambda: ex.without(sm90(), ProducerTail), None),
    Case(
        "commit_arrives_after_exit",
        lambda: ex.without(sm100(), ProducerTail, pipeline=ex.AB100),
        "the CTA may exit before this arrives: write in [mma] ConsumerRelease",
    ),
    Case(
        "accumulator_not_carried",
        lambda: ex.with_resource(sm100(), ex.ACC, replace(ex.ACC, carries=())),
        "tAcc",
    ),
    Case("free_untagged", lambda: free(sm100(), FREE), "tAcc"),
    Case("free_behind_cta_barrier", lambda: free(sm100(), CtaBarrier(), FREE), None),
    Case("direct_store", lambda: direct_store(sm100()), None),
    Case(
        "free_without_own_barrier",
        lambda: ex.without(direct_store(sm100()), NamedBarrierSync),
        "unordered accesses of tAcc: read in [epilogue] TmemLoad",
    ),
    Case("free_by_mma_after_tail", lambda: free(sm100(), FREE, role="mma"), None),
    Case(
        "free_by_mma_without_tail",
        lambda: free(
            ex.without(sm100(), ProducerTail, pipeline=ex.ACC), FREE, role="mma"
        ),
        "tAcc",
    ),
    Case(
        "lost_write_is_not_complete_at_a_barrier",
        lambda: replace(
            in_region(sm90(), "load", LostWrite(buffer=LOOSE)),
            post=(CtaBarrier(), PlainRead(buffer=LOOSE)),
        ),
        "unordered accesses of loose",
    ),
    Case(
        "plain_write_is_complete_at_a_barrier",
        lambda: replace(
            in_region(sm90(), "load", PlainWrite(buffer=LOOSE)),
            post=(CtaBarrier(), PlainRead(buffer=LOOSE)),
        ),
        None,
    ),
    Case(
        "generic_write_of_an_accumulator",
        lambda: plain_accumulator(sm100()),
        "write in [mma] PlainWrite(buffer=tAcc) and read in [epilogue] TmemLoad",
    ),
    Case(
        "consumer_changes_a_tma_stage",
        lambda: change_stage(sm90()),
        "unordered accesses of sA: write in [load] TmaLoad",
    ),
    Case(
        "mma_of_two_warps",
        lambda: ex.with_resource(sm100(), ex.MMA, replace(ex.MMA, warps=2)),
        "tAcc",
    ),
    Case("several_loads_a_stage", lambda: loads_in_a_loop(sm90()), "sA"),
    Case(
        "prologue_barrier_of_one_role",
        lambda: change(sm90(), InitSync, role=ex.MATH),
        "barriers of ab used unpublished",
    ),
    Case(
        "wgmma_drain_for_stores",
        lambda: store_loop(
            sm90(),
            lambda b: (MmaDrain(pipeline=ex.AB90, lag=0), *drop(TmaStoreWait)(b)),
        ),
        "sD",
    ),
    Case(
        "output_read_back",
        lambda: in_region(
            sm90(),
            "math",
            NamedBarrierSync(barrier=ex.BAR90),
            PlainRead(buffer=ex.D),
        ),
        "unordered accesses of D",
    ),
    Case(
        "pair_gone_before_release",
        lambda: ex.without(pair(sm100()), ProducerTail, pipeline=ex.ACC),
        "the CTA may exit before this arrives: write in [epilogue] ConsumerRelease",
    ),
    Case("pair", lambda: pair(sm100()), None),
    Case("read_outside_its_branch", lambda: branches(sm90()), "sA"),
    Case(
        "free_by_mma_after_a_tail_before_its_loop",
        lambda: free(early_tail(sm100(), "mma", ex.ACC), FREE, role="mma"),
        "tAcc",
    ),
    Case(
        "free_by_mma_after_a_tail_in_a_branch",
        lambda: free(
            ex.without(sm100(), ProducerTail, pipeline=ex.ACC),
            If(condition=Param("flag"), body=(ProducerTail(pipeline=ex.ACC),)),
            FREE,
            role="mma",
        ),
        "tAcc",
    ),
    Case(
        "tail_before_the_loop",
        lambda: early_tail(sm100(), "load", ex.AB100),
        "the CTA may exit before this arrives: write in [mma] ConsumerRelease",
    ),
    Case(
        "tail_in_a_branch",
        lambda: in_region(
            ex.without(sm100(), ProducerTail, pipeline=ex.AB100),
            "load",
            If(condition=Param("flag"), body=(ProducerTail(pipeline=ex.AB100),)),
        ),
        "the CTA may exit before this arrives: write in [mma] ConsumerRelease",
    ),
    Case("free_by_load", lambda: free(sm100(), FREE, role="load"), "tAcc"),
)


class TestDense(TestCase):
    @parametrize("case", [subtest(c, name=c.name) for c in CASES])
    def test_races(self, case):
        found = [str(r) for r in races(case.program())]
        if case.race is None:
            self.assertEqual(found, [])
        else:
            self.assertTrue(any(case.race in r for r in found), f"found {found}")

    def test_text(self):
        program = store_loop(sm90(), drop(Fence))
        self.assertExpectedInline(
            "\n".join(str(r) for r in races(program)),
            """unordered accesses of sD: write in [math] SmemStore(source=r_D, target=sD, subtile=sub) and read in [math] TmaStore(source=sD, target=D, tile=(tile_m, tile_n), subtile=sub)""",  # noqa: E501
        )


instantiate_parametrized_tests(TestDense)

if __name__ == "__main__":
    run_tests()
