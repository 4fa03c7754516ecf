"""``scaled_mm`` kernels on a GPU: every size, scaling, output and pitch, exactly.

Small integers with scales that are powers of two are exact in every accumulator and
every output dtype, so results must be equal, element by element. Outputs are poisoned,
and what lies beside a padded output must stay as it was. Random data is held to a
per-element bound and a bound on the gain; zeros and a result 1 % too large are shown to
break one of them.
"""

from __future__ import annotations

import itertools
import unittest
from dataclasses import dataclass, replace

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend import config
from torch_cute_backend.arch import ArchSpec
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16, FLOAT32, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.runtime import device, gemm, launch, pool
from torch_cute_backend.tuning.lookup import choose

SIZES_M = (1, 3, 16, 33, 64, 65, 128, 257, 512)
SIZES_N = (16, 48, 256, 5120)
SIZES_K = (16, 32, 112, 256, 5120, 16384)
OUTPUTS = (BFLOAT16, FLOAT16, FLOAT32)
PADDING = 16
"""Extra elements of a padded row: a multiple of 16 bytes in every dtype."""


@dataclass(frozen=True)
class Variant:
    """What is static in a kernel, apart from its schedule."""

    rowwise: bool
    accum: Accum
    out: DType
    bias: bool

    def problem(self, m: int, n: int, k: int) -> GemmProblem:
        kinds = (InputKind.ROW, InputKind.COL)
        scalars = (InputKind.SCALAR, InputKind.SCALAR)
        # torch takes a bias of the output's dtype.
        bias = self.out if self.bias else None
        graph = EpilogueGraph.linear(
            self.out, *(kinds if self.rowwise else scalars), bias
        )
        return GemmProblem(
            op="scaled_mm",
            m=m,
            n=n,
            k=k,
            a_dtype=E4M3,
            b_dtype=E4M3,
            scaling="rowwise" if self.rowwise else "tensorwise",
            accum=self.accum,
            epilogue=graph,
        )

    def __str__(self) -> str:
        scaling = "rowwise" if self.rowwise else "tensorwise"
        bias = "bias" if self.bias else "plain"
        return f"{scaling}_{self.accum.value}_{self.out.short}_{bias}"


VARIANTS = tuple(
    Variant(*row)
    for row in itertools.product((True, False), Accum, OUTPUTS, (True, False))
)


def padded(rows: int, columns: int, kind: torch.dtype) -> torch.Tensor:
    """A (rows, columns) view of a wider matrix of NaN."""
    wide = torch.full((rows, columns + PADDING), float("nan"), device="cuda")
    return wide.to(kind)[:, :columns]


