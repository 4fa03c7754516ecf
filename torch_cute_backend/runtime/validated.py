"""Which kernels have run right on which GPU, and what to do about the others.

A kernel class (arch, family, CTA group, cluster) that was validated on the GPU at hand
is used as it is. Any other one first runs a small golden self-test in a child process
that is killed when it hangs; its verdict is kept on disk. A class that fails is off,
with one warning: wrong answers and hangs must not reach a user.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend import config, phases
from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.errors import CacheError, CuteBackendError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.runtime import device, toolchain
from torch_cute_backend.runtime.cache import VERDICTS, KernelCache
from torch_cute_backend.runtime.pool import WorkerProcess
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.version import __version__

log = logging.getLogger(__name__)

_CHILD = "torch_cute_backend.runtime.selftest"


@dataclass(frozen=True)
class KernelClass:
    """Kernels that share their machinery: what is validated for one holds for all.

    Attributes:
        arch: target, ``"sm_90a"``.
        family: dtype and scaling, as :attr:`GemmProblem.family`; ``-dual`` with two
            products.
        cta_group: CTAs that share one MMA.
        cluster: ``"single"`` or ``"multicast"``.
        launch: as :attr:`GemmSchedule.launch`.
        turns: grouped, and two warpgroups take turns, also for tiles that are missing.
        low: tiles lower than one MMA, which zeroes the rows below them for itself.
    """

    arch: str
    family: str
    cta_group: int
    cluster: str
    launch: str = "plain"
    turns: bool = False
    low: bool = False

    @classmethod
    def of(
        cls, problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
    ) -> KernelClass:
        cluster = "single" if schedule.cluster_size == 1 else "multicast"
        dual = "-dual" if problem.epilogue.products > 1 else ""
        family = problem.family + dual
        turns = problem.is_grouped and schedule.pingpong
        return cls(
            arch.name,
            family,
            schedule.cta_group,
            cluster,
            schedule.launch,
            turns,
            low=arch.staged_rows(schedule) > schedule.tile_m,
        )

    @property
    def form(self) -> str:
        """What tells it from other classes of its arch and family."""
        text = f"{self.cta_group}-CTA, {self.cluster} cluster"
        text += "" if self.launch == "plain" else f", {self.launch} launch"
        text += ", in turns" if self.turns else ""
        return text + (", low tiles" if self.low else "")

    def __str__(self) -> str:
        return f"{self.arch} {self.family}, {self.form}"


@dataclass(frozen=True)
class Validation:
    """The test-suite passed: on which GPU, at which commit, with which tests."""

    kernels: KernelClass
    gpu: str
    commit: str
    tests: str
    date: str


def _h200(
    family: str, cluster: str, commit: str, tests: str, date: str = "2026-12-01"
) -> Validation:
    kernels = KernelClass("sm_90a", family, 1, cluster)
    return Validation(kernels, "NVIDIA H200", commit, tests, date)


_SWEEP = "benchmarks/measure_all.py sweep: 321 schedules, 20391 exact products"
_GROUPED = "benchmarks/measure_all.py sweep of grouped kernels: 17 schedules, exact"
_MATRIX = "test/gpu/test_scaled_mm_gpu.py"
RECORDS: tuple[Validation, ...] = (
    _h200("fp8-rowwise", "single", "7cca57b", _SWEEP),
    _h200("fp8-rowwise", "multicast", "7cca57b", _SWEEP),
    _h200("fp8-tensorwise", "single", "155a10d", _MATRIX, "2026-11-30"),
    _h200("bf16", "single", "7cca57b", _SWEEP),
    _h200("bf16", "multicast", "7cca57b", _SWEEP),
    _h200("fp8-rowwise-grouped-m", "single", "b7cdc10", _GROUPED),
    _h200("fp8-rowwise-grouped-m", "multicast", "b7cdc10", _GROUPED),
)
"""One row for each class and GPU; a row is added by whoever ran the tests there. (The
sweep's low tiles were of another text: what zeroes their rows was rewritten since.)"""


def validations(kernels: KernelClass) -> tuple[Validation, ...]:
    """All records of a class."""
    return tuple(row for row in RECORDS if row.kernels == kernels)


def describe(kernels: KernelClass) -> str:
    """``validated on ...`` or ``never run on hardware``, for reports."""
    rows = validations(kernels)
    if not rows:
        return "never run on hardware"
    return "validated on " + ", ".join(f"{r.gpu} ({r.date}, {r.commit})" for r in rows)


_verdicts: dict[tuple[KernelClass, str], Status] = {}
_lock = threading.Lock()


def usable(
    problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec, index: int
) -> Status:
    """May kernels of this class be used on CUDA device ``index``?

    The first question about a class without a record takes seconds: it compiles the
    self-test's kernel and runs it in a child process.
    """
    kernels = KernelClass.of(problem, schedule, arch)
    gpu = device.name_of(index)
    if any(row.gpu == gpu for row in validations(kernels)):
        return Status.ok()
    if not config.get().self_test:
        return Status.ok()
    with _lock:
        verdict = _verdicts.get((kernels, gpu))
        if verdict is None:
            verdict = _stored_or_tested(kernels, problem, schedule, index, gpu)
            _verdicts[kernels, gpu] = verdict
            if not verdict:
                log.warning("kernels are off: %s", verdict)
    return verdict


def forget() -> None:
    """Ask again (tests)."""
    with _lock:
        _verdicts.clear()


def _stored_or_tested(
    kernels: KernelClass,
    problem: GemmProblem,
    schedule: GemmSchedule,
    index: int,
    gpu: str,
) -> Status:
    try:
        folder = KernelCache().private_folder(VERDICTS)
    except CacheError as error:
        return Status.no(f"{kernels}: self-test: {error}")
    path = folder / _verdict_name(kernels, gpu)
    stored = _read(path)
    if stored is not None:
        return stored
    request = self_test_request(problem, schedule, kernels.arch, index)
    with phases.span("self-test", str(kernels)):
        verdict = run_self_test(kernels, request)
    _write(path, kernels, gpu, verdict)
    return verdict


def self_test_request(
    problem: GemmProblem, schedule: GemmSchedule, arch: str, index: int
) -> dict[str, Any]:
    """What the child needs to build the same kind of kernel, as JSON."""
    return {
        "arch": arch,
        "device": index,
        "problem": problem.to_json(),
        "schedule": schedule.to_json(),
    }


def run_self_test(
    kernels: KernelClass, request: dict[str, Any], child: str = _CHILD
) -> Status:
    """Run the self-test in a child: ok, or why not. Never raises on a bad kernel."""
    from torch_cute_backend.runtime import selftest

    limit = config.get().self_test_timeout_s
    try:
        # Compiled before the clock starts: the limit is for a kernel that hangs.
        selftest.prepare(request)
        process = WorkerProcess(child, gpu=True)
        try:
            reply = process.call(request, limit)
        finally:
            process.kill()
    except CuteBackendError as error:
        return Status.no(f"{kernels}: self-test: {error}")
    if reply.get("ok"):
        return Status.ok()
    return Status.no(f"{kernels}: self-test: {reply.get('error', 'no verdict')}")


def _verdict_name(kernels: KernelClass, gpu: str) -> str:
    what = [asdict(kernels), gpu, __version__, toolchain.dsl_version(), _code_digest()]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32] + ".json"


@functools.cache
def _code_digest() -> str:
    """Digest of the code that prints kernels: a change to it asks for a new test."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in ("codegen", "epilogue", "ir", "passes", "schedulers", "templates"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Status | None:
    try:
        row = json.loads(path.read_text())
        return Status(tuple(str(r) for r in row["reasons"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("ignoring the self-test verdict %s: %s", path, error)
        return None


def _write(path: Path, kernels: KernelClass, gpu: str, verdict: Status) -> None:
    row = {"kernels": asdict(kernels), "gpu": gpu, "reasons": list(verdict.reasons)}
    try:
        partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.partial")
        partial.write_text(json.dumps(row, indent=1))
        partial.rename(path)
    except OSError as error:
        log.warning("cannot keep the self-test verdict %s: %s", path, error)
