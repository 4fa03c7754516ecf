"""What :mod:`test_ir_ordering` and :mod:`test_ir_named_barriers` share."""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.ir.effects import Effect, Read, Write
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.values import Buffer, Proxy


@dataclass(frozen=True, kw_only=True)
class PlainRead(Stmt):
    """Test statement: an ordinary read of shared memory."""

    buffer: Buffer

    def effects(self) -> tuple[Effect, ...]:
        return (Read(self.buffer),)


@dataclass(frozen=True, kw_only=True)
class PlainWrite(Stmt):
    """Test statement: an ordinary write of shared memory."""

    buffer: Buffer

    def effects(self) -> tuple[Effect, ...]:
        return (Write(self.buffer),)


@dataclass(frozen=True, kw_only=True)
class LostWrite(Stmt):
    """Test statement: an asynchronous write that nothing ever waits for."""

    buffer: Buffer

    def effects(self) -> tuple[Effect, ...]:
        return (Write(self.buffer, Proxy.ASYNC),)
