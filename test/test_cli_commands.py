"""The command line: explain, compile, doctor, cache, and how mistakes are answered."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from runtime_kernels import fake_compiled
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend import config
from torch_cute_backend.cli import main as cli
from torch_cute_backend.cli.problem import problem_from
from torch_cute_backend.runtime import toolchain
from torch_cute_backend.runtime.cache import KernelCache
from torch_cute_backend.runtime.pool import child_environ

GEMM = ["scaled_mm", "--m", "64", "--n", "5120", "--k", "5120"]
SMALL = ["mm", "--m", "64", "--n", "256", "--k", "256"]
GROUPED = ["grouped_mm", "--m", "1024", "--n", "4096", "--k", "4096", "--groups", "8"]
EXPLAIN_KEYS = {
    "problem",
    "arch",
    "schedule",
    "schedule_source",
    "table_row",
    "provenance",
    "loop_omission",
    "kernel",
    "source_sha256",
    "unsupported",
    "not_offered_here",
}

MISTAKES = {
    "no_command": [],
    "unknown_command": ["frobnicate"],
    "unknown_op": ["explain", "conv", "--m", "1", "--n", "1", "--k", "1"],
    "missing_size": ["explain", "mm", "--m", "64", "--n", "64"],
    "zero_size": ["explain", "mm", "--m", "0", "--n", "64", "--k", "64"],
    "unknown_arch": ["explain", *GEMM, "--arch", "sm_80"],
    "unknown_dtype": ["explain", *GEMM, "--dtype", "int4"],
    "groups_of_mm": ["explain", *SMALL, "--groups", "2"],
    "no_groups": ["explain", "grouped_mm", *SMALL[1:]],
    "scaling_of_mm": ["explain", *SMALL, "--scaling", "rowwise"],
    "schedule_text": ["explain", *GEMM, "--schedule", "{"],
    "schedule_list": ["explain", *GEMM, "--schedule", "[1]"],
    "schedule_field": ["explain", *GEMM, "--schedule", '{"speed": 9}'],
    "no_kernel": ["compile", "mm", "--m", "64", "--n", "33", "--k", "33"],
    "bf16_scaled_mm": ["compile", *GEMM, "--dtype", "bf16"],
    "fp8_mm": ["compile", *SMALL, "--dtype", "fp8"],
    "negative_size": ["explain", "mm", "--m", "-4", "--n", "64", "--k", "64"],
    "demo_mode": ["demo", "--mode", "reduce-overhead"],
    "empty_dtype": ["explain", *GEMM, "--dtype", ""],
    "huge_simulation": [
        *("simulate", "mm", "--m", "2000000", "--n", "200000", "--k", "200000"),
    ],
    "report_nowhere": ["bench", "report", "--out", "/dev/null/report"],
    "unwritable": ["compile", *GEMM, "--emit", "source", "-o", "/no/such/folder/x"],
}


class CliTestCase(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        patch = config.patch(cache_dir=self.folder / "cache")
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)

    def run_cli(self, *argv):
        """(exit code, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main(argv)
            except SystemExit as stop:
                code = stop.code
        return code, out.getvalue(), err.getvalue()

    def succeed(self, *argv):
        code, out, err = self.run_cli(*argv)
        self.assertEqual(code, 0, err)
        return out


class TestMistakes(CliTestCase):
    @parametrize("case", sorted(MISTAKES))
    def test_one_line_and_exit_code_2(self, case):
        code, out, err = self.run_cli(*MISTAKES[case])
        self.assertEqual((code, out), (2, ""), err)
        self.assertRegex(err, r"\Atorch-cute: error: [^\n]+\n\Z")

    def test_malformed_variable(self):
        environ = {**child_environ(), "TORCH_CUTE_BACKEND_COMPILE_WORKERS": "many"}
        command = [sys.executable, "-m", "torch_cute_backend", "cache"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Atorch-cute: error: TORCH_CUTE_[^\n]+\n\Z")


class TestExplain(CliTestCase):
    def explain(self, *argv):
        return json.loads(self.succeed("explain", *argv, "--json"))

    @parametrize("arch", ["sm_90a", "sm_100a"])
    def test_json(self, arch):
        report = self.explain(*GEMM, "--arch", arch)
        self.assertEqual(set(report), EXPLAIN_KEYS)
        self.assertEqual(report["arch"], arch)
        self.assertEqual(report["problem"]["scaling"], "rowwise")
        self.assertEqual(report["problem"]["a_dtype"], "float8_e4m3fn")
        self.assertEqual(report["schedule"]["scheduler"], "static_persistent")
        omission = report["loop_omission"]
        self.assertEqual((omission["decision"], omission["rule"]), ("omitted", None))
        for remark in omission["remarks"]:
            self.assertEqual(set(remark), {"applied", "rule", "statement", "message"})
        self.assertRegex(report["source_sha256"], r"\A[0-9a-f]{64}\Z")

    @parametrize("arch", ["sm_90a", "sm_100a"])
    def test_headline_shape_is_pretuned(self, arch):
        report = self.explain(*GEMM, "--arch", arch)
        self.assertEqual(report["schedule_source"], "pretuned-exact")
        self.assertEqual(report["table_row"], "scale_mm_cute_m64_k5120_n5120")
        self.assertIn(report["provenance"]["kind"], ("measured", "published"))

    def test_says_where_a_row_is_from(self):
        text = self.succeed("explain", *GEMM, "--arch", "sm_90a")
        self.assertRegex(text, r"tuned: +[\d.]+ us on NVIDIA H200 .*, CuTe DSL 4.8.1\n")
        text = self.succeed("explain", *GEMM, "--arch", "sm_100a")
        self.assertRegex(text, r"tuned: +Helion's pretuned .*, not measured\n")

    def test_text_says_the_same(self):
        text = self.succeed("explain", *GEMM, "--arch", "sm_90a")
        report = self.explain(*GEMM, "--arch", "sm_90a")
        self.assertIn("shared loop:  omitted\n", text)
        self.assertIn(report["source_sha256"], text)
        self.assertIn(report["schedule_source"], text)
        for remark in report["loop_omission"]["remarks"]:
            self.assertIn(remark["statement"], text)

    def test_shared_loop(self):
        decisions = {
            choice: self.explain(*GEMM, "--arch", "sm_90a", "--shared-loop", choice)
            for choice in ("auto", "keep", "inline")
        }
        self.assertEqual(decisions["auto"]["loop_omission"]["decision"], "omitted")
        self.assertEqual(decisions["keep"]["loop_omission"]["decision"], "kept")
        digests = {report["source_sha256"] for report in decisions.values()}
        self.assertEqual(len(digests), 3)

    def test_scheduler_is_the_users(self):
        report = self.explain(*GEMM, "--arch", "sm_90a", "--scheduler", "single_tile")
        self.assertEqual(report["schedule_source"], "user")
        self.assertEqual(report["schedule"]["scheduler"], "single_tile")
        self.assertEqual(report["loop_omission"]["decision"], "not_applicable")

    def test_grouped(self):
        problem = [*GROUPED, "--arch", "sm_90a"]
        found = json.loads(self.run_cli("explain", *problem, "--json")[1])
        self.assertEqual(found["problem"]["groups"], 8)
        self.assertEqual(found["schedule"]["scheduler"], "grouped_static")
        self.assertEqual(found["loop_omission"]["decision"], "omitted")
        messages = [r["message"] for r in found["loop_omission"]["remarks"]]
        self.assertIn("replaced by the grouped scheduler", messages)

    def test_rank3_names_the_load_and_the_comparison(self):
        problem = [*GROUPED, "--arch", "sm_90a", "--scheduler", "rank3_rhs"]
        text = self.run_cli("explain", *problem)[1]
        self.assertIn("shared loop:  kept (rule residual_work)", text)
        self.assertIn("loaded = offsets[i]: work: read offsets", text)
        self.assertIn("if left < span: depends on a value that is not", text)

    @parametrize("grouping", ["n", "k", "batch"])
    def test_other_groupings(self, grouping):
        problem = [*GROUPED, "--arch", "sm_90a", "--grouping", grouping]
        text = self.run_cli("explain", *problem)[1]
        self.assertIn(f"G=8 along {grouping}", text)
        self.assertIn("shared loop:  omitted", text)

    def test_whole_schedule(self):
        schedule = self.explain(*GEMM, "--arch", "sm_90a")["schedule"]
        schedule["ab_stages"] = 2
        argv = ["--arch", "sm_90a", "--schedule", json.dumps(schedule)]
        report = self.explain(*GEMM, *argv)
        self.assertEqual(report["schedule_source"], "user")
        self.assertEqual(report["schedule"], schedule)

    def test_unsupported_problem_is_explained(self):
        odd = ["mm", "--m", "64", "--n", "33", "--k", "33", "--arch", "sm_90a"]
        report = self.explain(*odd)
        self.assertIn("16-byte rows", report["unsupported"][0])
        self.assertIsNone(report["source_sha256"])
        self.assertIn("no kernel:", self.succeed("explain", *odd))

    def test_not_offered_here(self):
        self.assertEqual(self.explain(*GEMM)["not_offered_here"], [])
        with config.patch(enabled=False):
            self.assertEqual(
                self.explain(*GEMM)["not_offered_here"],
                ["TORCH_CUTE_BACKEND_ENABLED=0"],
            )
            self.assertIn("not offered:", self.succeed("explain", *GEMM))

    def test_short_names_of_dtypes(self):
        short = self.explain(*GEMM, "--dtype", "fp8", "--out-dtype", "bf16")
        self.assertEqual(short, self.explain(*GEMM))

    def test_schedule_that_does_not_fit(self):
        schedule = self.explain(*GEMM, "--arch", "sm_90a")["schedule"]
        schedule["ab_stages"] = 99
        argv = ["--arch", "sm_90a", "--schedule", json.dumps(schedule)]
        report = self.explain(*GEMM, *argv)
        self.assertIn("shared memory", report["unsupported"][0])

    def test_ir_and_source(self):
        argv = ["explain", *GEMM, "--arch", "sm_90a"]
        before = self.succeed(*argv, "--print-ir", "before")
        after = self.succeed(*argv, "--print-ir", "after")
        self.assertIn("\nloop:\n", before)
        self.assertNotIn("\nloop:\n", after)
        source = self.succeed(*argv, "--source")
        self.assertIn("@cute.kernel", source)
        report = self.explain(*argv[1:], "--print-ir", "before", "--source")
        self.assertEqual(set(report), EXPLAIN_KEYS | {"ir", "source"})
        self.assertIn(report["ir"], before)
        self.assertIn(report["source"], source)

    @parametrize("out,bias", [("fp8", "bfloat16"), ("fp16", "float16")])
    def test_bias_dtype_is_the_outputs_unless_that_is_fp8(self, out, bias):
        argv = ["explain", *GEMM, "--bias", "--out-dtype", out]
        problem = problem_from(cli.build_parser().parse_args(argv))
        self.assertEqual(problem.epilogue.inputs[-1].dtype.name, bias)


class TestCompile(CliTestCase):
    def test_compile_reports_and_caches(self):
        text = self.succeed("compile", *SMALL, "--arch", "sm_100a")
        self.assertRegex(text, r"resources: \d+ registers, \d+ B shared memory")
        listed = self.succeed("cache", "list")
        self.assertIn("sm_100a", listed)
        self.assertIn("1 entries", listed)

    def test_emit(self):
        emit = ["compile", *GEMM, "--arch", "sm_90a", "--emit"]
        source = self.succeed_bytes(*emit, "source")
        self.assertIn(b"@cute.jit", source)
        self.assertIn(b".target sm_90a", self.succeed_bytes(*emit, "ptx"))
        self.assertEqual(self.succeed_bytes(*emit, "cubin")[:4], b"\x7fELF")
        self.assertIn(b"EXIT", self.succeed_bytes(*emit, "sass"))

    def succeed_bytes(self, *argv):
        path = self.folder / "out"
        self.succeed(*argv, "-o", str(path))
        return path.read_bytes()

    def test_no_dsl_is_one_line(self):
        with mock.patch.object(toolchain, "dsl_version", return_value=None):
            code, _, err = self.run_cli("compile", *SMALL, "--arch", "sm_90a")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"\Atorch-cute: failed: nvidia-cutlass-dsl is not")


class TestCache(CliTestCase):
    def test_verify_names_the_corrupt_entry(self):
        entry = KernelCache().store(fake_compiled())
        self.assertIn("1 entries intact", self.succeed("cache", "verify"))
        entry.object.write_bytes(b"damaged")
        code, out, _ = self.run_cli("cache", "verify")
        self.assertEqual(code, 1)
        self.assertIn(str(entry.object), out)
        self.assertIn("1 entries deleted", self.succeed("cache", "clear"))
        self.assertIn("0 entries", self.succeed("cache"))

    def test_foreign_folder_is_one_line(self):
        KernelCache().store(fake_compiled())
        (self.folder / "cache").chmod(0o777)
        code, _, err = self.run_cli("cache", "list")
        self.assertEqual(code, 2)
        self.assertRegex(err, r"\Atorch-cute: error: cache folder [^\n]+0700\n\Z")

    @parametrize("command", ["compile", "explain", "doctor", "cache"])
    def test_folder_that_cannot_be_made(self, command):
        (self.folder / "cache").write_text("a file")
        arguments = SMALL if command in ("compile", "explain") else []
        code, out, err = self.run_cli(command, *arguments)
        if command in ("compile", "cache"):
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, r"\Atorch-cute: error: [^\n]*cache folder [^\n]+\n\Z")
        else:
            # These work without, and say that others will not.
            self.assertEqual((code, err), (0, ""))
            said = {"explain": "not offered:  cannot", "doctor": "OFF cache"}
            self.assertIn(said[command], out)


