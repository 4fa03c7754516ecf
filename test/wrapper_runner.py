"""Run a generated wrapper on the CPU, with reference GEMMs in place of our kernels.

In: the text from :mod:`fake_gpu` and CPU tensors. Out: the wrapper's results. Buffers
are poisoned with NaN, kernel arguments are checked against the kernel's entry, and the
GEMM and its epilogue graph are computed in fp32 with the ops' own references. So what
is tested is everything between the model and the kernel: which buffers are passed, as
which views, in which order, and what the graph means.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import torch
from grouped_reference import grouped_product

from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.codegen.source import TensorArg
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.epilogue.ops import op_class
from torch_cute_backend.inductor.spec import KernelSpec
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.runtime.block_scales import from_tiles


class ReferenceGemm:
    """Stands in for ``served.Gemm``; records the name of the kernel it would run."""

    def __init__(self, text: str, device_index: int) -> None:
        self.spec = KernelSpec.from_json(text)
        self.launched: list[str] = []
        self.ctas = 132

    def run(self, *arguments: Any) -> None:
        *tensors, ctas = arguments
        if ctas != self.ctas:
            raise AssertionError(f"launched on {ctas} CTAs")
        m = tensors[0].shape[0]
        variant = next(
            v for v in self.spec.variants if v.up_to_m is None or m <= v.up_to_m
        )
        build = build_kernel(self.spec.problem, variant.schedule, self.spec.arch)
        if not isinstance(build, KernelBuild):
            raise AssertionError(f"kernel cannot be built again: {build}")
        if build.source.sha256 != variant.sha256:
            raise AssertionError("kernel is not the one that was planned")
        self.launched.append(build.source.name)
        check_arguments(build.source.args, tensors)
        if self.spec.problem.is_grouped:
            run_grouped(self.spec.problem, tensors)
            return
        a, b, *rest = tensors
        problem = self.spec.problem
        graph = problem.epilogue
        outputs, inputs = rest[: len(graph.outputs)], rest[len(graph.outputs) :]
        a, b = a.float(), b.float()
        if problem.block_scaled:
            a = a * from_tiles(inputs.pop(0), *a.shape)
            b = b * from_tiles(inputs.pop(0), *b.shape)
        values = evaluate(graph, a @ b.t(), inputs)
        for output, value in zip(outputs, values, strict=True):
            output.copy_(cast(value, output.dtype))


def run_grouped(problem: GemmProblem, tensors: Sequence[torch.Tensor]) -> None:
    """A grouped GEMM with rowwise scales or none; writes what its groups cover."""
    a, b, out, *rest = tensors
    offsets = rest.pop() if problem.has_offsets else None
    kinds = [i.kind for i in problem.epilogue.inputs]
    if problem.epilogue != EpilogueGraph.linear(problem.out_dtype, *kinds):
        raise AssertionError(f"epilogue {problem.epilogue} of a grouped GEMM")
    value = grouped_product(problem.grouping, a, b, rest, offsets)
    out.copy_(torch.where(value.isnan(), out.float(), value))


def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """fp32 to ``dtype``; FP8 saturates, as the GPU's conversions do."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        limit = torch.finfo(dtype).max
        value = value.clamp(-limit, limit)
    return value.to(dtype)


