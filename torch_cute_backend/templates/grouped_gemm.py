"""Grouped GEMM as a tile program: G products in one launch.

``build_grouped_gemm`` returns the *inline* form, as :mod:`templates.dense_gemm` does,
and of the same parts: the mainloop and the epilogue are a dense kernel's. What differs
is where a tile lies:

* A scheduler finds the tile's group, from offsets that the device reads.
* No tile reaches into two groups. A group of ragged M or N starts at any row or column
  of its tensor, so boxes start at elements, not at multiples of a tile. What a load
  reads beyond the group's end belongs to the next group, or is zero beyond the tensor.
* TMA takes boxes from 16-byte addresses only. Where the ragged dimension is contiguous,
  a group's first tile therefore starts at the 16 bytes that hold its first element.
* What is not of the group is not stored: such a tile is written element by element.
  Other tiles take the bulk store.
* Block scales of A are padded to whole tiles of rows for each group, so where a tile's
  are follows from how many tiles the groups before it have.
* Ragged K: every tile is whole, but the last k tile reads into the next group's K. The
  MMA's warps zero that part of both operands in shared memory, and what the first k
  tile holds of the group before, which also gives a group
  without any K its exact zeros.

There is one TMA descriptor a tensor, of rank 3 where the groups are stacked; nothing is
rewritten on the device, and nothing is read on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.ir.dataflow import SelectTile, ZeroTail
from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import If, Let
from torch_cute_backend.ir.sync import Fence, NamedBarrierSync
from torch_cute_backend.ir.values import Scheduler, Var
from torch_cute_backend.problem import GemmProblem, Grouping
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.schedulers import SCHEDULERS
from torch_cute_backend.schedulers.group import (
    GROUP,
    GROUP_TILES,
    GROUPS,
    PLACE,
    START,
    STOP,
)
from torch_cute_backend.schedulers.raster import (
    TILE_M,
    TILE_N,
    TILES_M,
    TILES_N,
    tile_coordinates,
)
from torch_cute_backend.templates.dense_gemm import program, resources, tile_loop
from torch_cute_backend.templates.resources import OFFSETS, DenseResources
from torch_cute_backend.templates.stages import tile_statements, turn
from torch_cute_backend.templates.tile import K_TILE, TILE, Exprs, WorkTile

ROW = Var("tile_row")
COL = Var("tile_col")
SPARE = Var("spare")
ENDS = Var("spare_behind")
BEGIN = Var("begin")
SCALE_ROW = Var("scale_row")
K_COUNT = Var("group_k_tiles")
FULL_FROM = Var("full_from")
FULL_TO = Var("full_to")
RAGGED = (Grouping.M, Grouping.N)
ZERO = Const(0)


def build_grouped_gemm(
    problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
) -> Program:
    """The inline form of ``D[g] = epilogue(A[g] @ B[g])`` for every group ``g``; the
    schedule must be valid."""
    res = resources(problem, schedule, arch)
    order = SCHEDULERS[schedule.scheduler]
    scheduler = Scheduler("tiles", order.kind)
    kind = problem.grouping
    place = _Place(problem, schedule, res)
    found = order.find_group(kind, scheduler, TILE, OFFSETS, place.align)
    work = (*place.coordinates(), *tile_statements(problem, schedule, res, place.tile))
    if kind in RAGGED:
        work = (
            If(condition=BinOp("<", Ref(GROUP), GROUPS), body=work),
            *_turn_without_tile(turn(problem, res, order)),
        )
    loop = tile_loop(problem, order, scheduler, (*found, *work))
    return program(problem, schedule, arch, res, loop)


def _turn_without_tile(turn: Body) -> Body:
    """A work index without a tile takes its turn and passes it on, so that no CTA ends
    with a barrier that somebody has arrived at and nobody waits at. Such indices are
    the last ones: no tile follows whose stages would be counted from theirs."""
    if not turn:
        return ()
    missing = BinOp(">=", Ref(GROUP), GROUPS)
    return (If(role=turn[0].role, condition=missing, body=turn),)


@dataclass(frozen=True)
class _Place:
    """Where the tile of a group lies in A, B and D."""

    problem: GemmProblem
    schedule: GemmSchedule
    res: DenseResources

    @property
    def kind(self) -> Grouping:
        return self.problem.grouping

    @property
    def align(self) -> int:
        return self.problem.ragged_align(self.res.staging is not None)

    @property
    def _begin(self) -> Expr:
        """Where the group's first tile starts."""
        return Ref(START if self.align == 1 else BEGIN)

    def coordinates(self) -> Body:
        """The tile in its group, then its first element, and how far the group goes."""
        rows = Ref(GROUP_TILES) if self.kind is Grouping.M else TILES_M
        columns = Ref(GROUP_TILES) if self.kind is Grouping.N else TILES_N
        ahead = BinOp("%", Ref(START), Const(self.align))
        begin = Let(var=BEGIN, value=BinOp("-", Ref(START), ahead))
        return (
            *(() if self.align == 1 else (begin,)),
            *tile_coordinates(self.schedule, Ref(PLACE), rows, columns),
            Let(var=ROW, value=self._first(Grouping.M, TILE_M, "TILE_M")),
            Let(var=COL, value=self._first(Grouping.N, TILE_N, "TILE_N")),
            *self._spare(),
            *self._scale_row(),
            *(self._k_range() if self.kind is Grouping.K else ()),
        )

    def _scale_row(self) -> Body:
        """Which tile of A's block scales: the work index where its group begins counts
        the tiles before it, ``tiles_n`` of them for each row of tiles."""
        if self.res.scales is None:
            return ()
        before = BinOp("//", BinOp("-", Ref(TILE), Ref(PLACE)), TILES_N)
        return (Let(var=SCALE_ROW, value=BinOp("+", before, Ref(TILE_M))),)

    def _first(self, ragged: Grouping, index: Var, size: str) -> Expr:
        inside = BinOp("*", Ref(index), Param(size))
        return BinOp("+", self._begin, inside) if self.kind is ragged else inside

    @property
    def _splits(self) -> bool:
        """May a tile reach beyond its group where it is stored as a whole?"""
        return self.kind in RAGGED and self.res.staging is not None

    def _spare(self) -> Body:
        """Not negative iff the whole tile may be stored: it ends before its group does,
        or the group ends with the tensor, where TMA stops by itself; and it does not
        start before its group."""
        if not self._splits:
            return ()
        first, size, extent = ROW, "TILE_M", "m"
        if self.kind is Grouping.N:
            first, size, extent = COL, "TILE_N", "n"
        ends = BinOp("-", BinOp("-", Ref(STOP), Param(size)), Ref(first))
        spare = BinOp("max", ends, BinOp("-", Ref(STOP), Param(extent)))
        if self.align == 1:
            return (Let(var=SPARE, value=spare),)
        before = BinOp("-", Ref(first), Ref(START))
        return (
            Let(var=ENDS, value=spare),
            Let(var=SPARE, value=BinOp("min", Ref(ENDS), before)),
        )

    @property
    def tile(self) -> WorkTile:
        load, store = self.res.load, self.res.epilogue
        stored = self.res.outputs[0]
        select_d = SelectTile(role=store, buffer=stored, origin=self._output())
        return WorkTile(
            a=(Ref(K_TILE),),
            b=(Ref(K_TILE),),
            k_tiles=self._k_tiles(),
            origin=(Ref(ROW), Ref(COL), Ref(GROUP)),
            end=self._end(),
            begin=self._begins(),
            spare=Ref(SPARE) if self._splits else None,
            scale_a=(Ref(SCALE_ROW), Ref(K_TILE)),
            scale_b=(Ref(TILE_N), Ref(K_TILE), Ref(GROUP)),
            before_load=(
                SelectTile(role=load, buffer=self.res.a, origin=self._operand("a")),
                SelectTile(role=load, buffer=self.res.b, origin=self._operand("b")),
            ),
            before_store=() if self.res.staging is None else (select_d,),
            before_mma=self._zero_tail(),
        )

    def _k_tiles(self) -> Expr:
        return Ref(K_COUNT) if self.kind is Grouping.K else Param("k_tiles")

    def _zero_tail(self) -> Body:
        """The last k tile of a group reads on into the next group's K, or is all that a
        group without any K has."""
        res, role = self.res, self.res.mma
        if self.kind is not Grouping.K:
            return ()
        done = BinOp("*", Ref(K_TILE), Param("TILE_K"))
        left = BinOp("-", BinOp("-", Ref(STOP), self._begin), done)
        skip = None
        if self.align > 1:
            skip = BinOp("-", BinOp("-", Ref(START), Ref(BEGIN)), done)
        zero = ZeroTail(
            role=role, a=res.s_a, b=res.s_b, pipeline=res.ab, left=left, skip=skip
        )
        body: Body = (zero, Fence(role=role))
        if role == res.epilogue:
            body = (*body, NamedBarrierSync(role=role, barrier=res.epi_barrier))
        needed = BinOp("<", left, Param("TILE_K"))
        if skip is not None:
            passed = BinOp("-", Ref(K_TILE), Ref(FULL_FROM))
            ahead = BinOp("-", Ref(FULL_TO), Ref(K_TILE))
            needed = BinOp("<", BinOp("min", passed, ahead), ZERO)
        return (If(role=role, condition=needed, body=body),)

    def _end(self) -> Exprs:
        if self.kind is Grouping.M:
            return (Ref(STOP), Param("n"))
        return (Param("m"), Ref(STOP)) if self.kind is Grouping.N else ()

    def _begins(self) -> Exprs:
        """Nothing where no tile starts before its group."""
        if self.align == 1 or self.kind not in RAGGED:
            return ()
        return (Ref(START), ZERO) if self.kind is Grouping.M else (ZERO, Ref(START))

    def _operand(self, x: str) -> Exprs:
        """First element of A's or B's boxes; the operand that holds the groups one
        after the other is not stacked."""
        first = Ref(ROW if x == "a" else COL)
        if self.kind is Grouping.K:
            return (first, self._begin)
        flat = Grouping.M if x == "a" else Grouping.N
        return (first, ZERO) if self.kind is flat else (first, ZERO, Ref(GROUP))

    def _output(self) -> Exprs:
        first = (Ref(ROW), Ref(COL))
        return first if self.kind in RAGGED else (*first, Ref(GROUP))

    def _k_range(self) -> Body:
        """K tiles of the group; one, of zeros, if it has no K. Which are the first and
        the last that are all of the group, if any need not be."""
        extent, size = BinOp("-", Ref(STOP), self._begin), Param("TILE_K")
        filled = BinOp("-", BinOp("+", extent, size), Const(1))
        count = BinOp("max", BinOp("//", filled, size), Const(1))
        if self.align == 1:
            return (Let(var=K_COUNT, value=count),)
        ahead = BinOp("-", Ref(START), Ref(BEGIN))
        last = BinOp("-", BinOp("//", extent, size), Const(1))
        return (
            Let(var=K_COUNT, value=count),
            Let(var=FULL_FROM, value=BinOp("min", ahead, Const(1))),
            Let(var=FULL_TO, value=last),
        )
