"""Settings of the package: one frozen value, read from the environment on first use.

In: ``TORCH_CUTE_BACKEND_*`` environment variables. Out: :func:`get`. Settings are
process-global on purpose: torch's own config is thread-local from 2.12 on, and kernels
are also compiled in autograd's threads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch_cute_backend.errors import UserError
from torch_cute_backend.status import Status

PREFIX = "TORCH_CUTE_BACKEND_"


_MOST_WORKERS = 4
"""Candidates of one GEMM: more have nothing to do when the first one is compiled."""


def default_workers() -> int:
    """Half of the CPUs that this process may use, from 1 to :data:`_MOST_WORKERS`."""
    cpus = len(os.sched_getaffinity(0))
    return max(1, min(_MOST_WORKERS, cpus // 2))


@dataclass(frozen=True)
class Config:
    """All settings; the variable of ``x`` is ``TORCH_CUTE_BACKEND_X``.

    Attributes:
        cache_dir: folder of compiled kernels (``CACHE_DIR``).
        compile_timeout_s: time limit of one kernel's compilation in a child process.
        compile_workers: child processes that compile kernels side by side; by default
            half the CPUs at hand, at most one a candidate.
        decide_early: take the kernel of a shape in the pretuned table at once, without
            benchmarking it against the other choices.
        dependent_launch: compile kernels for programmatic dependent launch (see
            ``GemmSchedule.launch``): a kernel starts while the one before it drains.
        self_test: run the golden self-test of a family that has no validation record
            for the GPU at hand before its first use.
        self_test_timeout_s: time limit of that self-test.
        count_launches: wrap loaded kernels in a counter (tests and the demo).
        enabled: offer kernels to Inductor at all.
        sim_arch: the arch that ``torch.compile(backend="cute_sim")`` simulates.
    """

    cache_dir: Path
    compile_timeout_s: float = 120.0
    compile_workers: int = field(default_factory=default_workers)
    decide_early: bool = False
    dependent_launch: bool = False
    self_test: bool = True
    self_test_timeout_s: float = 20.0
    count_launches: bool = False
    enabled: bool = True
    sim_arch: str = "sm_90a"


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/torch_cute_backend``, by default under ``~/.cache``."""
    base = environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "torch_cute_backend"
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():
        return Path(tempfile.gettempdir()) / f"torch_cute_backend_{os.getuid()}"
    return home / ".cache" / "torch_cute_backend"


_BOOLEANS = {
    "1": True,
    "true": True,
    "on": True,
    "0": False,
    "false": False,
    "off": False,
}


def _parse(name: str, text: str, like: object) -> Any:
    """``text`` as a value of ``like``'s type; ``UserError`` naming the variable."""
    try:
        if isinstance(like, bool):
            return _BOOLEANS[text.strip().lower()]
        if isinstance(like, (int, float)):
            value = type(like)(text)
            if not 0 < value < float("inf"):
                raise ValueError(text)
            return value
    except (KeyError, ValueError) as error:
        kind = (
            "0 or 1" if isinstance(like, bool) else f"a positive {type(like).__name__}"
        )
        raise UserError(f"{name}={text!r} is not {kind}") from error
    return text.strip() if isinstance(like, str) else Path(text).expanduser()


def from_environ(environ: Mapping[str, str]) -> Config:
    """Build a :class:`Config`; a malformed variable is a ``UserError``."""
    defaults = Config(default_cache_dir(environ))
    changes = {}
    for name, like in vars(defaults).items():
        variable = PREFIX + name.upper()
        if environ.get(variable):
            changes[name] = _parse(variable, environ[variable], like)
    return replace(defaults, **changes)


_current: list[Config] = []


def get() -> Config:
    """The settings in force."""
    if not _current:
        _current.append(from_environ(os.environ))
    return _current[-1]


def readable() -> Status:
    """Are all variables well-formed? If not, :func:`get` raises."""
    try:
        get()
    except UserError as error:
        return Status.no(str(error))
    return Status.ok()


@contextmanager
def patch(**changes: Any) -> Iterator[Config]:
    """Change settings for a ``with`` block, in every thread of the process."""
    previous = get()
    _current[:] = [replace(previous, **changes)]
    try:
        yield _current[-1]
    finally:
        _current[:] = [previous]


def update(**changes: Any) -> Config:
    """Change settings until further notice; returns the new ones."""
    _current[:] = [replace(get(), **changes)]
    return _current[-1]
