"""The shipped tables, how tables are read, and the script that writes them."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

from build_helper import fp8, problem_of
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import ARCHS, SM90, SM100
from torch_cute_backend.errors import TableError
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup, publish
from torch_cute_backend.tuning import table as tables
from torch_cute_backend.tuning.table import RowKey, load_table, parse_row, table

HEADLINE = "scale_mm_cute_m64_k5120_n5120"


def make_tables():
    """``benchmarks/make_tables.py`` as a module."""
    path = Path(__file__).parents[1] / "benchmarks" / "make_tables.py"
    spec = importlib.util.spec_from_file_location("make_tables", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MAKE = make_tables()


class TestShipped(TestCase):
    @parametrize("arch", list(ARCHS))
    def test_every_row_parses_and_is_valid(self, arch):
        raw = json.loads((tables.TABLES / f"{arch}.json").read_text())
        self.assertEqual(raw["arch"], arch)
        self.assertEqual(len(table(arch)), len(raw["rows"]))
        for row in table(arch):
            status = row.schedule.validate(problem_of(row.key), ARCHS[arch])
            self.assertEqual(str(status), "ok", row.name)

    @parametrize("arch", list(ARCHS))
    def test_names_and_keys_are_unique(self, arch):
        rows = table(arch)
        self.assertEqual(len({r.name for r in rows}), len(rows))
        self.assertEqual(len({r.key for r in rows}), len(rows))

    @parametrize("arch", list(ARCHS))
    def test_every_listed_shape_is_covered(self, arch):
        keys = {r.key for r in table(arch)}
        for shape in MAKE.shapes():
            for problem in MAKE.problems(shape):
                self.assertIn(RowKey.of(problem), keys)

    def test_listed_shapes(self):
        # (M, N, K), a few of each list that users measure by.
        wanted = {
            *((m, 4096, 4096) for m in (1, 2, 8, 16, 32, 64)),
            *((m, 256, 4096) for m in (1, 64)),
            (64, 5120, 25600),
            (64, 51200, 5120),
            (512, 4096, 2048),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            *((m, 2112, 7168) for m in (1, 128, 4096)),
        }
        self.assertEqual(wanted - set(MAKE.shapes()), set())

    @parametrize("arch", list(ARCHS))
    def test_the_named_row_is_static_persistent(self, arch):
        (row,) = (r for r in table(arch) if r.name == HEADLINE)
        self.assertEqual(row.key, RowKey.of(fp8(64, 5120, 5120)))
        self.assertEqual(row.schedule.scheduler, "static_persistent")
        self.assertEqual(row.schedule.shared_loop, "auto")
        choice = lookup.choose(fp8(64, 5120, 5120), ARCHS[arch])
        self.assertEqual((choice.source, choice.row), ("pretuned-exact", row))
        self.assertEqual(choice.schedule, row.schedule)

    def test_published_headline(self):
        (row,) = (r for r in table("sm_100a") if r.name == HEADLINE)
        s = row.schedule
        self.assertEqual((s.tile_m, s.tile_n, s.tile_k), (64, 64, 128))
        self.assertEqual((s.ab_stages, s.acc_stages, s.epi_n), (12, 2, 64))
        self.assertIn(dict(row.provenance)["kind"], ("published", "measured"))

    @parametrize("arch", list(ARCHS))
    def test_files_are_as_the_script_writes_them(self, arch):
        text = (tables.TABLES / f"{arch}.json").read_text()
        lines = map(publish.row_text, table(arch))
        self.assertEqual(publish.table_text(arch, lines), text)


GOOD = {
    "name": "row",
    "family": "fp8-rowwise",
    "accum": "fast",
    "a_major": "k",
    "b_major": "k",
    "m": 64,
    "n": 5120,
    "k": 5120,
    "schedule": {"tile_m": 64, "tile_n": 64, "tile_k": 128, "ab_stages": 6},
    "provenance": {"kind": "model"},
}
BAD = {
    "no_name": ("name", None, "malformed row: KeyError.'name'"),
    "number_name": ("name", 3, "name 3 is not text"),
    "family": ("family", ["fp8"], "row row: family .'fp8'. is not text"),
    "text_size": ("m", "64", "row row: m '64' is no positive integer"),
    "no_groups": ("groups", 0, "groups 0 is no positive integer"),
    "zero": ("n", 0, "n 0 is no positive integer"),
    "bool": ("k", True, "k True is no positive integer"),
    "no_schedule": ("schedule", None, "KeyError.'schedule'"),
    "schedule_list": ("schedule", [1], "malformed row"),
    "schedule": ("schedule", {"tile_m": 64}, "schedule: .*tile_n"),
    "field": ("schedule", {**GOOD["schedule"], "tile": 1}, "unknown schedule field"),
    "typed": ("schedule", {**GOOD["schedule"], "epi_n": 0}, "epi_n may not be 0"),
    "no_provenance": ("provenance", None, "KeyError.'provenance'"),
    "kind": ("provenance", {"kind": "guess"}, "provenance kind 'guess'"),
    "kind_list": ("provenance", {"kind": []}, "provenance kind ..$"),
    "measured": (
        "provenance",
        {"kind": "measured", "gpu": "NVIDIA H200", "us": 1.0},
        "measured, but without date, commit, dsl, margin",
    ),
}


def bad_row(name):
    field, value, _ = BAD[name]
    row = copy.deepcopy(GOOD)
    row[field] = value
    if value is None:
        del row[field]
    return row


class TestReading(TestCase):
    def load(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sm_90a.json"
            path.write_text(text)
            return load_table(path)

    def test_good_row(self):
        row = parse_row(GOOD)
        self.assertEqual(row.key, RowKey.of(fp8(64, 5120, 5120)))
        self.assertEqual(row.schedule, GemmSchedule(64, 64, 128, 6))
        self.assertEqual(parse_row(row.to_json()), row)

    def test_groups_may_be_left_out(self):
        row = parse_row({**GOOD, "groups": 8})
        self.assertEqual(row.key.groups, 8)
        self.assertEqual(parse_row(row.to_json()), row)
        self.assertNotIn("groups", parse_row(GOOD).to_json())

    @parametrize("name", list(BAD))
    def test_bad_row(self, name):
        with self.assertRaisesRegex(TableError, BAD[name][2]):
            parse_row(bad_row(name))

    @parametrize("raw", [None, 3, "row", [1, 2]])
    def test_row_of_another_type(self, raw):
        with self.assertRaisesRegex(TableError, "malformed row"):
            parse_row(raw)

    @parametrize("name", list(BAD))
    def test_a_bad_row_is_named_skipped_and_the_rest_served(self, name):
        other = {**GOOD, "name": "other", "m": 16}
        text = json.dumps({"rows": [GOOD, bad_row(name), other]})
        with self.assertLogs("torch_cute_backend.tuning.table", "WARNING") as logs:
            rows = self.load(text)
        self.assertEqual([r.name for r in rows], ["row", "other"])
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], f"sm_90a.json row 1 skipped: .*{BAD[name][2]}")

    @parametrize(
        "text", ["", "{", "[]", "{}", "3", '{"rows": 3}', '{"rows": {"a": 1}}', "\xff"]
    )
    def test_no_table(self, text):
        with self.assertRaisesRegex(TableError, "sm_90a.json is not a table"):
            self.load(text)

    def test_a_broken_shipped_table_is_logged_and_the_model_serves(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sm_90a.json").write_text("{")
            with mock.patch.object(tables, "TABLES", Path(folder)):
                table.cache_clear()
                self.addCleanup(table.cache_clear)
                with self.assertLogs("torch_cute_backend.tuning.table", "ERROR"):
                    choice = lookup.choose(fp8(64, 5120, 5120), SM90)
                self.assertEqual(choice.source, "model")
                self.assertEqual(table("sm_100a"), ())


def result(provider, us, schedule=None, **changes):
    row = {
        "suite": "headline",
        "shape": {"m": 64, "n": 5120, "k": 5120},
        "dtype": "fp8",
        "scaling": "rowwise",
        "accum": "fast",
        "provider": provider,
        "us": us,
        "protocol": "cold",
        "gpu": "NVIDIA H200",
        "date": "2026-12-01",
        "commit": "abc1234",
        "dsl": "4.8.1",
    }
    if schedule is not None:
        row["schedule"] = schedule.to_json()
    return row | changes


A = GemmSchedule(64, 64, 128, 6, epi_n=64)
B = GemmSchedule(64, 40, 128, 8, epi_n=40)
OURS = "torch_cute_backend"


class TestMeasured(TestCase):
    """``make_tables.measured``: which result rows become table rows."""

    KEY = ("sm_90a", RowKey.of(fp8(64, 5120, 5120)))

    def test_the_fastest_schedule_with_its_margin(self):
        rows = [
            result("aten", 16.0),
            result("triton", 12.0),
            result(OURS, 10.0, A),
            result(OURS, 10.5, B),
        ]
        best = MAKE.measured(rows)
        self.assertEqual(list(best), [self.KEY])
        self.assertEqual(best[self.KEY].schedule, A)
        self.assertEqual(
            best[self.KEY].provenance,
            {
                "kind": "measured",
                "gpu": "NVIDIA H200",
                "date": "2026-12-01",
                "commit": "abc1234",
                "dsl": "4.8.1",
                "us": 10.0,
                "margin": 0.2,
            },
        )

    @parametrize(
        "changes",
        [
            {"protocol": "warm"},
            {"gpu": "NVIDIA A100"},
            {"dtype": "float32"},
            {"commit": "other"},
            {"chosen_timed": False},
            {"date": "2026-12-02"},
            {"shape": {"m": 64, "n": 5120, "k": 5120, "groups": 4}},
        ],
        name_fn=lambda changes: "_".join(changes),
    )
    def test_not_a_row_of_ours_to_keep(self, changes):
        rows = [result("aten", 16.0), result(OURS, 10.0, A, **changes)]
        self.assertEqual(MAKE.measured(rows), {})

    def test_rows_without_schedule_or_peer_are_left_out(self):
        self.assertEqual(MAKE.measured([result(OURS, 10.0, A)]), {})
        self.assertEqual(MAKE.measured([result("aten", 9.0), result(OURS, 8.0)]), {})

    def test_measured_beats_published_beats_model(self):
        problem = fp8(64, 5120, 5120)
        b200 = {"gpu": "NVIDIA B200"}
        rows = [result("aten", 16.0, **b200), result(OURS, 10.0, A, **b200)]
        measured = MAKE.make_row(problem, SM100, MAKE.measured(rows))
        self.assertEqual(dict(measured.provenance)["kind"], "measured")
        self.assertEqual(measured.schedule, A)
        self.assertEqual(
            dict(MAKE.make_row(problem, SM100, {}).provenance)["kind"], "published"
        )
        self.assertEqual(
            dict(MAKE.make_row(problem, SM90, {}).provenance)["kind"], "model"
        )

    def test_a_measured_row_must_be_valid(self):
        rows = [result("aten", 16.0), result(OURS, 10.0, GemmSchedule(64, 36, 128, 4))]
        with self.assertRaisesRegex(TableError, f"{HEADLINE}: .*tile_n=36"):
            MAKE.make_row(fp8(64, 5120, 5120), SM90, MAKE.measured(rows))

    def test_written_rows_read_back(self):
        rows = [result("aten", 16.0), result(OURS, 10.0, B)]
        row = MAKE.make_row(fp8(64, 5120, 5120), SM90, MAKE.measured(rows))
        text = publish.row_text(row)
        self.assertNotIn("\n", text)
        self.assertNotIn("raster", text)
        self.assertEqual(parse_row(json.loads(text)), row)

    def test_what_else_was_measured_gets_a_row(self):
        odd = {"shape": {"m": 7, "n": 24, "k": 48}, "dtype": "float16"}
        odd |= {"scaling": "none", "accum": "fp32", "b_major": "mn"}
        schedule = GemmSchedule(64, 64, 64, 6, epi_n=64)
        rows = [result("aten", 3.0, **odd), result(OURS, 2.0, schedule, **odd)]
        with mock.patch.object(MAKE, "shapes", return_value=((64, 5120, 5120),)):
            *listed, last = MAKE.table_rows(SM90, MAKE.measured(rows))
        self.assertEqual(last.name, "mm_fp16_cute_bn_m7_k48_n24")
        self.assertEqual(last.key, RowKey("fp16", "fast", "k", "mn", 7, 24, 48))
        self.assertEqual(len(listed), 6)

    def test_only_timings_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = [json.dumps(r) for r in ({"suite": "static"}, result("aten", 9.0))]
            (Path(folder) / "run.jsonl").write_text("\n".join(lines) + "\n")
            self.assertEqual(MAKE.read_results(Path(folder)), [result("aten", 9.0)])

    def test_results_that_are_not_json_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "run.jsonl").write_text('{"us": 1}\n\n{"us":\n')
            with self.assertRaisesRegex(TableError, "run.jsonl line 3"):
                MAKE.read_results(Path(folder))


instantiate_parametrized_tests(TestShipped)
instantiate_parametrized_tests(TestReading)
instantiate_parametrized_tests(TestMeasured)

if __name__ == "__main__":
    run_tests()
