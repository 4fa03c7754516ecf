"""pytest fixture: ``simulate`` any CuTe DSL kernel in a test, without a GPU.

In a ``conftest.py``: ``from torch_cute_backend.sim.fixture import cute_simulator``. The
fixture must be set up before the process imports cutlass for a real GPU; it fails with
a clear error otherwise.

    def test_mine(cute_simulator):
        compiled = cute.compile(my_kernel, a, b, options="--gpu-arch sm_90a --keep-ptx")
        report = cute_simulator(compiled, (a, b), arch="sm_90a", outputs=[b_torch])
        assert report.clean, report.summary()
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import launch, simulate
from .report import SimReport


@pytest.fixture(scope="session")
def cute_simulator() -> Callable[..., SimReport]:
    """``torch_cute_backend.sim.simulate`` with the stub runtime in place."""
    launch.prepare()
    return simulate
