"""The child process of :mod:`~torch_cute_backend.runtime.pool`: compile and store.

In: one JSON request a line on stdin. Out: one JSON reply a line on the file descriptor
that was stdout. Whatever the DSL prints goes to stderr. It ends with its stdin. The DSL
is imported at once, before any request: whoever starts this process early hides that.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from torch_cute_backend.errors import CompileError, CuteBackendError
from torch_cute_backend.runtime.cache import KernelCache, cache_key
from torch_cute_backend.runtime.compile import compile_kernel, import_compiler
from torch_cute_backend.runtime.serial import source_from_json


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Compile a request's source into its cache folder: its key and the seconds that
    the compiler took (0 if another process did it), or an error. A request for
    ``"ready"`` only waits for the compiler's import."""
    if request.get("ready"):
        return {}
    seconds = 0.0
    try:
        source = source_from_json(request["source"])
        cache = KernelCache(Path(request["cache_dir"]))
        # Another process may have stored it since the request was queued.
        entry = cache.load(cache_key(source))
        if entry is None:
            compiled = compile_kernel(source, gate=request["gate"])
            seconds = compiled.seconds
            entry = cache.store(compiled)
    except CuteBackendError as error:
        return {"error": str(error)}
    return {"key": entry.key, "seconds": round(seconds, 3)}


def private_stdout() -> TextIO:
    """Keep stdout for replies and send everything else printed there to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def without_torch() -> None:
    """``import torch`` fails from here on: tvm-ffi would import it to convert tensors,
    of which a compilation has none. It is two thirds of this process's start."""
    sys.modules["torch"] = None  # type: ignore[assignment]


def main() -> None:
    replies = private_stdout()
    without_torch()
    # A DSL that is missing is the error of each request, which says so.
    with contextlib.suppress(CompileError):
        import_compiler()
    for line in sys.stdin:
        replies.write(json.dumps(handle(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
