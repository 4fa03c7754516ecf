"""What a grouped kernel's host entry point adds: views of stacked tensors, and how many
tiles there can be when only the device knows the groups."""

from __future__ import annotations

from torch_cute_backend.codegen.emit_grouped import (
    FIND_GROUP,
    OWN_TILES,
    OWN_TILES_AHEAD,
    SPLIT_GROUP,
)
from torch_cute_backend.codegen.shapes import shapes_of, stacked
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import ScheduledCoordinates
from torch_cute_backend.problem import GemmProblem, Grouping


def search_function(program: Program, problem: GemmProblem, align: int) -> str:
    """Text of the function that finds a tile's group, or nothing; ``align`` as of
    :meth:`~problem.GemmProblem.ragged_align`."""
    if not any(isinstance(s, ScheduledCoordinates) for s in program.walk()):
        return ""
    if problem.grouping is Grouping.K:
        return SPLIT_GROUP
    if align == 1:
        return FIND_GROUP
    return FIND_GROUP.replace(OWN_TILES, OWN_TILES_AHEAD.format(align=align))


def group_last(out: Writer, tensor: str, view: str) -> str:
    """Print the view of a stacked tensor whose last mode is the group, as TMA and CuTe
    want it; returns the view's name."""
    out.call(
        f"{view} = cute.make_tensor(",
        (f"{tensor}.iterator", f"cute.select({tensor}.layout, mode=[1, 2, 0])"),
    )
    return view


def print_sizes(out: Writer, problem: GemmProblem, d: str, align: int) -> None:
    """``m``, ``n``, ``groups``, ``tiles_m``, ``tiles_n``: tiles count clusters, of one
    group or, along a ragged dimension, of all groups, whose first tiles start at
    multiples of ``align`` elements."""
    first = 1 if stacked(shapes_of(problem).d) else 0
    out.line(
        f"m, n = cute.size({d}, mode=[{first}]), cute.size({d}, mode=[{first + 1}])"
    )
    if problem.is_grouped:
        tensor = "offsets" if problem.has_offsets else d
        out.line(f"groups = cute.size({tensor}, mode=[0])")
    for x, grouping in (("m", Grouping.M), ("n", Grouping.N)):
        size = f"TILE_{x.upper()} * CLUSTER_{x.upper()}"
        if problem.grouping is not grouping:
            out.line(f"tiles_{x} = cute.ceil_div({x}, {size})")
            continue
        rest = f"{x} - groups"
        if align == 1:
            out.comment("At most: one element for each group, the rest in whole tiles.")
        else:
            out.comment("At most: one element for each group, the rest, and what lies")
            out.comment("between the groups' starts and their tiles', in whole tiles.")
            rest = f"{x} + {align - 2} * groups"
        out.line(f"rest = cutlass.max({rest}, 0) // ({size})")
        out.line(f"tiles_{x} = cutlass.min({x}, groups + rest)")


def work_items(problem: GemmProblem) -> str:
    """How many work indices there are."""
    stacked_groups = problem.grouping in (Grouping.K, Grouping.BATCH)
    return f"{'groups * ' if stacked_groups else ''}tiles_m * tiles_n"
