"""CPU tensors and fp32 references for our generated kernels, to simulate them with.

Integer-valued operands keep every sum exact, so that outputs must agree bit for bit;
scales are powers of two for the same reason. Outputs start as NaN. The values come from
a hash in integer arithmetic, so that one seed means the same data under every version
of torch and on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.epilogue.ops import op_class
from torch_cute_backend.problem import (
    SCALE_BLOCK,
    SCALE_NAMES,
    GemmProblem,
    Major,
)
from torch_cute_backend.runtime import block_scales


@dataclass
class Operands:
    """Tensors in the order of ``source.args``, outputs and their references."""

    tensors: list[torch.Tensor]
    outputs: dict[str, torch.Tensor]
    references: dict[str, torch.Tensor]

    def poison(self) -> None:
        """Fill the outputs with NaN, integers with -1."""
        for out in self.outputs.values():
            out.fill_(float("nan") if out.is_floating_point() else -1)

    def exact(self) -> bool:
        """Do all outputs equal their references bit for bit?"""
        return all(
            torch.equal(out.float(), self.references[name].float())
            for name, out in self.outputs.items()
        )

    def largest_error(self) -> tuple[float, float]:
        """Largest absolute error over all outputs, and it over the largest value of
        that output's reference; infinite where an output holds NaN."""
        errors = [
            (
                float((out.float() - self.references[name].float()).abs().max()),
                float(self.references[name].float().abs().max()),
            )
            for name, out in self.outputs.items()
        ]
        absolute = [e if e == e else float("inf") for e, _ in errors]
        relative = [
            e / max(size, 1e-6) for e, (_, size) in zip(absolute, errors, strict=True)
        ]
        return max(absolute), max(relative)

    def worst(self) -> float:
        """Largest error relative to the largest reference value."""
        worst = 0.0
        for name, out in self.outputs.items():
            ref = self.references[name].float()
            error = (out.float() - ref).abs().max() / ref.abs().max().clamp(min=1e-6)
            worst = max(worst, float("inf") if error.isnan() else float(error))
        return worst


class Draw:
    """Reproducible values: each call hashes its own counter with the seed."""

    def __init__(self, seed: int, fractions: bool = False) -> None:
        self._seed = seed
        self._calls = 0
        self._fractions = fractions

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Uniform integers in [low, high) as float32."""
        self._calls += 1
        start = (self._seed * 0x9E3779B9 + self._calls * 0x7F4A7C15) & 0xFFFFFFFF
        bits = np.arange(math.prod(shape), dtype=np.uint32)
        bits *= np.uint32(0x9E3779B1)
        bits ^= np.uint32(start)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            bits ^= bits >> np.uint32(shift)
            bits *= np.uint32(factor)
        values = (bits % np.uint32(high - low)).astype(np.float32)
        return torch.from_numpy(values).view(shape) + low

    def elements(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Operand elements: integers from -2 to 2, or multiples of 2^-12 below 2."""
        if self._fractions:
            return self.integers(-8191, 8192, shape) / 4096
        return self.integers(-2, 3, shape)


