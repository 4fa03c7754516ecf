"""``View``: a strided window of an Inductor buffer, as the generated wrapper passes it.

Kernel arguments are views: scales and bias as 1-D tensors, B as (N, K). In: IR nodes
of Inductor. Out: text for the wrapper, and checks against a kernel's ``TensorArg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_cute_backend.codegen.source import TensorArg
from torch_cute_backend.inductor import compat
from torch_cute_backend.status import Status

Size: TypeAlias = Any
"""A size or stride: ``sympy.Expr`` where it is dynamic, else int."""


@dataclass(frozen=True)
class View:
    """``name`` read with ``size``, ``stride`` and ``offset``, in elements.

    The offset counts from the first element of the wrapper's variable ``name``.
    """

    name: str
    dtype: torch.dtype
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size = 0

    def transposed(self) -> View:
        """The view with its last two dimensions exchanged."""
        order = (*range(len(self.size) - 2), -1, -2)
        size = tuple(self.size[i] for i in order)
        stride = tuple(self.stride[i] for i in order)
        return View(self.name, self.dtype, size, stride, self.offset)

    def text(self) -> str:
        """The argument in the generated wrapper."""
        scheduler = V.graph.scheduler
        name = scheduler.mutation_real_name.get(self.name, self.name)
        text = self._window(name)
        if V.graph.get_dtype(name) is self.dtype:
            return text
        # The operand is x.view(dtype), which Inductor keeps as a view of x's buffer.
        return f"{text}.view({self.dtype})"

    def _window(self, name: str) -> str:
        """The elements in question of the wrapper's variable ``name``."""
        base = V.graph.try_get_buffer(name)
        if base is not None and self._is_all_of(base.get_layout()):
            return str(name)
        size, stride = compat.shape_text(self.size), compat.shape_text(self.stride)
        offset = V.graph.wrapper_code.codegen_sizevar(sympy.sympify(self.offset))
        return f"reinterpret_tensor({name}, {size}, {stride}, {offset})"

    def _is_all_of(self, layout: ir.Layout) -> bool:
        if len(self.size) > 1 and any(compat.known_equal(s, 1) for s in self.size):
            # Nobody guards the stride of a dimension of one element; the entry does.
            return False
        mine = (*self.size, *self.stride)
        theirs = (*layout.size, *layout.stride)
        return self.offset == 0 and mine == theirs

    def hints(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Size, stride and offset as traced."""
        return (
            tuple(compat.hint(x) for x in self.size),
            tuple(compat.hint(x) for x in self.stride),
            compat.hint(self.offset),
        )

    def check(self, arg: TensorArg) -> Status:
        """Does every call meet what the kernel's entry demands of ``arg``?

        The entry checks it again at each launch, but an exception there would be too
        late to take another kernel.
        """
        bytes_ = self.dtype.itemsize
        problems: list[tuple[bool, str]] = [
            (
                compat.known_multiple(self.offset, max(arg.align_bytes // bytes_, 1)),
                f"{arg.name}: offset {self.offset} is not {arg.align_bytes}-byte "
                "aligned for certain",
            ),
            (
                arg.align_bytes <= bytes_ or not compat.may_be_unaligned(self.name),
                f"{arg.name}: buffer {self.name} may be unaligned",
            ),
        ]
        for dim, (size, stride) in enumerate(zip(self.size, self.stride, strict=True)):
            if dim == arg.contiguous:
                problems += [
                    (
                        compat.known_equal(stride, 1) or compat.known_equal(size, 1),
                        f"{arg.name}: stride {stride} of dimension {dim} is not 1",
                    ),
                    (
                        compat.known_multiple(size, arg.divisibility),
                        f"{arg.name}: extent {size} is not a multiple of "
                        f"{arg.divisibility} for certain",
                    ),
                ]
            else:
                problems.append(
                    (
                        compat.known_multiple(stride, arg.divisibility),
                        f"{arg.name}: stride {stride} is not a multiple of "
                        f"{arg.divisibility} for certain",
                    )
                )
        return Status.check(*problems)


def unwrap(node: Any) -> Any:
    """The buffer or ``ReinterpretView`` inside ``TensorBox`` and ``StorageBox``."""
    while isinstance(node, (ir.TensorBox, ir.StorageBox)):
        node = node.data
    return node


def view_of(node: Any) -> View | Status:
    """The whole of an input node as a view; its layout is frozen.

    Kernels bake in which dimension is contiguous, so a layout that Inductor could
    still change is fixed as it is.
    """
    node = unwrap(node)
    if not isinstance(node, (ir.Buffer, ir.ReinterpretView)):
        return Status.no(f"input is a {type(node).__name__}, not a buffer")
    if isinstance(node.layout, ir.FlexibleLayout):
        node.freeze_layout()
    layout = node.get_layout()
    offset = layout.offset if isinstance(node, ir.ReinterpretView) else 0
    if not isinstance(node, ir.ReinterpretView) and layout.offset != 0:
        return Status.no(f"buffer {node.get_name()} starts inside its storage")
    return View(
        node.get_name(),
        node.get_dtype(),
        tuple(layout.size),
        tuple(layout.stride),
        offset,
    )


def views_of(nodes: Sequence[Any]) -> list[View] | Status:
    """:func:`view_of` each node, or why one of them is none."""
    views = []
    for node in nodes:
        view = view_of(node)
        if isinstance(view, Status):
            return view
        views.append(view)
    return views
