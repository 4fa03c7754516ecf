"""Time to the first result of a compiled GEMM, each in a fresh process.

Ways: ours with ATen's choices, stock torch.compile, stock with our choices, and ours
taken from the table untimed. Each runs twice on one set of cache folders: cold, then
warm. As a module it is the process that measures; it prints one JSON line. A row says
where the time went: ``phases`` are ours, ``inductor`` are torch's own counters, which
nest.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend import config, phases
from torch_cute_backend.bench.protocol import Timing
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Deadline

SUITE = "pick-time"
SHAPES = ((16, 4096, 4096), (64, 5120, 5120), (48, 4608, 3584))
"""Two that the table settles, which are offered one kernel, and one of no table."""
TIMEOUT_S = 240.0
_CALLS = 200
_SHOWN_S = 0.01
"""Spans and counters shorter than this are in no row."""


@dataclass(frozen=True)
class Way:
    """How Inductor chooses: are we on, and which other choices does it time?"""

    provider: str
    enabled: bool
    backends: str | None = None
    decide: bool = False


WAYS = (
    Way(OURS, True, "ATEN,TORCH_CUTE"),
    Way(f"{OURS}-decide", True, "ATEN,TORCH_CUTE", decide=True),
    Way("stock", False),
    Way(f"stock+{OURS}", True),
)


@dataclass(frozen=True)
class Options:
    """``kernels``: a folder of compiled kernels to start from, instead of none."""

    out: Path
    budget_s: float | None = None
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    kernels: Path | None = None
    ways: tuple[str, ...] = tuple(way.provider for way in WAYS)


def run(options: Options, say: Callable[[str], None] = print) -> int:
    """Measure all ways; returns how many rows were appended to ``options.out``."""
    deadline = Deadline(options.budget_s)
    written = 0
    for shape in options.shapes:
        for way in WAYS:
            if way.provider not in options.ways:
                continue
            with tempfile.TemporaryDirectory() as folder:
                environ = child_environ(way, Path(folder), options.kernels)
                for protocol in ("first-call-cold", "first-call-warm"):
                    if deadline.passed:
                        say("pick-time: out of time")
                        return written
                    name = f"pick-time {'x'.join(map(str, shape))} {way.provider}"
                    reply = _child(shape, environ, deadline)
                    if "error" in reply:
                        say(f"{name} {protocol}: FAILED {reply['error'][-300:]}")
                        break
                    reply["precompiled"] = options.kernels is not None
                    written += _record(options.out, shape, way, protocol, reply)
                    say(
                        f"{name} {protocol}: first call {reply['first_s']:.1f} s after "
                        f"{reply['import_s']:.1f} s of imports, {reply['kernels']}, "
                        f"host {reply['host_us'][0]:.1f} µs | {deadline}"
                    )
                    for line in timeline(reply):
                        say(f"    {line}")
    return written


def timeline(reply: dict[str, Any], most: int = 12) -> list[str]:
    """Our spans and Inductor's largest counters as lines for a person to read."""
    lines = [
        f"{begin:7.2f} s +{seconds:6.2f}  {name}: {detail}"
        for name, detail, begin, seconds in reply["phases"]
        if seconds >= _SHOWN_S
    ]
    counters = sorted(reply["inductor"].items(), key=lambda pair: -pair[1])[:most]
    lines += [f"          {s:7.2f}  torch: {name}" for name, s in counters]
    return lines


def child_environ(way: Way, folder: Path, kernels: Path | None) -> dict[str, str]:
    """Environment of a measuring process; every cache is under ``folder``."""
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    environ[config.PREFIX + "CACHE_DIR"] = str(kernels or folder / "kernels")
    environ[config.PREFIX + "ENABLED"] = "1" if way.enabled else "0"
    environ[config.PREFIX + "DECIDE_EARLY"] = "1" if way.decide else "0"
    if way.backends is not None:
        environ["TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"] = way.backends
    return environ


