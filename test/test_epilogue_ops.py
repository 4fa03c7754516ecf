"""Epilogue ops: registry rules, meaning in torch, and the text they print."""

from __future__ import annotations

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.epilogue.ops import OPS, EpilogueOp, op_class
from torch_cute_backend.errors import IRError

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([-INF, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, INF, NAN])


def _grid(arity: int) -> tuple[torch.Tensor, ...]:
    """Every combination of special values."""
    if arity == 1:
        return (SPECIAL,)
    return tuple(t.flatten() for t in torch.meshgrid(*[SPECIAL] * arity, indexing="ij"))


TORCH = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu": torch.relu,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "lt": lambda a, b: (a < b).float(),
    "le": lambda a, b: (a <= b).float(),
    "gt": lambda a, b: (a > b).float(),
    "ge": lambda a, b: (a >= b).float(),
    "eq": lambda a, b: (a == b).float(),
    "logical_not": lambda a: (a == 0).float(),
    "where": lambda c, a, b: torch.where(c != 0, a, b),
}


class TestEpilogueOps(TestCase):
    @parametrize("name", sorted(n for n, c in OPS.items() if not c.leaf))
    def test_reference_is_torch(self, name: str) -> None:
        args = _grid(op_class(name).arity)
        self.assertEqual(op_class(name).reference(*args), TORCH[name](*args))

    @parametrize("name", sorted(n for n, c in OPS.items() if not c.leaf))
    def test_emit_is_one_python_expression_of_its_arguments(self, name: str) -> None:
        cls = op_class(name)
        names = ["v0", "v1", "v2"][: cls.arity]
        text = cls.emit(*names)
        compile(text, "<epilogue>", "eval")
        for operand in names:
            self.assertEqual(text.count(operand), 1, f"{text} must use {operand} once")

    def test_unknown_op_names_the_known_ones(self) -> None:
        with self.assertRaisesRegex(IRError, r"unknown epilogue op 'cube'.*relu"):
            op_class("cube")

    def test_an_op_without_meaning_is_refused(self) -> None:
        with self.assertRaisesRegex(TypeError, "must define emit and reference"):
            type("Half", (EpilogueOp,), {"name": "half_done"})
        with self.assertRaisesRegex(TypeError, "declares no op name"):
            type("Nameless", (EpilogueOp,), {})
        self.assertNotIn("half_done", OPS)


instantiate_parametrized_tests(TestEpilogueOps)

if __name__ == "__main__":
    run_tests()
