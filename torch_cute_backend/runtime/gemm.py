"""Call a built kernel on torch tensors, eagerly: the demo, tests and benchmarks.

In: a ``KernelBuild`` and tensors. Out: the kernel's outputs. This is where the entry
point's holes are closed for eager callers (see ``launch``): empty sizes, negated views,
gradients, foreign devices, strides and alignments that TMA cannot take. Code generated
by Inductor calls the kernel itself and closes them when lowering. Grouped GEMMs have
their own ``run`` in :mod:`grouped`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_cute_backend.codegen.shapes import scale_sizes
from torch_cute_backend.codegen.source import TensorArg
from torch_cute_backend.errors import UserError
from torch_cute_backend.runtime import device
from torch_cute_backend.runtime.launch import Kernel, load_kernel

if TYPE_CHECKING:
    from torch_cute_backend.build import KernelBuild

K_PADDING = 64
"""Columns of zeros that stand for an empty K."""


@dataclass(frozen=True)
class Launch:
    """A kernel bound to its arguments; calling it launches, nothing else.

    ``arguments`` are what the TVM-FFI entry takes, so a benchmark may call
    ``function(*arguments)`` itself.
    """

    function: Kernel
    arguments: tuple[Any, ...]
    outputs: tuple[torch.Tensor, ...]

    def __call__(self) -> tuple[torch.Tensor, ...]:
        self.function(*self.arguments)
        return self.outputs


def run(
    build: KernelBuild,
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    *inputs: torch.Tensor,
    out: Sequence[torch.Tensor] | None = None,
    num_ctas: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """``epilogue(a @ b)`` on torch's current stream.

    Args:
        a: (M, K).
        b: (K, N), as ``torch.mm`` takes it; for a kernel of several products, one for
            each.
        inputs: block scales of A and B if the kernel takes them (as
            :func:`.block_scales.to_tiles` gives them), then the epilogue's inputs in
            graph order.
        out: (M, N) tensors to write, in graph order, then the recorded walk if the
            schedule asks for it; allocated if not given.
        num_ctas: CTAs to launch at most; by default one an SM.

    Raises:
        UserError: a tensor does not fit the kernel; the message names it.
    """
    if build.problem.is_grouped:
        raise UserError("the kernel is of a grouped GEMM; use grouped.run")
    bs = _every(b)
    for x in bs:
        if x.dim() != 2 or a.dim() != 2:
            dims = f"{a.dim()}-D and {x.dim()}-D"
            raise UserError(f"a and b must be matrices, got {dims}")
    check_devices(build, (a, *bs, *inputs))
    m, n = a.shape[0], bs[0].shape[1]
    if m == 0 or n == 0:
        sizes = {"m": m, "n": n, "ctas": 0}
        return tuple(out) if out is not None else allocate(build, sizes, a.device)
    if a.shape[1] == 0 and all(x.shape[0] == 0 for x in bs):
        check_padding(build)
        # An empty sum is 0, which a K of zeros gives too.
        a = a.new_zeros(m, K_PADDING)
        bs = tuple(x.new_zeros(n, K_PADDING).t() for x in bs)
    with torch.cuda.device(a.device):
        return bind(build, a, bs, *inputs, out=out, num_ctas=num_ctas)()


def _every(b: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    bs = (b,) if isinstance(b, torch.Tensor) else tuple(b)
    if not bs:
        raise UserError("no b")
    return bs


def bind(
    build: KernelBuild,
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    *inputs: torch.Tensor,
    out: Sequence[torch.Tensor] | None = None,
    num_ctas: int | None = None,
) -> Launch:
    """Check, fit and order the arguments of :func:`run`; no size may be zero.

    Raises:
        UserError: as :func:`run`.
    """
    bs = _every(b)
    m, n, k = a.shape[0], bs[0].shape[1], a.shape[1]
    sizes = {"m": m, "n": n, "k": k, **scale_sizes(m, n, k)}
    rows = tuple(x.t() for x in bs)
    return arrange(build, a, rows, inputs, out, sizes, num_ctas)


def arrange(
    build: KernelBuild,
    a: torch.Tensor,
    b: torch.Tensor | Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor] | None,
    sizes: dict[str, int],
    num_ctas: int | None,
    tail: Sequence[torch.Tensor] = (),
) -> Launch:
    """The launch on these tensors, checked and fitted.

    Args:
        b: (N, K), as the kernel takes it, one for each product.
        sizes: value of every symbol of the kernel's parameters.
        tail: arguments after the epilogue's inputs, which are never copied.

    Raises:
        UserError: as :func:`run`.
    """
    bs = _every(b)
    check_devices(build, (a, *bs, *inputs, *(out or ()), *tail))
    if num_ctas is None:
        index = device.device_index(a.device)
        num_ctas = device.resident_ctas(index, build.schedule.cluster_size)
    if num_ctas < 1:
        raise UserError(f"num_ctas={num_ctas} is not positive")
    if build.schedule.record != "none":
        ctas = build.schedule.ctas(sizes["m"], sizes["n"], num_ctas)
        sizes = {**sizes, "ctas": ctas}
    products = build.problem.epilogue.products
    if len(bs) != products:
        raise UserError(f"{build.source.name} takes {products} b, got {len(bs)}")
    args = build.source.args
    outputs = [arg for arg in args if arg.output]
    first, last = 1 + products, len(args) - len(tail)
    extras = [arg for arg in args[first:last] if not arg.output]
    if len(inputs) != len(extras) or (out is not None and len(out) != len(outputs)):
        raise UserError(
            f"{build.source.name} takes {len(extras)} epilogue input(s) and "
            f"{len(outputs)} output(s), got {len(inputs)} and "
            f"{len(outputs) if out is None else len(out)}"
        )
    results = tuple(out) if out is not None else allocate(build, sizes, a.device)
    operands = zip(args[:first], (a, *bs), strict=True)
    tensors = [fit(arg, t, sizes) for arg, t in operands]
    tensors += [require(arg, t, sizes) for arg, t in zip(outputs, results, strict=True)]
    tensors += [fit(arg, t, sizes) for arg, t in zip(extras, inputs, strict=True)]
    tensors += [
        require(arg, t, sizes) for arg, t in zip(args[last:], tail, strict=True)
    ]
    function = load_kernel(build.source)
    return Launch(function, (*tensors, num_ctas), results)


def check_padding(build: KernelBuild) -> None:
    """May columns of zeros stand for an empty K? Their scales would be missing."""
    if build.problem.block_scaled:
        raise UserError("a GEMM with block scales needs a K of at least one block")


def check_devices(build: KernelBuild, tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "cuda" or tensor.device != tensors[0].device:
            places = ", ".join(dict.fromkeys(str(t.device) for t in tensors))
            raise UserError(f"tensors must be on one CUDA device, got {places}")
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise UserError("this call has no gradient; use torch.no_grad()")
    arch = device.arch_of(device.device_index(tensors[0].device))
    if arch != build.arch:
        found = "an unsupported GPU" if arch is None else arch.name
        raise UserError(f"the kernel is for {build.arch.name}, the device is {found}")


def allocate(
    build: KernelBuild, sizes: dict[str, int], place: torch.device
) -> tuple[torch.Tensor, ...]:
    """Outputs without content."""
    return tuple(
        torch.empty(shape_of(arg, sizes), dtype=torch_dtype(arg), device=place)
        for arg in build.source.args
        if arg.output
    )


def shape_of(arg: TensorArg, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(s) if s.isdigit() else sizes[s] for s in arg.shape)


def torch_dtype(arg: TensorArg) -> torch.dtype:
    kind = getattr(torch, arg.dtype.name)
    if not isinstance(kind, torch.dtype):
        raise UserError(f"torch has no dtype {arg.dtype.name}")
    return kind


def fit(arg: TensorArg, tensor: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    """``tensor`` as the entry takes it: a view where one serves, otherwise a copy.

    Raises:
        UserError: wrong dtype or shape, or an extent that no copy can repair.
    """
    tensor = _shaped(arg, tensor.detach().resolve_neg().resolve_conj(), sizes)
    viewed = _normal_strides(arg, tensor)
    if _problem(arg, viewed) is None:
        return viewed
    copy = _aligned_copy(arg, tensor)
    problem = _problem(arg, copy)
    if problem is not None:
        raise UserError(problem)
    return copy


def require(
    arg: TensorArg, tensor: torch.Tensor, sizes: dict[str, int]
) -> torch.Tensor:
    """As :func:`fit` for what cannot be copied: an output, offsets that a graph's
    replays read anew."""
    if tensor.is_neg() or tensor.is_conj():
        raise UserError(f"{arg.name} is a negated or conjugated view")
    viewed = _normal_strides(arg, _shaped(arg, tensor.detach(), sizes))
    problem = _problem(arg, viewed)
    if problem is not None:
        raise UserError(problem)
    return viewed


def _shaped(
    arg: TensorArg, tensor: torch.Tensor, sizes: dict[str, int]
) -> torch.Tensor:
    """Check dtype and shape; (M, 1), (1, N) and 0-D inputs become 1-D."""
    if tensor.dtype != torch_dtype(arg):
        raise UserError(f"{arg.name} is {tensor.dtype}, expected torch.{arg.dtype}")
    shape = shape_of(arg, sizes)
    if len(shape) == 1 and tensor.dim() != 1 and tensor.numel() == shape[0]:
        tensor = tensor.reshape(-1)
    if tuple(tensor.shape) != shape:
        raise UserError(f"{arg.name} has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor


def _normal_strides(arg: TensorArg, tensor: torch.Tensor) -> torch.Tensor:
    """Give dimensions of size 1 the stride that the entry expects.

    torch leaves their stride undefined, but the entry checks it like any other.
    """
    strides = list(tensor.stride())
    for dim, size in enumerate(tensor.shape):
        if size == 1:
            extent = math.prod(tensor.shape)
            pitch = -(-extent // arg.divisibility) * arg.divisibility
            strides[dim] = 1 if dim == arg.contiguous else pitch
    if strides == list(tensor.stride()):
        return tensor
    return tensor.as_strided(tensor.shape, strides)


def _problem(arg: TensorArg, tensor: torch.Tensor) -> str | None:
    """Why the entry would refuse ``tensor``, or None."""
    if tensor.data_ptr() % arg.align_bytes:
        return f"{arg.name} is not aligned to {arg.align_bytes} bytes"
    inner = 1 if arg.contiguous is None else tensor.shape[arg.contiguous]
    if arg.contiguous is not None and inner % arg.divisibility:
        return (
            f"{arg.name}: its contiguous extent {inner} is not a multiple of "
            f"{arg.divisibility}"
        )
    for dim, stride in enumerate(tensor.stride()):
        if dim == arg.contiguous:
            if stride != 1:
                return f"{arg.name}: dimension {dim} must have stride 1, not {stride}"
        elif stride % arg.divisibility or stride <= 0:
            return (
                f"{arg.name}: stride {stride} of dimension {dim} is not a positive "
                f"multiple of {arg.divisibility}"
            )
    return None


def _aligned_copy(arg: TensorArg, tensor: torch.Tensor) -> torch.Tensor:
    """A fresh copy with ``arg.contiguous`` innermost."""
    order = [dim for dim in range(tensor.dim()) if dim != arg.contiguous]
    if arg.contiguous is not None:
        order.append(arg.contiguous)
    packed = tensor.permute(order).clone(memory_format=torch.contiguous_format)
    inverse = [order.index(dim) for dim in range(tensor.dim())]
    return packed.permute(inverse)