def evaluate(
    graph: EpilogueGraph, acc: torch.Tensor, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The graph's outputs in fp32, before their cast."""
    shapes = {
        InputKind.SCALAR: (1, 1),
        InputKind.ROW: (-1, 1),
        InputKind.COL: (1, -1),
        InputKind.FULL: tuple(acc.shape),
    }
    values: list[torch.Tensor] = []
    for node in graph.nodes:
        if node.op == "acc":
            value = acc
        elif node.op == "input":
            index = int(node.attr or 0)
            shape = shapes[graph.inputs[index].kind]
            value = inputs[index].float().reshape(shape)
        elif node.op == "const":
            value = torch.tensor(float(node.attr or 0.0))
        elif node.op == "round":
            value = cast(values[node.args[0]], getattr(torch, str(node.attr))).float()
        else:
            value = op_class(node.op).reference(*(values[i] for i in node.args))
        values.append(value)
    return [values[o.node].expand(acc.shape) for o in graph.outputs]


def check_arguments(args: Sequence[TensorArg], tensors: Sequence[torch.Tensor]) -> None:
    """What the kernel's entry checks; ``AssertionError`` names the argument."""
    if len(args) != len(tensors):
        raise AssertionError(f"{len(tensors)} tensors for {len(args)} arguments")
    sizes: dict[str, int] = {}
    for arg, tensor in zip(args, tensors, strict=True):
        where = f"{arg.name} {tuple(tensor.shape)} {tensor.stride()}"
        if str(tensor.dtype) != f"torch.{arg.dtype}":
            raise AssertionError(f"{where}: {tensor.dtype}, expected {arg.dtype}")
        if tensor.dim() != len(arg.shape):
            raise AssertionError(f"{where}: expected {arg.shape}")
        for dim, symbol in enumerate(arg.shape):
            size = int(symbol) if symbol.isdigit() else sizes.get(symbol)
            if size is not None and tensor.shape[dim] != size:
                raise AssertionError(f"{where}: expected {arg.shape} with {sizes}")
            sizes[symbol] = tensor.shape[dim]
            stride, unit = tensor.stride(dim), arg.divisibility
            if dim == arg.contiguous:
                if stride != 1 or tensor.shape[dim] % unit:
                    raise AssertionError(f"{where}: dimension {dim} is not contiguous")
            elif stride % unit:
                raise AssertionError(f"{where}: stride {stride} % {unit}")
        if tensor.data_ptr() % arg.align_bytes:
            raise AssertionError(f"{where}: not aligned to {arg.align_bytes} bytes")


def kernel_names(code: str) -> list[str]:
    """Kernels that a wrapper launches, in order: ours, Triton's and extern ones."""
    calls = re.findall(r"^\s+(\w+)\.run\(|(extern_kernels\.\w+)\(", code, re.MULTILINE)
    return [a or b for a, b in calls]


def our_calls(code: str) -> list[str]:
    """The lines that launch our kernels."""
    lines = (line.strip() for line in code.splitlines())
    return [x for x in lines if x.startswith("torch_cute_") and ".run(" in x]


def specs(code: str) -> list[KernelSpec]:
    """The kernels that a wrapper defines."""
    found = re.findall(r"torch_cute_load_gemm\(r'''(.*?)''', 0\)", code)
    return [KernelSpec.from_json(text) for text in found]


def _poisoned(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """A buffer as ``empty_strided_cuda`` would give it, full of NaN."""
    # Room for alignment: CPU allocations are 64-byte aligned anyway.
    buffer = torch.empty_strided(size, stride, dtype=torch.float32)
    return buffer.fill_(float("nan")).to(dtype)


def _reinterpret(
    tensor: torch.Tensor, size: Any, stride: Any, offset: int
) -> torch.Tensor:
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


_REPLACED = (
    (r"torch\.cuda\._DeviceGuard\(\d+\)", "_no_guard()"),
    (r"torch\.cuda\.set_device\(\d+\)", "pass"),
    (r"^empty_strided_cuda = .*$", "empty_strided_cuda = _poisoned"),
    (r"^reinterpret_tensor = .*$", "reinterpret_tensor = _reinterpret"),
    (r"^from torch\._C import _cuda_getCurrentRawStream.*$", ""),
    (r"^from .*load_gemm as torch_cute_load_gemm$", ""),
    (r"^async_compile\.wait\(globals\(\)\)$", ""),
)


def run_wrapper(code: str, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Call a wrapper that launches only kernels of ours.

    Args:
        args: in the wrapper's order, which is that of the traced graph's inputs.
    """
    for pattern, text in _REPLACED:
        code = re.sub(pattern, text, code, flags=re.MULTILINE)
    namespace: dict[str, Any] = {
        "__name__": "generated",
        "_no_guard": contextlib.nullcontext,
        "_poisoned": _poisoned,
        "_reinterpret": _reinterpret,
        "torch_cute_load_gemm": ReferenceGemm,
        "get_raw_stream": lambda index: 0,
    }
    exec(compile(code, "<wrapper>", "exec"), namespace)
    return list(namespace["call"](list(args)))