def _child(
    shape: tuple[int, int, int], environ: dict[str, str], deadline: Deadline
) -> dict[str, Any]:
    left = deadline.left
    command = [sys.executable, "-m", __name__, *map(str, shape)]
    try:
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S if left is None else min(TIMEOUT_S, left + 1.0),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return {"error": f"timed out after {error.timeout:.0f} s"}
    if done.returncode:
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()}"}
    reply: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return reply


def _record(
    out: Path,
    shape: tuple[int, int, int],
    way: Way,
    protocol: str,
    reply: dict[str, Any],
) -> int:
    """One row for the first call, in µs, and one for the host time of a later call."""
    from torch_cute_backend.bench import results
    from torch_cute_backend.bench.cases import Case

    problem = Case(SUITE, "fp8", shape).problem()
    m, n, k = shape
    environment = results.Environment(**reply["environment"])
    first = reply["first_s"] * 1e6
    timings = {
        protocol: Timing(first, first, first),
        protocol.replace("first-call", "compiled-call-host"): Timing(*reply["host_us"]),
    }
    where = {k: reply[k] for k in ("phases", "inductor")}
    rows = [
        results.row(
            environment,
            SUITE,
            {"m": m, "n": n, "k": k},
            problem.a_dtype.name,
            problem.scaling,
            problem.accum.value,
            way.provider,
            timing,
            name,
            import_s=reply["import_s"],
            kernels=reply["kernels"],
            cutlass_imported=reply["cutlass_imported"],
            precompiled=reply["precompiled"],
            **(where if name == protocol else {}),
        )
        for name, timing in timings.items()
    ]
    results.append(out, rows)
    return len(rows)


def measure(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Import, compile, run and check, in this process."""
    begin = time.perf_counter()
    torch = importlib.import_module("torch")
    if config.get().enabled:
        importlib.import_module("torch_cute_backend").enable()
    importlib.import_module("torch._inductor.compile_fx")
    import_s = time.perf_counter() - begin

    from torch_cute_backend.bench import check, providers, results
    from torch_cute_backend.bench.cases import Case, make_inputs

    problem = Case(SUITE, "fp8", shape).problem()
    x = make_inputs(problem, 1)[0]
    want = check.reference(problem, x)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call = providers.compiled(problem)(x)
    call()
    torch.cuda.synchronize()
    first_s = time.perf_counter() - begin
    check.check(problem, x, call, want, "the compiled GEMM")
    return {
        "import_s": round(import_s, 3),
        "first_s": round(first_s, 3),
        "host_us": _host_us(call, torch.cuda.synchronize),
        "kernels": _kernels(torch, call),
        "phases": _phases(begin),
        "inductor": _counters(torch),
        "cutlass_imported": "cutlass" in sys.modules,
        "environment": vars(results.environment()),
    }


def _phases(begin: float) -> list[list[Any]]:
    """Our spans: name, detail, start after ``begin``, seconds."""
    return [
        [p.name, p.detail, round(p.begin - begin, 3), round(p.seconds, 3)]
        for p in phases.recorded()
    ]


def _counters(torch: Any) -> dict[str, float]:
    """torch's own compile-time counters, seconds by name."""
    metrics = torch._dynamo.utils.compilation_time_metrics
    found = {str(name): round(sum(times), 3) for name, times in metrics.items()}
    return {name: s for name, s in found.items() if s >= _SHOWN_S}


def _host_us(call: Callable[[], object], wait: Callable[[], object]) -> list[float]:
    """Host time of a compiled call: median, smallest, largest of batches."""
    samples = []
    for _ in range(10):
        wait()
        begin = time.perf_counter_ns()
        for _ in range(_CALLS // 10):
            call()
        samples.append((time.perf_counter_ns() - begin) / 1e3 / (_CALLS // 10))
    wait()
    return [statistics.median(samples), min(samples), max(samples)]


def _kernels(torch: Any, call: Callable[[], object]) -> list[str]:
    """Names of the GPU kernels of one call."""
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [event.key[:120] for event in profile.key_averages()]


def main() -> None:
    m, n, k = map(int, sys.argv[1:])
    print(json.dumps(measure((m, n, k))))


if __name__ == "__main__":
    main()
