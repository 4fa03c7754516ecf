"""Simulate one of our own kernels: ``KernelSource`` and torch CPU tensors in, report
out.

Compiles with ``runtime.compile.compile_for_simulation`` (cached by digest), hands the
torch tensors over as the DSL's own, and calls ``simulate``. ``launch.prepare()`` must
have run before anything imports cutlass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch_cute_backend.status import Status

from . import launch, simulate
from .faults import Fault
from .launch_record import Launch
from .report import BadInput, Finding, SimReport

if TYPE_CHECKING:
    import torch

    from torch_cute_backend.codegen.source import KernelSource, TensorArg


@lru_cache(maxsize=64)
def _compiled(source: KernelSource) -> tuple[Any, Status]:
    from torch_cute_backend.runtime.compile import compile_for_simulation

    launch.prepare()
    return compile_for_simulation(source)


class PackedTensor:
    """A tensor argument in the layout that the compiled host code reads.

    ``{pointer, run-time sizes (int32), run-time strides (int64)}``; literal sizes and
    the unit stride are compiled in, so they are left out.
    """

    def __init__(self, tensor: torch.Tensor, arg: TensorArg) -> None:
        self.tensor = tensor
        data = tensor.data_ptr().to_bytes(8, "little")
        for size, symbol in zip(tensor.shape, arg.shape, strict=True):
            if not symbol.isdigit():
                data += int(size).to_bytes(4, "little")
        data += bytes(-len(data) % 8)
        for dim, stride in enumerate(tensor.stride()):
            if dim != arg.contiguous:
                data += int(stride).to_bytes(8, "little", signed=True)
        self._buffer = ctypes.create_string_buffer(data, len(data) + 64)

    def __c_pointers__(self) -> list[int]:
        """Protocol of the DSL's argument marshalling."""
        return [ctypes.addressof(self._buffer)]


def check_tensor(tensor: torch.Tensor, arg: TensorArg) -> None:
    """Refuse what the compiled kernel must not see, with one clear error."""
    if str(tensor.dtype).removeprefix("torch.") != arg.dtype.name:
        raise BadInput(f"{arg.name}: expected {arg.dtype.name}, got {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise BadInput(
            f"{arg.name}: the simulator needs CPU tensors, got {tensor.device}"
        )
    if tensor.dim() != len(arg.shape):
        raise BadInput(
            f"{arg.name}: expected {len(arg.shape)} dimensions, got {tensor.dim()}"
        )
    if tensor.numel() == 0:
        raise BadInput(f"{arg.name}: empty tensor")
    if tensor.data_ptr() % arg.align_bytes:
        raise BadInput(f"{arg.name}: not aligned to {arg.align_bytes} bytes")
    for dim, (size, stride) in enumerate(
        zip(tensor.shape, tensor.stride(), strict=True)
    ):
        if dim == arg.contiguous:
            if stride != 1 and size != 1:
                raise BadInput(
                    f"{arg.name}: dimension {dim} must have stride 1, not {stride}"
                )
        elif stride % arg.divisibility:
            raise BadInput(
                f"{arg.name}: stride {stride} is not a multiple of {arg.divisibility}"
            )


def check_sizes(tensors: Sequence[torch.Tensor], args: Sequence[TensorArg]) -> None:
    """Equal symbols must be equal sizes."""
    sizes: dict[str, tuple[str, int]] = {}
    for tensor, arg in zip(tensors, args, strict=True):
        for size, symbol in zip(tensor.shape, arg.shape, strict=True):
            first, known = sizes.setdefault(symbol, (arg.name, int(size)))
            wanted = int(symbol) if symbol.isdigit() else known
            if size != wanted:
                raise BadInput(
                    f"{arg.name}: size {symbol} is {size}, but {wanted} in {first}"
                )


def _call(
    source: KernelSource, tensors: Sequence[torch.Tensor], num_ctas: int
) -> tuple[Any, list[Any]]:
    """The compiled host function and its arguments, checked."""
    if len(tensors) != len(source.args):
        raise BadInput(
            f"{source.name}: expected {len(source.args)} tensors, got {len(tensors)}"
        )
    for tensor, arg in zip(tensors, source.args, strict=True):
        check_tensor(tensor, arg)
    check_sizes(tensors, source.args)
    compiled, _ = _compiled(source)
    import cuda.bindings.driver as cuda

    args = [PackedTensor(t, a) for t, a in zip(tensors, source.args, strict=True)]
    return compiled, [*args, num_ctas, cuda.CUstream(0)]


def capture_source(
    source: KernelSource, tensors: Sequence[torch.Tensor], num_ctas: int = 4
) -> list[Launch]:
    """What the host code of a generated kernel would launch; nothing is simulated."""
    compiled, args = _call(source, tensors, num_ctas)
    launches, _ = launch.capture(compiled, args, sms=num_ctas, arch=source.arch)
    return launches


def simulate_source(
    source: KernelSource,
    tensors: Sequence[torch.Tensor],
    *,
    num_ctas: int = 4,
    mode: str = "lazy",
    checks: bool = True,
    trace: str | None = None,
    roles: Mapping[int, str] | None = None,
    faults: Sequence[Fault] = (),
    progress: Callable[[int, int], None] | None = None,
    ptx: str | None = None,
) -> SimReport:
    """Run a generated kernel on CPU tensors, given in the order of ``source.args``.

    ``num_ctas`` bounds the persistent grid; small values make the pipelines wrap.
    Outputs are the parameters marked as such. The rest is as in ``sim.simulate``. What
    the build gate refuses (spills, say) is a note of kind ``build``.

    Raises:
        BadInput: a tensor does not fit its parameter; the message names it.
    """
    compiled, args = _call(source, tensors, num_ctas)
    outputs = [t for t, a in zip(tensors, source.args, strict=True) if a.output]
    report = simulate(
        compiled,
        args,
        source.arch,
        mode=mode,
        sms=num_ctas,
        checks=checks,
        trace=trace,
        outputs=outputs,
        tensors=tensors,
        roles=roles,
        faults=faults,
        progress=progress,
        ptx=ptx,
    )
    _, gate = _compiled(source)
    build = () if gate else (Finding("build", str(gate), advice=True),)
    return replace(report, notes=report.notes + build)
