"""Consumers that read a GEMM through a view: (B, S, N) of a GEMM of (B*S, N).

Every linear layer on 3-D activations has such a consumer. torch 2.14 compares
normalised indices and proposes the fusion itself; 2.11 to 2.13 compare them as they
are, find "no shared data" and never propose it. This module repeats, for that case
alone, the checks of ``Scheduler.can_fuse`` that legality depends on. Whether the
consumer reads each element where the GEMM writes it is checked when the epilogue is
built, by :mod:`torch_cute_backend.inductor.epilogue`.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config
from torch._inductor.dependencies import MemoryDep, WeakDep
from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V


def reads_through_view(node1: Any, node2: Any) -> bool:
    """May pointwise ``node2`` legally follow template ``node1`` in one kernel, though
    torch sees no data that they share?"""
    return (
        _are_candidates(node1, node2)
        and _is_next(node1, node2)
        and V.graph.scheduler.score_fusion_memory(node1, node2) == 0
        and V.choices.can_fuse_vertical(V.graph.scheduler, node1, node2, 1)
    )


def _are_candidates(node1: Any, node2: Any) -> bool:
    """Kinds, devices, sizes and the switches of Inductor's configuration."""
    kinds = (SchedulerNode, FusedSchedulerNode)
    if not isinstance(node1, kinds) or not isinstance(node2, kinds):
        return False
    names = node1.get_buffer_names() | node2.get_buffer_names()
    return (
        config.epilogue_fusion
        and node1.is_template()
        and not node2.is_template()
        and not node2.is_reduction()
        and not node2.has_aliasing_or_mutation()
        and node1.get_device() == node2.get_device()
        and not (names & V.graph.no_fuse_buffer_names)
        and len(node1.get_nodes()) + len(node2.get_nodes()) <= config.max_fusion_size
    )


def _is_next(node1: Any, node2: Any) -> bool:
    """Does ``node2`` follow ``node1`` directly, with nothing in between?"""
    scheduler = V.graph.scheduler
    if node2.get_operation_names() & node1.ancestors:
        return False
    if not node1.get_operation_names() & node2.ancestors:
        return False
    written = node1.get_buffer_names()
    for dep in node2.unmet_dependencies:
        name = scheduler.mutation_renames.get(dep.name, dep.name)
        if isinstance(dep, WeakDep):
            return False
        if name in written:
            if not isinstance(dep, MemoryDep):
                return False
            continue
        producer = scheduler.name_to_buf[name].defining_op_name()
        if (
            node1.get_operation_names()
            & scheduler.name_to_fused_node[producer].ancestors
        ):
            return False
    return True
