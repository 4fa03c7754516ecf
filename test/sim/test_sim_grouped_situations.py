"""Situations in which grouped kernels of other software have failed, small, on both
archs. Each test names the reports.

Every run is also checked for what most of them are about: reads and writes outside the
tensors, elements written twice or by nobody, NaN of neighbouring groups that shows.
``test_sim_grouped`` and ``test/gpu/grouped_cases.py`` hold the rest: rows behind the
last group (pytorch/torchtitan#1237), more than 2^31 elements (#1932), unmapped pages
beside each tensor (Dao-AILab/quack#201), ends of wrong length (pytorch/pytorch#163462).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from grouped_kernel_cases import F64, F128, MN, PAIR, S64, T128, K, M, small
from grouped_sim import GroupedSimTest
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.dtypes import E4M3

BOTH = parametrize("arch", ["sm_90a", "sm_100a"])
SPECS = {"sm_90a": (SM90, S64, F64), "sm_100a": (SM100, T128, F128)}
CAPTURES = """
import ctypes, mmap, os
import torch
from build_helper import build
from grouped_kernel_cases import S64, T128, K, M, small
from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.sim import grouped_case, launch, launch_source
launch.prepare()
page = mmap.mmap(-1, mmap.PAGESIZE)
ends = torch.frombuffer(page, dtype=torch.int32)[:6]
libc = ctypes.CDLL(None, use_errno=True)
where = ctypes.c_void_p(ends.data_ptr())
if libc.mprotect(where, mmap.PAGESIZE, 0) != 0:
    raise OSError(ctypes.get_errno())
child = os.fork()
if child == 0:
    os._exit(int(ends[0]))
print("a read ends in signal", os.waitpid(child, 0)[1] & 127)
for arch, schedule, grouping in ((SM90, S64, M), (SM100, T128, K)):
    kernel = build(small(grouping), schedule, arch)
    x = grouped_case.make(kernel, kernel.problem, (0, 64, 64, 129, 135, 290))
    tensors = [*x.tensors[:-1], ends]
    (found,) = launch_source.capture_source(kernel.source, tensors, 3)
    print(kernel.source.args[-1].name, found.grid)
"""


class TestSituations(GroupedSimTest):
    @BOTH
    def test_groups_without_k_among_long_ones(self, arch):
        """pytorch/pytorch#172439, #193633, NVIDIA/cutlass#2674: accumulators left as
        they were. Two runs, outputs poisoned before each."""
        spec, schedule, _ = SPECS[arch]
        ends = tuple(accumulate((162, 0, 2577, 446, 0, 83)))
        problem = small(K, m=64, n=64, k=ends[-1], a_major=MN, b_major=MN)
        modes = ("lazy", "random:3")
        (out,) = self.check(problem, schedule, ends, modes=modes, arch=spec)
        self.assertEqual(int(out[[1, 4]].max()), 0)

    @BOTH
    def test_groups_without_k_in_fp8(self, arch):
        """NVIDIA/cutlass#2547: a descriptor of extent 0, and a hang."""
        spec, _, schedule = SPECS[arch]
        problem = small(K, m=64, n=64, k=1792, dtype=E4M3)
        ends = (0, 512, 512, 1248, 1792, 1792)
        (out,) = self.check(problem, schedule, ends, arch=spec)
        self.assertEqual(int(out[[0, 2, 5]].max()), 0)

    @BOTH
    def test_few_rows(self, arch):
        """deepseek-ai/DeepGEMM#268, #178, #15: groups of 8, 16, 32, 1 and 143 rows."""
        spec, _, schedule = SPECS[arch]
        ends = (8, 24, 56, 57, 57, 200, 300)
        self.check(small(M, dtype=E4M3), schedule, ends, arch=spec)

    @BOTH
    def test_one_group_of_one_row(self, arch):
        """deepseek-ai/DeepGEMM#268; pytorch/pytorch#163462: ends of four bytes."""
        spec, _, schedule = SPECS[arch]
        problem = small(M, m=1, n=192, k=768, dtype=E4M3)
        self.check(problem, schedule, (1,), arch=spec)

    @BOTH
    def test_many_groups_of_k(self, arch):
        """deepseek-ai/DeepGEMM#237, #110: more groups than a warp has lanes."""
        spec, schedule, _ = SPECS[arch]
        ends = tuple(range(4, 4 * 40 + 1, 4))
        self.check(small(K, m=64, n=64, k=160), schedule, ends, arch=spec)

    def test_one_large_group_among_32_with_pairs_of_ctas(self):
        """NVIDIA/cutlass#3165: tensor maps updated in the kernel race."""
        ends = (*range(1, 20), *[20] * 6, 270, *range(271, 277))
        self.assertEqual(len(ends), 32)
        schedule = replace(PAIR, tile_n=256, tile_k=128)
        self.check(small(M, dtype=E4M3), schedule, ends, arch=SM100)

    def test_the_host_never_reads_the_ends(self):
        """pytorch/pytorch#169970, deepseek-ai/DeepGEMM#444: what a CUDA graph keeps of
        a launch, grid and tensor maps, must not depend on ends that change between
        replays. Here they lie where the host may not read."""
        here = Path(__file__).parents[1]
        path = os.pathsep.join([str(here), str(here.parent)])
        done = subprocess.run(
            [sys.executable, "-c", CAPTURES],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        expected = [
            f"a read ends in signal {int(signal.SIGSEGV)}",
            *["offsets (3, 1, 1)"] * 2,
        ]
        self.assertEqual(done.stdout.splitlines(), expected)


instantiate_parametrized_tests(TestSituations)

if __name__ == "__main__":
    run_tests()