class TestDoctor(CliTestCase):
    def test_json(self):
        report = json.loads(self.succeed("doctor", "--json"))
        self.assertEqual(report["versions"]["nvidia-cutlass-dsl"], "4.8.1")
        checks = {check["name"]: check["ok"] for check in report["checks"]}
        self.assertTrue(checks["CuTe DSL"])
        self.assertTrue(checks["torch"])
        self.assertTrue(checks["cache"])
        self.assertTrue(checks["pretuned tables"])
        self.assertEqual(
            {row["arch"] for row in report["support"]}, {"sm_90a", "sm_100a"}
        )
        kinds = {(r["op"], r["grouping"], r["dtype"]) for r in report["support"]}
        self.assertEqual(len(report["support"]), 2 * (len(kinds) + 3))
        self.assertEqual(len(kinds), 5 + 12)

    def test_every_supported_torch_has_a_row(self):
        report = json.loads(self.succeed("doctor", "--json"))
        low, high = (int(v.split(".")[1]) for v in toolchain.TORCH_VERSIONS)
        versions = [f"2.{minor}" for minor in range(low, high + 1)]
        for row in report["support"]:
            self.assertEqual(list(row["torch"]), versions)

    def test_says_never_run_on_hardware(self):
        text = self.succeed("doctor")
        for line in text.splitlines():
            if " sm_100a " in line:
                self.assertIn("never run on hardware", line)

    def test_says_what_is_off_and_why(self):
        with (
            config.patch(enabled=False),
            mock.patch.object(toolchain, "dsl_version", return_value="5.0"),
            mock.patch.object(toolchain, "linker", return_value=None),
        ):
            text = self.succeed("doctor")
        self.assertRegex(text, r"OFF CuTe DSL +nvidia-cutlass-dsl is 5.0; this package")
        self.assertRegex(text, r"OFF plugin +TORCH_CUTE_BACKEND_ENABLED=0")
        self.assertRegex(text, r"OFF warm start +no C compiler")
        self.assertRegex(text, r"OFF pretuned tables +\d+ rows .* CuTe DSL 4.8.1: tune")


