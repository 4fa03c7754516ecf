"""Equal input, equal bytes: in one process, and across processes and hash seeds.

Kernels are cached by the digest of their text, so an order that follows a set or an
``id()`` would compile the same kernel again and again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from build_helper import fp8, mm
from grouped_kernel_cases import ALL_CASES
from kernel_cases import Case
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import ARCHS
from torch_cute_backend.build import build_kernel
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.tuning import lookup
from torch_cute_backend.tuning.table import tables_digest


def facts(cases: Sequence[Case] = ALL_CASES) -> dict[str, str]:
    """A digest of everything that must not vary: texts, IR, remarks, choices."""
    found = {"tables": tables_digest()}
    for case in cases:
        build = case.build()
        parts = (
            build.source.text,
            build.source.sha256,
            print_program(build.before),
            print_program(build.after),
            str(build.omission),
        )
        found[str(case)] = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    for arch in ARCHS.values():
        for problem in (fp8(48, 3000, 4096), mm(1000, 1000, 1000)):
            choices = lookup.candidates(problem, arch)
            found[f"{arch.name} {problem.describe()}"] = repr(choices)
    return found


def facts_of_process(seed: str) -> dict[str, str]:
    """:func:`facts` of a fresh interpreter with this hash seed."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), str(here)])
    done = subprocess.run(
        [sys.executable, __file__, "--facts"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


class TestDeterminism(TestCase):
    def test_across_hash_seeds(self):
        first, second = facts_of_process("1"), facts_of_process("20260")
        self.assertEqual(first, second)
        self.assertGreaterEqual(len(first), len(ALL_CASES))

    def test_within_a_process(self):
        golden = [case for case in ALL_CASES if case.golden]
        first = facts(golden)
        build_kernel.cache_clear()
        self.assertEqual(facts(golden), first)

    def test_the_seed_matters_to_what_could_go_wrong(self):
        # If strings hashed alike under both seeds, the first test could not fail.
        command = [
            sys.executable,
            "-c",
            "print(list({'load', 'math', 'mma', 'store'}))",
        ]
        orders = {
            subprocess.run(
                command,
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "20260")
        }
        self.assertEqual(len(orders), 2)


if __name__ == "__main__":
    if "--facts" in sys.argv:
        print(json.dumps(facts()))
    else:
        run_tests()
