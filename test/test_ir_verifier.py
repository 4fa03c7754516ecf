"""The verifier: every rule passes the examples and is broken at least once."""

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
from verifier_edits import before_step, in_prologue, inline90, kept90, pair
from verifier_forms import FORMS
from verifier_pipelines import PIPELINES
from verifier_structure import STRUCTURE

from torch_cute_backend.errors import VerifyError
from torch_cute_backend.ir.dataflow import ProducerAcquire
from torch_cute_backend.ir.sync import PdlLaunch, PdlWait
from torch_cute_backend.ir.values import Space
from torch_cute_backend.ir.verifier import RULES, verify, violations

CASES = (*STRUCTURE, *PIPELINES, *FORMS)


class TestVerifier(TestCase):
    @parametrize("arch", list(ex.EXAMPLES))
    def test_examples_hold_in_every_form(self, arch):
        inline = ex.EXAMPLES[arch]()
        kept = ex.partition(inline)
        omitted, _ = ex.omit(kept)
        for program in (inline, kept, omitted):
            self.assertEqual(violations(program), ())

    @parametrize("case", [subtest(c, name=f"{c.rule}_{c.why}") for c in CASES])
    def test_broken(self, case):
        found = [v for v in violations(case.program()) if v.startswith(case.rule + ":")]
        self.assertTrue(
            any(case.message in v for v in found),
            f"{case.message!r} not in {found or violations(case.program())}",
        )

    def test_arrivals_of_a_pair(self):
        program = pair(replace(ex.ACC, consumer_arrivals=8))
        found = [v for v in violations(program) if v.startswith("arrivals")]
        self.assertEqual(found, [])

    def test_every_rule_is_broken_above(self):
        self.assertEqual({c.rule for c in CASES}, {r.name for r in RULES})

    def test_verify_raises_with_every_message(self):
        program = ex.without(inline90(), ProducerAcquire)
        with self.assertRaises(VerifyError) as caught:
            verify(program)
        text = str(caught.exception)
        self.assertEqual(text, "dense: " + "; ".join(violations(program)))
        self.assertGreater(len(violations(program)), 1)

    def test_final_rules_bind_only_what_is_printed(self):
        waiting = in_prologue(kept90(), PdlWait())
        program = before_step(waiting, PdlLaunch())
        self.assertEqual(violations(program, final=False), ())
        self.assertNotEqual(violations(program), ())

    def test_message_text(self):
        program = ex.with_resource(
            inline90(), ex.AB90, replace(ex.AB90, consumer_arrivals=1)
        )
        self.assertExpectedInline(
            "\n".join(violations(program)),
            """arrivals: pipeline ab: empty barrier expects 1 arrivals, roles make 4""",
        )

    def test_rmem_needs_no_declaration(self):
        program = replace(
            inline90(),
            buffers=tuple(b for b in inline90().buffers if b.space is not Space.RMEM),
        )
        self.assertEqual(violations(program), ())


instantiate_parametrized_tests(TestVerifier)

if __name__ == "__main__":
    run_tests()
