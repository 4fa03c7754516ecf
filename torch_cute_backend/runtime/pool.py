"""Compile kernels in killable child processes; each job is a ``Future[CacheEntry]``.

A child is started on first use or ahead of it (:meth:`CompilePool.warm`), kept for
later jobs, and killed with its process group when a job outlasts its time limit.
Inductor's precompilation and the launcher both come here, so that a compiler that hangs
or crashes takes nothing with it, and importing cutlass (seconds) does not happen in the
user's process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch_cute_backend import config, phases
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.errors import CompileError
from torch_cute_backend.runtime import serial, toolchain
from torch_cute_backend.runtime.cache import CacheEntry, KernelCache, cache_key
from torch_cute_backend.status import Status

log = logging.getLogger(__name__)

_CHILD = "torch_cute_backend.runtime.worker"
_LOG_TAIL_BYTES = 1 << 16
_WORDS = 1500
"""Characters of a dead child's log that go into the error."""


class WorkerProcess:
    """One child process. Not thread-safe: one job at a time."""

    def __init__(self, module: str = _CHILD, *, gpu: bool = False) -> None:
        """Start it. ``CompileError`` where the system refuses: a limit on processes or
        memory, no folder for temporary files, no Python to run."""
        # An embedded interpreter may know of no executable.
        command = [sys.executable or "python", "-X", "faulthandler", "-m", module]
        try:
            # A plain file: a pipe that nobody reads would block a chatty child.
            self._log = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=child_environ(gpu=gpu),
                start_new_session=True,
            )
        except OSError as error:
            raise CompileError(f"cannot start a child process: {error}") from error

    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            CompileError: no reply in time (the child is killed), or the child died.
        """
        stdin = self._process.stdin
        if stdin is None:
            raise CompileError("the compiler process has no stdin")
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = self._read_line(time.monotonic() + timeout_s)
        except BrokenPipeError as error:
            raise CompileError(self._last_words()) from error
        if line is None:
            self.kill()
            raise CompileError(f"timed out after {timeout_s:g} s and was killed")
        if not line:
            raise CompileError(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _read_line(self, deadline: float) -> bytes | None:
        """A line; None at the deadline; empty if the child closed its end."""
        stdout = self._process.stdout
        if stdout is None:
            return b""
        line = b""
        # Not select(), which refuses descriptors from 1024 on.
        waiter = select.poll()
        waiter.register(stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            if not waiter.poll(left_ms):
                return None
            chunk = os.read(stdout.fileno(), 1 << 16)
            if not chunk:
                return b""
            line += chunk
            if time.monotonic() > deadline:
                return None
        return line

    def _last_words(self) -> str:
        self.kill()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL_BYTES))
        words = self._log.read().decode(errors="replace").strip()
        crash = words.find("Fatal Python error")
        words = words[crash:][:_WORDS] if crash >= 0 else words[-_WORDS:]
        return f"the child process died ({self._process.returncode}): {words}"

    def kill(self) -> None:
        """End the child and what it started. Safe to repeat."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def child_environ(*, gpu: bool = False) -> dict[str, str]:
    """Environment of a child: same modules, no Inductor plugin, a GPU on request."""
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    if not gpu:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    environ[config.PREFIX + "ENABLED"] = "0"
    environ[config.PREFIX + "CACHE_DIR"] = str(config.get().cache_dir)
    return environ


