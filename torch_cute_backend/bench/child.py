"""The child process that runs kernels: one JSON request a line in, one reply out.

It holds one case at a time: input sets, the fp32 reference, and a captured graph for
each entry. An entry is checked before it is captured, and its launches are counted. A
kernel that crashes or hangs takes this process with it and nothing else; ``session``
restarts it.

Requests, by ``op``:

* ``environment``: facts for result rows.
* ``open``: kind, shape, accum, cold: make inputs. Drops the previous case.
* ``add``: name, provider, accum, schedule, cached_only: build, check, capture.
* ``time``: names, rounds: replay them in turns.
* ``sweep``: schedule, accum, shapes: exact small-integer products, any open case.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_cute_backend import config
from torch_cute_backend.arch import ArchSpec
from torch_cute_backend.bench import check, protocol, providers, results
from torch_cute_backend.bench.cases import Case, Inputs, bytes_per_set, make_inputs
from torch_cute_backend.errors import CuteBackendError, UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.runtime import device, launch
from torch_cute_backend.runtime.worker import private_stdout
from torch_cute_backend.schedule import GemmSchedule


@dataclass
class State:
    """The open case."""

    case: Case
    arch: ArchSpec
    sets: list[Inputs]
    want: torch.Tensor
    graphs: dict[str, protocol.Captured] = field(default_factory=dict)
    kept: list[providers.Prepared] = field(default_factory=list)
    """Graphs refer to their tensors; these own them."""


_open: list[State] = []


def _state() -> State:
    if not _open:
        raise UserError("no case is open")
    return _open[0]


def _arch() -> ArchSpec:
    arch = device.default_arch()
    if arch is None:
        raise UserError("no supported GPU")
    return arch


def open_case(request: dict[str, Any]) -> dict[str, Any]:
    m, n, k = request["shape"]
    case = Case(request["suite"], request["kind"], (m, n, k))
    _open.clear()
    torch.cuda.empty_cache()
    problem = case.problem()
    count = protocol.input_sets(
        bytes_per_set(problem), torch.device("cuda"), request["cold"]
    )
    sets = make_inputs(problem, count, skewed=case.is_skewed)
    _open.append(State(case, _arch(), sets, check.reference(problem, sets[0])))
    return {"sets": count}


def add(request: dict[str, Any]) -> dict[str, Any]:
    state = _state()
    started = time.perf_counter()
    accum = Accum(request["accum"])
    problem = state.case.problem(accum)
    schedule = request.get("schedule")
    prepared = providers.provider(request["provider"])(
        providers.Request(
            problem=problem,
            arch=state.arch,
            sets=state.sets,
            schedule=GemmSchedule.from_json(schedule) if schedule else None,
            cached_only=bool(request.get("cached_only")),
        )
    )
    counted = request["provider"] == results.OURS
    launch.reset_launches()
    if prepared.gemm:
        name = request["name"]
        check.check(problem, state.sets[0], prepared.calls[0], state.want, name)
    wrong = prepared.verify()
    if wrong is not None:
        raise ValueError(f"{request['name']}: {wrong}")
    if counted:
        _ran_once(prepared)
    captured = protocol.capture(prepared.calls)
    # Faults show here, not while several kernels are timed together.
    captured[0].replay()
    torch.cuda.synchronize()
    state.graphs[request["name"]] = captured
    state.kept.append(prepared)
    return {
        "kernel": prepared.kernel,
        "extra": prepared.extra,
        "seconds": time.perf_counter() - started,
    }


def _ran_once(prepared: providers.Prepared) -> None:
    """The launch counter must have seen exactly the checked call, by name."""
    ran = launch.launches()
    if prepared.kernel is None or list(ran.values()) != [1]:
        raise ValueError(f"expected one launch of {prepared.kernel}, counted {ran}")


def time_entries(request: dict[str, Any]) -> dict[str, Any]:
    state = _state()
    graphs = {name: state.graphs[name] for name in request["names"]}
    timings = protocol.time_graphs(graphs, request["rounds"])
    return {"us": {n: [t.us, t.us_min, t.us_max] for n, t in timings.items()}}


def drop(request: dict[str, Any]) -> dict[str, Any]:
    state = _state()
    for name in request["names"]:
        state.graphs.pop(name, None)
    return {}


def sweep(request: dict[str, Any]) -> dict[str, Any]:
    schedule = GemmSchedule.from_json(request["schedule"])
    case = Case("sweep", request["kind"], (128, 128, 128))
    problem = case.problem(Accum(request["accum"]))
    kernel, name = providers.kernel_for(
        problem, schedule, _arch(), bool(request.get("cached_only"))
    )
    shapes = [(m, n, k) for m, n, k in request["shapes"]]
    ctas = request.get("num_ctas") or device.resident_ctas(
        torch.cuda.current_device(), schedule.cluster_size
    )

    def run(*tensors: torch.Tensor) -> None:
        kernel(*tensors, ctas)

    right, wrong = check.sweep_exact(problem, shapes, run)
    return {"kernel": name, "right": right, "wrong": wrong}


def environment(request: dict[str, Any]) -> dict[str, Any]:
    _ = request
    arch = _arch()
    return {"environment": vars(results.environment()), "arch": arch.name}


OPS = {
    "environment": environment,
    "open": open_case,
    "add": add,
    "time": time_entries,
    "drop": drop,
    "sweep": sweep,
}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """One reply. What a kernel or peer does wrong is an ``error``; anything else ends
    this process, and its last words are the error."""
    try:
        return OPS[request["op"]](request)
    except (CuteBackendError, ValueError) as error:
        return {"error": str(error)}


def main() -> None:
    replies = private_stdout()
    config.update(count_launches=True)
    for line in sys.stdin:
        replies.write(json.dumps(handle(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
