"""The shape of a pass: a frozen dataclass whose fields are its options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch_cute_backend.ir.program import Program
from torch_cute_backend.passes.remarks import Omission, Remark
from torch_cute_backend.status import Status


@dataclass(frozen=True)
class PassContext:
    """Facts from outside the program.

    Attributes:
        required_roles: roles that the arch wants to own a role-local persistent loop.
        shared_loop: ``"auto"`` lets the check decide, ``"keep"`` keeps the loop.
        drop_dead_loads: take dead read-only scalar loads out before the check.
    """

    required_roles: tuple[str, ...]
    shared_loop: str = "auto"
    drop_dead_loads: bool = False


@dataclass(frozen=True)
class PassResult:
    """The rewritten program, and what there is to say about it."""

    program: Program
    remarks: tuple[Remark, ...] = ()
    omission: Omission | None = None


@dataclass(frozen=True)
class Pass(ABC):
    """A rewrite from a verified program to a verified program.

    ``run`` returns an unsupported ``Status`` where the rewrite is not legal, and leaves
    the program untouched then.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, program: Program, context: PassContext) -> PassResult | Status: ...
