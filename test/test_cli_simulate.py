"""``simulate`` on the command line: what it reports, and when it exits with 0."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.cli import simulate_cmd
from torch_cute_backend.cli.main import main
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.report import Finding

SMALL = ["simulate", "scaled_mm", "--m", "24", "--n", "48", "--k", "256"]


def call(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*SMALL, *args])
    return code, out.getvalue(), err.getvalue()


class TestSimulate(TestCase):
    @parametrize("arch", ("sm_90a", "sm_100a"))
    def test_json(self, arch: str) -> None:
        code, out, _ = call("--arch", arch, "--sms", "2", "--json")
        report = json.loads(out)
        self.assertEqual(code, 0, out)
        self.assertEqual(report["findings"], [])
        self.assertTrue(report["exact"] and report["tiles_written_once"])
        self.assertEqual(report["max_abs_err"], 0.0)
        roles = {"load", "math"} if arch == "sm_90a" else {"load", "mma", "epilogue"}
        self.assertLessEqual(roles, set(report["counts"]))
        self.assertGreater(report["counts"]["load"]["tma"], 0)

    def test_text(self) -> None:
        code, out, _ = call("--arch", "sm_90a", "--shared-loop", "keep")
        self.assertEqual(code, 0, out)
        self.assertIn("shared loop:  kept", out)
        self.assertIn("numbers:      exact", out)

    def test_a_wrong_result_is_not_success(self) -> None:
        simulate = SimChild.simulate

        def spoil(self, source, tensors, **options):
            report = simulate(self, source, tensors, **options)
            tensors[2][0, 0] += 1
            return report

        with mock.patch.object(SimChild, "simulate", spoil):
            code, out, _ = call("--arch", "sm_90a")
        self.assertEqual(code, 1)
        self.assertIn("numbers:      WRONG", out)

    def test_a_finding_is_not_success(self) -> None:
        simulate = SimChild.simulate

        def find(self, source, tensors, **options):
            report = simulate(self, source, tensors, **options)
            return replace(report, findings=(Finding("race", "made up"),))

        with mock.patch.object(SimChild, "simulate", find):
            code, out, _ = call("--arch", "sm_90a")
        self.assertEqual(code, 1)
        self.assertIn("race: made up", out)

    def test_bad_mode_is_one_line(self) -> None:
        code, out, err = call("--arch", "sm_90a", "--mode", "fast")
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(len(err.splitlines()), 1)
        self.assertIn("'fast'", err)

    @parametrize("arch", ("sm_90a", "sm_100a"))
    def test_own_ptx_in_a_file(self, arch: str) -> None:
        """What ``compile --emit ptx`` writes runs as it is; an edit is noticed."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "kernel.ptx")
            options = [*SMALL[1:], "--arch", arch, "--emit", "ptx", "-o", str(file)]
            self.assertEqual(main(["compile", *options]), 0)
            code, out, _ = call("--arch", arch, "--sms", "2", "--ptx", str(file))
            self.assertEqual(code, 0, out)
            text = file.read_text()
            file.write_text(
                re.sub(r"mul(\.rn)?\.f32(?! %f\d+, %f\d+, 0f)", "add.f32", text)
            )
            code, out, _ = call("--arch", arch, "--sms", "2", "--ptx", str(file))
        self.assertEqual(code, 1)
        self.assertIn("numbers:      WRONG", out)

    @parametrize(
        "text,words",
        [
            ("int main() { return 0; }", "not a PTX module"),
            (".version 9.0\n.target sm_90a\n", "no .entry"),
            (".version 9.0\n.target sm_80\n.entry k(.param .u64 p) {ret;}", "'sm_80'"),
            (
                ".version 9.0\n.target sm_90a\n.entry k(.param .u64 p) { ret;",
                "too early",
            ),
        ],
        name_fn=lambda text, words: "".join(filter(str.isalnum, words)),
    )
    def test_bad_ptx(self, text: str, words: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "kernel.ptx")
            file.write_text(text)
            self.refused(words, "--ptx", str(file))

    def test_bad_files_and_arch(self) -> None:
        self.refused("No such file", "--ptx", "/nonexistent.ptx")
        self.refused("No such file", "--trace", "/nonexistent/trace.json")
        code, _, err = call("--arch", "sm_80")
        self.assertEqual((code, len(err.splitlines())), (2, 1), err)
        with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
            file.write(bytes(range(128, 256)))
            file.flush()
            self.refused("not a PTX file", "--ptx", file.name)

    def test_bad_tensors_are_bad_input(self) -> None:
        """The command makes its own tensors; whatever is wrong with some is exit 2."""
        made = gemm_case.make

        def cut(*args, **options):
            operands = made(*args, **options)
            operands.tensors[1] = operands.tensors[1][:-8]
            return operands

        with mock.patch.object(gemm_case, "make", cut):
            self.refused("size n is")

    def refused(self, words: str, *args: str) -> None:
        code, out, err = call("--arch", "sm_90a", *args)
        self.assertEqual((code, out), (2, ""), err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn(words, err)

    def test_progress_only_on_a_terminal(self) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        err = Terminal()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main([*SMALL, "--arch", "sm_90a", "--sms", "2"]), 0)
        drawn = err.getvalue().split("\r")
        self.assertRegex(drawn[-1], r"\[#{30}\] (\d+)/\1 clusters\n$")
        self.assertNotIn("\r", call("--arch", "sm_90a", "--sms", "2")[2])

    def test_roles_cover_every_warp(self) -> None:
        from torch_cute_backend.arch import SM100
        from torch_cute_backend.build import KernelBuild, build_kernel
        from torch_cute_backend.problem import GemmProblem
        from torch_cute_backend.tuning.fit import complete

        problem = GemmProblem("mm", 64, 64, 64)
        built = build_kernel(problem, complete(problem, SM100, 64, 64), SM100)
        self.assertIsInstance(built, KernelBuild)
        roles = simulate_cmd.role_of_warp(built)
        self.assertEqual(sorted(roles), list(range(6)))


instantiate_parametrized_tests(TestSimulate)

if __name__ == "__main__":
    run_tests()
