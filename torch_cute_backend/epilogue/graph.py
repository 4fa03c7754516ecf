"""``EpilogueGraph``: a small SSA graph from the fp32 accumulator to the outputs.

Node values are fp32 scalars, one per output element; ops are classes of
:mod:`torch_cute_backend.epilogue.ops`. Inputs are read at (m, n) by their kind:

========  ==========================  ==========================
kind      torch tensor                read at (m, n)
========  ==========================  ==========================
SCALAR    1 element                   ``t[0]``
ROW       M elements, any stride      ``t[m]``  (a value per row)
COL       N elements, any stride      ``t[n]``  (a value per column)
FULL      (M, N), stride 1 on N       ``t[m, n]``
========  ==========================  ==========================
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch_cute_backend.dtypes import BFLOAT16, DTYPES, FLOAT32, DType, dtype
from torch_cute_backend.epilogue.ops import OPS, EpilogueOp, op_class
from torch_cute_backend.errors import IRError
from torch_cute_backend.status import Status

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
RESERVED = frozenset(
    (
        *("a", "b", "b1", "acc", "acc_1", "acc_k", "acc_k_1", "m", "n", "walk_end"),
        *(
            "tiles_m",
            "tiles_n",
            "room",
            "clusters",
            "offsets",
            "groups",
            "rest",
            "tile",
        ),
        *("num_ctas", "stream", "tiled_mma", "epi_mma", "mma_tiler", "gemm"),
        *("cute", "cutlass", "pipeline", "cpasync", "warp", "warpgroup", "tcgen05"),
    )
)
"""Names that the generated entry point, or its registers, have a meaning for."""
MAX_PRODUCTS = 2


class InputKind(str, Enum):
    """How an epilogue input is broadcast over the output."""

    SCALAR = "scalar"
    ROW = "row"
    COL = "col"
    FULL = "full"


@dataclass(frozen=True)
class EpilogueInput:
    """A tensor read by the epilogue; ``name`` is an identifier, unique in its graph."""

    name: str
    kind: InputKind
    dtype: DType = FLOAT32


@dataclass(frozen=True)
class EpilogueNode:
    """``op(*args)``; ``args`` are indices of earlier nodes.

    Leaves: ``acc`` (the accumulator; ``attr`` 1 for that of a second product, A with
    another B), ``input`` with ``attr`` an input's index, and ``const`` with ``attr`` a
    number as ``repr`` writes it: as text, 0.0 and -0.0 are different constants and NaN
    is equal to itself. ``round`` has a dtype name.
    """

    op: str
    args: tuple[int, ...] = ()
    attr: int | str | None = None


@dataclass(frozen=True)
class EpilogueOutput:
    """Store node ``node``, cast once to ``dtype``, to an (M, N) row-major tensor."""

    node: int
    dtype: DType
    name: str = "d"


@dataclass(frozen=True)
class EpilogueGraph:
    """Inputs, nodes in evaluation order, outputs (the first is the GEMM's own D)."""

    inputs: tuple[EpilogueInput, ...]
    nodes: tuple[EpilogueNode, ...]
    outputs: tuple[EpilogueOutput, ...]

    @classmethod
    def identity(cls, out_dtype: DType = BFLOAT16) -> EpilogueGraph:
        """``D = cast(acc)``."""
        return cls((), (EpilogueNode("acc"),), (EpilogueOutput(0, out_dtype),))

    @classmethod
    def linear(
        cls,
        out_dtype: DType = BFLOAT16,
        scale_a: InputKind | None = None,
        scale_b: InputKind | None = None,
        bias: DType | None = None,
        bias_kind: InputKind = InputKind.COL,
        products: int = 1,
    ) -> EpilogueGraph:
        """``D = cast(acc * scale_a * scale_b + bias)``, each part optional.

        Inputs, in this order where present: ``scale_a``, ``scale_b`` (fp32), ``bias``.
        With two products, ``D1`` has ``scale_b1`` and ``bias1`` of its own.
        """
        b = EpilogueBuilder()
        for product in range(products):
            value, own = b.acc(product), str(product or "")
            for name, kind in (("scale_a", scale_a), (f"scale_b{own}", scale_b)):
                if kind is not None:
                    value = b.op("mul", value, b.input(name, kind, FLOAT32))
            if bias is not None:
                value = b.op("add", value, b.input(f"bias{own}", bias_kind, bias))
            b.output(value, out_dtype, f"d{own}")
        return b.graph()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; equal graphs give equal ones."""
        return {
            "inputs": [[i.name, i.kind.value, i.dtype.name] for i in self.inputs],
            "nodes": [[n.op, list(n.args), n.attr] for n in self.nodes],
            "outputs": [[o.node, o.dtype.name, o.name] for o in self.outputs],
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> EpilogueGraph:
        """Inverse of :meth:`to_json`; see ``GemmProblem.from_json`` for errors."""
        inputs, nodes, outputs = row["inputs"], row["nodes"], row["outputs"]
        return cls(
            tuple(EpilogueInput(n, InputKind(k), dtype(d)) for n, k, d in inputs),
            tuple(EpilogueNode(op, tuple(args), attr) for op, args, attr in nodes),
            tuple(EpilogueOutput(node, dtype(d), name) for node, d, name in outputs),
        )

    @property
    def products(self) -> int:
        """How many products with A there are, each with a B and an accumulator of its
        own: 1 for a plain GEMM."""
        return 1 + max((_product(n) for n in self.nodes if n.op == "acc"), default=0)

    @property
    def roots(self) -> tuple[str, ...]:
        """Names of the independent computations, each by its first output: outputs
        that share an accumulator belong to one."""
        found: list[tuple[str, frozenset[int]]] = []
        for out in self.outputs:
            name, wanted = out.name, self._products_of(out.node)
            for other in [f for f in found if f[1] & wanted]:
                found.remove(other)
                name, wanted = other[0], wanted | other[1]
            found.append((name, wanted))
        return tuple(name for name, _ in found)

    def _products_of(self, node: int) -> frozenset[int]:
        """The accumulators that a node's value is computed from."""
        here = self.nodes[node]
        own = frozenset((_product(here),) if here.op == "acc" else ())
        return own.union(*(self._products_of(a) for a in here.args))

    @property
    def costly(self) -> bool:
        """Does an element take more than a few instructions?"""
        return any(node.op in OPS and OPS[node.op].costly for node in self.nodes)

    def validate(self) -> Status:
        """Ops known, dtypes storable, values defined before use, names usable."""
        status = Status.check((bool(self.outputs), "epilogue: no output"))
        for i, node in enumerate(self.nodes):
            status &= self._check_node(i, node)
        for out in self.outputs:
            status &= Status.check(
                (out.dtype.output, f"epilogue: cannot store {out.dtype}"),
                (0 <= out.node < len(self.nodes), "epilogue: output of no node"),
            )
        return status & self._check_names()

    def _check_node(self, i: int, node: EpilogueNode) -> Status:
        if node.op not in OPS:
            return Status.no(f"epilogue: unknown op {node.op!r}")
        return Status.check(
            (
                len(node.args) == op_class(node.op).arity,
                f"epilogue: {node.op} takes {op_class(node.op).arity} values, "
                f"got {len(node.args)}",
            ),
            (
                all(0 <= a < i for a in node.args),
                f"epilogue: node {i} ({node.op}) uses a value that is not before it",
            ),
            (
                self._attr_fits(node),
                f"epilogue: {node.op} with attribute {node.attr!r}",
            ),
        )

    def _attr_fits(self, node: EpilogueNode) -> bool:
        if node.op == "acc":
            return node.attr is None or node.attr in range(1, MAX_PRODUCTS)
        if node.op == "input":
            return type(node.attr) is int and 0 <= node.attr < len(self.inputs)
        if node.op == "round":
            return isinstance(node.attr, str) and node.attr in DTYPES
        if node.op == "const":
            return _is_number(node.attr)
        return node.attr is None

    def _check_names(self) -> Status:
        """Names become parameters and, in camel case, register tensors of the
        generated code, so two that differ by an underscore are taken for one."""
        names = [i.name for i in self.inputs] + [o.name for o in self.outputs]
        status = Status.check(
            *((_usable(x), f"epilogue: {x!r} is no usable name") for x in names)
        )
        bare = [name.removeprefix("r_").replace("_", "") for name in names]
        twice = [x for x, b in zip(names, bare, strict=True) if bare.count(b) > 1]
        return status & Status.check(
            (not twice, f"epilogue: names {', '.join(twice)} clash")
        )


def _product(acc: EpilogueNode) -> int:
    return int(acc.attr or 0)


def _usable(name: str) -> bool:
    shaped = _NAME.fullmatch(name) is not None
    return shaped and name not in RESERVED and not keyword.iskeyword(name)


def _is_number(attr: int | str | None) -> bool:
    """Is ``attr`` the text of a float? Fails closed on anything that is not text."""
    if not isinstance(attr, str):
        return False
    try:
        float(attr)
    except ValueError:
        return False
    return True


class EpilogueBuilder:
    """Appends nodes; each method returns the new node's index."""

    def __init__(self, start: EpilogueGraph | None = None) -> None:
        self.inputs = list(start.inputs) if start else []
        self.nodes = list(start.nodes) if start else []
        self.outputs = list(start.outputs) if start else []

    def _node(self, node: EpilogueNode) -> int:
        """Add ``node``; an equal earlier node is reused."""
        if node in self.nodes:
            return self.nodes.index(node)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def acc(self, product: int = 0) -> int:
        return self._node(EpilogueNode("acc", (), product or None))

    def const(self, value: float) -> int:
        return self._node(EpilogueNode("const", (), repr(float(value))))

    def input(self, name: str, kind: InputKind, dtype: DType) -> int:
        entry = EpilogueInput(name, kind, dtype)
        if entry not in self.inputs:
            if any(i.name == name for i in self.inputs):
                raise IRError(f"epilogue input {name!r} declared twice, differently")
            self.inputs.append(entry)
        return self._node(EpilogueNode("input", (), self.inputs.index(entry)))

    def round(self, value: int, dtype: DType) -> int:
        """Round to ``dtype`` and back to fp32."""
        return self._node(EpilogueNode("round", (value,), dtype.name))

    def op(self, name: str, *args: int) -> int:
        cls: type[EpilogueOp] = op_class(name)
        if len(args) != cls.arity:
            raise IRError(
                f"epilogue op {name} takes {cls.arity} values, got {len(args)}"
            )
        return self._node(EpilogueNode(name, args))

    def output(self, value: int, dtype: DType, name: str = "d") -> None:
        self.outputs.append(EpilogueOutput(value, dtype, name))

    def graph(self) -> EpilogueGraph:
        return EpilogueGraph(tuple(self.inputs), tuple(self.nodes), tuple(self.outputs))
