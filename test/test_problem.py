"""``GemmProblem``, dtypes and the epilogue graph: what is refused, and why."""

from __future__ import annotations

from dataclasses import replace

from build_helper import COL, FULL, ROW, SCALAR, fp8, gelu_residual, grouped, mm
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.dtypes import (
    BFLOAT16,
    DTYPES,
    E4M3,
    E5M2,
    FLOAT16,
    FLOAT32,
    DType,
    dtype,
)
from torch_cute_backend.epilogue.graph import (
    EpilogueBuilder,
    EpilogueGraph,
    EpilogueInput,
    EpilogueNode,
    EpilogueOutput,
)
from torch_cute_backend.errors import CuteBackendError, IRError
from torch_cute_backend.problem import Accum, GemmProblem, Grouping, Major

REFUSED = {
    "op": (mm(op="bmm"), "op 'bmm' is not one of mm, addmm, scaled_mm"),
    "scaling": (fp8(scaling="blockwise"), "scaling 'blockwise' is not one of"),
    "zero_m": (mm(m=0), "a size is not positive"),
    "negative_k": (mm(k=-16), "a size is not positive"),
    "huge_n": (mm(n=2**31), r"a size exceeds 2\^31 - 1"),
    "fp32": (mm(dtype=FLOAT32), "float32 and float32 operands are not supported"),
    "mixed": (mm(b_dtype=FLOAT16), "mixed operands bfloat16 and float16"),
    "fp8_with_bf16": (fp8(b_dtype=BFLOAT16), "mixed operands"),
    "fp8_mm": (mm(dtype=E4M3), "mm of float8_e4m3fn"),
    "bf16_scaled_mm": (fp8(a_dtype=BFLOAT16, b_dtype=BFLOAT16), "scaled_mm of bfloat"),
    "scaled_mm_of_no_scales": (fp8(scaling="none"), "scaled_mm with scaling none"),
    "mm_of_scales": (mm(scaling="rowwise"), "mm with scaling rowwise"),
    "fp8_a_major": (fp8(a_major=Major.MN), "FP8 operands must both be K-major"),
    "fp8_b_major": (fp8(b_major=Major.MN), "FP8 operands must both be K-major"),
    "fp8_k": (fp8(k=24), "extents 24 and 24 are not multiples of 16"),
    "bf16_k": (mm(k=12), "extents 12 and 12 are not multiples of 8"),
    "bf16_m": (mm(m=12, a_major=Major.MN), "extents 12 and 2048 are not"),
    "bf16_n": (mm(n=20, b_major=Major.MN), "extents 2048 and 20 are not"),
    "ungrouped": (grouped(Grouping.NONE, groups=1), "grouped_mm without a grouping"),
    "groups_of_one": (mm(groups=2), "2 groups without a grouping"),
    "grouped_op": (mm(grouping=Grouping.M), "mm cannot be grouped along m"),
    "no_groups": (grouped(groups=0), "0 groups"),
    "grouped_fp8": (grouped(dtype=E4M3, op="grouped_mm"), "grouped_mm of float8_e4m3"),
    "scaled_bf16": (grouped(op="scaled_grouped_mm"), "scaled_grouped_mm of bfloat16"),
    "grouped_tensorwise": (
        grouped(dtype=E4M3, scaling="tensorwise"),
        "scaled_grouped_mm with scaling tensorwise",
    ),
    "no_output": (mm(epilogue=EpilogueGraph((), (), ())), "epilogue: no output"),
}


