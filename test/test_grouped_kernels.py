"""Grouped kernels as programs: both archs, all groupings, both schedulers; the decision
on each one's shared loop with every remark; what must be refused; what must be ordered.
"""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

import re
from dataclasses import replace

import ir_examples as ex
from build_helper import build, fp8, grouped
from grouped_kernel_cases import (
    BATCH,
    GROUPED,
    PAIR,
    PING,
    RANK3,
    S64,
    K,
    M,
    N,
    small,
)
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.dtypes import E4M3
from torch_cute_backend.ir.dataflow import (
    Mma,
    PartialStore,
    SelectTile,
    TmaStore,
    ZeroTail,
)
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    ScalarLoad,
    ScheduledCoordinates,
    SubtileLoop,
)
from torch_cute_backend.ir.sync import Fence, NamedBarrierSync
from torch_cute_backend.passes import PipelineResult, run_pipeline
from torch_cute_backend.problem import Accum
from torch_cute_backend.templates.grouped_gemm import build_grouped_gemm

ARCHS = {"sm_90a": SM90, "sm_100a": SM100}
GROUPINGS = (M, N, K, BATCH)
by_name = {"name_fn": lambda g: g.name}


def result(
    grouping=M, arch: str = "sm_90a", schedule=S64, **options: object
) -> PipelineResult:
    spec = ARCHS[arch]
    stages = {"acc_stages": 2} if arch == "sm_100a" else {}
    inline = build_grouped_gemm(small(grouping), replace(schedule, **stages), spec)
    return run_pipeline(inline, spec.required_roles, **options)


def loop_text(program: Program) -> str:
    text = print_program(program)
    return text[text.index("\nloop:\n") + 1 :]


def region_text(program: Program, role: str) -> str:
    kept = replace(
        program,
        prologue=(),
        regions=tuple(r for r in program.regions if str(r.role) == role),
        loop=None,
    )
    text = print_program(kept)
    return text[text.index("regions:") :]


def remarks(found: PipelineResult) -> str:
    return "\n".join(str(r) for r in found.omission.remarks)


