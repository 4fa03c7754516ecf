"""Archs: their facts, and the arithmetic that schedules are checked with."""

from __future__ import annotations

from dataclasses import replace

from build_helper import fp8, mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import (
    ARCHS,
    SM90,
    SM100,
    arch_for_capability,
    arch_spec,
)
from torch_cute_backend.arch.sm100 import scale_columns, tmem_columns
from torch_cute_backend.dtypes import FLOAT32
from torch_cute_backend.errors import UserError
from torch_cute_backend.schedule import GemmSchedule


class TestArchs(TestCase):
    def test_by_name(self):
        self.assertIs(arch_spec("sm_90a"), SM90)
        with self.assertRaisesRegex(UserError, "'sm_80'; known: sm_90a, sm_100a"):
            arch_spec("sm_80")

    def test_by_capability(self):
        self.assertIs(arch_for_capability(9, 0), SM90)
        self.assertIs(arch_for_capability(10, 0), SM100)
        # An sm_100a cubin does not load on 10.3, nor an sm_90a one on 12.0.
        for capability in ((8, 9), (10, 3), (12, 0)):
            self.assertIsNone(arch_for_capability(*capability))

    @parametrize("name", list(ARCHS))
    def test_named_by_its_capability(self, name):
        spec = ARCHS[name]
        major, minor = spec.capability
        self.assertEqual(spec.name, name)
        self.assertEqual(name, f"sm_{major}{minor}a")

    def test_required_roles(self):
        self.assertEqual(SM90.required_roles, ("load", "math"))
        self.assertEqual(SM100.required_roles, ("load", "mma", "epilogue"))


class TestArithmetic(TestCase):
    def test_shared_memory_counts_stages_and_staging(self):
        s = GemmSchedule(64, 32, 128, 3, epi_n=32)
        self.assertEqual(SM90.smem_used(fp8(), s), 1024 + 3 * 96 * 128 + 64 * 32 * 2)
        direct = replace(s, store="direct")
        self.assertEqual(SM90.smem_used(fp8(), direct), 1024 + 3 * 96 * 128)
        two = replace(s, epi_n=16, epi_stages=2)
        self.assertEqual(SM90.smem_used(fp8(), two), SM90.smem_used(fp8(), s))
        self.assertEqual(
            SM90.smem_used(mm(out=FLOAT32), replace(s, tile_k=64)),
            1024 + 3 * 96 * 128 + 64 * 32 * 4,
        )

    @parametrize(
        "tile_m,tile_n,stages,columns",
        [
            (128, 16, 1, 32),
            (128, 16, 2, 32),
            (128, 96, 2, 256),
            (128, 256, 2, 512),
            (128, 256, 3, 1024),
            # 64 rows fill half the lanes, so two stages share columns.
            (64, 64, 2, 64),
            (64, 64, 4, 128),
            (64, 256, 1, 256),
        ],
    )
    def test_tensor_memory_columns(self, tile_m, tile_n, stages, columns):
        s = GemmSchedule(tile_m, tile_n, 128, 2, acc_stages=stages)
        self.assertEqual(tmem_columns(fp8(), s), columns)

    @parametrize(
        "tile_n,tile_k,stages,scales,columns",
        [
            (128, 128, 1, (4, 4), 256),
            (128, 128, 2, (4, 4), 512),
            (256, 128, 1, (4, 8), 512),
            (256, 256, 1, (8, 16), 512),
            (256, 128, 2, (4, 8), 1024),
        ],
    )
    def test_scales_come_behind(self, tile_n, tile_k, stages, scales, columns):
        """Four columns for 128 rows of four blocks of K, of A and of B."""
        s = GemmSchedule(128, tile_n, tile_k, 2, acc_stages=stages)
        self.assertEqual(scale_columns(fp8(scaling="mxfp8"), s), scales)
        self.assertEqual(tmem_columns(fp8(scaling="mxfp8"), s), columns)
        self.assertEqual(scale_columns(fp8(), s), (0, 0))

    @parametrize("warpgroups", [1, 2])
    def test_threads_of_sm90(self, warpgroups):
        s = GemmSchedule(128, 64, 128, 2, math_warpgroups=warpgroups)
        self.assertEqual(SM90.threads(s), 128 * warpgroups + 32)

    def test_threads_of_sm100(self):
        self.assertEqual(SM100.threads(GemmSchedule(128, 64, 128, 2)), 192)


instantiate_parametrized_tests(TestArchs)
instantiate_parametrized_tests(TestArithmetic)

if __name__ == "__main__":
    run_tests()