class TestProblem(TestCase):
    @parametrize("name", list(REFUSED))
    def test_refused(self, name):
        problem, reason = REFUSED[name]
        status = problem.validate()
        self.assertFalse(status)
        self.assertRegex(str(status), reason)

    @parametrize(
        "problem",
        [
            fp8(),
            fp8(m=1, n=1, k=16),
            fp8(b_dtype=E5M2),
            fp8(scaling="tensorwise", bias=BFLOAT16, accum=Accum.EXACT),
            mm(m=1, n=1, k=8),
            mm(m=8, n=24, k=1, a_major=Major.MN, b_major=Major.MN),
            mm(dtype=FLOAT16, bias=FLOAT16, out=FLOAT32),
            mm(epilogue=gelu_residual()),
            *(grouped(g) for g in Grouping if g is not Grouping.NONE),
            *(grouped(g, dtype=E4M3) for g in Grouping if g is not Grouping.NONE),
            grouped(m=8, groups=1, a_major=Major.MN, b_major=Major.MN),
        ],
        name_fn=lambda problem: problem.describe().translate({32: "_", 40: "", 41: ""}),
    )
    def test_accepted(self, problem):
        self.assertEqual(str(problem.validate()), "ok")

    def test_all_reasons_are_given(self):
        status = fp8(k=24, op="bmm", a_major=Major.MN).validate()
        self.assertEqual(len(status.reasons), 3)

    def test_family_names_table_rows(self):
        self.assertEqual(fp8().family, "fp8-rowwise")
        self.assertEqual(fp8(a_dtype=E5M2).family, "fp8-rowwise")
        self.assertEqual(fp8(scaling="tensorwise").family, "fp8-tensorwise")
        self.assertEqual(mm().family, "bf16")
        self.assertEqual(mm(dtype=FLOAT16).family, "fp16")
        self.assertEqual(grouped().family, "bf16-grouped-m")
        fp8_batch = grouped(Grouping.BATCH, dtype=E4M3)
        self.assertEqual(fp8_batch.family, "fp8-rowwise-grouped-batch")

    def test_describe_is_one_line(self):
        self.assertEqual(
            fp8(accum=Accum.EXACT).describe(),
            "scaled_mm M=64 N=5120 K=5120 float8_e4m3fn(k) x float8_e4m3fn(k) -> "
            "bfloat16, scaling rowwise, accum exact",
        )

        self.assertEqual(
            grouped(Grouping.K).describe(),
            "grouped_mm G=8 along k M=1024 N=4096 K=2048 bfloat16(k) x bfloat16(k) -> "
            "bfloat16, scaling none, accum fast",
        )

    @parametrize(
        "grouping,sizes",
        [
            (Grouping.M, (129, 20, 30)),
            (Grouping.N, (1026, 3, 30)),
            (Grouping.K, (1026, 20, 4)),
            (Grouping.BATCH, (1026, 20, 30)),
        ],
    )
    def test_average_group(self, grouping, sizes):
        self.assertEqual(grouped(grouping, 1026, 20, 30).group_sizes, sizes)
        self.assertEqual(mm().group_sizes, (512, 4096, 2048))

    def test_offsets_come_with_a_ragged_dimension(self):
        ragged = [g.value for g in Grouping if grouped(g).has_offsets]
        self.assertEqual(ragged, ["m", "n", "k"])

    def test_equal_problems_hash_alike(self):
        self.assertEqual(hash(fp8()), hash(fp8()))
        self.assertNotEqual(fp8(), fp8(out=FLOAT16))
        self.assertNotEqual(fp8(), fp8(out_aligned=False))

    def test_with_epilogue_changes_nothing_else(self):
        fused = fp8().with_epilogue(gelu_residual())
        self.assertEqual(replace(fused, epilogue=fp8().epilogue), fp8())
        self.assertEqual(fused.epilogue, gelu_residual())

    def test_default_epilogue_is_a_cast(self):
        problem = GemmProblem("mm", 8, 8, 8)
        self.assertEqual(problem.out_dtype, BFLOAT16)
        self.assertEqual(problem.epilogue.nodes, (EpilogueNode("acc"),))


class TestDtypes(TestCase):
    def test_lookup_by_torch_name(self):
        self.assertIs(dtype("torch.bfloat16"), BFLOAT16)
        self.assertIs(dtype("float8_e4m3fn"), E4M3)

    def test_unknown_dtype_lists_the_known(self):
        with self.assertRaisesRegex(CuteBackendError, "'int4'; known: float32"):
            dtype("int4")

    @parametrize("name", list(DTYPES))
    def test_rows_are_torch_dtypes_of_that_width(self, name):
        import torch

        self.assertEqual(getattr(torch, name).itemsize, DTYPES[name].bytes)
        self.assertEqual(str(DTYPES[name]), name)

    def test_sub_byte_rows_are_refused(self):
        # A width of 0 bytes would pass every shared-memory check.
        with self.assertRaisesRegex(CuteBackendError, "4 bits"):
            DType("float4_e2m1fn_x2", "Float4E2M1FN", 4)


def _graph(*nodes, inputs=(), outputs=None):
    outputs = (EpilogueOutput(0, BFLOAT16),) if outputs is None else outputs
    return EpilogueGraph(tuple(inputs), tuple(nodes), tuple(outputs))


