"""What generated wrappers import: a kernel's text in, an object with ``run`` out.

A wrapper may come from Inductor's cache, in a process that never lowered anything.
So this needs no Inductor: it prints the kernel again from its spec, checks that it is
the same one, and loads it from our cache, or compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_cute_backend import build, phases
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.errors import CacheError
from torch_cute_backend.inductor.spec import KernelSpec, Variant
from torch_cute_backend.runtime import device, launch
from torch_cute_backend.version import __version__

SIMULATOR = "simulator"
"""Where a kernel for CPU tensors runs."""


class Gemm:
    """All variants of one GEMM, loaded.

    ``run(a, b, *outputs, *inputs, ctas)`` launches on torch's current stream of the
    tensors' device, which is the stream that Inductor's wrapper would name. M must not
    be 0. Of one variant, ``run`` is the kernel's own entry: no Python is in between.
    """

    __slots__ = ("ctas", "run", "spec")

    def __init__(self, spec: KernelSpec, run: Callable[..., Any], ctas: int) -> None:
        self.spec = spec
        self.run = run
        self.ctas = ctas


def load_gemm(text: str, place: int | str) -> Gemm:
    """Load every variant of a spec; called once, at wrapper import.

    Args:
        place: index of a CUDA device, or :data:`SIMULATOR`.

    Raises:
        CacheError: the spec is malformed, or another version of this package wrote it.
        CompileError: a kernel was not in the cache and does not compile.
    """
    spec = KernelSpec.from_json(text)
    with phases.span("wrapper's kernels", spec.problem.describe()):
        kernels, ctas = _kernels(spec, place)
    if len(kernels) == 1:
        return Gemm(spec, kernels[0], ctas[0])
    limits = [v.up_to_m for v in spec.variants[:-1]]
    if any(limit is None for limit in limits):
        raise CacheError("kernel spec: a variant but the last one has no limit of M")
    run = _by_m(kernels, [int(x or 0) for x in limits], ctas)
    return Gemm(spec, run, ctas[-1])


def _kernels(
    spec: KernelSpec, place: int | str
) -> tuple[list[Callable[..., Any]], list[int]]:
    """The loaded variants, and how many CTAs to launch of each at most."""
    builds = [rebuild(spec, v) for v in spec.variants]
    if place == SIMULATOR:
        # Here, because a program on a GPU has no use for it.
        from torch_cute_backend.sim import kernels as simulated

        ctas = [spec.arch.default_sms] * len(builds)
        return [simulated.load_kernel(b) for b in builds], ctas
    kernels = [launch.load_kernel(b.source) for b in builds]
    sizes = [b.schedule.cluster_size for b in builds]
    return kernels, [device.resident_ctas(int(place), size) for size in sizes]


def rebuild(spec: KernelSpec, variant: Variant) -> KernelBuild:
    """Print a variant's kernel again; ``CacheError`` if it is no longer the same."""
    result = build.build_kernel(spec.problem, variant.schedule, spec.arch)
    if isinstance(result, KernelBuild) and result.source.sha256 == variant.sha256:
        return result
    found = result.source.sha256 if isinstance(result, KernelBuild) else str(result)
    raise CacheError(
        f"a compiled graph asks for kernel {variant.sha256[:16]}, but "
        f"torch_cute_backend {__version__} prints {found[:64]}: another version of the "
        "package compiled it. Clear torch's compile cache (TORCHINDUCTOR_CACHE_DIR)"
    )


def _by_m(
    kernels: list[Callable[..., Any]], limits: list[int], ctas: list[int]
) -> Callable[..., Any]:
    """A function that launches the variant for the M of its first tensor. Its last
    argument is the last variant's count of CTAs."""
    *others, last = [
        kernel if count == ctas[-1] else _on(kernel, count)
        for kernel, count in zip(kernels, ctas, strict=True)
    ]
    bounded = tuple(zip(limits, others, strict=True))

    def run(*arguments: Any) -> None:
        m = arguments[0].size(-2)
        for limit, kernel in bounded:
            if m <= limit:
                kernel(*arguments)
                return
        last(*arguments)

    return run


def _on(kernel: Callable[..., Any], ctas: int) -> Callable[..., Any]:
    """``kernel`` with a CTA count of its own in place of its last argument."""

    def run(*arguments: Any) -> None:
        kernel(*arguments[:-1], ctas)

    return run
