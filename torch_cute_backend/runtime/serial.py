"""``KernelSource`` to and from JSON: for child processes and wrapper code.

JSON and not pickle, so that reading one can never run code.
"""

from __future__ import annotations

from typing import Any

from torch_cute_backend.codegen.source import KernelSource, TensorArg
from torch_cute_backend.dtypes import dtype
from torch_cute_backend.errors import CacheError


def source_to_json(source: KernelSource) -> dict[str, Any]:
    """A JSON object that :func:`source_from_json` reads back, equal in every field."""
    return {
        "name": source.name,
        "text": source.text,
        "entry": source.entry,
        "arch": source.arch,
        "args": [
            {
                "name": arg.name,
                "dtype": arg.dtype.name,
                "shape": list(arg.shape),
                "contiguous": arg.contiguous,
                "divisibility": arg.divisibility,
                "align_bytes": arg.align_bytes,
                "output": arg.output,
            }
            for arg in source.args
        ],
        "sha256": source.sha256,
    }


def source_from_json(row: dict[str, Any]) -> KernelSource:
    """Inverse of :func:`source_to_json`.

    Raises:
        CacheError: a field is missing or unknown, or the digest does not match.
    """
    try:
        args = tuple(
            TensorArg(
                **{**arg, "dtype": dtype(arg["dtype"]), "shape": tuple(arg["shape"])}
            )
            for arg in row["args"]
        )
        source = KernelSource(
            name=row["name"],
            text=row["text"],
            entry=row["entry"],
            arch=row["arch"],
            args=args,
        )
        expected = row["sha256"]
    except (KeyError, TypeError) as error:
        raise CacheError(f"malformed kernel source: {error!r}") from error
    if source.sha256 != expected:
        raise CacheError(f"kernel source {source.name!r} does not match its digest")
    return source
