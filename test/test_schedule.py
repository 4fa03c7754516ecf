"""``GemmSchedule``: JSON form, names, and what ``validate`` refuses on each arch."""

from __future__ import annotations

from dataclasses import fields, replace

from build_helper import fp8, gelu_residual, mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.dtypes import E4M3, FLOAT32
from torch_cute_backend.errors import TableError
from torch_cute_backend.problem import Accum, Major
from torch_cute_backend.schedule import CHOICES, GemmSchedule

S90 = GemmSchedule(128, 128, 128, 4, epi_n=64, epi_stages=2, math_warpgroups=2)
S100 = GemmSchedule(128, 128, 128, 4, acc_stages=2, epi_n=64, epi_stages=2)
EXACT = fp8(accum=Accum.EXACT)

COMMON = {
    "ab_stages": ({"ab_stages": 1}, "ab_stages=1: a pipeline needs at least 2 stages"),
    "smem": ({"ab_stages": 7}, "263168 bytes of shared memory exceed sm_.*'s 232448"),
    "tile_k": ({"tile_k": 64}, "tile_k=64 is 64 bytes; it must be a multiple of 128"),
    "cluster": ({"cluster_m": 3}, "cluster 3x1 is not of 1, 2, 4 or 8 CTAs"),
    "cluster_16": ({"cluster_m": 4, "cluster_n": 4}, "cluster 4x4 is not of 1, 2, 4"),
    "scheduler": ({"scheduler": "clc"}, "scheduler 'clc' is unknown"),
    "raster": ({"raster": "hilbert"}, "raster 'hilbert' is unknown"),
    "store": ({"store": "stg"}, "store 'stg' is unknown"),
    "shared_loop": ({"shared_loop": "omit"}, "shared_loop 'omit' is unknown"),
    "row": (
        {"epi_n": 128, "epi_stages": 1},
        "epi_n=128 is 256 bytes; a staged row has",
    ),
    "divides": ({"epi_n": 48}, "epi_n=48 does not divide tile_n=128"),
    "epi_stages": ({"epi_stages": 4}, "epi_stages=4 does not divide the 2 subtiles"),
    "slice_m": (
        {"tile_n": 8, "epi_n": 8, "epi_stages": 1, "cluster_m": 2},
        "multicast",
    ),
    "cta_group": ({"cta_group": 2}, "CTA pairs|pair needs an even cluster_m"),
}
COUNTS = [f.name for f in fields(GemmSchedule) if f.type == "int"]

ONLY_90 = {
    "tile_m": ({"tile_m": 192}, fp8(), "tile_m=192 is not a multiple of 64 rows for"),
    "tile_n": ({"tile_n": 264, "epi_n": 8}, fp8(), "tile_n=264 is not a multiple of 8"),
    "odd_n": ({"tile_n": 36, "epi_n": 36}, fp8(), "tile_n=36 is not a multiple of 8"),
    "epi_n": ({"epi_n": 4}, mm(out=FLOAT32, k=64), "epi_n=4 is not a multiple of 8"),
    "accumulators": (
        {"tile_m": 256, "tile_n": 256},
        fp8(),
        r"256 fp32 accumulators a thread x 1 set\(s\) exceed 128",
    ),
    "exact": (
        {"tile_n": 256, "ab_stages": 2, "epi_n": 32},
        EXACT,
        r"128 fp32 accumulators a thread x 2 set\(s\) exceed 128",
    ),
    "one_warpgroup": (
        {"tile_m": 128, "tile_n": 256, "math_warpgroups": 1},
        fp8(),
        r"256 fp32 accumulators a thread x 1 set\(s\) exceed 192",
    ),
    "padded_rows": ({"tile_m": 16, "epi_n": 32}, fp8(), "nor 8, 16 or 32 K-major rows"),
    "padded_m_major": (
        {"tile_m": 16, "tile_k": 64, "math_warpgroups": 1},
        mm(a_major=Major.MN),
        "nor 8, 16 or 32 K-major rows",
    ),
    "warpgroups": ({"math_warpgroups": 3}, fp8(), "math_warpgroups=3 is not 1 or 2"),
    "epilogue": (
        {"epi_n": 32},
        fp8(epilogue=gelu_residual()),
        "epilogue of about 160 registers a thread exceeds 150; a smaller epi_n than 32",
    ),
    "acc_stages": ({"acc_stages": 2}, fp8(), "wgmma accumulators have one stage"),
}
ONLY_100 = {
    "tile_m": ({"tile_m": 256}, fp8(), "tile_m=256 is not 64 or 128"),
    "tile_n": ({"tile_n": 24, "epi_n": 8}, fp8(), "tile_n=24 is not a multiple of 16"),
    "tmem": ({"tile_n": 256, "acc_stages": 3}, fp8(), "1024 TMEM columns exceed 512"),
    "pairs": ({"tile_m": 64, "acc_stages": 3}, fp8(), "acc_stages=3: tile_m=64 packs"),
    "epi_n": ({"tile_n": 96, "epi_n": 48}, fp8(), "epi_n=48 is not one of 8, 16, 32"),
    "cta_group": ({"cta_group": 3}, fp8(), "cta_group=3 is not 1 or 2"),
    "pair_rows": (
        {"tile_m": 64, "cta_group": 2, "cluster_m": 2},
        fp8(),
        "a CTA pair takes tile_m=128",
    ),
    "values": (
        {"epi_n": 64, "store": "direct"},
        mm(epilogue=gelu_residual(), k=64),
        "epilogue values a thread exceed",
    ),
    "warpgroups": ({"math_warpgroups": 2}, fp8(), "not warpgroups"),
}

