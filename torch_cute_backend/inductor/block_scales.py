"""Grouped GEMMs with MXFP8's scales, which Inductor does not lower.

Inductor leaves every node that reads E8M0 to eager, before it asks for a lowering.
:func:`let_through` makes an exception of ``_scaled_grouped_mm`` on GPUs whose kernels
take block scales, and :func:`lower` then lets ATen's kernel and ours compete: Triton's
template would take the scales for rowwise ones. (``_scaled_mm`` with such scales is
lowered by Inductor itself.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch._inductor.utils import use_aten_gemm_kernels

from torch_cute_backend import config
from torch_cute_backend.dtypes import E4M3
from torch_cute_backend.inductor import compat
from torch_cute_backend.inductor.request import OpCall
from torch_cute_backend.inductor.target import target_of
from torch_cute_backend.problem import SCALE_NAMES, GemmProblem, Grouping
from torch_cute_backend.status import Status

_OP = torch.ops.aten._scaled_grouped_mm.default
_SCALES = slice(2, 4)
"""Places of the scales among the op's arguments."""


def let_through(stock: Callable[..., bool]) -> Callable[..., bool]:
    """``stock``, Inductor's "must this node be left to eager?", with the exception."""

    def fallback_node(node: torch.fx.Node, *args: Any, **kwargs: Any) -> bool:
        return not _served(node) and stock(node, *args, **kwargs)

    return fallback_node


def _served(node: torch.fx.Node) -> bool:
    if node.target is not _OP or not config.get().enabled:
        return False
    if not compat.max_autotune_is_on() or not compat.asked_for():
        return False
    values = [getattr(x, "meta", {}).get("val") for x in node.args[_SCALES]]
    scales = [v for v in values if _is_e8m0(v)]
    if len(scales) != 2:
        return False
    target = target_of(scales[0].device)
    if isinstance(target, Status) or target.arch is None:
        return False
    return bool(target.arch.check_problem(_ANY))


_ANY = GemmProblem(
    "scaled_grouped_mm",
    *(128, 128, 128),
    a_dtype=E4M3,
    b_dtype=E4M3,
    scaling="mxfp8",
    grouping=Grouping.M,
)
"""Stands for all of them: does the arch have such kernels?"""


def _is_e8m0(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float8_e8m0fnu


def applies(call: OpCall) -> bool:
    """Is it a call for :func:`lower`?"""
    if call.op != "scaled_grouped_mm":
        return False
    scales = [call.get(name) for name in SCALE_NAMES]
    return all(s is not None and s.get_dtype() is torch.float8_e8m0fnu for s in scales)


def lower(call: OpCall) -> Any:
    """The op's result in the graph: ATen's kernel, or what beats it.

    ATen's too where the backends name others alone and none of ours serves: without us
    Inductor would have left the node to eager whatever they name.
    """
    from torch._inductor.kernel.mm_grouped import (
        aten__scaled_grouped_mm,
        grouped_mm_args,
    )
    from torch._inductor.select_algorithm import (
        NoValidChoicesError,
        autotune_select_algorithm,
        realize_inputs,
    )

    named = call.arguments
    out_dtype = call.get("out_dtype", torch.bfloat16)
    *_, layout, a, b, offsets = grouped_mm_args(
        named["a"], named["b"], call.get("offs"), layout=None, out_dtype=out_dtype
    )
    nodes = [a, b, *realize_inputs(*(named[name] for name in SCALE_NAMES))]
    inputs: dict[int, Any] = {}
    if offsets is not None:
        inputs[len(nodes)] = _even_offsets(compat.hint(a.get_size()[0]))
        nodes.append(realize_inputs(offsets))
    fast = bool(call.get("use_fast_accum", False))
    aten = aten__scaled_grouped_mm.bind(
        nodes, layout, out_dtype=out_dtype, use_fast_accum=fast
    )
    choices = [aten] if use_aten_gemm_kernels() else []
    try:
        found = autotune_select_algorithm(
            call.op, choices, nodes, layout, input_gen_fns=inputs
        )
    except NoValidChoicesError:
        return aten.output_node()
    # A pair in some versions.
    return found[0] if isinstance(found, tuple) else found


def _even_offsets(rows: int) -> Callable[[Any], torch.Tensor]:
    """Benchmarks need ends within the tensor: groups of about equal size."""

    def make(node: Any) -> torch.Tensor:
        groups = compat.hint(node.get_size()[0])
        ends = [rows * (group + 1) // groups for group in range(groups)]
        return torch.tensor(ends, dtype=torch.int32, device=node.get_device())

    return make
