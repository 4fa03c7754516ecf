"""run_pipeline: the whole list of passes, on the examples and on real templates."""

from __future__ import annotations

from dataclasses import replace

import ir_examples as ex
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import ARCHS
from torch_cute_backend.dtypes import BFLOAT16, E4M3
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.errors import IRError, VerifyError
from torch_cute_backend.ir.dataflow import GmemStore, ProducerAcquire
from torch_cute_backend.ir.expr import Const, Ref
from torch_cute_backend.ir.structure import If, Placeholder, ScalarLoad, TileLoop
from torch_cute_backend.ir.sync import CtaBarrier, TmemFree
from torch_cute_backend.ir.values import Var
from torch_cute_backend.passes import (
    PIPELINE,
    PassContext,
    PipelineResult,
    Refused,
    run_pipeline,
)
from torch_cute_backend.passes.drop_placeholders import DropPlaceholders
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.templates.dense_gemm import build_dense_gemm

X = Var("x")
LOAD = ScalarLoad(var=X, buffer=ex.OFFSETS, index=Const(0))
ROWWISE = EpilogueGraph.linear(BFLOAT16, InputKind.ROW, InputKind.COL)
FP8 = GemmProblem(
    "scaled_mm", 64, 5120, 5120, E4M3, E4M3, scaling="rowwise", epilogue=ROWWISE
)
SCHEDULES = {
    "sm_90a": {
        "one_warpgroup": GemmSchedule(64, 128, 128, 4),
        "two_warpgroups": GemmSchedule(128, 128, 128, 4, math_warpgroups=2),
        "cluster": GemmSchedule(128, 128, 128, 4, cluster_m=2, math_warpgroups=2),
        "direct": GemmSchedule(64, 128, 128, 4, store="direct"),
        "low": GemmSchedule(16, 128, 128, 4),
    },
    "sm_100a": {
        "one_stage": GemmSchedule(128, 128, 128, 4),
        "two_stages": GemmSchedule(128, 128, 128, 4, acc_stages=2),
        "cluster": GemmSchedule(128, 128, 128, 4, cluster_n=2),
        "direct": GemmSchedule(128, 128, 128, 4, store="direct"),
    },
}
REAL = [
    subtest((arch, name), name=f"{arch}_{name}")
    for arch, schedules in SCHEDULES.items()
    for name in schedules
]


def run(program, shared_loop="auto"):
    return run_pipeline(program, ex.ROLES[program.arch], shared_loop)


