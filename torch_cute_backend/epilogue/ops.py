"""One class per epilogue op: its arity, its CuTe DSL text and its torch meaning.

To add an op, add a class with a ``name``; it registers itself. ``emit`` prints an
expression over fp32 scalars; ``reference`` computes the same on fp32 torch tensors and
is what the tests compare kernels with. Comparisons give 1.0 or 0.0, and ``where`` and
the logical ops take any value other than 0 as true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch_cute_backend.errors import IRError

if TYPE_CHECKING:
    import torch

OPS: dict[str, type[EpilogueOp]] = {}
"""Registry: op name to class."""


class EpilogueOp:
    """Base of all ops. Subclasses set ``name`` and ``arity`` and define both methods.

    ``name`` is Inductor's name of the op, where it has one: such ops are fused without
    another word. ``boolean`` ops give 1.0 or 0.0; ``costly`` ones take a routine of
    many instructions and registers. ``leaf`` ops (accumulator, input,
    constant) are printed by the emitter, which alone knows where their values live.
    """

    name: ClassVar[str] = ""
    arity: ClassVar[int] = 1
    leaf: ClassVar[bool] = False
    boolean: ClassVar[bool] = False
    costly: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.name:
            raise TypeError(f"{cls.__name__} declares no op name")
        if not cls.leaf and (
            cls.emit is EpilogueOp.emit or cls.reference is EpilogueOp.reference
        ):
            raise TypeError(f"epilogue op {cls.name} must define emit and reference")
        OPS[cls.name] = cls

    @staticmethod
    def emit(*args: str) -> str:
        """CuTe DSL expression of fp32 scalar expressions ``args``."""
        raise NotImplementedError

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        """The same on fp32 torch tensors."""
        raise NotImplementedError


def op_class(name: str) -> type[EpilogueOp]:
    """The class registered as ``name``; raises ``IRError`` if there is none."""
    if name not in OPS:
        raise IRError(f"unknown epilogue op {name!r}; known: {', '.join(OPS)}")
    return OPS[name]


class Acc(EpilogueOp):
    """The fp32 accumulator."""

    name, arity, leaf = "acc", 0, True


class Input(EpilogueOp):
    """An element of an epilogue input, converted to fp32."""

    name, arity, leaf = "input", 0, True


class Const(EpilogueOp):
    """A Python float."""

    name, arity, leaf = "const", 0, True


class Round(EpilogueOp):
    """Round to the dtype named by the node's ``attr``, back to fp32."""

    name, arity, leaf = "round", 1, True


class Add(EpilogueOp):
    name, arity = "add", 2

    @staticmethod
    def emit(*args: str) -> str:
        return f"({args[0]} + {args[1]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0] + args[1]


class Sub(EpilogueOp):
    name, arity = "sub", 2

    @staticmethod
    def emit(*args: str) -> str:
        return f"({args[0]} - {args[1]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0] - args[1]


class Mul(EpilogueOp):
    name, arity = "mul", 2

    @staticmethod
    def emit(*args: str) -> str:
        return f"({args[0]} * {args[1]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0] * args[1]


class Div(EpilogueOp):
    name, arity, costly = "div", 2, True

    @staticmethod
    def emit(*args: str) -> str:
        return f"({args[0]} / {args[1]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0] / args[1]


class Neg(EpilogueOp):
    name = "neg"

    @staticmethod
    def emit(*args: str) -> str:
        return f"(-{args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return -args[0]


class Abs(EpilogueOp):
    name = "abs"

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.math.abs({args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].abs()


class Maximum(EpilogueOp):
    """NaN if either value is NaN, as ``torch.maximum``."""

    name, arity = "maximum", 2

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.arch.fmax({args[0]}, {args[1]}, nan=True)"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].maximum(args[1])


class Minimum(EpilogueOp):
    """NaN if either value is NaN, as ``torch.minimum``."""

    name, arity = "minimum", 2

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.arch.fmin({args[0]}, {args[1]}, nan=True)"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].minimum(args[1])


class Relu(EpilogueOp):
    """``max(x, 0)``; NaN stays NaN."""

    name = "relu"

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.arch.fmax({args[0]}, 0.0, nan=True)"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].relu()


class Exp(EpilogueOp):
    """The accurate one (2 ulp): ``fastmath`` loses log2(|x|) bits in the product."""

    name, costly = "exp", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.math.exp({args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].exp()


class Sigmoid(EpilogueOp):
    """``1 / (1 + exp(-x))``; exp's overflow to inf gives the right 0."""

    name, costly = "sigmoid", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"(1.0 / (1.0 + cute.math.exp(-{args[0]})))"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].sigmoid()


class Tanh(EpilogueOp):
    """Not ``tanh.approx``: its relative error of 2^-11 shows in bf16 already."""

    name, costly = "tanh", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.math.tanh({args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].tanh()


class Erf(EpilogueOp):
    name, costly = "erf", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.math.erf({args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].erf()


class Sqrt(EpilogueOp):
    name, costly = "sqrt", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.math.sqrt({args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].sqrt()


class Rsqrt(EpilogueOp):
    name, costly = "rsqrt", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"cute.math.rsqrt({args[0]})"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[0].rsqrt()


class _Comparison:
    """Mixin; ``symbol`` is Python's operator. False if a value is NaN."""

    arity: ClassVar[int] = 2
    boolean: ClassVar[bool] = True
    symbol: ClassVar[str]

    @classmethod
    def emit(cls, *args: str) -> str:
        return f"cutlass.Float32({args[0]} {cls.symbol} {args[1]})"

    @classmethod
    def reference(cls, *args: torch.Tensor) -> torch.Tensor:
        compare = {
            "<": args[0].lt,
            "<=": args[0].le,
            ">": args[0].gt,
            ">=": args[0].ge,
            "==": args[0].eq,
        }[cls.symbol]
        return compare(args[1]).to(args[0].dtype)


class Lt(_Comparison, EpilogueOp):
    name, symbol = "lt", "<"


class Le(_Comparison, EpilogueOp):
    name, symbol = "le", "<="


class Gt(_Comparison, EpilogueOp):
    name, symbol = "gt", ">"


class Ge(_Comparison, EpilogueOp):
    name, symbol = "ge", ">="


class Eq(_Comparison, EpilogueOp):
    name, symbol = "eq", "=="


class LogicalNot(EpilogueOp):
    name, boolean = "logical_not", True

    @staticmethod
    def emit(*args: str) -> str:
        return f"cutlass.Float32({args[0]} == 0.0)"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return (args[0] == 0).to(args[0].dtype)


class Where(EpilogueOp):
    """``args[1]`` where ``args[0]`` is not 0, else ``args[2]``."""

    name, arity = "where", 3

    @staticmethod
    def emit(*args: str) -> str:
        condition = f"{args[0]} == 0.0"
        return f"cutlass.Float32(cutlass.select_({condition}, {args[2]}, {args[1]}))"

    @staticmethod
    def reference(*args: torch.Tensor) -> torch.Tensor:
        return args[1].where(args[0] != 0, args[2])
