"""Epilogue graphs to scalar code: a line a node, fp32 throughout, one cast a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.dtypes import FLOAT32, DType, dtype
from torch_cute_backend.epilogue.graph import EpilogueGraph, EpilogueNode
from torch_cute_backend.epilogue.ops import op_class


def emit_graph(
    out: Writer,
    graph: EpilogueGraph,
    accumulators: Sequence[str],
    inputs: Callable[[int], str],
    store: Callable[[int, str], str],
) -> None:
    """Print the evaluation of ``graph`` for one element.

    Args:
        accumulators: expression of the element's accumulator of each product.
        inputs: index of a graph input -> expression of its (fp32) value here.
        store: index of a graph output, value expression -> the storing line.
    """
    values: list[str] = []
    for i, node in enumerate(graph.nodes):
        text = _node_text(node, values, accumulators, inputs)
        if node.op in ("const", "input"):
            values.append(text)
            continue
        name = f"v{i}"
        if node.op == "acc":
            name = "acc" if node.attr is None else f"acc_{node.attr}"
        out.line(f"{name} = {_unwrap(text)}")
        values.append(name)
    for i, output in enumerate(graph.outputs):
        out.line(store(i, cast(values[output.node], output.dtype)))


def _node_text(
    node: EpilogueNode,
    values: list[str],
    accumulators: Sequence[str],
    inputs: Callable[[int], str],
) -> str:
    if node.op == "acc":
        return accumulators[int(node.attr or 0)]
    if node.op == "input":
        return inputs(int(node.attr or 0))
    if node.op == "const":
        return f"Float32({_literal(float(node.attr or 0.0))})"
    if node.op == "round":
        narrow = cast(values[node.args[0]], dtype(str(node.attr)))
        return f"{narrow}.to(Float32)"
    return op_class(node.op).emit(*(values[a] for a in node.args))


def cast(value: str, to: DType) -> str:
    """Round an fp32 expression to ``to``."""
    return value if to == FLOAT32 else f"{value}.to(cutlass.{to.cutlass})"


def _literal(value: float) -> str:
    """A Python expression of ``value``; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f'float("{value!r}")'


def _unwrap(text: str) -> str:
    """Drop one pair of parentheses around a whole expression."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]
