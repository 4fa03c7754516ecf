"""Inductor's consumer nodes as an :class:`EpilogueGraph`.

In: the GEMM's own epilogue (scales, bias) and the pointwise ``ComputedBuffer`` nodes
that Inductor wants fused behind it. Out: one graph with the views of all its inputs
and outputs, or a ``Status`` that says which op, dtype or index has no expression here.

Each node's inner function is run again under a handler that builds graph nodes. An
index is accepted only if it is affine in (m, n): a load by its two coefficients (no
m: COL, no n: ROW, neither: SCALAR, unit n: FULL), a load of a fused value only where
it was stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import config, ir
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import V

from torch_cute_backend.dtypes import DTYPES, DType
from torch_cute_backend.epilogue.graph import EpilogueBuilder, EpilogueGraph, InputKind
from torch_cute_backend.epilogue.ops import OPS
from torch_cute_backend.inductor import compat
from torch_cute_backend.inductor.views import Size, View
from torch_cute_backend.status import Status


@dataclass(frozen=True)
class BoundEpilogue:
    """A graph with a view for each of its inputs and outputs, in their order."""

    graph: EpilogueGraph
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]


@dataclass(frozen=True)
class Index:
    """``base + row * m + col * n``, in elements of a buffer."""

    row: Size
    col: Size
    base: Size

    def same_as(self, other: Index, m: Size, n: Size) -> bool:
        """For all of (m, n); the step of a single row or column means nothing."""
        return (
            (compat.known_equal(self.row, other.row) or compat.known_equal(m, 1))
            and (compat.known_equal(self.col, other.col) or compat.known_equal(n, 1))
            and compat.known_equal(self.base, other.base)
        )


@dataclass(frozen=True)
class _Value:
    """A graph node; ``is_bool`` values are 1.0 or 0.0."""

    node: int
    is_bool: bool = False


class _InexpressibleError(Exception):
    """Carries the reason out of Inductor's inner functions to :func:`fuse`."""


_RENAMED = {"truediv": "div", "bitwise_not": "logical_not"}
"""Ops of Inductor whose epilogue op has another name; all others share theirs."""


class _Handler(DefaultHandler):  # type: ignore[misc]
    """Runs one consumer's inner function over (m, n)."""

    def __init__(self, fusion: _Fusion, iteration: _Iteration) -> None:
        self.fusion = fusion
        self.iteration = iteration

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = getattr(self.fusion, f"op_{name}", None)
        if method is not None:
            return method(*args, **kwargs)
        op = OPS.get(_RENAMED.get(name, name))
        if op is None or op.leaf or kwargs or len(args) != op.arity:
            raise _InexpressibleError(f"op {name} has no epilogue expression")
        values = [self.fusion.value(x) for x in args]
        node = self.fusion.builder.op(op.name, *(v.node for v in values))
        return _Value(node, op.boolean)

    def load(self, name: str, index: Any) -> _Value:
        return self.fusion.load(name, self.iteration.index(index))

    def store(self, name: str, index: Any, value: Any, mode: Any = None) -> None:
        if mode is not None:
            raise _InexpressibleError(f"store with mode {mode}")
        self.fusion.store(name, self.iteration.index(index), self.fusion.value(value))


@dataclass(frozen=True)
class _Iteration:
    """A consumer's index variables, laid over (m, n) in row-major order."""

    variables: tuple[sympy.Symbol, ...]
    sizes: tuple[Size, ...]
    m: Size
    n: Size

    @classmethod
    def of(
        cls, sizes: Sequence[Size], m: Size, n: Size
    ) -> tuple[_Iteration, list[Any]]:
        """The iteration over ``sizes`` and the values to index its nodes with."""
        everything = [
            sympy.S.Zero if compat.known_equal(s, 1) else sympy_index_symbol(f"cute{i}")
            for i, s in enumerate(sizes)
        ]
        kept = [(v, s) for v, s in zip(everything, sizes, strict=True) if v != 0]
        variables, extents = tuple(v for v, _ in kept), tuple(s for _, s in kept)
        return cls(variables, extents, m, n), everything

    def index(self, expr: Any) -> Index:
        """``expr`` in terms of m and n; raises if it is not affine in them."""
        expr = sympy.sympify(expr)
        zero = dict.fromkeys(self.variables, sympy.S.Zero)
        base = expr.subs(zero)
        steps = [expr.subs({**zero, v: sympy.S.One}) - base for v in self.variables]
        terms = (c * v for c, v in zip(steps, self.variables, strict=True))
        rest = sympy.expand(expr - base - sum(terms))
        if rest != 0:
            raise _InexpressibleError(f"index {expr} is not affine")
        split = self._split()
        if split is None:
            step = self._collapse(steps, 0, len(steps), expr)
            return Index(step * self.n, step, base)
        row = self._collapse(steps, 0, split, expr)
        col = self._collapse(steps, split, len(steps), expr)
        return Index(row, col, base)

    def _split(self) -> int | None:
        """How many leading dimensions make up M, if the rest makes up N."""
        for i in range(len(self.sizes) + 1):
            rows = sympy.prod(self.sizes[:i])
            columns = sympy.prod(self.sizes[i:])
            if compat.known_equal(rows, self.m) and compat.known_equal(columns, self.n):
                return i
        return None

    def _collapse(self, steps: list[Any], begin: int, end: int, expr: Any) -> Any:
        """The one step by which dimensions ``begin`` to ``end`` advance together."""
        if begin == end:
            return sympy.S.Zero
        step = steps[end - 1]
        expected = step
        for i in range(end - 2, begin - 1, -1):
            expected = expected * self.sizes[i + 1]
            if not compat.known_equal(steps[i], expected):
                raise _InexpressibleError(f"index {expr} is not a row-major view")
        return step


