"""drop_dead_loads: only dead, only read-only, only when asked for."""

from __future__ import annotations

from dataclasses import replace

import ir_examples as ex
from test_pass_grouped import END, OLD_GROUP, rank3
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.ir.dataflow import GmemStore
from torch_cute_backend.ir.expr import Const, Ref
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import If, KLoop, Let, ScalarLoad
from torch_cute_backend.ir.sync import CtaBarrier
from torch_cute_backend.ir.values import Var
from torch_cute_backend.ir.verifier import violations
from torch_cute_backend.passes import PassContext, run_pipeline
from torch_cute_backend.passes.drop_dead_loads import DropDeadLoads

X = Var("x")


def load(buffer=ex.OFFSETS) -> ScalarLoad:
    return ScalarLoad(var=X, buffer=buffer, index=Const(0))


def dropped(program: Program) -> Program:
    context = PassContext(ex.ROLES[program.arch], drop_dead_loads=True)
    return DropDeadLoads().run(program, context).program


def residual(program: Program) -> list[str]:
    return [print_statement(s) for s in program.loop.body]


def survives(*statements: Stmt) -> bool:
    """Does the load among ``statements`` stay in the shared loop?"""
    program = dropped(ex.with_residual(ex.kept("sm_90a"), *statements))
    return any(isinstance(s, ScalarLoad) for s in program.walk())


class TestDropDeadLoads(TestCase):
    @parametrize("arch", list(ex.EXAMPLES))
    def test_rank3_search_is_gone_and_the_check_omits_the_loop(self, arch):
        without = run_pipeline(rank3(arch), ex.ROLES[arch])
        self.assertEqual(without.omission.rule, "residual_work")
        result = run_pipeline(rank3(arch), ex.ROLES[arch], drop_dead_loads=True)
        self.assertEqual(
            (result.omission.decision, result.omission.rule), ("omitted", None)
        )
        self.assertEqual(violations(result.after), ())
        loads = [s for s in result.after.walk() if isinstance(s, ScalarLoad)]
        self.assertTrue(loads)
        self.assertTrue(all(str(s.role) == "load" for s in loads))

    def test_text(self):
        program = ex.partition(rank3("sm_90a"))
        self.assertExpectedInline(
            "\n".join(residual(dropped(program))),
            """\
placeholder (5 of load)
placeholder (14 of math)
CtaBarrier()  # tile hand-over
advance tiles: tile += gridz""",
        )

    def test_remarks(self):
        program = ex.partition(rank3("sm_90a"))
        context = PassContext(ex.ROLES["sm_90a"], drop_dead_loads=True)
        remarks = DropDeadLoads().run(program, context).remarks
        self.assertExpectedInline(
            "\n".join(f"{r.statement}: {r.message}" for r in remarks),
            """end = offsets[i]: dead read-only load dropped""",
        )

    def test_off_by_default(self):
        program = ex.partition(rank3("sm_90a"))
        result = DropDeadLoads().run(program, PassContext(ex.ROLES["sm_90a"]))
        self.assertEqual(result.program, program)

    def test_inline_programs_are_left_alone(self):
        program = rank3("sm_90a")
        self.assertEqual(dropped(program), program)

    def test_dead_load_goes(self):
        self.assertFalse(survives(load()))

    def test_load_of_a_written_buffer_stays(self):
        self.assertTrue(survives(load(ex.D)))

    def test_load_of_a_role_stays(self):
        self.assertTrue(survives(replace(load(), role=ex.MATH)))

    def test_load_that_work_depends_on_stays(self):
        store = GmemStore(
            source=ex.R_D, target=ex.D, tile=(Ref(X), Const(0)), subtile=ex.TILE
        )
        self.assertTrue(survives(load(), store))

    def test_load_that_decides_about_a_barrier_stays(self):
        self.assertTrue(survives(load(), If(condition=Ref(X), body=(CtaBarrier(),))))

    def test_load_that_counts_a_loop_with_work_stays(self):
        loop = KLoop(index=Var("i"), count=Ref(X), body=(CtaBarrier(),))
        self.assertTrue(survives(load(), loop))

    def test_load_through_a_chain_that_ends_in_work_stays(self):
        chain = Let(var=Var("y"), value=Ref(X))
        barrier = If(condition=Ref(Var("y")), body=(CtaBarrier(),))
        self.assertTrue(survives(load(), chain, barrier))
        self.assertFalse(survives(load(), chain))

    @parametrize("var", [OLD_GROUP, END], name_fn=str)
    def test_load_that_is_used_behind_the_loop_stays(self, var):
        program = ex.partition(rank3("sm_90a"))
        use = Let(var=Var("z"), value=Ref(var))
        found = dropped(replace(program, post=(use,))).loop.body
        self.assertGreater(len(found), len(dropped(program).loop.body))


instantiate_parametrized_tests(TestDropDeadLoads)

if __name__ == "__main__":
    run_tests()