def _matrix(
    rows: int, cols: int, major: Major, dtype: torch.dtype, draw: Draw
) -> torch.Tensor:
    """The row pitch is a multiple of 16 elements, as TMA needs."""
    shape = (rows, cols) if major is Major.K else (cols, rows)
    pitch = -(-shape[1] // 16) * 16
    data = draw.elements((shape[0], pitch)).to(dtype)[:, : shape[1]]
    return data if major is Major.K else data.t()


def make(
    build: KernelBuild,
    m: int,
    n: int,
    k: int,
    seed: int = 0,
    fractions: bool = False,
    num_ctas: int = 1,
) -> Operands:
    """Operands of a kernel for run-time sizes; with ``fractions`` not only integers,
    so that sums round. ``num_ctas``: as it will be launched with, for kernels that
    record their walk.
    """
    draw = Draw(seed, fractions)
    problem: GemmProblem = build.problem
    graph = problem.epilogue
    a = _matrix(m, k, problem.a_major, getattr(torch, problem.a_dtype.name), draw)
    b = _matrix(n, k, problem.b_major, getattr(torch, problem.b_dtype.name), draw)
    named = {"a": a, "b": b}
    for i in range(1, graph.products):
        kind = getattr(torch, problem.b_dtype.name)
        named[f"b{i}"] = _matrix(n, k, problem.b_major, kind, draw)
    if problem.block_scaled:
        named |= _block_scales(m, n, k, draw)
    for entry in graph.inputs:
        named[entry.name] = _input(
            entry.kind, m, n, getattr(torch, entry.dtype.name), draw
        )
    references = dict(
        zip((o.name for o in graph.outputs), evaluate(graph, named), strict=True)
    )
    outputs = {}
    for out in graph.outputs:
        pitch = -(-n // 16) * 16 if problem.out_aligned else n
        shape = (m, pitch)
        outputs[out.name] = torch.zeros(shape, dtype=getattr(torch, out.dtype.name))[
            :, :n
        ]
    if build.schedule.record == "walk_end":
        references["walk_end"] = walk_ends(build, m, n, num_ctas)
        outputs["walk_end"] = torch.zeros_like(references["walk_end"])
    named |= outputs
    found = Operands(
        [named[arg.name] for arg in build.source.args], outputs, references
    )
    found.poison()
    return found


def _block_scales(m: int, n: int, k: int, draw: Draw) -> dict[str, torch.Tensor]:
    """Powers of two from a half to two, another one for each row and block."""
    found = {}
    for name, rows in zip(SCALE_NAMES, (m, n), strict=True):
        exponents = draw.integers(126, 129, (rows, -(-k // SCALE_BLOCK)))
        bits = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
        found[name] = block_scales.to_tiles(bits)
    return found


def walk_ends(build: KernelBuild, m: int, n: int, num_ctas: int) -> torch.Tensor:
    """The first work tile beyond the last that each CTA would take."""
    s = build.schedule
    tiles = -(-m // s.tile_m) * -(-n // s.tile_n)
    ctas = s.ctas(m, n, num_ctas)
    first = torch.arange(ctas, dtype=torch.int32)
    return first + (tiles - first + ctas - 1) // ctas * ctas


def _input(
    kind: InputKind, m: int, n: int, dtype: torch.dtype, draw: Draw
) -> torch.Tensor:
    shape = {
        InputKind.SCALAR: (1,),
        InputKind.ROW: (m,),
        InputKind.COL: (n,),
        InputKind.FULL: (m, n),
    }[kind]
    values = torch.exp2(draw.integers(-1, 2, shape))
    return values.to(dtype)


def _product(named: dict[str, torch.Tensor], b: str) -> torch.Tensor:
    """A with one of the Bs, in fp32; tiles of block scales are applied first."""
    operands = []
    for operand, scale in zip((named["a"], named[b]), SCALE_NAMES, strict=True):
        values, tiles = operand.float(), named.get(scale)
        if tiles is not None and tiles.dtype == torch.float8_e8m0fnu:
            values = values * block_scales.from_tiles(tiles, *values.shape)
        operands.append(values)
    return operands[0] @ operands[1].t()


def evaluate(
    graph: EpilogueGraph, named: dict[str, torch.Tensor]
) -> list[torch.Tensor]:
    """The epilogue graph in fp32 torch operations; ``named`` holds the operands and
    the graph's inputs."""
    values: list[torch.Tensor] = []
    for node in graph.nodes:
        if node.op == "acc":
            value = _product(named, f"b{node.attr or ''}")
        elif node.op == "const":
            value = torch.tensor(float(node.attr or 0.0), dtype=torch.float32)
        elif node.op == "round":
            kind = getattr(torch, str(node.attr))
            value = values[node.args[0]].to(kind).float()
        elif node.op == "input":
            entry = graph.inputs[int(node.attr or 0)]
            value = named[entry.name].float()
            if entry.kind is InputKind.ROW:
                value = value.view(-1, 1)
        else:
            value = op_class(node.op).reference(*(values[i] for i in node.args))
        values.append(value)
    out = []
    for output in graph.outputs:
        dtype = getattr(torch, output.dtype.name)
        value = values[output.node]
        if output.dtype.is_fp8:
            value = value.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        out.append(value.to(dtype))
    return out