class TestHelp(TestCase):
    def test_the_readme_lists_every_command(self):
        readme = (Path(__file__).parent.parent / "README.md").read_text()
        for name in re.findall(r"^    (\w+)  ", cli.build_parser().format_help(), re.M):
            self.assertRegex(readme, rf"(?m)^\|.*`{name}[ `].*\|")

    def test_help_imports_nothing_heavy(self):
        code = (
            "import sys; from torch_cute_backend.cli.main import build_parser;"
            "build_parser().format_help();"
            "print([m for m in ('torch', 'cutlass', 'numpy') if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=child_environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(done.stdout, "[]\n")

    @parametrize("registry", ["ARCHS", "SCHEDULERS"])
    def test_choices_come_from_the_registries(self, registry):
        entries = getattr(cli, registry)
        with (
            mock.patch.dict(entries, {"one_more": next(iter(entries.values()))}),
            contextlib.redirect_stdout(io.StringIO()) as out,
            self.assertRaises(SystemExit),
        ):
            cli.build_parser().parse_args(["explain", "--help"])
        self.assertIn("one_more", out.getvalue())


instantiate_parametrized_tests(TestMistakes)
instantiate_parametrized_tests(TestExplain)
instantiate_parametrized_tests(TestCache)
instantiate_parametrized_tests(TestHelp)

if __name__ == "__main__":
    run_tests()
