"""Kernels compiled ahead of time, and the one run that measures them. Nothing here
touches a GPU: the child process is a stand-in."""

from __future__ import annotations

import importlib.util
import sys
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

from bench_helper import fault, stand_in
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import config
from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import manifest, results
from torch_cute_backend.bench.cases import problem_of
from torch_cute_backend.bench.manifest import Kind, Listed
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Session
from torch_cute_backend.errors import UserError
from torch_cute_backend.runtime.cache import KernelCache
from torch_cute_backend.tuning import model
from torch_cute_backend.tuning.table import load_table


def script(name: str):
    """A script of ``benchmarks/`` as a module."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MEASURE, PRECOMPILE = script("measure_all"), script("precompile")
PROBLEM = problem_of("fp8", (64, 5120, 5120))


def slots(count: int) -> list:
    """Manifest entries of the model's first schedules, in no cache."""
    kind = Kind.of(PROBLEM)
    return [
        (("sm_90a", kind, s), Listed(f"key{i}", f"kernel{i}"))
        for i, s in enumerate(model.rank(PROBLEM, SM90, count))
    ]


class TestManifest(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_it_comes_back(self):
        manifest.write(self.folder, slots(3))
        found = manifest.read(self.folder)
        self.assertEqual(len(found), 3)
        for (_, _, schedule), listed in slots(3):
            self.assertEqual(found.find("sm_90a", PROBLEM, schedule), listed)
        listed = [s for (_, _, s), _ in slots(3)]
        self.assertEqual(list(found.schedules("sm_90a", PROBLEM)), listed)

    def test_sizes_do_not_matter_but_all_else_does(self):
        manifest.write(self.folder, slots(1))
        found = manifest.read(self.folder)
        (_, _, schedule), listed = slots(1)[0]
        other = problem_of("fp8", (64, 2048, 2048))
        self.assertEqual(found.find("sm_90a", other, schedule), listed)
        self.assertIsNone(found.find("sm_100a", PROBLEM, schedule))
        for kind in ("fp8-tensorwise", "bf16", "fp16"):
            different = problem_of(kind, (64, 5120, 5120))
            self.assertIsNone(found.find("sm_90a", different, schedule))
        unaligned = problem_of("fp8", (64, 5124, 5120))
        self.assertIsNone(found.find("sm_90a", unaligned, schedule))

    def test_rows_of_another_version_are_left_out(self):
        manifest.write(self.folder, slots(2))
        path = self.folder / manifest.FILE
        path.write_text(path.read_text().replace('"tile_m"', '"tile_q"', 1))
        with self.assertLogs("torch_cute_backend.bench.manifest", "WARNING"):
            self.assertEqual(len(manifest.read(self.folder)), 1)

    def test_no_manifest_is_an_empty_one(self):
        self.assertEqual(len(manifest.read(self.folder)), 0)


class TestPrecompile(TestCase):
    def test_one_kernel_from_suite_to_archive(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        words = ["precompile", "--suites", "fp8-rowwise-decode", "--top", "1"]
        words += ["--shapes", "64x512x512", "--exact-top", "0", "--workers", "1"]
        words += ["--cache", str(folder / "cache"), "--pack", str(folder / "k.tar.xz")]
        with mock.patch.object(sys, "argv", words):
            self.assertEqual(PRECOMPILE.main(), 0)
        other = folder / "other"
        other.mkdir()
        self.assertEqual(MEASURE.unpack(folder / "k.tar.xz", other), 1)
        problem = problem_of("fp8", (64, 512, 512))
        found = manifest.read(other)
        (schedule,) = found.schedules("sm_90a", problem)
        listed = found.find("sm_90a", problem, schedule)
        entry = KernelCache(other).load(listed.key)
        self.assertEqual(entry.name, listed.name)
        self.assertEqual(KernelCache(other).verify(), {})


class TestMeasureAll(TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "out"
        kernels = self.folder / "kernels"
        (kernels / "entries" / "key0").mkdir(parents=True)
        manifest.write(kernels, slots(6))
        self.archive = self.folder / "kernels.tar.xz"
        with tarfile.open(self.archive, "w:xz") as packed:
            packed.add(kernels / "entries", "entries")
            packed.add(kernels / manifest.FILE, manifest.FILE)

    def run_script(self, *words: str, faults: dict[str, str] | None = None) -> str:
        argv = ["measure_all", "--out", str(self.out), "--kernels", str(self.archive)]
        argv += ["--suites", "headline", *words]
        with (
            config.patch(),
            stand_in(faults),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(
                MEASURE, "Session", lambda **options: Session("bench_child", **options)
            ),
        ):
            self.assertEqual(MEASURE.main(), 0)
        return (self.out / "measure_all.log").read_text()

    def test_all_phases(self):
        log = self.run_script("--phases", "sweep,tune,suites")
        self.assertIn("0 wrong", log)
        rows = results.read(self.out / "results.jsonl")
        self.assertEqual({r["suite"] for r in rows}, {"headline"})
        self.assertIn("tuned", {r.get("source") for r in rows})
        table = load_table(self.out / "table.json")
        self.assertEqual(len({row.key for row in table}), len(table))
        self.assertGreaterEqual(len(table), 5)
        swept = results.read(self.out / "sweep.jsonl")
        self.assertTrue(all(r["wrong"] == [] for r in swept))

    def test_a_second_run_does_nothing_anew(self):
        self.run_script("--phases", "sweep,tune,suites")
        before = {p.name: p.read_text() for p in self.out.glob("*.jsonl")}
        log = self.run_script("--phases", "sweep,tune,suites")
        after = {p.name: p.read_text() for p in self.out.glob("*.jsonl")}
        self.assertEqual(before, after)
        self.assertIn("sweep: 0 kernels", log)

    def test_what_the_sweep_found_wrong_is_not_tuned(self):
        bad = slots(6)[0][0][2]
        part = fault(bad.tile_n) + "}"
        log = self.run_script("--phases", "sweep,tune", faults={part: "wrong"})
        self.assertIn("WRONG fp8 fast", log)
        tuned = [
            r for r in results.read(self.out / "tune.jsonl") if r["provider"] == OURS
        ]
        self.assertTrue(tuned)
        self.assertNotIn(bad.tile_n, {r["schedule"]["tile_n"] for r in tuned})

    def test_no_time(self):
        log = self.run_script("--phases", "sweep,tune,suites", "--budget", "0")
        self.assertEqual(log.count("out of time"), 3)
        self.assertEqual(list(self.out.glob("*.jsonl")), [])

    def test_unknown_words(self):
        for words in (("--phases", "sweep,dance"), ("--suites", "nothing")):
            with self.assertRaises(UserError):
                self.run_script(*words)


if __name__ == "__main__":
    run_tests()
