"""``KernelCache``: compiled kernels on disk, addressed by what they were made from.

In: ``CompiledKernel``. Out: ``CacheEntry``, verified. An entry is a folder named by its
key with the source, the object, a shared object where there is a linker, and a JSON
record. Entries are staged, synced and renamed into place, so a reader sees a whole
entry or none, whatever other processes do. A bad entry is named and never served.
Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend import config
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.errors import CacheError
from torch_cute_backend.runtime import files, serial, toolchain
from torch_cute_backend.runtime.compile import (
    CompiledKernel,
    Resources,
    compile_options,
)
from torch_cute_backend.status import Status
from torch_cute_backend.version import __version__

log = logging.getLogger(__name__)

FORMAT = 1
"""Layout of an entry; raise it when the meaning of a field changes."""
_RECORD, _SOURCE = "record.json", "kernel.json"
OBJECT, SHARED = "kernel.o", "kernel.so"
_TEXT, _CUBIN = "kernel.py", "kernel.cubin"
VERDICTS = "selftest"
"""Subfolder of self-test verdicts, see ``validated``."""
_LINK_TIMEOUT_S = 60


def cache_key(source: KernelSource) -> str:
    """Hex digest of everything that decides the object's bytes.

    Raises:
        CompileError: the DSL is not installed, so its version is unknown.
    """
    parts = [
        FORMAT,
        source.name,
        source.sha256,
        source.arch,
        toolchain.require_dsl(),
        compile_options(source),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True)
class CacheEntry:
    """A verified entry; see :class:`~.compile.CompiledKernel` for the fields.

    ``linked``: it has a shared object; it has none where no linker was found.
    """

    key: str
    folder: Path
    name: str
    symbol: str
    arch: str
    kernel: str
    source_sha256: str
    resources: Resources
    warnings: tuple[str, ...]
    gate: Status
    versions: dict[str, str]
    created: str
    seconds: float
    size_bytes: int
    linked: bool

    @property
    def object(self) -> Path:
        return self.folder / OBJECT

    @property
    def shared(self) -> Path | None:
        return self.folder / SHARED if self.linked else None

    @property
    def cubin(self) -> Path:
        return self.folder / _CUBIN

    def source(self) -> KernelSource:
        """What the entry was compiled from."""
        return serial.source_from_json(files.read_json(self.folder / _SOURCE))


class KernelCache:
    """A cache folder. Cheap to make; every method touches the disk."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else config.get().cache_dir
        self._entries = self.root / "entries"
        self._staging = self.root / "staging"

    def load(self, key: str) -> CacheEntry | None:
        """The entry of ``key``, verified; None if there is none or it is corrupt."""
        folder = self._entries / key
        if not files.is_folder(folder):
            return None
        self._check_folder()
        try:
            return _verified(folder)
        except CacheError as error:
            log.warning("skipping a corrupt cache entry: %s", error)
            return None

    def store(self, compiled: CompiledKernel) -> CacheEntry:
        """Publish a kernel; an intact entry of the same key is kept as it is.

        Raises:
            CacheError: the folder is not ours alone, or cannot be written.
        """
        key = cache_key(compiled.source)
        for folder in (self._entries, self._staging):
            self.private_folder(folder.name)
        staged = self._staging / f"{key[:16]}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            staged.mkdir(mode=0o700)
            _write_entry(staged, key, compiled)
            self._publish(staged, self._entries / key)
        except OSError as error:
            raise CacheError(f"cannot write to cache {self.root}: {error}") from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        entry = self.load(key)
        if entry is None:
            raise CacheError(f"cache entry {self._entries / key} was lost or damaged")
        return entry

    def entries(self) -> Iterator[CacheEntry]:
        """Intact entries, by key; corrupt ones are logged and left out."""
        for key in self._keys():
            entry = self.load(key)
            if entry is not None:
                yield entry

    def is_empty(self) -> bool:
        """Is no entry stored, intact or not? Reads one name of the folder at most.

        No where the system does not let us look: nothing could be stored there either.
        """
        try:
            with os.scandir(self._entries) as names:
                return next(names, None) is None
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            log.info("cannot read the cache: %s", error)
            return False

    def verify(self) -> dict[str, str]:
        """What is wrong, by entry folder name; empty if all is well."""
        problems = {}
        for key in self._keys():
            try:
                _verified(self._entries / key)
            except CacheError as error:
                problems[key] = str(error)
        return problems

    def clear(self) -> int:
        """Delete all entries and self-test verdicts; returns how many entries.

        Kernels that are loaded keep working.
        """
        keys = self._keys()
        for key in keys:
            shutil.rmtree(self._entries / key, ignore_errors=True)
        for folder in (self._staging, self.root / VERDICTS):
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        return len(keys)

    def usable(self) -> Status:
        """Can entries be looked up here? Makes the folder if there is none yet."""
        try:
            self.private_folder(self._entries.name)
        except CacheError as error:
            return Status.no(str(error))
        return Status.ok()

    def _keys(self) -> list[str]:
        if not files.is_folder(self._entries):
            if self.root.exists() and not self.root.is_dir():
                raise CacheError(f"cache folder {self.root} is not a folder")
            return []
        self._check_folder()
        return sorted(p.name for p in self._entries.iterdir())

    def private_folder(self, name: str) -> Path:
        """A subfolder of the cache, made if need be, that only this user can write.

        Raises:
            CacheError: it cannot be made, or the cache folder is not ours alone.
        """
        folder = self.root / name
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_folder()
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CacheError(f"cannot make cache folder {folder}: {error}") from error
        return folder

    def _check_folder(self) -> None:
        """Objects are run as code, so nobody else may be able to write them."""
        try:
            info = self.root.stat()
        except OSError as error:
            raise CacheError(f"cannot read cache folder: {error}") from error
        if info.st_uid != os.geteuid():
            raise CacheError(f"cache folder {self.root} belongs to user {info.st_uid}")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CacheError(
                f"cache folder {self.root} is writable by others "
                f"(mode {stat.S_IMODE(info.st_mode):04o}); it must be 0700"
            )

    def _publish(self, staged: Path, target: Path) -> None:
        """Rename into place. A corrupt entry there is moved out of the way first."""
        for _ in range(8):
            try:
                staged.rename(target)
                files.sync(target.parent)
                return
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise CacheError(f"cannot publish {target}: {error}") from error
            if self.load(target.name) is not None:
                return
            self._discard(target)
        raise CacheError(f"cannot replace the corrupt cache entry {target}")

    def _discard(self, target: Path) -> None:
        grave = self._staging / f"corrupt-{secrets.token_hex(8)}"
        try:
            target.rename(grave)
        except FileNotFoundError:
            # Another process has discarded it already.
            return
        shutil.rmtree(grave, ignore_errors=True)


