"""Simulate in a child process: the DSL's runtime is chosen once per process.

``SimChild`` starts one child (cutlass imported once, kernels cached by digest) and
sends it any number of cases, one JSON line each; tensors travel as raw files that both
sides map, outputs come back in place. ``python -m torch_cute_backend.sim.child`` is the
child. JSON and raw bytes only, so a reply can never run code. Lines before the reply
tell how far a simulation is.

    with SimChild() as child:
        report = child.simulate(source, [a, b, d, scale_a, scale_b], num_ctas=4)
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import Fault
from .report import BadInput, Finding, SimError, SimReport, UnsupportedPtx

if TYPE_CHECKING:
    import torch

    from torch_cute_backend.codegen.source import KernelSource

_ERRORS = {kind.__name__: kind for kind in (SimError, UnsupportedPtx, BadInput)}
_PROGRESS_S = 0.1
"""Seconds between two lines of progress."""

Progress = Callable[[int, int], None]


def report_to_json(report: SimReport) -> dict[str, Any]:
    """A JSON object that ``report_from_json`` reads back (without the PTX text)."""
    row = {
        k: v for k, v in vars(report).items() if k not in ("ptx", "findings", "notes")
    }
    row["counts"] = {name: dict(c) for name, c in report.counts.items()}
    row["findings"] = [asdict(f) for f in report.findings]
    row["notes"] = [asdict(f) for f in report.notes]
    return row


def report_from_json(row: Mapping[str, Any], ptx: str = "") -> SimReport:
    """Inverse of ``report_to_json``."""
    fields = dict(row)
    for name in ("findings", "notes"):
        fields[name] = tuple(Finding(**f) for f in fields[name])
    for name in ("grid", "cluster"):
        fields[name] = tuple(fields[name])
    return SimReport(**fields, ptx=ptx)


class SimChild:
    """A child process that simulates; use as a context manager."""

    def __init__(self, timeout_s: float = 600.0) -> None:
        self.timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(
            prefix="cute_sim_child_", dir=_fast_folder()
        )
        self._errors = open(Path(self._folder.name) / "stderr", "w+")  # noqa: SIM115
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        environment.pop("CUTE_DSL_LIBS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torch_cute_backend.sim.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        self._unread = b""

    def __enter__(self) -> SimChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def alive(self) -> bool:
        """Can it take another case?"""
        return self._process.poll() is None

    def close(self) -> None:
        """End the child and remove the exchanged files."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._folder.cleanup()

    def simulate(
        self,
        source: KernelSource,
        tensors: Sequence[torch.Tensor],
        *,
        num_ctas: int = 4,
        mode: str = "lazy",
        checks: bool = True,
        trace: str | None = None,
        roles: Mapping[int, str] | None = None,
        keep_ptx: bool = False,
        faults: Sequence[Fault] = (),
        progress: Progress | None = None,
        ptx: str | None = None,
    ) -> SimReport:
        """As ``launch_source.simulate_source``, in the child; outputs are written in
        place.
        """
        from torch_cute_backend.runtime.serial import source_to_json

        request = {
            "source": source_to_json(source),
            "num_ctas": num_ctas,
            "mode": mode,
            "checks": checks,
            "trace": trace,
            "roles": {str(k): v for k, v in (roles or {}).items()},
            "keep_ptx": keep_ptx,
            "faults": [asdict(f) for f in faults],
            "progress": progress is not None,
            "ptx": ptx,
            "tensors": [self._send(i, tensor) for i, tensor in enumerate(tensors)],
        }
        reply = self._ask(request, progress)
        for index, (tensor, arg) in enumerate(zip(tensors, source.args, strict=True)):
            if arg.output:
                self._receive(index, tensor)
        return report_from_json(reply["report"], reply.get("ptx", ""))

    def _ask(
        self, request: dict[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        deadline = time.monotonic() + self.timeout_s
        while True:
            reply: dict[str, Any] = json.loads(self._read_line(deadline))
            if "done" not in reply:
                break
            if progress is not None:
                progress(reply["done"], reply["total"])
        if "error" in reply:
            kind = _ERRORS.get(reply["kind"], SimError)
            prefix = "" if reply["kind"] in _ERRORS else f"{reply['kind']}: "
            raise kind(prefix + reply["error"])
        return reply

    def _read_line(self, deadline: float) -> bytes:
        """The child's next line; ``SimError`` if it died or is too late."""
        stdout = self._process.stdout
        assert stdout is not None
        # Not select(), which refuses descriptors from 1024 on.
        waiter = select.poll()
        waiter.register(stdout, select.POLLIN)
        while b"\n" not in self._unread:
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            if not waiter.poll(left_ms):
                self._process.kill()
                raise SimError(
                    f"the simulation took longer than {self.timeout_s:.0f} s"
                )
            chunk = os.read(stdout.fileno(), 1 << 16)
            if not chunk:
                raise self._died()
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _died(self) -> SimError:
        self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read()[-2000:]
        return SimError(
            f"the simulator process ended with {self._process.returncode}:\n{tail}"
        )

    def _path(self, index: int) -> Path:
        return Path(self._folder.name) / f"tensor{index}.raw"

    def _send(self, index: int, tensor: torch.Tensor) -> dict[str, Any]:
        """Write a tensor's span (padding included) to a file."""
        import torch

        if tensor.device.type != "cpu":
            raise BadInput(
                f"tensor {index}: the simulator needs CPU tensors, got {tensor.device}"
            )
        raw = _span(tensor)
        # The file starts with as many bytes as the address is off a 256-byte boundary,
        # so that the child sees the same alignment.
        lead = tensor.data_ptr() % 256
        with open(self._path(index), "wb") as file:
            file.write(bytes(lead))
            file.write(raw.numpy().tobytes())
        assert isinstance(tensor, torch.Tensor)
        return {
            "path": str(self._path(index)),
            "lead": lead,
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }

    def _receive(self, index: int, tensor: torch.Tensor) -> None:
        import torch

        data = np.fromfile(self._path(index), np.uint8)[tensor.data_ptr() % 256 :]
        _span(tensor).copy_(torch.from_numpy(data))


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes from a tensor's first to behind its last element, as a uint8 view."""
    import torch

    reach = (
        sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    )
    flat = torch.as_strided(tensor.detach(), (reach if tensor.numel() else 0,), (1,))
    return flat.view(torch.uint8)


def _map(row: Mapping[str, Any]) -> torch.Tensor:
    """The child's view of a sent tensor; writes go to the file."""
    import torch

    dtype = getattr(torch, row["dtype"])
    raw = torch.from_numpy(np.memmap(row["path"], np.uint8, "r+"))[row["lead"] :]
    return torch.as_strided(raw.view(dtype), row["shape"], row["stride"])


def _throttled(write: Callable[[dict[str, Any]], None]) -> Progress:
    """Progress as lines: the last one always, others not more often than needed."""
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last > _PROGRESS_S:
            last = now
            write({"done": done, "total": total})

    return tell


def _handle(
    request: Mapping[str, Any], write: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    from torch_cute_backend.runtime.serial import source_from_json

    from .launch_source import simulate_source

    report = simulate_source(
        source_from_json(request["source"]),
        [_map(row) for row in request["tensors"]],
        num_ctas=request["num_ctas"],
        mode=request["mode"],
        checks=request["checks"],
        trace=request["trace"],
        roles={int(k): v for k, v in request["roles"].items()},
        faults=[Fault(**row) for row in request["faults"]],
        progress=_throttled(write) if request["progress"] else None,
        ptx=request["ptx"],
    )
    reply: dict[str, Any] = {"report": report_to_json(report)}
    if request["keep_ptx"]:
        reply["ptx"] = report.ptx
    return reply


def main() -> None:
    """Serve requests until stdin ends. What the DSL prints goes to stderr."""
    from torch_cute_backend.errors import CuteBackendError

    from . import launch

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    launch.prepare()
    for line in sys.stdin:
        try:
            reply = _handle(json.loads(line), write)
        except CuteBackendError as error:
            reply = {"error": str(error), "kind": type(error).__name__}
        write(reply)


if __name__ == "__main__":
    main()