class TestDecisions(TestCase):
    maxDiff = None

    @parametrize("arch", list(ARCHS))
    @parametrize("grouping", GROUPINGS, **by_name)
    def test_grouped_static_is_omitted(self, grouping, arch):
        found = result(grouping, arch)
        omission = found.omission
        self.assertEqual((omission.decision, omission.rule), ("omitted", None))
        self.assertTrue(all(r.applied for r in omission.remarks))
        self.assertIsNone(found.after.loop)
        supplied = [s for s in found.after.walk() if type(s) is ScheduledCoordinates]
        roles = 0 if grouping is BATCH else len(found.after.roles)
        self.assertEqual(len(supplied), roles)
        for s in supplied:
            self.assertEqual(s.scheduler.name, f"{s.role}_tiles")

    @parametrize("arch", list(ARCHS))
    def test_rank3_is_kept(self, arch):
        found = result(M, arch, RANK3)
        omission = found.omission
        self.assertEqual((omission.decision, omission.rule), ("kept", "residual_work"))
        loads = [s for s in found.after.loop.body if s.bodies()]
        self.assertTrue(loads)

    @parametrize("arch", list(ARCHS))
    def test_rank3_without_dead_loads_is_omitted(self, arch):
        found = result(M, arch, RANK3, drop_dead_loads=True)
        self.assertEqual(found.omission.decision, "omitted")
        self.assertTrue(any(isinstance(s, ScalarLoad) for s in found.after.walk()))

    def test_text_before(self):
        self.assertExpectedInline(
            loop_text(result().before),
            """\
loop:
  tile loop tiles (grouped_static): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
    group, place, group_tiles, start, stop = tiles at tile_idx of offsets
    if group < groups:
      tile_m = place % group_tiles
      tile_n = place // group_tiles
      tile_row = start + (tile_m * TILE_M)
      tile_col = tile_n * TILE_N
      spare = cutlass.max((stop - TILE_M) - tile_row, stop - m)
      placeholder (7 of load)
      placeholder (15 of math)
    CtaBarrier()  # tile hand-over
    advance tiles: tile_idx += clusters
""",
        )

    def test_remarks(self):
        self.assertExpectedInline(
            remarks(result()),
            """\
APPLIED residual_work: group, place, group_tiles, start, stop = tiles at tile_idx of offsets: replaced by the grouped scheduler
APPLIED residual_work: if group < groups: control flow
APPLIED residual_work: tile_m = place % group_tiles: dead coordinate set-up
APPLIED residual_work: tile_n = place // group_tiles: dead coordinate set-up
APPLIED residual_work: tile_row = start + (tile_m * TILE_M): dead coordinate set-up
APPLIED residual_work: tile_col = tile_n * TILE_N: dead coordinate set-up
APPLIED residual_work: spare = cutlass.max((stop - TILE_M) - tile_row, stop - m): dead coordinate set-up
APPLIED residual_work: placeholder (7 of load): placeholder
APPLIED residual_work: placeholder (15 of math): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile_idx += clusters: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (grouped_static): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n: shared loop omitted""",
        )

    def test_remarks_of_n(self):
        self.assertExpectedInline(
            remarks(result(N)),
            """\
APPLIED residual_work: group, place, group_tiles, start, stop = tiles at tile_idx of offsets: replaced by the grouped scheduler
APPLIED residual_work: if group < groups: control flow
APPLIED residual_work: begin = start - (start % 8): dead coordinate set-up
APPLIED residual_work: tile_m = place % tiles_m: dead coordinate set-up
APPLIED residual_work: tile_n = place // tiles_m: dead coordinate set-up
APPLIED residual_work: tile_row = tile_m * TILE_M: dead coordinate set-up
APPLIED residual_work: tile_col = begin + (tile_n * TILE_N): dead coordinate set-up
APPLIED residual_work: spare_behind = cutlass.max((stop - TILE_N) - tile_col, stop - n): dead coordinate set-up
APPLIED residual_work: spare = cutlass.min(spare_behind, tile_col - start): dead coordinate set-up
APPLIED residual_work: placeholder (7 of load): placeholder
APPLIED residual_work: placeholder (15 of math): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile_idx += clusters: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (grouped_static): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n: shared loop omitted""",
        )

    def test_remarks_of_k(self):
        self.assertExpectedInline(
            remarks(result(K)),
            """\
APPLIED residual_work: group, place, start, stop = tiles at tile_idx of offsets: replaced by the grouped scheduler
APPLIED residual_work: begin = start - (start % 8): dead coordinate set-up
APPLIED residual_work: tile_m = place % tiles_m: dead coordinate set-up
APPLIED residual_work: tile_n = place // tiles_m: dead coordinate set-up
APPLIED residual_work: tile_row = tile_m * TILE_M: dead coordinate set-up
APPLIED residual_work: tile_col = tile_n * TILE_N: dead coordinate set-up
APPLIED residual_work: group_k_tiles = cutlass.max((((stop - begin) + TILE_K) - 1) // TILE_K, 1): dead coordinate set-up
APPLIED residual_work: full_from = cutlass.min(start - begin, 1): dead coordinate set-up
APPLIED residual_work: full_to = ((stop - begin) // TILE_K) - 1: dead coordinate set-up
APPLIED residual_work: placeholder (7 of load): placeholder
APPLIED residual_work: placeholder (18 of math): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile_idx += clusters: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (grouped_static): tile_idx = cluster_id; while tile_idx < groups * (tiles_m * tiles_n): shared loop omitted""",
        )

    def test_remarks_of_batch(self):
        self.assertExpectedInline(
            remarks(result(BATCH)),
            """\
APPLIED residual_work: group = tile_idx // (tiles_m * tiles_n): dead coordinate set-up
APPLIED residual_work: place = tile_idx % (tiles_m * tiles_n): dead coordinate set-up
APPLIED residual_work: tile_m = place % tiles_m: dead coordinate set-up
APPLIED residual_work: tile_n = place // tiles_m: dead coordinate set-up
APPLIED residual_work: tile_row = tile_m * TILE_M: dead coordinate set-up
APPLIED residual_work: tile_col = tile_n * TILE_N: dead coordinate set-up
APPLIED residual_work: placeholder (7 of load): placeholder
APPLIED residual_work: placeholder (14 of math): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile_idx += clusters: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (grouped_static): tile_idx = cluster_id; while tile_idx < groups * (tiles_m * tiles_n): shared loop omitted""",
        )

    def test_remarks_of_rank3(self):
        self.assertExpectedInline(
            remarks(result(schedule=RANK3)),
            """\
MISSED residual_work: group = groups: depends on a value that is not a coordinate
MISSED residual_work: place = 0: depends on a value that is not a coordinate
MISSED residual_work: group_tiles = 0: depends on a value that is not a coordinate
MISSED residual_work: start = 0: depends on a value that is not a coordinate
MISSED residual_work: stop = 0: depends on a value that is not a coordinate
MISSED residual_work: size = TILE_M * CLUSTER_M: dead coordinate set-up; the loop stays: rule residual_work
MISSED residual_work: before = 0: depends on a value that is not a coordinate
MISSED residual_work: left = tile_idx: depends on a value that is not a coordinate
MISSED residual_work: for i in range(groups): control flow; the loop stays: rule residual_work
MISSED residual_work: loaded = offsets[i]: work: read offsets
MISSED residual_work: end = cutlass.max(before, cutlass.min(loaded, m)): depends on a value that is not a coordinate
MISSED residual_work: count = (((end - before) + size) - 1) // size: depends on a value that is not a coordinate
MISSED residual_work: span = count * tiles_n: depends on a value that is not a coordinate
MISSED residual_work: if left >= 0: depends on a value that is not a coordinate
MISSED residual_work: if left < span: depends on a value that is not a coordinate
MISSED residual_work: group = i: depends on a value that is not a coordinate
MISSED residual_work: place = left: depends on a value that is not a coordinate
MISSED residual_work: group_tiles = count: depends on a value that is not a coordinate
MISSED residual_work: start = before: depends on a value that is not a coordinate
MISSED residual_work: stop = end: depends on a value that is not a coordinate
MISSED residual_work: left = left - span: depends on a value that is not a coordinate
MISSED residual_work: before = end: depends on a value that is not a coordinate
MISSED residual_work: if group < groups: depends on a value that is not a coordinate
MISSED residual_work: tile_m = place % group_tiles: depends on a value that is not a coordinate
MISSED residual_work: tile_n = place // group_tiles: depends on a value that is not a coordinate
MISSED residual_work: tile_row = start + (tile_m * TILE_M): depends on a value that is not a coordinate
MISSED residual_work: tile_col = tile_n * TILE_N: depends on a value that is not a coordinate
MISSED residual_work: spare = cutlass.max((stop - TILE_M) - tile_row, stop - m): depends on a value that is not a coordinate
MISSED residual_work: placeholder (7 of load): placeholder; the loop stays: rule residual_work
MISSED residual_work: placeholder (15 of math): placeholder; the loop stays: rule residual_work
MISSED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier; the loop stays: rule residual_work
MISSED residual_work: advance tiles: tile_idx += clusters: the loop's own step; the loop stays: rule residual_work""",
        )

    def test_remarks_of_rank3_without_dead_loads(self):
        found = result(schedule=RANK3, drop_dead_loads=True)
        self.assertExpectedInline(
            remarks(found),
            """\
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile_idx += clusters: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n: shared loop omitted""",
        )

    def test_text_after_load(self):
        self.assertExpectedInline(
            region_text(result().after, "load"),
            """\
regions:
  role load:
    PartitionTma(buffers=(A, B))
    PipelineStates(pipelines=(ab))
    tile loop load_tiles (grouped_static): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      group, place, group_tiles, start, stop = load_tiles at tile_idx of offsets
      if group < groups:
        tile_m = place % group_tiles
        tile_n = place // group_tiles
        tile_row = start + (tile_m * TILE_M)
        tile_col = tile_n * TILE_N
        SelectTile(buffer=A, origin=(tile_row, 0))
        SelectTile(buffer=B, origin=(tile_col, 0, group))
        for k_tile in range(k_tiles):
          ProducerAcquire(pipeline=ab)
          TmaLoad(source=A, target=sA, pipeline=ab, coords=(k_tile))
          TmaLoad(source=B, target=sB, pipeline=ab, coords=(k_tile))
          ProducerCommit(pipeline=ab)
      advance load_tiles: tile_idx += clusters
    ProducerTail(pipeline=ab)
""",
        )

    def test_text_after_math_of_k(self):
        self.assertExpectedInline(
            region_text(result(K).after, "math"),
            """\
regions:
  role math:
    PartitionMma(a=sA, b=sB, accumulator=acc)
    PipelineStates(pipelines=(ab))
    PartitionEpilogue(source=acc, targets=(r_d), staging=sD)
    tile loop math_tiles (grouped_static): tile_idx = cluster_id; while tile_idx < groups * (tiles_m * tiles_n):
      group, place, start, stop = math_tiles at tile_idx of offsets
      begin = start - (start % 8)
      tile_m = place % tiles_m
      tile_n = place // tiles_m
      tile_row = tile_m * TILE_M
      tile_col = tile_n * TILE_N
      group_k_tiles = cutlass.max((((stop - begin) + TILE_K) - 1) // TILE_K, 1)
      full_from = cutlass.min(start - begin, 1)
      full_to = ((stop - begin) // TILE_K) - 1
      for k_tile in range(group_k_tiles):
        ConsumerWait(pipeline=ab)
        if cutlass.min(k_tile - full_from, full_to - k_tile) < 0:
          ZeroTail(a=sA, b=sB, pipeline=ab, left=(stop - begin) - (k_tile * TILE_K), skip=(start - begin) - (k_tile * TILE_K))
          Fence()
          NamedBarrierSync(barrier=epi_barrier)
        Mma(accumulator=acc, a=sA, b=sB, pipeline=ab, index=k_tile)
        ConsumerRelease(pipeline=ab, lag=1, index=k_tile)
      MmaDrain(pipeline=ab, lag=1)
      SelectTile(buffer=d, origin=(tile_row, tile_col, group))
      unrolled for subtile in range(2):
        EpilogueApply(acc -> r_d, inputs=(), acc, subtile=subtile)
        TmaStoreWait(pending=1)
        NamedBarrierSync(barrier=epi_barrier)
        SmemStore(source=r_d, target=sD, subtile=subtile)
        Fence()
        NamedBarrierSync(barrier=epi_barrier)
        TmaStore(source=sD, target=d, subtile=subtile)
      advance math_tiles: tile_idx += clusters
    TmaStoreWait(pending=0)
""",
        )

    def test_text_after_rank3_load(self):
        found = result(schedule=RANK3).after
        self.assertExpectedInline(
            region_text(found, "load"),
            """\
regions:
  role load:
    PartitionTma(buffers=(A, B))
    PipelineStates(pipelines=(ab))
    tile loop load_tiles (static_persistent): tile_idx = cluster_id; while tile_idx < tiles_m * tiles_n:
      group = groups
      place = 0
      group_tiles = 0
      start = 0
      size = TILE_M * CLUSTER_M
      before = 0
      left = tile_idx
      for i in range(groups):
        loaded = offsets[i]
        end = cutlass.max(before, cutlass.min(loaded, m))
        count = (((end - before) + size) - 1) // size
        span = count * tiles_n
        if left >= 0:
          if left < span:
            group = i
            place = left
            group_tiles = count
            start = before
        left = left - span
        before = end
      if group < groups:
        tile_m = place % group_tiles
        tile_n = place // group_tiles
        tile_row = start + (tile_m * TILE_M)
        tile_col = tile_n * TILE_N
        SelectTile(buffer=A, origin=(tile_row, 0))
        SelectTile(buffer=B, origin=(tile_col, 0, group))
        for k_tile in range(k_tiles):
          ProducerAcquire(pipeline=ab)
          TmaLoad(source=A, target=sA, pipeline=ab, coords=(k_tile))
          TmaLoad(source=B, target=sB, pipeline=ab, coords=(k_tile))
          ProducerCommit(pipeline=ab)
      advance load_tiles: tile_idx += clusters
    ProducerTail(pipeline=ab)
""",
        )


