"""Host time of a launch: ours over a bare ``cuLaunchKernelEx``, and what it allocates.

As a module it is the child process that measures: a shape in, medians out. Batches of
100 calls with a synchronisation between them, so that the launch queue never fills;
the contestants take turns.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torch_cute_backend.bench import check, providers, results
from torch_cute_backend.bench.cases import Case, Shape, make_inputs
from torch_cute_backend.bench.protocol import Timing
from torch_cute_backend.errors import CompileError, CuteBackendError, UserError
from torch_cute_backend.runtime import device, toolchain
from torch_cute_backend.runtime.pool import WorkerProcess
from torch_cute_backend.runtime.worker import private_stdout
from torch_cute_backend.status import Status
from torch_cute_backend.tuning.lookup import choose

SUITE = "host"
PROTOCOL = "host-enqueue"
SHAPE: Shape = (64, 5120, 5120)
BATCH = 100
BATCHES = 10
TIMEOUT_S = 120.0

# The kernel does nothing, but takes as many parameter bytes as ours: tensor maps.
_PTX = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry empty(.param .align 64 .b8 parameters[512]) { ret; }
"""
_C = """\
#include <cuda.h>
#include <time.h>
typedef CUresult (*launch_t)(const CUlaunchConfig *, CUfunction, void **, void **);
double launch_us(void *launch, void *function, void *stream, unsigned ctas, int count)
{
    static char parameters[512];
    void *arguments[1] = {parameters};
    CUlaunchConfig config = {0};
    config.gridDimX = ctas, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 256, config.blockDimY = config.blockDimZ = 1;
    config.hStream = (CUstream)stream;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; i++)
        if (((launch_t)launch)(&config, (CUfunction)function, arguments, 0))
            return -1.0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
    return ns / 1e3 / count;
}
"""

Batch = Callable[[int], float]
"""Enqueue so many calls; µs a call."""


def _headers() -> Path:
    """Folder of cuda.h: triton's copy, or the toolkit's."""
    spec = importlib.util.find_spec("triton")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    places = [Path(r) / "backends" / "nvidia" / "include" for r in roots]
    for place in [*places, Path("/usr/local/cuda/include")]:
        if (place / "cuda.h").is_file():
            return place
    raise UserError("no cuda.h: install triton or the CUDA toolkit")


