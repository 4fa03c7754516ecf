"""Kernels of every family and both archs compile to cubins that pass the build gate: no
spills, no ignored ``setmaxnreg``, no wgmma serialised by ptxas. No GPU is needed.

Golden kernels and a spread of the tables' are compiled here as they are for a GPU. The
other kernels of ``ALL_CASES`` pass the gate where they are simulated (``test/sim``),
which saves compiling each twice."""

from __future__ import annotations

from build_helper import build, problem_of
from golden_helper import golden_cases, golden_path
from grouped_kernel_cases import ALL_CASES
from kernel_cases import CASES, Case
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import ARCHS
from torch_cute_backend.runtime.compile import CompiledKernel, compile_kernel
from torch_cute_backend.tuning.table import table

TABLE_ROWS = 10
"""Rows of each table that are compiled: evenly spread over its different kernels."""
SHARED_PER_SM = 233472
"""228 KiB, of which 1 KiB a CTA is the driver's (CUDA C++ Programming Guide)."""


def table_cases(arch: str) -> list[Case]:
    """A spread of the table's rows that print different kernels."""
    spec = ARCHS[arch]
    different: dict[str, Case] = {}
    for row in table(arch):
        case = Case(spec, row.name, problem_of(row.key), row.schedule)
        different.setdefault(case.build().source.sha256, case)
    cases = list(different.values())
    step = max(1, len(cases) // TABLE_ROWS)
    return cases[::step][:TABLE_ROWS]


class TestCubins(TestCase):
    def check(self, case: Case, compiled: CompiledKernel) -> None:
        """What must hold of every cubin, whatever the gate lets through."""
        used = compiled.resources
        self.assertEqual(str(compiled.gate), "ok")
        self.assertEqual(compiled.warnings, ())
        self.assertEqual((used.spill_store_bytes, used.spill_load_bytes), (0, 0))
        self.assertEqual(used.stack_bytes, 0)
        self.assertEqual(used.threads, case.arch.threads(case.schedule))
        # The registers of all warps, four of which share an allocation, fit one SM.
        warps = -(-used.threads // 128) * 4
        self.assertLessEqual(used.registers * warps * 32, 65536)
        self.assertLessEqual(used.smem_bytes, SHARED_PER_SM - 1024)
        # Validation promises at least what the kernel takes.
        promised = case.arch.smem_used(case.problem, case.schedule)
        self.assertLessEqual(used.smem_bytes, promised)

    @parametrize("case", [c for c in ALL_CASES if c.golden], name_fn=str)
    def test_golden(self, case):
        self.check(case, compile_kernel(case.build().source, gate=False))

    @parametrize("arch", list(ARCHS))
    def test_table_rows(self, arch):
        cases = table_cases(arch)
        self.assertEqual(len(cases), TABLE_ROWS)
        for case in cases:
            with self.subTest(row=case.name):
                self.check(case, compile_kernel(case.build().source, gate=False))

    @parametrize("arch", list(ARCHS))
    def test_golden_files_are_the_kernels_compiled_here(self, arch):
        for case in golden_cases(arch):
            text = golden_path(case).read_text(encoding="utf-8")
            self.assertEqual(
                build(case.problem, case.schedule, case.arch).source.text, text
            )

    def test_spread(self):
        self.assertGreaterEqual(sum(c.golden for c in ALL_CASES), 30)
        for arch in ARCHS.values():
            cases = [c for c in CASES if c.arch is arch]
            self.assertGreaterEqual(len(cases), 15)
            self.assertGreaterEqual(
                {c.problem.family for c in cases},
                {"fp8-rowwise", "fp8-tensorwise", "bf16", "fp16"},
            )
            forms = {c.schedule.shared_loop for c in cases}
            self.assertEqual(forms, {"auto", "keep", "inline"})
            self.assertEqual({c.schedule.store for c in cases}, {"tma", "direct"})
            self.assertEqual(
                len({(c.problem.a_major, c.problem.b_major) for c in cases}), 4
            )
            self.assertGreaterEqual({c.schedule.cluster_size for c in cases}, {1, 2, 4})


instantiate_parametrized_tests(TestCubins)

if __name__ == "__main__":
    run_tests()