def without(kind: type[Stmt], inside: type[Stmt]) -> Program:
    """Take ``kind`` out of the branch around ``inside``."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, If) and any(isinstance(s, inside) for s in stmt.body):
            body = tuple(s for s in stmt.body if not isinstance(s, kind))
            return replace(stmt, body=body)
        return stmt

    return ex.edited(result(K).after, edit)


def zero_after_mma() -> Program:
    """The tail is zeroed while the MMA may still read it."""

    def edit(stmt: Stmt) -> Stmt:
        body = getattr(stmt, "body", ())
        if not any(isinstance(s, Mma) for s in body):
            return stmt
        branch = next(s for s in body if isinstance(s, If))
        rest = [s for s in body if s is not branch]
        at = next(i for i, s in enumerate(rest) if isinstance(s, Mma)) + 1
        return stmt.with_body((*rest[:at], branch, *rest[at:]))

    return ex.edited(result(K).after, edit)


def unconditional_commit(program: Program) -> Program:
    """The bulk store in a branch of its own: skipped, it commits no group, and the next
    wait counts one too few."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, TmaStore):
            return If(role=stmt.role, condition=stmt.spare, body=(stmt,))
        return stmt

    return ex.edited(program, edit)


class TestOrder(TestCase):
    @parametrize("arch", list(ARCHS))
    @parametrize("grouping", GROUPINGS, **by_name)
    def test_no_race(self, grouping, arch):
        self.assertEqual(races(result(grouping, arch).after), ())

    def test_zeroed_tail_without_a_fence(self):
        found = [str(r) for r in races(without(Fence, ZeroTail))]
        self.assertTrue(any("sA" in r for r in found), found)
        self.assertTrue(any("sB" in r for r in found), found)

    def test_zeroed_tail_without_a_meeting(self):
        found = [str(r) for r in races(without(NamedBarrierSync, ZeroTail))]
        self.assertTrue(any("sA" in r for r in found), found)

    def test_tail_zeroed_behind_the_mma(self):
        found = [str(r) for r in races(zero_after_mma())]
        self.assertTrue(any("sA" in r for r in found), found)

    def test_store_in_a_branch_commits_no_group(self):
        found = [str(r) for r in races(unconditional_commit(result().after))]
        self.assertTrue(any("sD" in r for r in found), found)

    def test_partial_store_reads_what_the_next_subtile_writes(self):
        def edit(stmt: Stmt) -> Stmt | None:
            return None if isinstance(stmt, NamedBarrierSync) else stmt

        found = [str(r) for r in races(ex.edited(result().after, edit))]
        self.assertTrue(any("PartialStore" in r for r in found), found)