@contextmanager
def bare_launches(ctas: int) -> Iterator[Batch]:
    """A C loop around ``cuLaunchKernelEx`` of an empty kernel."""
    linker = toolchain.linker()
    if linker is None:
        raise UserError("no C compiler for the bare launch loop")
    driver = ctypes.CDLL("libcuda.so.1")
    with tempfile.TemporaryDirectory() as folder:
        source, shared = Path(folder) / "bare.c", Path(folder) / "bare.so"
        source.write_text(_C)
        subprocess.run(
            [
                linker,
                "-O2",
                "-shared",
                "-fPIC",
                f"-I{_headers()}",
                source,
                "-o",
                shared,
            ],
            check=True,
        )
        run = ctypes.CDLL(str(shared)).launch_us
        run.restype = ctypes.c_double
        run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint, ctypes.c_int]
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _driver_ok(driver.cuModuleLoadData(ctypes.byref(module), _PTX.encode()))
        _driver_ok(driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty"))
        entry = ctypes.cast(driver.cuLaunchKernelEx, ctypes.c_void_p)
        stream = torch.cuda.current_stream().cuda_stream

        def batch(count: int) -> float:
            us = float(run(entry, function, stream, ctas, count))
            if us < 0:
                raise UserError("cuLaunchKernelEx failed")
            return us

        yield batch
        torch.cuda.synchronize()
        _driver_ok(driver.cuModuleUnload(module))


def _driver_ok(code: int) -> None:
    if code:
        raise UserError(f"the CUDA driver returned error {code}")


def python_batch(function: Callable[..., Any], *args: Any) -> Batch:
    """A Python loop of ``function(*args)``, as generated code calls it."""

    def batch(count: int) -> float:
        begin = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            function(*args)
        return (time.perf_counter_ns() - begin) / 1e3 / count

    return batch


def in_turns(contestants: dict[str, Batch]) -> dict[str, Timing]:
    """Median, smallest and largest batch mean of each."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for batch in contestants.values():
        batch(BATCH)
    for _ in range(BATCHES):
        for name, batch in contestants.items():
            torch.cuda.synchronize()
            samples[name].append(batch(BATCH))
    torch.cuda.synchronize()
    return {n: Timing(statistics.median(s), min(s), max(s)) for n, s in samples.items()}


def _allocations(batch: Batch, count: int) -> dict[str, int]:
    """Allocator calls and device bytes that ``count`` launches take."""
    torch.cuda.synchronize()
    key = "allocation.all.allocated"
    calls, free = torch.cuda.memory_stats().get(key, 0), torch.cuda.mem_get_info()[0]
    batch(count)
    torch.cuda.synchronize()
    return {
        "allocations": torch.cuda.memory_stats().get(key, 0) - calls,
        "device_bytes": free - torch.cuda.mem_get_info()[0],
    }


def measure(shape: Shape) -> dict[str, Any]:
    """Everything, in this process."""
    case = Case(SUITE, "fp8", shape)
    problem = case.problem()
    arch = device.default_arch()
    if arch is None:
        raise UserError("no supported GPU")
    choice = choose(problem, arch)
    if isinstance(choice, Status):
        raise UserError(str(choice))
    sets = make_inputs(problem, 1)
    x = sets[0]
    request = providers.Request(problem, arch, sets, choice.schedule)
    ours, aten = providers.ours(request), providers.aten(request)
    check.check(problem, x, ours.calls[0], check.reference(problem, x), results.OURS)
    kernel, _ = providers.kernel_for(problem, choice.schedule, arch)
    sms = device.sm_count(torch.cuda.current_device())
    launch_ours = python_batch(kernel, x.a, x.b, x.out, *x.scales, sms)
    with bare_launches(sms) as bare:
        contestants = {
            "cuLaunchKernelEx": bare,
            results.OURS: launch_ours,
            "aten": python_batch(aten.calls[0]),
        }
        timings = in_turns(contestants)
    return {
        "environment": vars(results.environment()),
        "us": {n: [t.us, t.us_min, t.us_max] for n, t in timings.items()},
        "kernel": ours.kernel,
        "schedule": choice.schedule.to_json(),
        "source": choice.source,
        **_allocations(launch_ours, BATCH * BATCHES),
    }


def rows(reply: dict[str, Any], shape: Shape) -> list[dict[str, Any]]:
    """Result rows of a child's reply; ours says what it allocated."""
    problem = Case(SUITE, "fp8", shape).problem()
    m, n, k = shape
    made = []
    for provider, us in reply["us"].items():
        names = ("kernel", "schedule", "source", "allocations", "device_bytes")
        extra = {x: reply[x] for x in names} if provider == results.OURS else {}
        made.append(
            results.row(
                results.Environment(**reply["environment"]),
                SUITE,
                {"m": m, "n": n, "k": k},
                problem.a_dtype.name,
                problem.scaling,
                problem.accum.value,
                provider,
                Timing(*us),
                PROTOCOL,
                **extra,
            )
        )
    return made


def run(
    out: Path, say: Callable[[str], None] = print, shape: Shape = SHAPE
) -> dict[str, Any]:
    """Measure in a child process and append rows to ``out``; returns the reply.

    Raises:
        UserError: the child failed; the message says why.
    """
    child = WorkerProcess(__name__, gpu=True)
    try:
        reply = child.call({"shape": list(shape)}, TIMEOUT_S)
    except CompileError as error:
        raise UserError(f"host suite: {error}") from error
    finally:
        child.kill()
    if "error" in reply:
        raise UserError(f"host suite: {reply['error']}")
    results.append(out, rows(reply, shape))
    us = {name: value[0] for name, value in reply["us"].items()}
    over = us[results.OURS] - us["cuLaunchKernelEx"]
    listed = ", ".join(f"{name} {value:.2f}" for name, value in us.items())
    say(
        f"host: {listed} µs a call; ours over bare {over:.2f} µs, "
        f"{reply['allocations']} allocations and {reply['device_bytes']} bytes in "
        f"{BATCH * BATCHES} calls"
    )
    return reply


def main() -> None:
    replies = private_stdout()
    for line in sys.stdin:
        m, n, k = json.loads(line)["shape"]
        try:
            reply = measure((m, n, k))
        except (CuteBackendError, ValueError) as error:
            reply = {"error": str(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