class CompilePool:
    """Up to ``workers`` children; equal jobs in flight share one future."""

    def __init__(
        self,
        workers: int | None = None,
        timeout_s: float | None = None,
        cache: KernelCache | None = None,
    ) -> None:
        settings = config.get()
        self._timeout_s = timeout_s or settings.compile_timeout_s
        self._cache = cache if cache is not None else KernelCache()
        self._workers = workers or settings.compile_workers
        self._threads = ThreadPoolExecutor(
            self._workers, thread_name_prefix="cute-compile"
        )
        self._local = threading.local()
        self._lock = threading.Lock()
        self._children: list[WorkerProcess] = []
        self._running: dict[tuple[str, bool], Future[CacheEntry]] = {}
        self._warmed = 0

    def warm(self, children: int) -> None:
        """Start up to so many children, which import the compiler at once; returns
        without waiting for them. Safe to repeat: it only makes up the difference."""
        with self._lock:
            missing = min(children, self._workers) - self._warmed
            self._warmed += max(0, missing)
        for _ in range(missing):
            self._threads.submit(self._warm_child)

    def _warm_child(self) -> None:
        """A job that ends when this thread's child can compile."""
        with phases.span("compiler start"):
            try:
                self._child().call({"ready": True}, self._timeout_s)
            except CompileError as error:
                # The first real job says it again, to somebody who asked for it.
                log.info("no compiler process: %s", error)

    def submit(self, source: KernelSource, *, gate: bool = True) -> Future[CacheEntry]:
        """Compile unless cached. The future raises ``CompileError`` or ``CacheError``.

        Args:
            gate: refuse a kernel that fails the build gate (spills, ignored
                ``setmaxnreg``), also a cached one.
        """
        try:
            key = cache_key(source)
        except CompileError as error:
            failed: Future[CacheEntry] = Future()
            failed.set_exception(error)
            return failed
        with self._lock:
            future = self._running.get((key, gate))
            if future is None:
                future = self._start(source, key)
                if gate:
                    future = _gated(future, source)
                    self._keep(future, key, gate)
        return future

    def _start(self, source: KernelSource, key: str) -> Future[CacheEntry]:
        """The job without a gate, which those with one share. The lock is held."""
        future = self._running.get((key, False))
        if future is None:
            future = self._threads.submit(self._job, source, key)
            self._keep(future, key, False)
        return future

    def _keep(self, future: Future[CacheEntry], key: str, gate: bool) -> None:
        """Share ``future`` until it is done."""
        self._running[key, gate] = future
        future.add_done_callback(lambda _: self._running.pop((key, gate), None))

    def _job(self, source: KernelSource, key: str) -> CacheEntry:
        return self._cache.load(key) or self._compile(source, key)

    def _compile(self, source: KernelSource, key: str) -> CacheEntry:
        # Seconds earlier than the child would find out.
        self._cache.private_folder("entries")
        # Ungated: a refusal is stored too, and need not be found out again.
        request = {
            "source": serial.source_to_json(source),
            "cache_dir": str(self._cache.root),
            "gate": False,
        }
        begin = time.perf_counter()
        try:
            reply = self._child().call(request, self._timeout_s)
        except CompileError as error:
            raise CompileError(f"{source.name} ({source.arch}): {error}") from error
        compiler_s = reply.get("seconds", 0.0)
        phases.record("compile", f"{source.name}, {compiler_s:.2f} s in it", begin)
        if "error" in reply:
            raise CompileError(reply["error"])
        entry = self._cache.load(key)
        if entry is None:
            raise CompileError(
                f"{source.name}: compiled, but cache entry {key} is gone"
            )
        return entry

    def _child(self) -> WorkerProcess:
        """This thread's child, started or restarted as needed."""
        child: WorkerProcess | None = getattr(self._local, "child", None)
        if child is None or not child.alive():
            child = WorkerProcess()
            self._local.child = child
            with self._lock:
                self._children = [c for c in self._children if c.alive()] + [child]
        return child

    def close(self) -> None:
        """Drop waiting jobs and kill the children."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            children, self._children = self._children, []
        for child in children:
            child.kill()


def _gated(job: Future[CacheEntry], source: KernelSource) -> Future[CacheEntry]:
    """``job``, failing where its kernel fails the build gate."""
    gated: Future[CacheEntry] = Future()

    def pass_on(done: Future[CacheEntry]) -> None:
        if done.cancelled():
            gated.cancel()
            return
        error = done.exception()
        if error is None and not done.result().gate:
            words = f"{source.name} ({source.arch}): {done.result().gate}"
            error = CompileError(words)
        if error is None:
            gated.set_result(done.result())
        else:
            gated.set_exception(error)

    job.add_done_callback(pass_on)
    return gated


_shared: dict[tuple[int, str], CompilePool] = {}
_shared_lock = threading.Lock()


def shared_pool() -> CompilePool:
    """The process's pool for the configured cache folder; a fork gets its own."""
    job = (os.getpid(), str(config.get().cache_dir))
    with _shared_lock:
        if job not in _shared:
            _shared[job] = CompilePool()
        return _shared[job]


@atexit.register
def _close_shared_pools() -> None:
    """Children of this process only: after a fork the parent's are not ours to end."""
    for (pid, _), pool in _shared.items():
        if pid == os.getpid():
            pool.close()


def can_compile() -> Status:
    """Is there a DSL to compile with, and a folder that kernels may be kept in?"""
    return toolchain.dsl_status() & KernelCache().usable()


def compile_isolated(
    source: KernelSource,
    *,
    timeout_s: float | None = None,
    gate: bool = True,
    cache: KernelCache | None = None,
) -> CacheEntry:
    """Compile in a child process of its own, into the cache.

    Raises:
        CompileError: refused, crashed, out of time (the child is killed), or the gate
            failed.
        CacheError: the cache folder is unusable.
    """
    pool = CompilePool(workers=1, timeout_s=timeout_s, cache=cache)
    try:
        return pool.submit(source, gate=gate).result()
    finally:
        pool.close()
