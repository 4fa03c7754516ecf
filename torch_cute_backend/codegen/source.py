"""``KernelSource``: generated CuTe DSL text, and what it takes to compile and call it.

Out of codegen, into ``runtime`` (compile, cache, launch) and ``sim``. Neither torch nor
cutlass is needed to hold one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from torch_cute_backend.dtypes import DType


@dataclass(frozen=True)
class TensorArg:
    """A tensor parameter of the host entry point.

    Attributes:
        name: parameter name.
        dtype: element type.
        shape: one symbol a dimension (``"m"``, ``"n"``, ``"k"``) or a literal
            (``"1"``). Equal symbols must be equal sizes; the entry checks it.
        contiguous: the dimension whose stride is 1, or None if every stride is free.
        divisibility: ``contiguous``'s extent and all other strides are multiples of
            this many elements (1: unconstrained).
        align_bytes: alignment of the base pointer.
        output: written by the kernel.
    """

    name: str
    dtype: DType
    shape: tuple[str, ...]
    contiguous: int | None
    divisibility: int = 1
    align_bytes: int = 16
    output: bool = False


@dataclass(frozen=True)
class KernelSource:
    """One generated module.

    The entry point is called as ``entry(*tensors, num_ctas, stream)``: the tensors in
    the order of ``args``, then the largest number of CTAs to launch (SM count times
    occupancy, Int32), then the stream, which the TVM-FFI entry takes from torch itself.

    Attributes:
        name: kernel name, as profilers show it.
        text: the module's text.
        entry: name of the ``@cute.jit`` host function in it.
        arch: target, for example ``"sm_90a"``.
        args: tensor parameters in order.
    """

    name: str
    text: str
    entry: str
    arch: str
    args: tuple[TensorArg, ...]

    @cached_property
    def sha256(self) -> str:
        """Hex digest of text, arch and parameters."""
        digest = hashlib.sha256(self.text.encode())
        digest.update(repr((self.arch, self.entry, self.args)).encode())
        return digest.hexdigest()
