"""The on-disk cache: what is served, what is refused, several processes. No GPU."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import tempfile
from pathlib import Path
from unittest import mock

from runtime_kernels import fake_compiled, scale_source
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.errors import CacheError
from torch_cute_backend.runtime import cache as rt_cache
from torch_cute_backend.runtime import serial, toolchain
from torch_cute_backend.runtime.cache import KernelCache, cache_key


def _store_many(root: str, count: int) -> list[str]:
    cache = KernelCache(Path(root))
    return [cache.store(fake_compiled()).key for _ in range(count)]


class CacheTestCase(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "cache"
        self.cache = KernelCache(self.root)


class TestCache(CacheTestCase):
    def test_round_trip(self):
        compiled = fake_compiled()
        self.assertIsNone(self.cache.load(cache_key(compiled.source)))
        stored = self.cache.store(compiled)
        loaded = KernelCache(self.root).load(cache_key(compiled.source))
        self.assertEqual(loaded, stored)
        self.assertEqual(loaded.object.read_bytes(), compiled.object)
        self.assertEqual(loaded.cubin.read_bytes(), compiled.cubin)
        self.assertEqual(loaded.resources, compiled.resources)
        self.assertEqual(loaded.source(), compiled.source)
        self.assertEqual(loaded.versions["nvidia-cutlass-dsl"], "4.8.1")

    def test_an_intact_entry_is_kept(self):
        first, second = fake_compiled(), fake_compiled()
        self.cache.store(first)
        entry = self.cache.store(second)
        self.assertEqual(entry.object.read_bytes(), first.object)

    @parametrize("name", ["kernel.o", "kernel.json", "kernel.cubin", "record.json"])
    @parametrize("damage", ["flip", "truncate", "remove"])
    def test_corrupt_entry_is_named_and_not_served(self, name, damage):
        entry = self.cache.store(fake_compiled())
        path = entry.folder / name
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif damage == "truncate":
            path.write_bytes(data[: len(data) // 2])
        else:
            path.unlink()
        with self.assertLogs(rt_cache.log, logging.WARNING) as logged:
            self.assertIsNone(self.cache.load(entry.key))
        self.assertIn(str(entry.folder), logged.output[0])
        self.assertIn(name, self.cache.verify()[entry.key])
        replacement = fake_compiled()
        repaired = self.cache.store(replacement)
        self.assertEqual(repaired.object.read_bytes(), replacement.object)
        self.assertEqual(self.cache.verify(), {})

    def test_entry_under_another_key_is_refused(self):
        entry = self.cache.store(fake_compiled())
        other = entry.folder.with_name("0" * 64)
        entry.folder.rename(other)
        self.assertIn("another key", self.cache.verify()[other.name])
        self.assertIsNone(self.cache.load(other.name))

    def test_record_that_is_no_object(self):
        entry = self.cache.store(fake_compiled())
        (entry.folder / "record.json").write_text(json.dumps([1]))
        self.assertIsNone(self.cache.load(entry.key))

    def test_clear_and_list(self):
        for i in range(3):
            self.cache.store(fake_compiled(scale_source(note=str(i))))
        self.assertEqual(len(list(self.cache.entries())), 3)
        self.assertEqual(self.cache.clear(), 3)
        self.assertEqual(list(self.cache.entries()), [])

    def test_processes_at_once(self):
        context = multiprocessing.get_context("fork")
        with context.Pool(4) as pool:
            jobs = [(str(self.root), 8)] * 4
            keys = {key for done in pool.starmap(_store_many, jobs) for key in done}
        self.assertEqual(len(keys), 1)
        self.assertEqual(self.cache.verify(), {})
        self.assertEqual(list((self.root / "staging").iterdir()), [])


class TestFolder(CacheTestCase):
    def test_mode(self):
        self.cache.store(fake_compiled())
        for folder in (self.root, self.root / "entries"):
            self.assertEqual(folder.stat().st_mode & 0o777, 0o700)

    @parametrize("mode", [0o770, 0o707, 0o777])
    def test_writable_by_others(self, mode):
        self.cache.store(fake_compiled())
        self.root.chmod(mode)
        with self.assertRaisesRegex(CacheError, "writable by others"):
            self.cache.store(fake_compiled())
        with self.assertRaisesRegex(CacheError, "writable by others"):
            self.cache.load(cache_key(scale_source()))

    def test_foreign_owner(self):
        self.cache.store(fake_compiled())
        stranger = mock.patch.object(os, "geteuid", return_value=os.geteuid() + 1)
        with stranger, self.assertRaisesRegex(CacheError, "belongs to user"):
            self.cache.load(cache_key(scale_source()))

    def test_unusable(self):
        self.root.write_text("a file")
        with self.assertRaisesRegex(CacheError, str(self.root)):
            self.cache.store(fake_compiled())
        self.assertIn(str(self.root), str(self.cache.usable()))

    @parametrize("call", ["is_dir", "stat", "mkdir", "rename"])
    def test_what_the_system_refuses_is_named(self, call):
        if call == "stat":
            self.cache.store(fake_compiled())
        refusal = PermissionError(errno.EACCES, "Permission denied", "somewhere")
        with (
            mock.patch.object(Path, call, side_effect=refusal),
            self.assertRaisesRegex(CacheError, "Permission denied: 'somewhere'"),
        ):
            if call in ("is_dir", "stat"):
                self.cache.load(cache_key(scale_source()))
            else:
                self.cache.store(fake_compiled())

    def test_a_file_that_the_record_does_not_list_is_not_served(self):
        with mock.patch.object(rt_cache, "link_shared", return_value=False):
            entry = self.cache.store(fake_compiled())
        (entry.folder / rt_cache.SHARED).write_bytes(b"from elsewhere")
        found = self.cache.load(entry.key)
        self.assertIsNone(found.shared)


class TestKey(TestCase):
    def test_key_depends_on(self):
        base = cache_key(scale_source())
        self.assertEqual(base, cache_key(scale_source()))
        self.assertNotEqual(base, cache_key(scale_source("sm_100a")))
        self.assertNotEqual(base, cache_key(scale_source(note="changed")))
        with mock.patch.object(toolchain, "require_dsl", return_value="4.8.2"):
            self.assertNotEqual(base, cache_key(scale_source()))
        with mock.patch.object(rt_cache, "compile_options", return_value="other"):
            self.assertNotEqual(base, cache_key(scale_source()))

    def test_source_survives_json(self):
        source = scale_source()
        row = json.loads(json.dumps(serial.source_to_json(source)))
        self.assertEqual(serial.source_from_json(row), source)
        row["text"] += "\n"
        with self.assertRaisesRegex(CacheError, "digest"):
            serial.source_from_json(row)
        del row["entry"]
        with self.assertRaisesRegex(CacheError, "malformed"):
            serial.source_from_json(row)


instantiate_parametrized_tests(TestCache)
instantiate_parametrized_tests(TestFolder)

if __name__ == "__main__":
    run_tests()
