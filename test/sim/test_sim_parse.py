"""The PTX parser and the block builder (no DSL, no engine)."""

from __future__ import annotations

import _paths  # noqa: F401
import micro
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.sim.blocks import build
from torch_cute_backend.sim.codegen import compile_kernel
from torch_cute_backend.sim.faults import Fault
from torch_cute_backend.sim.parse import (
    Dual,
    Imm,
    Mem,
    Reg,
    Sym,
    Vec,
    entry_param_sizes,
    parse,
)
from torch_cute_backend.sim.report import SimError, UnsupportedPtx


def kernel(body: str):
    return parse(micro.text(body, [8]))["k"]


class ParseTest(TestCase):
    def test_operands(self):
        instrs = kernel(
            """ ld.global.v2.b32 {%r1, %r2}, [%rd1+-16]; elect.sync %r3|%p1, -1;
            selp.b32 %r4, 0f3F800000, 0x10, !%p1;
            cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
            [%r1+64], [%rd2, {%r3, %r4}], [%r5]; mov.b32 %r6, smem+128;
            """
        ).instrs
        self.assertEqual(
            instrs[0].operands, (Vec((Reg("%r1"), Reg("%r2"))), Mem(Reg("%rd1"), -16))
        )
        self.assertEqual(instrs[1].operands[0], Dual(Reg("%r3"), Reg("%p1")))
        self.assertEqual(
            instrs[2].operands[1:], (Imm(0x3F800000, 32), Imm(16), Reg("%p1", True))
        )
        self.assertEqual(
            instrs[3].operands[1], Mem(Reg("%rd2"), 0, (Vec((Reg("%r3"), Reg("%r4"))),))
        )
        self.assertEqual(instrs[4].operands[1], Sym("smem", 128))

    def test_lines_survive_comments_and_multi_line_statements(self):
        instrs = kernel(
            "// one\n/* two\nthree */\nadd.s32 %r1, %r2,\n %r3;\nsub.s32 %r1, %r1, 1;"
        ).instrs
        first = micro.text("", [8]).splitlines().index("") + 1
        self.assertEqual([i.line - first for i in instrs[:2]], [3, 5])

    def test_inline_assembly_scopes(self):
        scope = "{\n.reg .pred P;\nLAB:\nsetp.eq.b32 P, %r1, 0;\n@P bra LAB;\n}"
        parsed = kernel(f"{scope}\n{scope}")
        guards = [i.guard.name for i in parsed.instrs if i.guard]
        self.assertEqual(len(set(guards)), 2)
        targets = [i.operands[0].name for i in parsed.instrs if i.opcode == "bra"]
        self.assertEqual(len(set(targets)), 2)

    def test_param_sizes(self):
        self.assertEqual(
            entry_param_sizes(micro.text("", [8, 4, 128])), {"k": (8, 4, 128)}
        )

    def test_not_ptx(self):
        with self.assertRaisesRegex(SimError, "not a PTX module"):
            parse("int main() { return 0; }")

    def test_undeclared_register(self):
        with self.assertRaisesRegex(
            SimError, "PTX line 11: cannot parse operand|unexpected|undeclared"
        ):
            compile_kernel(kernel("@%q bra L;\nL:"))

    def test_unknown_opcode_names_the_line(self):
        source = micro.text("mov.b32 %r1, 0;\nfrobnicate.b32 %r1, %r2;", [8])
        line = source.splitlines().index("\tfrobnicate.b32 %r1, %r2;") + 1
        with self.assertRaisesRegex(UnsupportedPtx, f"PTX line {line}: frobnicate"):
            compile_kernel(parse(source)["k"])

    def test_unmodelled_qualifier_is_refused(self):
        for opcode in (
            "add.cc.u32 %r1, %r2, %r3",
            "ld.global.frob.b32 %r1, [%rd1]",
            "mbarrier.arrive.noComplete.shared.b64 %rd1, [%r1], 1",
        ):
            with self.assertRaises(UnsupportedPtx):
                compile_kernel(kernel(f"{opcode};"))


class BlocksTest(TestCase):
    def test_guarded_instruction_becomes_a_branch(self):
        flow = build(kernel("@%p1 add.s32 %r1, %r2, 1;\nsub.s32 %r3, %r1, 1;"))
        head = flow.blocks[0]
        self.assertEqual(head.instrs[-1].opcode, "bra")
        self.assertEqual((head.taken, head.next), (2, 1))
        self.assertEqual(head.synthetic, {0})

    def test_blocking_instruction_starts_a_block(self):
        flow = build(kernel("mov.b32 %r1, 0;\nbar.sync 0;\nmov.b32 %r2, 0;"))
        self.assertEqual(
            [b.instrs[0].opcode for b in flow.blocks], ["mov.b32", "bar.sync"]
        )

    def test_liveness(self):
        flow = build(
            kernel(
                "mov.b32 %r1, 0;\nL:\nadd.s32 %r1, %r1, %r2;\n"
                "setp.lt.s32 %p1, %r1, 9;\n@%p1 bra L;"
            )
        )
        names = {flow.numbers[n] for n in ("%r1", "%r2")}
        live = {i for i in range(len(flow.bits)) if flow.blocks[1].live_in >> i & 1}
        self.assertEqual(live, names)


class FaultTest(TestCase):
    def test_fault_must_apply(self):
        self.assertEqual(Fault("x", "a(b)", r"\1c", which=-1).apply("ab ab"), "ab bc")
        self.assertEqual(Fault("x", "b", "", after="c").apply("b c b"), "b c ")
        with self.assertRaisesRegex(SimError, "0 matches"):
            Fault("x", "zzz").apply("abc")
        with self.assertRaisesRegex(SimError, "changes nothing"):
            Fault("x", "a", "a").apply("abc")


if __name__ == "__main__":
    run_tests()
