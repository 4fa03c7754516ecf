"""Wrapped lowerings: they tell :mod:`choice` which op is being lowered.

Each entry of Inductor's lowering table for mm, addmm, _scaled_mm, _grouped_mm and
_scaled_grouped_mm is replaced by a function that calls it with a ContextVar set.
Compilation runs in several threads (autograd compiles backward graphs in its own),
hence a ContextVar and no global.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor.virtualized import V

from torch_cute_backend import config
from torch_cute_backend.inductor import block_scales, compat, reasons
from torch_cute_backend.inductor.request import OpCall
from torch_cute_backend.status import Status

aten = torch.ops.aten

_MM = ("mat1", "mat2", "out_dtype")
_ADDMM = ("input", "mat1", "mat2", "out_dtype")
_SCALED = (
    *("a", "b", "scale_a", "scale_b", "bias"),
    *("scale_result", "out_dtype", "use_fast_accum"),
)
_SCALED_V2 = (
    *("a", "b", "scale_a", "recipe_a", "swizzle_a", "scale_b", "recipe_b"),
    *("swizzle_b", "bias", "out_dtype", "contraction_dim", "use_fast_accum"),
)
_GROUPED = ("a", "b", "offs", "bias", "out_dtype")
_SCALED_GROUPED = (
    *("a", "b", "scale_a", "scale_b", "offs", "bias"),
    *("scale_result", "out_dtype", "use_fast_accum"),
)

OPS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (aten.mm, "mm", _MM),
    (aten.mm.default, "mm", _MM),
    (aten.mm.dtype, "mm", _MM),
    (aten.addmm, "addmm", _ADDMM),
    (aten.addmm.default, "addmm", _ADDMM),
    (aten.addmm.dtype, "addmm", _ADDMM),
    (aten._scaled_mm.default, "scaled_mm", _SCALED),
    (aten._scaled_mm_v2.default, "scaled_mm_v2", _SCALED_V2),
    (aten._grouped_mm.default, "grouped_mm", _GROUPED),
    (aten._scaled_grouped_mm.default, "scaled_grouped_mm", _SCALED_GROUPED),
)
"""Keys of Inductor's lowering table, the op's name here, its positional arguments."""


_UNSERVED = {
    aten.bmm.default: "bmm",
    aten.baddbmm.default: "baddbmm",
    aten.convolution.default: "convolution",
    aten._int_mm.default: "_int_mm",
}
"""Other GEMMs of ATen by their nodes' target."""


def note_unserved(gm: torch.fx.GraphModule) -> None:
    """Of a graph that is to be simulated, record the GEMMs that cannot be."""
    if compat.simulated_arch() is None:
        return
    for node in gm.graph.nodes:
        op = _UNSERVED.get(node.target)
        if op is not None:
            reasons.record(f"aten.{op}", "lowering", Status.no("no kernels for it"))


@dataclass
class Pending:
    """A lowering under way. ``offered`` is set once choices were added for it."""

    call: OpCall
    graph: Any
    offered: bool = field(default=False)


_pending: ContextVar[Pending | None] = ContextVar("torch_cute_pending", default=None)


def pending() -> Pending | None:
    """The lowering that the caller runs in, in its own graph, not yet served."""
    current = _pending.get()
    if current is None or current.offered or current.graph is not V.graph:
        return None
    return current


def wrap(
    stock: Callable[..., Any],
    op: str,
    names: Sequence[str],
    before: Callable[[], None],
) -> Callable[..., Any]:
    """``stock`` with the pending op set; ``before`` runs first on each call."""

    @functools.wraps(stock)
    def lowering(*args: Any, **kwargs: Any) -> Any:
        if not config.get().enabled or not compat.max_autotune_is_on():
            return stock(*args, **kwargs)
        call = op_call(op, names, args, kwargs)
        if isinstance(call, Status):
            reasons.record(f"aten.{op}", "lowering", call)
            return stock(*args, **kwargs)
        before()
        token = _pending.set(Pending(call, V.graph))
        try:
            if block_scales.applies(call):
                return block_scales.lower(call)
            return stock(*args, **kwargs)
        finally:
            _pending.reset(token)

    lowering.torch_cute_stock = stock  # type: ignore[attr-defined]
    return lowering


def op_call(
    op: str, names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]
) -> OpCall | Status:
    """Arguments by name; ``_scaled_mm_v2`` in the terms of ``_scaled_mm``."""
    if len(args) > len(names):
        return Status.no(f"{len(args)} positional arguments")
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    if named.pop("layout", None) is not None:
        return Status.no("the caller prescribes an output layout")
    if op != "scaled_mm_v2":
        return OpCall(op, named)
    recipes = [*named["recipe_a"], *named["recipe_b"]]
    swizzles = [*named["swizzle_a"], *named["swizzle_b"]]
    status = Status.check(
        (
            len(recipes) == 2 and all(int(r) in _PLAIN_RECIPES for r in recipes),
            f"scaling recipes {[int(r) for r in recipes]}",
        ),
        (all(int(s) == 0 for s in swizzles), "swizzled scales"),
        (not named.get("contraction_dim"), "contraction_dim is set"),
    )
    if not status:
        return status
    kept = {k: named[k] for k in _SCALED if k in named}
    kept["scale_a"], kept["scale_b"] = named["scale_a"][0], named["scale_b"][0]
    return OpCall("scaled_mm", kept)


_PLAIN_RECIPES = (0, 1)
"""``ScalingType.TensorWise`` and ``RowWise``."""
