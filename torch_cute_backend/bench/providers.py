"""Who computes it: ours with a given schedule, and the peers, as lists of calls.

A provider is a function from a :class:`Request` to one call per input set. A call runs
the GEMM once on torch's current stream; it returns the output tensor, or None if it
wrote ``Inputs.out``. Optional peers are in ``peers``; a person's own are files, see
:func:`provider`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_cute_backend import config
from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.bench import groups, manifest
from torch_cute_backend.bench.cases import Inputs
from torch_cute_backend.bench.protocol import Call
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.runtime import device
from torch_cute_backend.runtime.cache import KernelCache, cache_key
from torch_cute_backend.runtime.launch import Kernel, load_kernel
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status


@dataclass(frozen=True)
class Request:
    """What a provider is asked for.

    Attributes:
        sets: input sets to rotate over.
        schedule: ours only.
        cached_only: ours only: refuse a kernel that would have to be compiled.
    """

    problem: GemmProblem
    arch: ArchSpec
    sets: Sequence[Inputs]
    schedule: GemmSchedule | None = None
    cached_only: bool = False


@dataclass(frozen=True)
class Prepared:
    """Calls and what a result row says about them.

    Attributes:
        kernel: name of the kernel, where the provider knows it.
        gemm: computes the GEMM, so its numbers are checked.
        verify: another check, run after the first call; says what is wrong.
    """

    calls: Sequence[Call]
    kernel: str | None = None
    gemm: bool = True
    verify: Callable[[], str | None] = lambda: None
    extra: dict[str, Any] = field(default_factory=dict)


Provider = Callable[[Request], Prepared]


def build(problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec) -> KernelBuild:
    """``build_kernel``, with "cannot" as a ``UserError``."""
    result = build_kernel(problem, schedule, arch)
    if isinstance(result, Status):
        raise UserError(f"{schedule.describe()}: {result}")
    return result


def kernel_for(
    problem: GemmProblem,
    schedule: GemmSchedule,
    arch: ArchSpec,
    cached_only: bool = False,
) -> tuple[Kernel, str]:
    """Our kernel and its name: from the cache's manifest, or built.

    Raises:
        UserError: it cannot be built, or it is in no cache and ``cached_only``.
    """
    listed = _manifest(config.get().cache_dir).find(arch.name, problem, schedule)
    if listed is not None:
        return load_kernel(listed.key), listed.name
    source = build(problem, schedule, arch).source
    if cached_only and KernelCache().load(cache_key(source)) is None:
        raise UserError(f"{source.name} is not in the kernel cache")
    return load_kernel(source), source.name


_manifest = functools.cache(manifest.read)


def ours(request: Request) -> Prepared:
    """One launch of our kernel per input set."""
    if request.schedule is None:
        raise UserError("our kernel needs a schedule")
    kernel, name = kernel_for(
        request.problem, request.schedule, request.arch, request.cached_only
    )
    index = torch.cuda.current_device()
    ctas = device.resident_ctas(index, request.schedule.cluster_size)

    def call(x: Inputs) -> Call:
        return lambda: kernel(x.a, x.b, x.out, *x.scales, *x.tail, ctas)

    return Prepared([call(x) for x in request.sets], name)


def aten(request: Request) -> Prepared:
    """``torch._scaled_mm``, ``torch.mm``, or their grouped kin."""
    if request.problem.is_grouped:
        return Prepared([groups.aten_call(request.problem, x) for x in request.sets])
    fast = request.problem.accum is Accum.FAST

    def scaled(x: Inputs) -> Call:
        sa, sb = broadcast_scales(x)
        b = x.b.t()
        return lambda: torch._scaled_mm(
            x.a,
            b,
            scale_a=sa,
            scale_b=sb,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
            out=x.out,
        )

    def plain(x: Inputs) -> Call:
        b = x.b.t()
        return lambda: torch.mm(x.a, b, out=x.out)

    fp8 = request.problem.a_dtype.is_fp8
    return Prepared([scaled(x) if fp8 else plain(x) for x in request.sets])


def compiled(problem: GemmProblem) -> Callable[[Inputs], Call]:
    """``torch.compile(mode="max-autotune-no-cudagraphs")`` of the GEMM, as a model
    would write it; compiled at the first call."""
    fast = problem.accum is Accum.FAST
    rowwise = problem.scaling == "rowwise"

    def scaled(
        a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor
    ) -> torch.Tensor:
        return torch._scaled_mm(
            a,
            b.t(),
            scale_a=sa[:, None] if rowwise else sa,
            scale_b=sb[None, :] if rowwise else sb,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.t()

    eager = scaled if problem.a_dtype.is_fp8 else plain
    if problem.is_grouped:
        eager = _transposing(groups.aten_function(problem))
    function: Callable[..., torch.Tensor] = torch.compile(
        eager, mode="max-autotune-no-cudagraphs", dynamic=False
    )

    def call(x: Inputs) -> Call:
        return lambda: function(x.a, x.b, *x.scales, *x.tail)

    return call


def _transposing(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``function`` of B as (.., N, K)."""

    def call(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return function(a, b.mT, *rest)

    return call


def inductor(request: Request) -> Prepared:
    """torch.compile's own max-autotune choice, without this package's."""
    if config.get().enabled:
        raise UserError("the plugin is on in this process; see child_environ")
    torch._dynamo.reset()
    make = compiled(request.problem)
    return Prepared([make(x) for x in request.sets])


def t_read(request: Request) -> Prepared:
    """Read the weight once: the fastest of several read-only kernels."""
    from torch_cute_backend.bench import protocol, read_kernel

    sms = device.sm_count(torch.cuda.current_device())
    place = request.sets[0].b.device
    words = [read_kernel.words_of(_rows(x.b)) for x in request.sets]

    def calls(c: read_kernel.ReadConfig, sums: torch.Tensor) -> list[Call]:
        return [partial(read_kernel.read, w, sums, c) for w in words]

    tried = {}
    for c in read_kernel.CONFIGS:
        sums = read_kernel.sums_for(c, sms, place)
        tried[c.describe()] = (calls(c, sums), sums)
    timings = protocol.interleaved({n: c for n, (c, _) in tried.items()}, rounds=5)
    best = min(timings, key=lambda name: timings[name].us)
    chosen, sums = tried[best]

    def verify() -> str | None:
        chosen[0]()
        right = read_kernel.verify(words[0], sums)
        return None if right else "the partial sums miss words of the weight"

    return Prepared(chosen, best, gemm=False, verify=verify)


def _rows(b: torch.Tensor) -> torch.Tensor:
    """``b`` or its transpose, whichever is contiguous."""
    return b if b.is_contiguous() else b.t()


def broadcast_scales(x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales as ``torch._scaled_mm`` takes them: (M, 1) and (1, N), or one element.

    Raises:
        UserError: the inputs have none.
    """
    if x.scale_a is None or x.scale_b is None:
        raise UserError("these inputs have no scales")
    if x.scale_a.numel() == x.scale_b.numel() == 1 and x.out.numel() > 1:
        return x.scale_a, x.scale_b
    return x.scale_a[:, None], x.scale_b[None, :]


BUILT_IN: dict[str, Provider] = {
    OURS: ours,
    "aten": aten,
    "inductor": inductor,
    "t_read": t_read,
}


def provider(name: str) -> Provider:
    """The provider called ``name``.

    ``"NAME=FILE.py"`` is a person's own: the file's ``prepare(request)``, which returns
    a :class:`Prepared`.

    Raises:
        UserError: there is no such provider, or its package cannot be imported.
    """
    from torch_cute_backend.bench import peers

    if "=" in name:
        return _from_file(Path(name.split("=", 1)[1]))
    found = BUILT_IN.get(name) or peers.PEERS.get(name)
    if found is None:
        known = ", ".join([*BUILT_IN, *peers.PEERS])
        raise UserError(f"unknown provider {name!r}; known: {known}, or NAME=FILE.py")
    return found


def _from_file(path: Path) -> Provider:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prepare = getattr(module, "prepare", None)
    if not inspect.isfunction(prepare):
        raise UserError(f"{path} has no function prepare(request)")
    found: Provider = prepare
    return found
