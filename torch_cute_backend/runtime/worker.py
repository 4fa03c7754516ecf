"""The child process of :mod:`~torch_cute_backend.runtime.pool`: compile and store.

In: one JSON request a line on stdin. Out: one JSON reply a line on the file descriptor
that was stdout. Whatever the DSL prints goes to stderr. It ends with its stdin.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from torch_cute_backend.errors import CuteBackendError
from torch_cute_backend.runtime.cache import KernelCache, cache_key
from torch_cute_backend.runtime.compile import compile_kernel
from torch_cute_backend.runtime.serial import source_from_json


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Compile a request's source into its cache folder: its key, or an error."""
    try:
        source = source_from_json(request["source"])
        cache = KernelCache(Path(request["cache_dir"]))
        # Another process may have stored it since the request was queued.
        entry = cache.load(cache_key(source))
        if entry is None:
            entry = cache.store(compile_kernel(source, gate=request["gate"]))
    except CuteBackendError as error:
        return {"error": str(error)}
    return {"key": entry.key}


def private_stdout() -> TextIO:
    """Keep stdout for replies and send everything else printed there to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def main() -> None:
    replies = private_stdout()
    for line in sys.stdin:
        replies.write(json.dumps(handle(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
