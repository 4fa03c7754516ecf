"""Compiling ahead of time: resources, the build gate, errors. No GPU."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import sys
import tempfile
import threading
from unittest import mock

from runtime_kernels import SCALE, scale_source, spill_source
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.codegen.source import TensorArg
from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.errors import CompileError
from torch_cute_backend.runtime import compile as rt
from torch_cute_backend.runtime import cubin, ptxas, toolchain


def cuobjdump(image: bytes) -> dict[str, int]:
    """Resource usage as NVIDIA's own tool reads it."""
    tool = toolchain.cuda_tool("cuobjdump")
    if tool is None:
        raise AssertionError("triton's wheel ships cuobjdump, but it was not found")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True)
    return {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", text.stdout)}


class TestCompile(TestCase):
    @parametrize("arch", ["sm_90a", "sm_100a"])
    def test_resources_agree_with_cuobjdump(self, arch):
        compiled = rt.compile_kernel(spill_source(arch), gate=False)
        expected = cuobjdump(compiled.cubin)
        self.assertEqual(compiled.resources.registers, expected["REG"])
        self.assertEqual(compiled.resources.stack_bytes, expected["STACK"])
        self.assertEqual(compiled.resources.static_smem_bytes, expected["SHARED"])

    def test_launch_constants(self):
        compiled = rt.compile_kernel(spill_source(), gate=False)
        self.assertEqual(compiled.resources.dynamic_smem_bytes, 128 * 4)
        self.assertEqual(compiled.resources.smem_bytes, 128 * 4)
        self.assertEqual(compiled.resources.threads, 512)

    def test_launch_constants_unknown(self):
        self.assertEqual(rt.launch_constants("module {}"), (None, None))

    def test_gate_refuses_spills_and_ignored_setmaxnreg(self):
        with self.assertRaisesRegex(CompileError, "spilled registers.*setmaxnreg"):
            rt.compile_kernel(spill_source())
        compiled = rt.compile_kernel(spill_source(), gate=False)
        self.assertFalse(compiled.gate)
        self.assertGreater(compiled.resources.spill_store_bytes, 0)

    def test_object_is_deterministic_and_gate_passes(self):
        first, second = (rt.compile_kernel(scale_source()) for _ in range(2))
        self.assertTrue(first.gate)
        self.assertEqual(first.object, second.object)
        self.assertEqual(first.resources.threads, 128)

    def test_no_time_goes_into_source_lines(self):
        from cutlass._mlir_helpers import op

        noted = AssertionError("a source line was noted")
        with mock.patch.object(op, "_get_caller_frame_info", side_effect=noted) as note:
            lean = rt.compile_kernel(scale_source())
        self.assertEqual(note.call_count, 0)
        with mock.patch.object(rt, "_LOCATIONS", ("no", "such")):
            full = rt.compile_kernel(scale_source())
        self.assertEqual(lean.object, full.object)

    def test_ptx_on_request(self):
        self.assertIsNone(rt.compile_kernel(scale_source()).ptx)
        ptx = rt.compile_kernel(scale_source("sm_100a"), ptx=True).ptx
        self.assertIn(".target sm_100a", ptx)

    def test_simulation_build_is_plain_and_keeps_ptx(self):
        function, gate = rt.compile_for_simulation(scale_source())
        self.assertIn(".target sm_90a", function.__ptx__)
        self.assertNotIn("tvm_ffi", str(function.ir_module))
        self.assertEqual(str(gate), "ok")

    def test_simulation_build_knows_what_the_gate_refuses(self):
        _, gate = rt.compile_for_simulation(spill_source())
        self.assertEqual(
            str(gate), str(rt.compile_kernel(spill_source(), gate=False).gate)
        )
        self.assertRegex(str(gate), "spilled registers.*setmaxnreg")

    @parametrize(
        "text,words",
        [
            ("import no_such_module", "no_such_module"),
            ("def scale(:", "invalid syntax"),
            (SCALE.replace("s[0]", "nothing[0]"), "nothing"),
            (SCALE.replace("def scale(", "def other("), "defines no scale"),
        ],
        name_fn=lambda text, words: words.replace(" ", "_"),
    )
    def test_bad_source(self, text, words):
        source = dataclasses.replace(scale_source(), text=text)
        with self.assertRaisesRegex(CompileError, words) as caught:
            rt.compile_kernel(source)
        self.assertNotIn("\x1b", str(caught.exception))
        self.assertIn("scale", str(caught.exception))

    def test_symbols_are_unique(self):
        names = {rt.symbol_name(scale_source(note=str(i))) for i in range(8)}
        self.assertEqual(len(names), 8)


class TestFakeTensors(TestCase):
    def test_extent_multiples_combine(self):
        args = (
            TensorArg("a", E4M3, ("m", "k"), 1, divisibility=16),
            TensorArg("b", E4M3, ("n", "k"), 1, divisibility=16),
            TensorArg("d", BFLOAT16, ("m", "n"), 1, divisibility=8),
            TensorArg("r", BFLOAT16, ("m", "n"), 1, divisibility=3),
            TensorArg("s", BFLOAT16, ("m",), None),
            TensorArg("t", BFLOAT16, ("1",), 0),
        )
        self.assertEqual(rt.extent_multiples(args), {"m": 1, "k": 16, "n": 24})


LOG = """\
\x1b[96mremark[ptxas]:\x1b[0m ptxas detected register spills
          ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored;
          unable to determine register count at entry.
          ptxas info    : 0 bytes gmem
          ptxas         .     2568 bytes stack frame, 5356 bytes spill stores, 6010
          bytes spill loads
          ptxas info    : Used 32 registers, used 1 barriers
"""


class TestPtxasReport(TestCase):
    def test_wrapped_log(self):
        report = ptxas.parse(LOG)
        self.assertEqual(
            (report.registers, report.spill_store_bytes, report.spill_load_bytes),
            (32, 5356, 6010),
        )
        self.assertEqual(len(report.warnings), 1)
        self.assertTrue(report.warnings[0].startswith("C7508 Potential"))
        self.assertEqual(len(report.gate().reasons), 2)

    def test_serialised_wgmma_fails_the_gate(self):
        log = LOG.replace("'setmaxnreg' ignored", "X").replace("5356", "0")
        log = log.replace("6010", "0")
        self.assertTrue(ptxas.parse(log).gate())
        serial = "wgmma.mma_async instructions are serialized due to"
        self.assertFalse(ptxas.parse(log.replace("X", serial)).gate())

    def test_missing_log_fails_the_gate(self):
        self.assertFalse(ptxas.parse("").gate())

    def test_other_threads_keep_their_stderr(self):
        shown = io.StringIO()
        previous, sys.stderr = sys.stderr, shown
        try:
            with ptxas.StderrCapture() as capture:
                print("ours", file=sys.stderr)
                other = threading.Thread(
                    target=lambda: print("theirs", file=sys.stderr)
                )
                other.start()
                other.join()
        finally:
            sys.stderr = previous
        self.assertEqual(capture.text, "ours\n")
        self.assertEqual(shown.getvalue(), "theirs\n")


class TestCubin(TestCase):
    @parametrize("data", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), bytes(200)])
    def test_malformed(self, data):
        with self.assertRaises(CompileError):
            cubin.read(data)

    def test_no_cubin_in_object(self):
        with self.assertRaisesRegex(CompileError, "0 cubins"):
            cubin.extract(b"\x7fELF" + bytes(100))

    def test_truncated(self):
        compiled = rt.compile_kernel(scale_source())
        start = compiled.object.index(b"\x7fELF", 4)
        with self.assertRaisesRegex(CompileError, "truncated"):
            cubin.extract(compiled.object[: start + 1000])


instantiate_parametrized_tests(TestCompile)
instantiate_parametrized_tests(TestCubin)

if __name__ == "__main__":
    run_tests()