def _write_entry(folder: Path, key: str, compiled: CompiledKernel) -> None:
    """All files of an entry, the record last."""
    files.write(folder / OBJECT, compiled.object)
    files.write(folder / _CUBIN, compiled.cubin)
    files.write(folder / _TEXT, compiled.source.text.encode())
    source = json.dumps(serial.source_to_json(compiled.source), sort_keys=True)
    files.write(folder / _SOURCE, source.encode())
    link_shared(folder / OBJECT, folder / SHARED)
    record = _record(key, compiled)
    record["files"] = {p.name: files.digest(p) for p in sorted(folder.iterdir())}
    record["record_sha256"] = _record_digest(record)
    files.write(folder / _RECORD, json.dumps(record, indent=1, sort_keys=True).encode())
    files.sync(folder)


def _record(key: str, compiled: CompiledKernel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "key": key,
        "name": compiled.source.name,
        "symbol": compiled.symbol,
        "arch": compiled.source.arch,
        "kernel": compiled.kernel,
        "source_sha256": compiled.source.sha256,
        "resources": compiled.resources.to_json(),
        "warnings": list(compiled.warnings),
        "gate": list(compiled.gate.reasons),
        "options": compiled.options,
        "versions": {
            "torch_cute_backend": __version__,
            "nvidia-cutlass-dsl": compiled.dsl_version,
            "apache-tvm-ffi": toolchain.tvm_ffi_version() or "unknown",
        },
        "seconds": round(compiled.seconds, 3),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _record_digest(record: dict[str, Any]) -> str:
    rest = {k: v for k, v in record.items() if k != "record_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def link_shared(obj: Path, shared: Path) -> bool:
    """Link an object into a shared object that ``tvm_ffi`` loads without cutlass.

    False if there is no linker, no run-time library, or linking fails: the object
    alone still serves, at the price of importing cutlass.
    """
    linker, libraries = toolchain.linker(), toolchain.runtime_library()
    ffi = toolchain.tvm_ffi_library()
    if linker is None or libraries is None or ffi is None:
        return False
    command = [linker, "-shared", "-o", str(shared), str(obj)]
    command += [f"-L{libraries.parent}", "-lcute_dsl_runtime"]
    command += [f"-L{ffi.parent}", "-ltvm_ffi"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_LINK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.info("cannot link %s: %s", shared, error)
        shared.unlink(missing_ok=True)
        return False
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace")
        log.info("linking %s failed: %s", shared, words)
        shared.unlink(missing_ok=True)
        return False
    files.sync(shared)
    return True


def _verified(folder: Path) -> CacheEntry:
    """Read an entry and check every byte of it; ``CacheError`` names what is wrong."""
    record = files.read_json(folder / _RECORD)
    if record.get("record_sha256") != _record_digest(record):
        raise CacheError(f"{folder / _RECORD}: its digest does not match")
    if record.get("format") != FORMAT or record.get("key") != folder.name:
        raise CacheError(f"{folder / _RECORD}: it belongs to another key or format")
    size = 0
    for name, digest in record["files"].items():
        path = folder / name
        if files.digest(path) != digest:
            raise CacheError(f"{path}: its digest does not match the record")
        size += path.stat().st_size
    return _entry(folder, record, size)


def _entry(folder: Path, record: dict[str, Any], size: int) -> CacheEntry:
    return CacheEntry(
        key=record["key"],
        folder=folder,
        name=record["name"],
        symbol=record["symbol"],
        arch=record["arch"],
        kernel=record["kernel"],
        source_sha256=record["source_sha256"],
        resources=Resources(**record["resources"]),
        warnings=tuple(record["warnings"]),
        gate=Status(tuple(record["gate"])),
        versions=record["versions"],
        created=record["created"],
        seconds=record["seconds"],
        size_bytes=size,
        # By the record: a file that it does not list was not verified.
        linked=SHARED in record["files"],
    )