class TestStatements(TestCase):
    """What each grouping needs, and no more."""

    def of(self, kind: type[Stmt], grouping, schedule=S64) -> list[Stmt]:
        found = result(grouping, schedule=schedule)
        return [s for s in found.after.walk() if type(s) is kind]

    def test_partial_stores(self):
        for grouping, count in ((M, 1), (N, 1), (K, 0), (BATCH, 0)):
            self.assertEqual(len(self.of(PartialStore, grouping)), count)
            (store,) = self.of(TmaStore, grouping)
            self.assertEqual(store.spare is None, count == 0)

    def test_zeroed_tails(self):
        for grouping, count in ((M, 0), (N, 0), (K, 1), (BATCH, 0)):
            self.assertEqual(len(self.of(ZeroTail, grouping)), count)

    def test_ranks(self):
        """Which of A, B and D has a group of its own."""
        stacked = {M: "B", N: "A", K: "d", BATCH: "ABd"}
        for grouping, names in stacked.items():
            selected = self.of(SelectTile, grouping)
            found = {s.buffer.name for s in selected if len(s.origin) == 3}
            self.assertEqual(found, set(names))
            self.assertEqual(len(selected), 3)


class TestRefused(TestCase):
    def reasons(self, problem, schedule, arch=SM90) -> str:
        return str(schedule.validate(problem, arch))

    def test_schedulers_and_groupings(self):
        for name in ("static_persistent", "single_tile"):
            found = self.reasons(small(M), replace(S64, scheduler=name))
            self.assertIn(
                f"'{name}' does not hand out the tiles of grouping 'm'", found
            )
        for grouping in (N, K, BATCH):
            self.assertIn("'rank3_rhs'", self.reasons(small(grouping), RANK3))
        self.assertIn("grouping 'none'", self.reasons(fp8(), S64))

    def test_options_of_dense_kernels(self):
        walk = replace(S64, record="walk_end")
        self.assertIn("records no walk", self.reasons(small(M), walk))
        self.assertIn("number differs from tile to tile", self.reasons(small(K), PING))
        rank3 = replace(PING, scheduler="rank3_rhs")
        self.assertIn("grouped static loop of its own", self.reasons(small(M), rank3))
        inline = replace(PING, shared_loop="inline")
        self.assertIn("loop of its own", self.reasons(small(M), inline))
        for grouping in (M, N, BATCH):
            self.assertEqual(self.reasons(small(grouping), PING), "ok")
        exact = small(K, dtype=E4M3, accum=Accum.EXACT)
        overlap = replace(S64, tile_k=128, promotion="overlap")
        self.assertIn("ragged K", self.reasons(exact, overlap))

    def test_pairs_along_k(self):
        self.assertIn("no pairs", self.reasons(small(K), PAIR, SM100))
        self.assertEqual(self.reasons(small(M), PAIR, SM100), "ok")

    def test_dead_loads(self):
        found = self.reasons(small(M), replace(S64, dead_loads="maybe"))
        self.assertIn("dead_loads 'maybe' is unknown", found)