def integers(rows: int, columns: int, limit: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (rows, columns)
    return torch.randint(
        -limit, limit + 1, shape, generator=generator, device="cuda"
    ).float()


def powers(count: int, seed: int) -> torch.Tensor:
    return torch.exp2(integers(1, count, 1, seed)[0])


def operand(values: torch.Tensor, pad: bool) -> torch.Tensor:
    """``values`` as e4m3, K-major, in a padded matrix if asked."""
    if not pad:
        return values.to(torch.float8_e4m3fn)
    target = padded(*values.shape, torch.float8_e4m3fn)
    return target.copy_(values)


@unittest.skipUnless(device.default_arch() is not None, "needs a supported GPU")
class TestScaledMm(TestCase):
    arch: ArchSpec

    def setUp(self) -> None:
        super().setUp()
        arch = device.default_arch()
        if arch is None:
            raise RuntimeError("the GPU went away")
        self.arch = arch

    def build(self, problem: GemmProblem) -> KernelBuild:
        """The kernel that the look-up takes."""
        choice = choose(problem, self.arch)
        self.assertTrue(choice, f"{problem.describe()}: {choice}")
        built = build_kernel(problem, choice.schedule, self.arch)
        self.assertTrue(built, f"{problem.describe()}: {built}")
        return built

    def check(self, v: Variant, built: KernelBuild, m: int, n: int, k: int) -> None:
        pad = (m + n + k) % 3 == 0
        limit = 1 if k > 4096 else 2
        a, b = integers(m, k, limit, 1), integers(n, k, limit, 2)
        sa = powers(m if v.rowwise else 1, 3)
        sb = powers(n if v.rowwise else 1, 4)
        want = (a @ b.t()) * sa[:, None] * sb[None, :]
        inputs = [sa, sb]
        kind = getattr(torch, v.out.name)
        if v.bias:
            bias = integers(1, n, 2, 5)[0].to(kind)
            inputs.append(bias)
            want = want + bias.float()
        out = (
            padded(m, n, kind)
            if pad
            else torch.full((m, n), float("nan"), dtype=kind, device="cuda")
        )
        gemm.run(built, operand(a, pad), operand(b, pad).t(), *inputs, out=[out])
        where = f"{v} {m}x{n}x{k} {built.schedule.describe()} pad={pad}"
        self.assertTrue(torch.equal(out, want.to(kind)), where)
        if pad:
            beside = out.as_strided((m, PADDING), (n + PADDING, 1), n)
            self.assertTrue(bool(beside.isnan().all()), f"{where}: padding written")

    @parametrize("v", VARIANTS, name_fn=str)
    def test_exact(self, v: Variant) -> None:
        shapes = list(itertools.product(SIZES_M, SIZES_N, SIZES_K))
        # Kernels are generic in size: one for each M serves every N and K.
        builds = {m: self.build(v.problem(m, 5120, 5120)) for m in SIZES_M}
        sources = {b.source.sha256: b.source for b in builds.values()}
        futures = [pool.shared_pool().submit(s) for s in sources.values()]
        for future in futures:
            future.result(timeout=120)
        with config.patch(count_launches=True):
            launch.forget()
            launch.reset_launches()
            for shape in shapes:
                self.check(v, builds[shape[0]], *shape)
            self.assertEqual(sum(launch.launches().values()), len(shapes))
        launch.forget()

    @parametrize("accum", list(Accum), name_fn=lambda a: a.value)
    @parametrize("k", (256, 5120, 16384))
    def test_random_within_a_bound(self, accum: Accum, k: int) -> None:
        m, n = 65, 256
        v = Variant(True, accum, BFLOAT16, False)
        built = self.build(v.problem(m, n, k))
        generator = torch.Generator("cuda").manual_seed(6)
        a = torch.randn(m, k, generator=generator, device="cuda")
        b = torch.randn(n, k, generator=generator, device="cuda")
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        sa, sb = powers(m, 3), powers(n, 4)
        want = (a8.float() @ b8.float().t()) * sa[:, None] * sb[None, :]
        (out,) = gemm.run(built, a8, b8.t(), sa, sb)
        # bf16 rounds by 2^-9 of a value. Hopper's fast sums keep 13 bits and more and
        # add 32 products a step; promoted every k tile, only its own steps count.
        steps = k / 32 if accum is Accum.FAST else built.schedule.tile_k / 32
        rms = (want / (sa[:, None] * sb[None, :])).square().mean().sqrt()
        size = rms * sa[:, None] * sb[None, :]
        bound = want.abs() * 2**-8 + size * (2**-10 + steps * 2**-13)

        def right(got: torch.Tensor) -> bool:
            gain = float((got * want).sum() / want.square().sum()) - 1
            return bool(((got - want).abs() <= bound).all()) and abs(gain) <= 2**-8

        self.assertTrue(right(out.float()))
        self.assertFalse(right(torch.zeros_like(want)))
        self.assertFalse(right(want * 1.01))

    def test_exact_accumulation_is_closer(self) -> None:
        """All-positive data, where truncation adds up."""
        m, n, k = 64, 256, 16384
        a = torch.rand(m, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.rand(n, k, device="cuda").to(torch.float8_e4m3fn)
        one = torch.ones(m, device="cuda"), torch.ones(n, device="cuda")
        want = a.float() @ b.float().t()
        error = {}
        for accum in Accum:
            v = replace(VARIANTS[0], accum=accum, out=FLOAT32, bias=False)
            (out,) = gemm.run(self.build(v.problem(m, n, k)), a, b.t(), *one)
            error[accum] = float((out - want).abs().mean() / want.mean())
        self.assertLess(error[Accum.EXACT], error[Accum.FAST] / 2, str(error))


instantiate_parametrized_tests(TestScaledMm)

if __name__ == "__main__":
    run_tests()
