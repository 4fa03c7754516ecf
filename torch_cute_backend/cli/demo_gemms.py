"""Which kernels of ours the demo's compiled block loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch_cute_backend.build import KernelBuild


@contextmanager
def loaded_gemms() -> Iterator[list[Any]]:
    """Collects the GEMMs that generated wrappers load from us."""
    from torch_cute_backend.inductor import served

    gemms: list[Any] = []
    load = served.load_gemm

    def recording(text: str, place: int | str) -> Any:
        gemms.append(load(text, place))
        return gemms[-1]

    with mock.patch.object(served, "load_gemm", recording):
        yield gemms


def kernels_of(gemms: Sequence[Any]) -> list[KernelBuild]:
    """Every variant's kernel, printed again."""
    from torch_cute_backend.inductor.served import rebuild

    return [rebuild(gemm.spec, v) for gemm in gemms for v in gemm.spec.variants]


def refusals() -> list[str]:
    """A line for each GEMM or fusion that got no kernel."""
    from torch_cute_backend.inductor import reasons

    return [f"no kernel for {r.op} ({r.step}): {r.reason}" for r in reasons.recorded()]
