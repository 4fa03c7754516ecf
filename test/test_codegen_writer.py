"""``Writer``, names and scalar epilogue code: the small pieces of generated text."""

from __future__ import annotations

from build_helper import COL, ROW, gelu_residual
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit_epilogue import cast, emit_graph
from torch_cute_backend.codegen.writer import WIDTH, Writer
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT32
from torch_cute_backend.epilogue.graph import EpilogueBuilder, EpilogueGraph
from torch_cute_backend.ir.values import Buffer, Role, Space


class TestWriter(TestCase):
    def test_blocks_indent(self):
        out = Writer()
        with out.block("if x:"):
            out.line("y = 1")
            out.line()
            with out.block("while z:"):
                out.lines("a", "b")
        out.line("end")
        self.assertExpectedInline(
            out.text(),
            """\
if x:
    y = 1

    while z:
        a
        b
end
""",
        )

    def test_blank_is_never_doubled_nor_first(self):
        out = Writer()
        out.blank()
        out.line("a")
        out.blank()
        out.blank()
        out.line("b")
        out.blank()
        self.assertEqual(out.text(), "a\n\nb\n")

    def test_call_breaks_where_it_must(self):
        args = ("x" * 30, "y" * 30)
        flat = f"f({', '.join(args)})"
        for depth, broken in ((0, False), (5, False), (6, True)):
            out = Writer()
            for _ in range(depth):
                out._depth += 1
            out.call("f(", args)
            lines = out.text().splitlines()
            self.assertEqual(len(lines), 4 if broken else 1)
            self.assertLessEqual(max(map(len, lines)), WIDTH)
            self.assertEqual(4 * depth + len(flat) > WIDTH, broken)

    def test_a_broken_call_has_one_argument_a_line(self):
        out = Writer()
        with out.indent():
            out.call("value = function(", ("first", "second" * 20), ")")
        self.assertEqual(
            out.text(),
            f"    value = function(\n        first,\n        {'second' * 20},\n    )\n",
        )

    def test_comments_wrap_at_every_depth(self):
        for depth in (0, 3):
            out = Writer()
            out._depth = depth
            out.comment("word " * 60)
            lines = out.text().splitlines()
            self.assertGreater(len(lines), 3)
            for line in lines:
                self.assertTrue(line.startswith("    " * depth + "# word"))
                self.assertLessEqual(len(line), WIDTH)

    def test_hanging_comment(self):
        out = Writer()
        out.comment("name: " + "value " * 20, hang=6)
        first, second = out.text().splitlines()
        self.assertTrue(first.startswith("# name: value"))
        self.assertTrue(second.startswith("#       value"))


class TestNames(TestCase):
    @parametrize(
        "name,camel",
        [
            ("scale_a", "ScaleA"),
            ("d", "D"),
            ("acc", "Acc"),
            ("acc_k", "AccK"),
            ("in10", "In10"),
            ("r_bias", "Bias"),
        ],
    )
    def test_camel(self, name, camel):
        self.assertEqual(names.camel(name), camel)

    def test_tensors(self):
        a = Buffer("A", Space.GMEM, "bfloat16")
        scale = Buffer("scale_a", Space.GMEM, "float32")
        self.assertEqual(names.gmem(a), "mA_mk")
        self.assertEqual(names.gmem(Buffer("B", Space.GMEM, "bfloat16")), "mB_nk")
        self.assertEqual(names.gmem(scale), "mScaleA")
        self.assertEqual(names.tma_atom(a), "tma_atom_a")
        registers = Buffer("r_scale_a", Space.RMEM, "float32")
        self.assertEqual(names.registers(registers), "tCrScaleA")
        staged = Buffer("sA", Space.SMEM, "bfloat16")
        self.assertEqual(names.smem_layout(staged), "a_smem_layout")

    @parametrize(
        "role,condition",
        [
            (Role("load", 4, 1), "warp_idx == LOAD_WARP"),
            (Role("math", 0, 8), "warp_idx < MATH_WARPS"),
            (Role("math1", 4, 4), "warp_idx >= 4 and warp_idx < 8"),
        ],
        name_fn=lambda role, condition: role.name,
    )
    def test_role_conditions(self, role, condition):
        self.assertEqual(names.role_condition(role), condition)

    def test_kernel_names_are_identifiers(self):
        self.assertTrue(names.identifier("cute_mm_64x64x128-a.b").isidentifier())


def emitted(graph: EpilogueGraph) -> str:
    out = Writer()
    emit_graph(
        out,
        graph,
        ["tCrAcc[e]"],
        lambda i: graph.inputs[i].name,
        lambda i, value: f"out{i}[e] = {value}",
    )
    return out.text()


class TestEmitGraph(TestCase):
    def test_linear(self):
        self.assertExpectedInline(
            emitted(EpilogueGraph.linear(BFLOAT16, ROW, COL, BFLOAT16)),
            """\
acc = tCrAcc[e]
v2 = acc * scale_a
v4 = v2 * scale_b
v6 = v4 + bias
out0[e] = v6.to(cutlass.BFloat16)
""",
        )

    def test_every_node_kind(self):
        self.assertExpectedInline(
            emitted(gelu_residual()),
            """\
acc = tCrAcc[e]
v2 = acc * scale_a
v4 = v2 * scale_b
v6 = v4 + bias
v8 = v6 * Float32(0.7071067811865476)
v9 = cute.math.erf(v8)
v11 = v6 * Float32(0.5)
v13 = v9 + Float32(1.0)
v14 = v11 * v13
v15 = v14.to(cutlass.BFloat16).to(Float32)
v17 = v15 + residual
out0[e] = v17.to(cutlass.BFloat16)
out1[e] = v14.to(cutlass.BFloat16)
""",
        )

    @parametrize("value", [0.0, -0.0, 1e-30, 448.0, float("inf"), float("-inf")])
    def test_constants_are_expressions_of_their_value(self, value):
        b = EpilogueBuilder()
        b.output(b.op("add", b.acc(), b.const(value)), FLOAT32)
        line = emitted(b.graph()).splitlines()[1]
        scope = {"Float32": float, "acc": -0.0}
        exec(line, scope)
        # -0.0 + x is x, the sign of a zero included.
        self.assertEqual(repr(scope["v2"]), repr(value))

    def test_nan_constant(self):
        b = EpilogueBuilder()
        b.output(b.const(float("nan")), FLOAT32)
        self.assertEqual(emitted(b.graph()), 'out0[e] = Float32(float("nan"))\n')

    def test_parentheses_are_dropped_only_around_the_whole(self):
        b = EpilogueBuilder()
        x = b.op("sub", b.op("neg", b.acc()), b.op("div", b.acc(), b.acc()))
        b.output(x, FLOAT32)
        self.assertExpectedInline(
            emitted(b.graph()),
            """\
acc = tCrAcc[e]
v1 = -acc
v2 = acc / acc
v3 = v1 - v2
out0[e] = v3
""",
        )

    def test_sigmoid_keeps_its_inner_parentheses(self):
        b = EpilogueBuilder()
        b.output(b.op("sigmoid", b.acc()), FLOAT32)
        line = emitted(b.graph()).splitlines()[1]
        self.assertEqual(line, "v1 = 1.0 / (1.0 + cute.math.exp(-acc))")

    def test_casts(self):
        self.assertEqual(cast("x", FLOAT32), "x")
        self.assertEqual(cast("x", E4M3), "x.to(cutlass.Float8E4M3FN)")


instantiate_parametrized_tests(TestNames)
instantiate_parametrized_tests(TestEmitGraph)

if __name__ == "__main__":
    run_tests()