class TestExamples(TestCase):
    @parametrize("arch", list(ex.EXAMPLES))
    def test_auto(self, arch):
        result = run(ex.EXAMPLES[arch]())
        self.assertIsInstance(result, PipelineResult)
        self.assertEqual(result.before, ex.kept(arch))
        self.assertEqual(result.after, replace(ex.kept(arch), loop=None))
        self.assertEqual(result.omission.decision, "omitted")

    @parametrize("arch", list(ex.EXAMPLES))
    def test_keep(self, arch):
        result = run(ex.EXAMPLES[arch](), "keep")
        self.assertEqual(result.after.form, "kept")
        kinds = [type(s).__name__ for s in result.after.loop.body]
        self.assertEqual(kinds, ["Let", "Let", "CtaBarrier", "SchedulerAdvance"])
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("kept", None)
        )

    @parametrize("arch", list(ex.EXAMPLES))
    def test_inline(self, arch):
        program = ex.EXAMPLES[arch]()
        result = run(program, "inline")
        self.assertEqual((result.before, result.after), (program, program))
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("kept", None)
        )
        self.assertIn("inline form requested", str(result.omission.remarks[0]))

    def test_work_keeps_the_loop_and_runs_there(self):
        result = run(ex.with_residual(ex.dense_sm90(), LOAD))
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("kept", "residual_work")
        )
        self.assertIn(LOAD, result.after.loop.body)

    def test_two_roots_are_kept(self):
        result = run(replace(ex.dense_sm100(), roots=("K", "V")))
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("kept", "single_root")
        )

    def test_a_role_of_the_arch_that_the_program_lacks(self):
        result = run_pipeline(ex.dense_sm90(), ("load", "math", "scheduler"))
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("kept", "role_local")
        )

    def test_illegal_partition_is_refused_with_reasons(self):
        inline = ex.without(ex.dense_sm100(), TmemFree)
        free = TmemFree(buffer=ex.T_ACC, columns=128)
        result = run(replace(inline, post=(*inline.post, free)))
        self.assertIsInstance(result, Refused)
        self.assertFalse(result)
        self.assertTrue(result.reasons[0].startswith("P3: unordered accesses of tAcc"))
        self.assertEqual(result.omission.decision, "refused")
        self.assertEqual(
            [r.message for r in result.omission.remarks], list(result.reasons)
        )

    def test_what_can_neither_go_nor_stay_is_refused_with_reasons(self):
        store = GmemStore(
            source=ex.R_D,
            target=ex.OFFSETS,
            tile=(Ref(ex.TILE_M), Ref(ex.TILE_N)),
            subtile=ex.TILE,
        )
        registers = replace(ex.R_D, name="r_other")
        program = ex.with_residual(ex.dense_sm90(), replace(store, source=registers))
        result = run(program)
        self.assertIsInstance(result, Refused)
        self.assertEqual(result.omission.rule, "residual_work")
        self.assertIn("kept_contract", " ".join(result.reasons))

    def test_an_ill_formed_program_raises(self):
        with self.assertRaisesRegex(VerifyError, "bracketing"):
            run(ex.without(ex.dense_sm90(), ProducerAcquire))
        with self.assertRaisesRegex(VerifyError, "bracketing"):
            run(ex.without(ex.dense_sm90(), ProducerAcquire), "inline")

    def test_unknown_request_raises(self):
        with self.assertRaisesRegex(IRError, "unknown shared_loop 'maybe'"):
            run(ex.dense_sm90(), "maybe")

    def test_pass_names(self):
        self.assertExpectedInline(
            "\n".join(p.name for p in PIPELINE),
            """\
partition_roles
drop_dead_loads
omit_shared_loop
drop_placeholders""",
        )


class TestDropPlaceholders(TestCase):
    def test_placeholders_and_what_held_only_them(self):
        mark = Placeholder(of="math", count=1)
        branch = If(condition=Const(1), body=(mark,))
        useful = If(condition=Const(1), body=(mark, CtaBarrier()))
        program = ex.with_residual(ex.kept("sm_90a"), branch, useful)
        after = DropPlaceholders().run(program, PassContext(())).program
        found = [s for s in after.walk() if isinstance(s, Placeholder)]
        self.assertEqual(found, [])
        branches = [s for s in after.walk() if isinstance(s, If)]
        self.assertEqual(branches, [useful.with_body((CtaBarrier(),))])


class TestTemplates(TestCase):
    """What build_kernel prints: every real dense program, in both partitioned forms."""

    @parametrize("case", REAL)
    @parametrize("accum", list(Accum))
    def test_dense_is_omitted(self, case, accum):
        arch, name = case
        schedule = SCHEDULES[arch][name]
        problem = replace(FP8, accum=accum)
        self.assertTrue(schedule.validate(problem, ARCHS[arch]))
        program = build_dense_gemm(problem, schedule, ARCHS[arch])
        result = run(program)
        self.assertTrue(result, str(result))
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("omitted", None)
        )
        owners = [str(s.role) for s in result.after.walk() if isinstance(s, TileLoop)]
        self.assertEqual(tuple(owners), ex.ROLES[arch])
        self.assertEqual(run(program, "keep").after.form, "kept")

    @parametrize("case", REAL)
    def test_single_tile_has_no_loop_to_omit(self, case):
        arch, name = case
        schedule = replace(SCHEDULES[arch][name], scheduler="single_tile")
        program = build_dense_gemm(FP8, schedule, ARCHS[arch])
        result = run(program)
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("not_applicable", None)
        )
        self.assertIsNone(result.after.loop)


instantiate_parametrized_tests(TestExamples)
instantiate_parametrized_tests(TestTemplates)

if __name__ == "__main__":
    run_tests()
