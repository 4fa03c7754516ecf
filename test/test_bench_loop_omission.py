"""``benchmarks/loop_omission_gpu.py`` without a GPU: which kernels it times, its table,
and what it says when a case cannot be measured."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import loop_omission_gpu as script

from torch_cute_backend.arch import SM90
from torch_cute_backend.bench import check, groups
from torch_cute_backend.bench.cases import make_inputs, problem_of
from torch_cute_backend.errors import UserError

CASES = script.cases()


class TestCases(TestCase):
    @parametrize("name", sorted(CASES))
    def test_forms(self, name):
        found = script.builds(CASES[name], SM90)
        self.assertEqual(list(found), ["inline", "kept", "omitted"])
        self.assertEqual(len({b.source.sha256 for b in found.values()}), 3)
        decisions = {form: b.omission.decision for form, b in found.items()}
        self.assertEqual(decisions["omitted"], "omitted")
        self.assertEqual(decisions["kept"], "kept")

    @parametrize("tiles", script.TILES)
    def test_tiles_per_cta(self, tiles):
        case = CASES[f"64x64_k256_{tiles}"]
        problem = case.sized(132)
        self.assertEqual(problem.n, 64 * 132 * tiles)
        self.assertEqual(problem.m, 64)

    def test_grouped_and_pretuned_are_there(self):
        kinds = {case.kind for case in CASES.values()}
        self.assertIn("fp8-grouped-m-g8", kinds)
        self.assertIn("pretuned_64x5120x5120", CASES)
        rank3 = CASES["bf16_rank3_g8"].schedule
        self.assertEqual(rank3.scheduler, "rank3_rhs")


class TestMeasure(TestCase):
    def test_forms_must_be_right_and_agree(self):
        problem = problem_of("bf16-grouped-m-g4", (64, 96, 128))
        (x,) = make_inputs(problem, 1, "cpu")
        right = groups.reference(problem, x)

        def form(value):
            return lambda: x.out.copy_(value)

        # One element, of about the usual size, off by its last bit.
        close = right.bfloat16()
        usual = (right.abs() - right.square().mean().sqrt()).abs().argmin()
        close.view(torch.int16).view(-1)[usual] += 1
        script._check(problem, x, {"kept": form(right), "omitted": form(right)})
        with self.assertRaisesRegex(UserError, "do not agree bit for bit"):
            script._check(problem, x, {"kept": form(right), "omitted": form(close)})
        with self.assertRaisesRegex(ValueError, "elements are wrong"):
            script._check(problem, x, {"kept": form(2 * right)})
        self.assertEqual(check.wrong_elements(problem, close, right)[0], 0)

    def test_a_case_that_cannot_run_is_named(self):
        if torch.cuda.is_available():
            self.skipTest("this machine can run it")
        said = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(said),
        ):
            ok = script.run_child(CASES["bf16_static_g8"], [], Path(folder))
        self.assertFalse(ok)
        row = json.loads(said.getvalue())
        self.assertEqual(row["case"], "bf16_static_g8")
        self.assertIn("no supported GPU", row["error"])

    def test_a_run_goes_on_where_it_was_cut_short(self):
        """Rows of another commit, or of some forms only, do not count."""
        every = [(f, p) for f in script.FORMS for p in script.PROTOCOLS]
        rows = [
            {"case": case, "form": form, "protocol": protocol, "commit": commit}
            for case, commit, some in (
                ("done", "now", every),
                ("cut_short", "now", every[:4]),
                ("old", "before", every),
            )
            for form, protocol in some
        ]
        self.assertEqual(script.finished(rows, "now"), {"done"})

    def test_table(self):
        rows = [
            {
                "gpu": "A GPU",
                "case": "one",
                "shape": {"m": 64, "n": 128, "k": 256},
                "protocol": "warm",
                "form": form,
                "us": us,
            }
            for form, us in (("inline", 3.0), ("kept", 2.5), ("omitted", 2.0))
        ]
        line = "| A GPU | one | 64, 128, 256 | warm | 3.00 | 2.50 | 2.00 | +0.50 (+20."
        self.assertIn(line, script.table(rows))
        self.assertNotIn("A GPU", script.table(rows[:2]))


instantiate_parametrized_tests(TestCases)

if __name__ == "__main__":
    run_tests()
