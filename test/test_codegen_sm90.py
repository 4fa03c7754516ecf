"""Kernels printed for sm_90a: golden texts, and what every text must be."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import torch
from build_helper import build, fp8, mm
from golden_helper import assert_golden, assert_no_stale_golden, golden_cases
from grouped_kernel_cases import ALL_CASES
from kernel_cases import HEADLINE
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.codegen.module import print_module
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT32, DType
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.problem import Accum, Grouping, Major
from torch_cute_backend.runtime.compile import compile_kernel
from torch_cute_backend.schedule import GemmSchedule

S64 = GemmSchedule(64, 64, 128, 6, epi_n=64)


def kernel_of(source: KernelSource) -> str:
    """The kernel function, without header, comments and host code."""
    text = source.text[
        source.text.index("@cute.kernel") : source.text.index("@cute.jit")
    ]
    return re.sub(r"(?m)^ *# (?!---).*\n", "", text)


def role_of(kernel: str, role: str) -> str:
    """What one role runs: from its banner to the next."""
    parts = re.split(r"\n    # --- (\w+) -+\n", kernel)
    return parts[parts.index(role) + 1]


class TestGolden(TestCase):
    @parametrize("case", golden_cases("sm_90a"), name_fn=lambda c: c.name)
    def test_golden(self, case):
        assert_golden(self, case)

    def test_nothing_stale(self):
        assert_no_stale_golden(self, "sm_90a")

    def test_spread(self):
        cases = golden_cases("sm_90a")
        self.assertGreaterEqual(len(cases), 10)
        self.assertIn(HEADLINE, [c.name for c in cases])


class TestLowTiles(TestCase):
    """Rows below a low tile are zeroed before the first MMA, which nothing hides."""

    @parametrize("tile_m", [8, 16, 32])
    def test_each_byte_is_zeroed_once_and_without_divisions(self, tile_m):
        schedule = GemmSchedule(tile_m, 32, 256, 9)
        text = build(fp8(tile_m), schedule, SM90).source.text
        begin, *sizes = map(
            int,
            re.search(
                r"raw_a \+ (\d+),\s*cute.make_layout\(\s*\((\d+), (\d+), (\d+), "
                r"(\d+)\),\s*stride=\((\d+), (\d+), (\d+), (\d+)\)",
                text,
            ).groups(),
        )
        shape, stride = sizes[:4], sizes[4:]
        offsets = torch.tensor([begin])
        for count, step in zip(shape, stride, strict=True):
            offsets = (offsets[:, None] + torch.arange(count) * step).flatten()
        panels = offsets.bincount(minlength=9 * 64 * 256).view(18, 64, 128)
        self.assertEqual(panels[:, :tile_m].unique().tolist(), [0])
        self.assertEqual(panels[:, tile_m:].unique().tolist(), [1])
        store = re.search(r"cute.autovec_copy\(zeros, sA_padding\[(.*)\]\)", text)
        self.assertEqual(store[1], "(None, tidx, j, i)")


class TestDependentLaunch(TestCase):
    """Programmatic dependent launch: the attribute, and waiting before any tensor."""

    @parametrize("arch", [SM90, SM100], name_fn=lambda a: a.name)
    def test_attribute_and_order(self, arch):
        tile = 64 if arch is SM90 else 128
        schedule = GemmSchedule(tile, 64, 128, 6, epi_n=64)
        plain = build(fp8(), schedule, arch).source.text
        text = build(fp8(), replace(schedule, launch="dependent"), arch).source.text
        self.assertNotIn("use_pdl", plain)
        self.assertNotIn("griddepcontrol", plain)
        self.assertEqual(text.count("use_pdl=True,"), 1)
        self.assertEqual(text.count("griddepcontrol_wait()"), 1)
        wait = text.index("griddepcontrol_wait()")
        launch = text.index("griddepcontrol_launch_dependents()")
        self.assertLess(wait, launch)
        self.assertLess(launch, text.lower().index("# --- load"))

    def test_ptx_waits_before_it_touches_global_memory(self):
        schedule = replace(S64, launch="dependent")
        source = build(fp8(), schedule, SM90).source
        ptx = compile_kernel(source, gate=False, ptx=True).ptx or ""
        body = ptx[ptx.index(".entry") :]
        wait = body.index("griddepcontrol.wait")
        touches = re.findall(
            r"cp\.async\.bulk\.tensor|ld\.global|st\.global", body[:wait]
        )
        self.assertEqual(touches, [])
        self.assertIn("cp.async.bulk.tensor", body[wait:])
        self.assertIn("griddepcontrol.launch_dependents", body[wait:])

    def test_a_grouped_kernel_is_launched_plainly(self):
        problem = replace(fp8(), op="grouped_mm", grouping=Grouping.M, groups=4)
        status = replace(S64, launch="dependent").validate(problem, SM90)
        self.assertIn("launched plainly", str(status))

    def test_other_words_are_refused(self):
        status = replace(S64, launch="sometimes").validate(fp8(), SM90)
        self.assertIn("launch 'sometimes' is unknown", str(status))


class TestText(TestCase):
    @parametrize("case", [c for c in ALL_CASES if c.arch is SM90], name_fn=str)
    def test_every_text_is_plain_readable_python(self, case):
        text = case.build().source.text
        ast.parse(text)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 88, line)
            self.assertEqual(line, line.rstrip())
        self.assertNotIn("const_expr(", text.replace("range_constexpr(", ""))
        # It would stringify annotations and break @cute.struct.
        self.assertNotIn("from __future__", text)
        self.assertNotIn("\n\n\n\n", text)

    def test_header_says_what_and_why(self):
        header = build(fp8(), S64, SM90).source.text.split("\nimport ")[0]
        for words in (
            "scaled_mm: float8_e4m3fn(k) x float8_e4m3fn(k) -> bfloat16",
            "Target:   sm_90a",
            "tile_m=64, tile_n=64, tile_k=128, ab_stages=6",
            "Shared loop: omitted",
            "APPLIED residual_work: CtaBarrier",
        ):
            self.assertIn(words, header)

    def test_text_does_not_depend_on_sizes(self):
        # One kernel serves every M, N and K: it is compiled and cached once.
        first = build(fp8(64, 5120, 5120), S64, SM90).source
        second = build(fp8(33, 208, 336), S64, SM90).source
        self.assertEqual(first, second)
        self.assertEqual(first.sha256, second.sha256)

    @parametrize(
        "change",
        [
            {"ab_stages": 5},
            {"raster": "along_n"},
            {"store": "direct"},
            {"scheduler": "single_tile"},
            {"shared_loop": "keep"},
            {"shared_loop": "inline"},
            {"epi_n": 32},
            {"cluster_n": 2},
        ],
        name_fn=lambda c: "_".join(str(x) for x in c.values()),
    )
    def test_every_schedule_field_changes_the_text(self, change):
        base = build(fp8(), S64, SM90).source
        other = build(fp8(), replace(S64, **change), SM90).source

        bare = [re.sub(r"(?m)^#.*\n", "", x.text) for x in (base, other)]
        self.assertNotEqual(*bare)
        self.assertNotEqual(base.sha256, other.sha256)


class TestForms(TestCase):
    """Where the shared loop and its barrier stand in the three forms."""

    def text(self, form):
        return kernel_of(build(fp8(), replace(S64, shared_loop=form), SM90).source)

    def test_omitted(self):
        text = self.text("auto")
        self.assertEqual(text.count("while tile_idx <"), 2)
        self.assertNotIn("sync_threads", text)
        for role in ("LOAD", "MATH"):
            self.assertEqual(role_of(text, role).count("while tile_idx <"), 1)

    def test_kept(self):
        text = self.text("keep")
        self.assertEqual(text.count("while tile_idx <"), 3)
        self.assertEqual(text.count("sync_threads"), 1)
        shared = text[text.rindex("while tile_idx <") :].rstrip()
        self.assertRegex(shared, r"sync_threads\(\).*\n +tile_idx \+= clusters$")

    def test_inline(self):
        text = self.text("inline")
        self.assertEqual(text.count("while tile_idx <"), 1)
        self.assertEqual(text.count("sync_threads"), 1)
        self.assertNotIn("# --- ", text)

    def test_roles_do_their_own_work_only(self):
        text = self.text("auto")
        load, math = role_of(text, "LOAD"), role_of(text, "MATH")
        self.assertIn("producer_acquire", load)
        self.assertIn("producer_tail", load)
        self.assertNotIn("cute.gemm", load)
        self.assertIn("cute.gemm", math)
        self.assertNotIn("tma_atom_a", math)


class TestPieces(TestCase):
    def test_fast_accumulation_starts_by_overwriting(self):
        text = build(fp8(), S64, SM90).source.text
        self.assertIn("accumulate = k_block > 0 or k_tile > 0", text)
        self.assertNotIn("tCrAcc.fill", text)

    def test_exact_accumulation_promotes_every_k_tile(self):
        text = build(fp8(accum=Accum.EXACT), S64, SM90).source.text
        loop = text[text.index("consumer_wait") : text.index("consumer_release")]
        self.assertIn("tCrAcc[i] = tCrAcc[i] + tCrAccK[i]", loop)
        self.assertIn("warpgroup.wait_group(0)", loop)
        self.assertNotIn("wait_group(1)", text)

    def test_exact_means_nothing_for_bf16(self):
        s = replace(S64, tile_k=64)
        fast, exact = (build(mm(accum=a), s, SM90).source.text for a in Accum)
        self.assertEqual(fast.split("import")[1:], exact.split("import")[1:])

    @parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)])
    def test_multicast(self, cluster):
        s = replace(S64, cluster_m=cluster[0], cluster_n=cluster[1])
        text = build(fp8(4096), s, SM90).source.text
        # A is shared along the cluster's N, B along its M.
        self.assertEqual("mcast_mask=a_mcast_mask" in text, cluster[1] > 1)
        self.assertEqual("mcast_mask=b_mcast_mask" in text, cluster[0] > 1)
        arrivals = 4 * (cluster[0] + cluster[1] - 1)
        self.assertIn(f"CooperativeGroup(pipeline.Agent.Thread, {arrivals})", text)

    @parametrize(
        "out,bits",
        [(BFLOAT16, None), (FLOAT32, 64), (E4M3, 16)],
        name_fn=lambda o, b: o.name,
    )
    def test_staging_stores(self, out: DType, bits):
        s = S64 if out is not FLOAT32 else replace(S64, epi_n=32)
        text = build(fp8(out=out), s, SM90).source.text
        if bits is None:
            self.assertIn("warp.StMatrix8x8x16bOp(False, 4)", text)
        else:
            self.assertIn(f"num_bits_per_copy={bits}", text)

    def test_direct_store_is_predicated_and_stages_nothing(self):
        problem = fp8(out_aligned=False)
        text = build(problem, replace(S64, store="direct"), SM90).source.text
        self.assertIn("if row < m and col < n:", text)
        self.assertNotIn("tma_atom_d", text)
        self.assertNotIn("sD", text)

    @parametrize("a_major", list(Major))
    @parametrize("b_major", list(Major))
    def test_majors(self, a_major, b_major):
        s = replace(S64, tile_k=64)
        source = build(mm(a_major=a_major, b_major=b_major), s, SM90).source
        mma = source.text[source.text.index("make_trivial_tiled_mma") :]
        modes = re.findall(r"OperandMajorMode\.(\w+)", mma)[:2]
        self.assertEqual(modes, [a_major.name, b_major.name])
        a, b = source.args[:2]
        self.assertEqual(a.contiguous, 1 if a_major is Major.K else 0)
        self.assertEqual(b.contiguous, 1 if b_major is Major.K else 0)

    def test_clusters_are_counted_along_x(self):
        # The other axes of a grid end at 65535: an 8192 x 51200 output has more tiles.
        s = replace(S64, scheduler="single_tile", cluster_n=2)
        text = build(fp8(), s, SM90).source.text
        self.assertIn("grid=(clusters * CLUSTER_M, CLUSTER_N, 1)", text)


class TestArguments(TestCase):
    def test_call_order_and_constraints(self):
        source = build(fp8(bias=BFLOAT16), S64, SM90).source
        self.assertEqual(
            [(a.name, a.shape, a.contiguous, a.output) for a in source.args],
            [
                ("a", ("m", "k"), 1, False),
                ("b", ("n", "k"), 1, False),
                ("d", ("m", "n"), 1, True),
                ("scale_a", ("m",), None, False),
                ("scale_b", ("n",), None, False),
                ("bias", ("n",), None, False),
            ],
        )
        self.assertEqual([a.divisibility for a in source.args], [16, 16, 8, 1, 1, 1])
        self.assertEqual([a.align_bytes for a in source.args], [16, 16, 16, 4, 4, 2])
        names = re.search(r"def gemm\((.*?)\):", source.text, re.DOTALL)[1]
        order = re.findall(r"(\w+): cute.Tensor", names)
        self.assertEqual(order, [a.name for a in source.args])

    def test_direct_output_is_unconstrained(self):
        problem = fp8(out_aligned=False)
        d = build(problem, replace(S64, store="direct"), SM90).source.args[2]
        self.assertEqual((d.divisibility, d.align_bytes), (1, 2))

    def test_tensorwise_scales_are_one_element(self):
        source = build(fp8(scaling="tensorwise"), S64, SM90).source
        self.assertEqual([a.shape for a in source.args[3:]], [("1",), ("1",)])

    def test_digest_covers_arguments(self):
        source = build(fp8(), S64, SM90).source
        other = replace(source, args=source.args[:-1])
        self.assertNotEqual(source.sha256, other.sha256)


class TestErrors(TestCase):
    def test_unknown_arch(self):
        program = build(fp8(), S64, SM90).after
        with self.assertRaisesRegex(CodegenError, "no emitter for mfma of sm_90a"):
            print_module(program, fp8(), S64, replace(SM90, mma="mfma"), [])


instantiate_parametrized_tests(TestGolden)
instantiate_parametrized_tests(TestLowTiles)
instantiate_parametrized_tests(TestDependentLaunch)
instantiate_parametrized_tests(TestText)
instantiate_parametrized_tests(TestForms)
instantiate_parametrized_tests(TestPieces)
instantiate_parametrized_tests(TestArguments)

if __name__ == "__main__":
    run_tests()