ACC = EpilogueNode("acc")
X = EpilogueInput("x", COL)
BAD_GRAPHS = {
    "unknown_op": (_graph(ACC, EpilogueNode("cube", (0,))), "unknown op 'cube'"),
    "arity": (_graph(ACC, EpilogueNode("add", (0,))), "add takes 2 values, got 1"),
    "later": (_graph(ACC, EpilogueNode("neg", (1,))), "node 1 .neg. uses a value"),
    "negative": (_graph(ACC, EpilogueNode("neg", (-1,))), "node 1 .neg. uses a value"),
    "no_input": (_graph(EpilogueNode("input", (), 0)), "input with attribute 0"),
    "bool_input": (
        _graph(EpilogueNode("input", (), False), inputs=(X,)),
        "input with attribute False",
    ),
    "round": (_graph(ACC, EpilogueNode("round", (0,), "int4")), "attribute 'int4'"),
    "const": (_graph(EpilogueNode("const", (), "one")), "attribute 'one'"),
    "const_none": (_graph(EpilogueNode("const")), "attribute None"),
    "attr": (_graph(ACC, EpilogueNode("neg", (0,), 3)), "neg with attribute 3"),
    "output": (_graph(ACC, outputs=(EpilogueOutput(1, BFLOAT16),)), "no node"),
    "output_negative": (_graph(ACC, outputs=(EpilogueOutput(-1, BFLOAT16),)), "no nod"),
    "store": (
        _graph(ACC, outputs=(EpilogueOutput(0, DType("int32", "Int32", 32)),)),
        "cannot store int32",
    ),
    "keyword": (_graph(ACC, inputs=(EpilogueInput("in", ROW),)), "'in' is no usable"),
    "reserved": (_graph(ACC, inputs=(EpilogueInput("acc", ROW),)), "'acc' is no usabl"),
    "operand": (_graph(ACC, inputs=(EpilogueInput("a", ROW),)), "'a' is no usable"),
    "shape": (_graph(ACC, inputs=(EpilogueInput("x; y", ROW),)), "no usable name"),
    "as_output": (_graph(ACC, inputs=(EpilogueInput("d", ROW),)), "names d, d clash"),
    "camel": (
        _graph(ACC, inputs=(EpilogueInput("x_1", ROW), EpilogueInput("x1", ROW))),
        "names x_1, x1 clash",
    ),
}


class TestEpilogueGraph(TestCase):
    @parametrize("name", list(BAD_GRAPHS))
    def test_refused(self, name):
        graph, reason = BAD_GRAPHS[name]
        self.assertRegex(str(graph.validate()), reason)

    def test_linear_inputs_come_in_call_order(self):
        graph = EpilogueGraph.linear(FLOAT16, ROW, COL, BFLOAT16)
        self.assertEqual([i.name for i in graph.inputs], ["scale_a", "scale_b", "bias"])
        self.assertEqual([i.kind for i in graph.inputs], [ROW, COL, COL])
        self.assertEqual(graph.inputs[2].dtype, BFLOAT16)
        self.assertTrue(graph.validate())

    def test_equal_nodes_are_shared(self):
        b = EpilogueBuilder()
        first = b.op("mul", b.acc(), b.const(2.0))
        self.assertEqual(b.op("mul", b.acc(), b.const(2.0)), first)

    def test_signed_zeros_and_nan_are_constants_of_their_own(self):
        b = EpilogueBuilder()
        self.assertNotEqual(b.const(0.0), b.const(-0.0))
        self.assertEqual(b.const(float("nan")), b.const(float("nan")))

        def with_constant(value):
            b = EpilogueBuilder()
            b.output(b.op("add", b.acc(), b.const(value)), BFLOAT16)
            return b.graph()

        self.assertNotEqual(with_constant(0.0), with_constant(-0.0))
        self.assertEqual(with_constant(float("nan")), with_constant(float("nan")))

    def test_input_declared_twice_differently(self):
        b = EpilogueBuilder()
        self.assertEqual(b.input("x", ROW, FLOAT32), b.input("x", ROW, FLOAT32))
        with self.assertRaisesRegex(IRError, "'x' declared twice"):
            b.input("x", SCALAR, FLOAT32)

    def test_builder_continues_a_graph(self):
        base = EpilogueGraph.linear(BFLOAT16, ROW, COL)
        b = EpilogueBuilder(base)
        residual = b.input("residual", FULL, BFLOAT16)
        b.output(b.op("add", base.outputs[0].node, residual), BFLOAT16, "d1")
        graph = b.graph()
        self.assertTrue(graph.validate())
        self.assertEqual(graph.nodes[: len(base.nodes)], base.nodes)
        self.assertEqual([o.name for o in graph.outputs], ["d", "d1"])

    def test_wrong_arity_raises_in_the_builder(self):
        b = EpilogueBuilder()
        with self.assertRaisesRegex(IRError, "add takes 2 values, got 1"):
            b.op("add", b.acc())


instantiate_parametrized_tests(TestProblem)
instantiate_parametrized_tests(TestDtypes)
instantiate_parametrized_tests(TestEpilogueGraph)

if __name__ == "__main__":
    run_tests()
