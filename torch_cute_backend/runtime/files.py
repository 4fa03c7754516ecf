"""Reading and writing the cache's files: whole, synced, and with errors that name them.

What the system refuses to read is a ``CacheError``; what it refuses to write is left as
the ``OSError`` that it is, for the caller to say what was being written.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from torch_cute_backend.errors import CacheError


def is_folder(path: Path) -> bool:
    """Is there such a folder? ``CacheError`` if that may not even be asked."""
    try:
        return path.is_dir()
    except OSError as error:
        raise CacheError(f"cannot read cache folder: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CacheError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise CacheError(f"{path}: not a JSON object")
    return value


def digest(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CacheError(f"{path}: {error}") from error


def write(path: Path, data: bytes) -> None:
    """Make a file that must not be there yet, and flush it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
