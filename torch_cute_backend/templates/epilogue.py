"""The epilogue's statements, shared by both archs."""

from __future__ import annotations

from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.ir.dataflow import (
    EpilogueApply,
    EpilogueLoad,
    GmemStore,
    PartialStore,
    SmemStore,
    TmaStore,
    TmaStoreWait,
)
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.sync import Fence, NamedBarrierSync
from torch_cute_backend.ir.values import Buffer, Space
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.templates.resources import DenseResources
from torch_cute_backend.templates.tile import SUBTILE, WorkTile


def register_copy(buffer: Buffer) -> Buffer:
    """Where a loaded epilogue input lives."""
    return Buffer(f"r_{buffer.name}", Space.RMEM, "float32")


EARLY_KINDS = (InputKind.SCALAR, InputKind.ROW, InputKind.COL)
"""Inputs that take few registers a tile (columns are kept one a lane)."""


def prefetched_inputs(
    problem: GemmProblem, res: DenseResources, tile: WorkTile
) -> Body:
    """Inputs read once a tile, before its mainloop: their latency passes behind it."""
    chosen = _inputs(problem, res, EARLY_KINDS)
    if not chosen:
        return ()
    return (
        EpilogueLoad(
            role=res.epilogue,
            graph=problem.epilogue,
            inputs=chosen,
            targets=tuple(register_copy(b) for b in chosen),
            tile=tile.index,
            origin=tile.origin,
        ),
    )


def epilogue_statements(
    problem: GemmProblem,
    schedule: GemmSchedule,
    res: DenseResources,
    tile: WorkTile,
) -> Body:
    """One subtile: load inputs, compute, store every output."""
    role, graph = res.epilogue, problem.epilogue
    statements: list[Stmt] = []
    varying = _inputs(problem, res, (InputKind.FULL,))
    if varying:
        statements.append(
            EpilogueLoad(
                role=role,
                graph=graph,
                inputs=varying,
                targets=tuple(register_copy(b) for b in varying),
                tile=tile.index,
                origin=tile.origin,
                subtile=SUBTILE,
            )
        )
    statements.append(
        EpilogueApply(
            role=role,
            graph=graph,
            source=res.registers_acc,
            inputs=tuple(register_copy(b) for b in res.inputs),
            targets=res.registers_out,
            subtile=SUBTILE,
            more=tuple(p.registers_acc for p in res.more),
        )
    )
    staged = res.staging is not None
    for i, (registers, out) in enumerate(
        zip(res.registers_out, res.outputs, strict=True)
    ):
        if staged and i == 0:
            statements.extend(_staged_store(schedule, res, tile))
        else:
            statements.append(
                GmemStore(
                    role=role,
                    source=registers,
                    target=out,
                    tile=tile.index,
                    origin=tile.origin,
                    begin=tile.begin,
                    end=tile.end,
                    subtile=SUBTILE,
                )
            )
    return tuple(statements)


def _staged_store(schedule: GemmSchedule, res: DenseResources, tile: WorkTile) -> Body:
    """Registers -> shared memory -> TMA store, or element by element where the tile
    reaches beyond its group.

    The storing warp first makes sure that the stage's previous store has been read;
    the first barrier passes that on to the other warps, the second tells the storing
    warp that the stage is complete.
    """
    role, staging = res.epilogue, res.staging
    if staging is None:
        return ()
    return (
        TmaStoreWait(role=role, pending=schedule.epi_stages - 1),
        NamedBarrierSync(role=role, barrier=res.epi_barrier),
        SmemStore(
            role=role, source=res.registers_out[0], target=staging, subtile=SUBTILE
        ),
        Fence(role=role),
        NamedBarrierSync(role=role, barrier=res.epi_barrier),
        TmaStore(
            role=role,
            source=staging,
            target=res.outputs[0],
            tile=tile.index,
            subtile=SUBTILE,
            spare=tile.spare,
        ),
        *_partial_store(res, staging, tile),
    )


def _partial_store(res: DenseResources, staging: Buffer, tile: WorkTile) -> Body:
    if tile.spare is None:
        return ()
    return (
        PartialStore(
            role=res.epilogue,
            source=staging,
            target=res.outputs[0],
            origin=tile.origin,
            begin=tile.begin,
            end=tile.end,
            spare=tile.spare,
            subtile=SUBTILE,
        ),
    )


def _inputs(
    problem: GemmProblem, res: DenseResources, kinds: tuple[InputKind, ...]
) -> tuple[Buffer, ...]:
    pairs = zip(problem.epilogue.inputs, res.inputs, strict=True)
    return tuple(buffer for entry, buffer in pairs if entry.kind in kinds)