class _Fusion:
    """The graph under construction and what is known of each buffer."""

    def __init__(self, base: BoundEpilogue, gemm: str, m: Size, n: Size) -> None:
        self.m, self.n = m, n
        output = base.graph.outputs[0]
        self.builder = EpilogueBuilder(replace(base.graph, outputs=()))
        self.inputs: list[View] = list(base.inputs)
        own = base.outputs[0]
        where = Index(own.stride[0], own.stride[1], own.offset)
        self.stored: dict[str, tuple[_Value, Index, DType]] = {
            gemm: (_Value(output.node), where, output.dtype)
        }

    def value(self, x: Any) -> _Value:
        """A handler's operand, which may be a Python number."""
        if isinstance(x, _Value):
            return x
        if isinstance(x, (bool, int, float)):
            return self.op_constant(x, torch.float32)
        raise _InexpressibleError(f"operand of type {type(x).__name__}")

    def load(self, name: str, index: Index) -> _Value:
        if name in self.stored:
            return self._load_fused(name, index)
        dtype = DTYPES.get(str(V.graph.get_dtype(name)).removeprefix("torch."))
        if dtype is None:
            raise _InexpressibleError(f"{name} is of {V.graph.get_dtype(name)}")
        kind, view = self._classify(name, index)
        if view in self.inputs:
            position = self.inputs.index(view)
            entry = self.builder.inputs[position]
            return _Value(self.builder.input(entry.name, entry.kind, entry.dtype))
        self.inputs.append(view)
        name_in_graph = f"in{len(self.inputs) - 1}"
        return _Value(self.builder.input(name_in_graph, kind, dtype))

    def _load_fused(self, name: str, index: Index) -> _Value:
        """A value of this kernel: its own element, rounded if a load would show it."""
        value, where, dtype = self.stored[name]
        if not index.same_as(where, self.m, self.n):
            raise _InexpressibleError(f"{name} is read at another element")
        if dtype.is_fp8 or (config.emulate_precision_casts and dtype.bits < 32):
            return _Value(self.builder.round(value.node, dtype))
        return value

    def _classify(self, name: str, index: Index) -> tuple[InputKind, View]:
        dtype = V.graph.get_dtype(name)
        by_row = not compat.known_equal(index.row, 0)
        by_col = not compat.known_equal(index.col, 0)
        if not by_row and not by_col:
            return InputKind.SCALAR, View(name, dtype, (1,), (1,), index.base)
        if not by_col:
            return InputKind.ROW, View(name, dtype, (self.m,), (index.row,), index.base)
        if not by_row:
            return InputKind.COL, View(name, dtype, (self.n,), (index.col,), index.base)
        if not compat.known_equal(index.col, 1):
            raise _InexpressibleError(f"{name} is read with column step {index.col}")
        size, stride = (self.m, self.n), (index.row, index.col)
        return InputKind.FULL, View(name, dtype, size, stride, index.base)

    def store(self, name: str, index: Index, value: _Value) -> None:
        dtype = DTYPES.get(str(V.graph.get_dtype(name)).removeprefix("torch."))
        if dtype is None or not dtype.output:
            raise _InexpressibleError(f"cannot store {V.graph.get_dtype(name)}")
        if not compat.known_equal(index.col, 1) and not compat.known_equal(self.n, 1):
            raise _InexpressibleError(f"{name} is stored with column step {index.col}")
        self.stored[name] = (value, index, dtype)

    def finish(self, keep: Callable[[str], bool]) -> BoundEpilogue:
        outputs: list[View] = []
        for name, (value, index, dtype) in self.stored.items():
            if keep(name):
                # The first is called as in an unfused graph: equal graphs, equal text.
                label = f"d{len(outputs)}" if outputs else "d"
                self.builder.output(value.node, dtype, label)
                size = (self.m, self.n)
                row = self.n if compat.known_equal(self.m, 1) else index.row
                torch_dtype = V.graph.get_dtype(name)
                outputs.append(View(name, torch_dtype, size, (row, 1), index.base))
        if not outputs:
            raise _InexpressibleError("no output is used")
        graph = self.builder.graph()
        return BoundEpilogue(graph, tuple(self.inputs), tuple(outputs))

    # Ops that are not one epilogue op of the same arguments.

    def op_constant(self, value: Any, dtype: torch.dtype) -> _Value:
        number = float(value)
        if not math.isfinite(number):
            raise _InexpressibleError(f"constant {value}")
        return _Value(self.builder.const(number), dtype is torch.bool)

    def op_to_dtype(
        self,
        x: Any,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> _Value:
        """As Triton: 16-bit casts are no-ops unless asked for; FP8 always rounds."""
        value = self.value(x)
        if dtype is torch.bool:
            return value if value.is_bool else self.op_ne(value, 0.0)
        row = DTYPES.get(str(dtype).removeprefix("torch."))
        if row is None:
            raise _InexpressibleError(f"cast to {dtype}")
        if row.bits == 32 or (use_compute_types and not row.is_fp8):
            return _Value(value.node)
        return _Value(self.builder.round(value.node, row))

    def op_identity(self, x: Any) -> _Value:
        return self.value(x)

    def op_square(self, x: Any) -> _Value:
        node = self.value(x).node
        return _Value(self.builder.op("mul", node, node))

    def op_reciprocal(self, x: Any) -> _Value:
        one = self.builder.const(1.0)
        return _Value(self.builder.op("div", one, self.value(x).node))

    def op_fma(self, a: Any, b: Any, c: Any) -> _Value:
        product = self.builder.op("mul", self.value(a).node, self.value(b).node)
        return _Value(self.builder.op("add", product, self.value(c).node))

    def op_ne(self, a: Any, b: Any) -> _Value:
        equal = self.builder.op("eq", self.value(a).node, self.value(b).node)
        return _Value(self.builder.op("logical_not", equal), True)

    def op_isnan(self, x: Any) -> _Value:
        return self.op_ne(x, x)

    def op_logical_and(self, a: Any, b: Any) -> _Value:
        return self._logical("mul", a, b)

    def op_logical_or(self, a: Any, b: Any) -> _Value:
        return self._logical("maximum", a, b)

    op_bitwise_and, op_bitwise_or = op_logical_and, op_logical_or

    def _logical(self, op: str, a: Any, b: Any) -> _Value:
        left, right = self.value(a), self.value(b)
        if not (left.is_bool and right.is_bool):
            raise _InexpressibleError("logical op on numbers")
        return _Value(self.builder.op(op, left.node, right.node), True)


def fuse(
    base: BoundEpilogue,
    gemm: str,
    nodes: Sequence[Any],
    keep: Callable[[str], bool],
) -> BoundEpilogue | Status:
    """``base`` followed by ``nodes``.

    Args:
        base: the GEMM's epilogue; its output 0 is buffer ``gemm``, of (M, N).
        gemm: name of the GEMM's buffer.
        nodes: Inductor's ``ComputedBuffer`` consumers, in execution order.
        keep: whether a buffer must be in memory after the kernel.
    """
    m, n = base.outputs[0].size
    fusion = _Fusion(base, gemm, m, n)
    try:
        for node in nodes:
            _run(fusion, node)
        return fusion.finish(keep)
    except _InexpressibleError as error:
        return Status.no(f"epilogue: {error}")


def _run(fusion: _Fusion, node: Any) -> None:
    """Run one consumer's inner function under the handler."""
    if not isinstance(node, ir.ComputedBuffer) or not isinstance(
        node.data, ir.Pointwise
    ):
        raise _InexpressibleError(f"{type(node).__name__} is not pointwise")
    sizes = node.get_size()
    elements = sympy.prod(tuple(sizes))
    if not compat.known_equal(elements, sympy.sympify(fusion.m) * fusion.n):
        raise _InexpressibleError(f"consumer of size {tuple(sizes)}")
    iteration, variables = _Iteration.of(sizes, fusion.m, fusion.n)
    with V.set_ops_handler(_Handler(fusion, iteration)):
        node.get_store_function()(variables)
