"""``cache``: list, clear or verify the on-disk cache of compiled kernels."""

from __future__ import annotations

import argparse

from torch_cute_backend.runtime.cache import KernelCache


def run(args: argparse.Namespace) -> int:
    cache = KernelCache()
    if args.action == "clear":
        print(f"{cache.clear()} entries deleted from {cache.root}")
        return 0
    if args.action == "verify":
        return _verify(cache)
    count = size = 0
    for entry in cache.entries():
        print(f"{entry.key[:16]}  {entry.arch:8}  {entry.created}  {entry.name}")
        count, size = count + 1, size + entry.size_bytes
    print(f"{count} entries, {size / 1024:.0f} KiB, in {cache.root}")
    return 0


def _verify(cache: KernelCache) -> int:
    problems = cache.verify()
    for problem in problems.values():
        print(f"corrupt: {problem}")
    intact = sum(1 for _ in cache.entries()) if not problems else None
    if intact is not None:
        print(f"{intact} entries intact in {cache.root}")
        return 0
    print(f"{len(problems)} corrupt entries in {cache.root}; they are never served")
    return 1