MALFORMED = {
    "text": ({"tile_m": "64"}, "tile_m may not be '64'"),
    "bool": ({"tile_m": True}, "tile_m may not be True"),
    "float": ({"tile_n": 64.0}, "tile_n may not be 64.0"),
    "zero": ({"epi_n": 0}, "epi_n may not be 0"),
    "none": ({"store": None}, "store may not be None"),
    "number": ({"scheduler": 3}, "scheduler may not be 3"),
    "unknown": ({"tile_q": 3, "swizzle": 1}, r"unknown .* field\(s\): swizzle, tile_q"),
}


class TestValidate(TestCase):
    @parametrize("arch,base", [(SM90, S90), (SM100, S100)], name_fn=lambda a, b: a.name)
    @parametrize("name", list(COMMON))
    def test_common(self, arch, base, name):
        self.assertEqual(str(base.validate(fp8(), arch)), "ok")
        changes, reason = COMMON[name]
        status = replace(base, **changes).validate(fp8(), arch)
        self.assertRegex(str(status), reason)

    @parametrize("arch,base", [(SM90, S90), (SM100, S100)], name_fn=lambda a, b: a.name)
    @parametrize("name", COUNTS)
    @parametrize("value", [0, -1])
    def test_counts_are_positive(self, arch, base, name, value):
        # A Status, not a ZeroDivisionError: rows come from files.
        status = replace(base, **{name: value}).validate(fp8(), arch)
        self.assertFalse(status)

    @parametrize("name", list(ONLY_90))
    def test_sm90(self, name):
        changes, problem, reason = ONLY_90[name]
        status = replace(S90, **changes).validate(problem, SM90)
        self.assertRegex(str(status), reason)

    @parametrize("name", list(ONLY_100))
    def test_sm100(self, name):
        changes, problem, reason = ONLY_100[name]
        status = replace(S100, **changes).validate(problem, SM100)
        self.assertRegex(str(status), reason)

    def test_an_unsupported_problem_needs_no_schedule(self):
        status = S90.validate(fp8(a_major=Major.MN), SM90)
        self.assertEqual(status, fp8(a_major=Major.MN).validate())

    def test_unaligned_output_needs_direct_stores(self):
        problem = fp8(out_aligned=False)
        self.assertRegex(str(S90.validate(problem, SM90)), "TMA store needs 16-byte")
        direct = replace(S90, store="direct")
        self.assertEqual(str(direct.validate(problem, SM90)), "ok")

    def test_staged_rows_are_counted_in_bytes_of_the_output(self):
        narrow = replace(S90, tile_n=8, epi_n=8, epi_stages=1)
        self.assertEqual(str(narrow.validate(fp8(), SM90)), "ok")
        status = narrow.validate(fp8(out=E4M3), SM90)
        self.assertRegex(str(status), "epi_n=8 is not a multiple of 16 bytes")
        self.assertRegex(str(S90.validate(fp8(out=FLOAT32), SM90)), "256 bytes; a stag")

    def test_every_word_is_from_its_list(self):
        """A new field that is a word must be listed, or it takes any."""
        words = {f.name for f in fields(GemmSchedule) if f.type == "str"}
        self.assertEqual(words, {"scheduler", *CHOICES})
        for name, choices in CHOICES.items():
            self.assertIn(getattr(S90, name), choices)
            status = replace(S90, **{name: "other"}).validate(fp8(), SM90)
            self.assertIn(f"{name} 'other' is unknown", str(status))


class TestJson(TestCase):
    @parametrize("schedule", [S90, S100])
    def test_round_trip(self, schedule):
        self.assertEqual(GemmSchedule.from_json(schedule.to_json()), schedule)

    def test_only_changes(self):
        s = GemmSchedule(64, 64, 128, 6, epi_n=64, raster="along_n", store="tma")
        changed = s.changed_json()
        self.assertEqual(changed["raster"], "along_n")
        self.assertEqual(len(changed), 6)
        self.assertEqual(GemmSchedule.from_json(changed), s)

    def test_defaults_may_be_left_out(self):
        row = {"tile_m": 64, "tile_n": 64, "tile_k": 128, "ab_stages": 6}
        self.assertEqual(GemmSchedule.from_json(row), GemmSchedule(64, 64, 128, 6))

    @parametrize("name", list(MALFORMED))
    def test_malformed(self, name):
        change, reason = MALFORMED[name]
        with self.assertRaisesRegex(TableError, reason):
            GemmSchedule.from_json(S90.to_json() | change)

    def test_missing_field(self):
        with self.assertRaisesRegex(TableError, "tile_k"):
            GemmSchedule.from_json({"tile_m": 64, "tile_n": 64, "ab_stages": 6})


class TestDescribe(TestCase):
    @parametrize(
        "changes,name",
        [
            ({}, "128x128x128_s4"),
            ({"cluster_m": 2}, "128x128x128_c2x1_s4"),
            ({"cta_group": 2, "cluster_m": 2}, "128x128x128_c2x1_2cta_s4"),
        ],
        name_fn=lambda changes, name: name,
    )
    def test_names(self, changes, name):
        self.assertEqual(replace(S90, **changes).describe(), name)


instantiate_parametrized_tests(TestValidate)
instantiate_parametrized_tests(TestJson)
instantiate_parametrized_tests(TestDescribe)

if __name__ == "__main__":
    run_tests()
