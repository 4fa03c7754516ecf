"""One class per epilogue op: its arity, its CuTe DSL text and its torch meaning.

To add an op, add a class with a ``name``; it registers itself. ``emit`` prints an
expression over fp32 scalars; ``reference`` computes the same on fp32 torch tensors and
is what the tests compare kernels with.
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

    ``leaf`` ops (accumulator, input, constant) are printed by the emitter, which alone
    knows where their values live.
    """

    name: ClassVar[str] = ""
    arity: ClassVar[int] = 1
    leaf: ClassVar[bool] = False

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