class TestBuilds(TestCase):
    @parametrize("case", [subtest(c, name=str(c)) for c in GROUPED])
    def test_decision(self, case):
        kernel = build(case.problem, case.schedule, case.arch)
        s = case.schedule
        rank3 = s.scheduler == "rank3_rhs" and s.dead_loads == "keep"
        kept = s.shared_loop != "auto" or rank3
        self.assertEqual(kernel.omission.decision, "kept" if kept else "omitted")
        if rank3 and s.shared_loop == "auto":
            self.assertEqual(kernel.omission.rule, "residual_work")

    @parametrize("case", [subtest(c, name=str(c)) for c in GROUPED])
    def test_no_loop_takes_a_coordinates_name(self, case):
        """Loops that only the text has leave the program's variables alone."""
        kernel = build(case.problem, case.schedule, case.arch)
        loops = (KLoop, SubtileLoop)
        own = {str(s.index) for s in kernel.after.walk() if isinstance(s, loops)}
        known = {str(v) for s in kernel.after.walk() for v in s.defs()} - own
        printed = set(re.findall(r"^ *for (\w+) in", kernel.source.text, re.M))
        self.assertEqual(printed & known, set())

    def test_sizes_and_groups_are_run_time_arguments(self):
        one = build(grouped(M, 64, 512, 512, 2), S64, SM90)
        other = build(grouped(M, 4096, 1024, 256, 64), S64, SM90)
        self.assertEqual(one.source.sha256, other.source.sha256)

    def test_arguments(self):
        shapes = {}
        for grouping in GROUPINGS:
            problem = small(grouping, dtype=E4M3)
            kernel = build(problem, replace(S64, tile_k=128), SM90)
            args = [f"{a.name}({','.join(a.shape)})" for a in kernel.source.args]
            shapes[grouping.name] = " ".join(args)
        self.assertExpectedInline(
            "\n".join(f"{k} {v}" for k, v in shapes.items()),
            """\
M a(m,k) b(g,n,k) d(m,n) scale_a(m) scale_b(g,n) offsets(g)
N a(g,m,k) b(n,k) d(m,n) scale_a(g,m) scale_b(n) offsets(g)
K a(m,k) b(n,k) d(g,m,n) scale_a(gm) scale_b(gn) offsets(g)
BATCH a(g,m,k) b(g,n,k) d(g,m,n) scale_a(g,m) scale_b(g,n)""",
        )


instantiate_parametrized_tests(TestDecisions)
instantiate_parametrized_tests(TestOrder)
instantiate_parametrized_tests(TestBuilds)

if __name__ == "__main__":
    run_tests()
