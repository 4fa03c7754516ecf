"""``benchmarks/gpu_checklist.py``: its steps exist; one that hangs costs its limit."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu_checklist as script

from torch_cute_backend.cli.main import build_parser

ROOT = Path(__file__).parents[1]
PASS = script.Step("good", "-c 'print(6 * 7)'", "", 0, 20)
FAIL = script.Step("bad", "-c 'raise SystemExit(3)'", "", 0, 20)
LONG = script.Step("long", "-c pass", "", 10_000, 20)
SLEEP = "import time; time.sleep(60)"
CHILD = f"import subprocess as s, sys; s.run([sys.executable, '-c', '{SLEEP}'])"
HANG = script.Step("hang", f'-c "{CHILD}"', "", 0, 1)


class TestSteps(TestCase):
    @parametrize("step", script.STEPS, name_fn=lambda step: step.name)
    def test_it_exists(self, step):
        first, *rest = shlex.split(step.command.format(out="out"))
        if first != "-m":
            self.assertTrue((ROOT / first).is_file(), first)
        elif rest[0] == "pytest":
            self.assertTrue((ROOT / rest[2]).is_file(), rest[2])
        else:
            self.assertEqual(rest.pop(0), "torch_cute_backend")
            build_parser().parse_args(rest)
        self.assertLess(step.seconds, step.limit_s)

    def test_names_are_one_step_each(self):
        names = [step.name for step in script.STEPS]
        self.assertEqual(len(set(names)), len(names))


class TestRun(TestCase):
    def run_steps(self, out, *steps, budget=60):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            code = script.main(["--out", out, "--budget", str(budget)], steps)
        *lines, summary = text.getvalue().splitlines()
        return code, lines, json.loads(summary)

    def test_outcomes_and_going_on(self):
        with tempfile.TemporaryDirectory() as out:
            code, lines, summary = self.run_steps(out, PASS, FAIL, LONG)
            self.assertEqual(code, 1)
            self.assertEqual(summary, {"failed": ["bad"], "passed": ["good"]})
            self.assertRegex(lines[1], "bad: exit status 3")
            self.assertRegex(lines[2], "long: put off")
            self.assertEqual((Path(out) / "good.log").read_text(), "42\n")
            code, lines, _ = self.run_steps(out, PASS, FAIL)
            self.assertEqual([line.split(":")[0] for line in lines], ["bad"])

    def test_what_ran_out_of_time_is_run_again(self):
        words = "-c 'print(\"[3/9]: out of time; run again to go on\")'"
        step = script.Step("part", words, "", 0, 20)
        with tempfile.TemporaryDirectory() as out:
            for _ in range(2):
                _, lines, summary = self.run_steps(out, step)
                self.assertRegex(lines[0], "part: out of time in")
                self.assertEqual(summary["passed"], [])

    def test_a_hang_costs_its_limit(self):
        with tempfile.TemporaryDirectory() as out:
            begin = time.monotonic()
            code, lines, summary = self.run_steps(out, HANG, PASS)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertRegex(lines[0], "hang: killed after 1 s")
            self.assertEqual((code, summary["passed"]), (1, ["good"]))


instantiate_parametrized_tests(TestSteps)

if __name__ == "__main__":
    run_tests()
