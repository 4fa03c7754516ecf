"""One obvious place for each change: a toy of each kind is added from outside, without
touching the package, and is seen to take effect in the kernels."""

from __future__ import annotations

import ast
import io
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import grouped_kernel_cases as grouped_cases
import torch
from build_helper import build, fp8, mm
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend import passes
from torch_cute_backend.arch import ARCHS, SM90, SM100, arch_for_capability, arch_spec
from torch_cute_backend.build import build_kernel
from torch_cute_backend.cli.main import main
from torch_cute_backend.dtypes import BFLOAT16, DTYPES, DType, dtype
from torch_cute_backend.epilogue.graph import EpilogueBuilder
from torch_cute_backend.epilogue.ops import OPS, EpilogueOp
from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import Let
from torch_cute_backend.ir.values import SchedulerKind, Var
from torch_cute_backend.passes.base import Pass, PassContext, PassResult
from torch_cute_backend.runtime.compile import compile_kernel
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.schedulers import SCHEDULERS, GroupedStatic, TileScheduler
from torch_cute_backend.sim import grouped_case
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import lookup, model
from torch_cute_backend.tuning import table as tables

S90 = GemmSchedule(64, 64, 128, 6, epi_n=64)
B90 = GemmSchedule(64, 64, 64, 6, epi_n=64)
S100 = GemmSchedule(64, 64, 128, 8, acc_stages=2, epi_n=64)


@contextmanager
def registered(registry: dict) -> Iterator[None]:
    """What is added to ``registry`` inside is taken out again; no kernel built with it
    stays in the build cache."""
    with mock.patch.dict(registry):
        yield
    build_kernel.cache_clear()


class TestEpilogueOp(TestCase):
    """One class."""

    def test_takes_effect(self):
        with registered(OPS):

            class Softsign(EpilogueOp):
                """``x / (1 + |x|)``."""

                name = "softsign"

                @staticmethod
                def emit(*args: str) -> str:
                    return f"({args[0]} / (1.0 + cute.math.abs({args[0]})))"

                @staticmethod
                def reference(*args: torch.Tensor) -> torch.Tensor:
                    return torch.nn.functional.softsign(args[0])

            b = EpilogueBuilder()
            b.output(b.op("softsign", b.acc()), BFLOAT16)
            problem = mm(epilogue=b.graph())
            self.assertEqual(str(problem.validate()), "ok")
            for arch, schedule in ((SM90, B90), (SM100, replace(S100, tile_k=64))):
                source = build(problem, schedule, arch).source
                self.assertIn("v1 = acc / (1.0 + cute.math.abs(acc))", source.text)
                self.assertTrue(compile_kernel(source).gate)
            self.assertEqual(self.fused("softsign"), "softsign")
        self.assertRaisesRegex(Exception, "no epilogue expr", self.fused, "softsign")
        self.assertRegex(str(problem.validate()), "unknown op 'softsign'")

    def fused(self, op: str) -> str:
        """The epilogue op that Inductor's ``ops.<op>(x)`` becomes when it is fused."""
        from torch_cute_backend.inductor import epilogue

        builder = EpilogueBuilder()
        fusion = SimpleNamespace(builder=builder, value=lambda x: x)
        handler = epilogue._Handler(fusion, None)
        handler._default(op, (epilogue._Value(builder.acc()),), {})
        return builder.nodes[-1].op


class TestDtype(TestCase):
    """One row."""

    HALF = DType("half2", "Float16", 16, operand=True, output=True, short="half2")

    def test_takes_effect(self):
        with registered(DTYPES):
            DTYPES[self.HALF.name] = self.HALF
            self.assertIs(dtype("torch.half2"), self.HALF)
            problem = mm(dtype=self.HALF, bias=self.HALF)
            self.assertEqual(str(problem.validate()), "ok")
            self.assertEqual(problem.family, "half2")
            self.assertEqual(lookup.choose(problem, SM90).source, "model")
            source = build(problem, B90, SM90).source
            self.assertEqual({a.dtype for a in source.args}, {self.HALF})
            self.assertTrue(compile_kernel(source).gate)

    def test_as_an_output_only(self):
        with registered(DTYPES):
            DTYPES["int8"] = row = DType("int8", "Int8", 8, output=True)
            self.assertIn("operands are not", str(mm(dtype=row).validate()))
            source = build(fp8(out=row), S90, SM90).source
            self.assertIn(".to(cutlass.Int8)", source.text)
            self.assertTrue(compile_kernel(source).gate)


class TestArch(TestCase):
    """One spec and its line in ``ARCHS``."""

    def test_takes_effect(self):
        with registered(ARCHS):
            ARCHS["sm_103a"] = spec = replace(
                SM100, name="sm_103a", capability=(10, 3), default_sms=160
            )
            self.assertIs(arch_spec("sm_103a"), spec)
            self.assertIs(arch_for_capability(10, 3), spec)
            choice = lookup.choose(fp8(), spec)
            self.assertEqual(choice.source, "model")
            source = build(fp8(), choice.schedule, spec).source
            self.assertEqual(source.arch, "sm_103a")
            self.assertIn("# Target:   sm_103a", source.text)
            compiled = compile_kernel(source, ptx=True)
            self.assertIn(".target sm_103a", compiled.ptx)
        self.assertIsNone(arch_for_capability(10, 3))

    def test_its_facts_steer_the_model(self):
        with registered(ARCHS):
            ARCHS["sm_103a"] = spec = replace(
                SM100, name="sm_103a", smem_bytes=SM100.smem_bytes // 2
            )
            deepest = max(s.ab_stages for s in model.tiles(fp8(), spec))
            self.assertLess(
                deepest, max(s.ab_stages for s in model.tiles(fp8(), SM100))
            )


@dataclass(frozen=True)
class Rename(Pass):
    """A toy pass: the kernel's name says that it ran."""

    name: ClassVar[str] = "rename"

    def run(self, program: Program, context: PassContext) -> PassResult:
        return PassResult(replace(program, name=f"{program.name}_renamed"))


class TestPass(TestCase):
    """One file and one line in ``PIPELINE``."""

    def test_takes_effect(self):
        plain = build(fp8(), S90, SM90)
        build_kernel.cache_clear()
        with mock.patch.object(passes, "PIPELINE", (*passes.PIPELINE, Rename())):
            renamed = build(fp8(), S90, SM90)
        build_kernel.cache_clear()
        self.assertEqual(renamed.source.name, f"{plain.source.name}_renamed")
        self.assertIn(f"def {renamed.source.name}(", renamed.source.text)
        self.assertEqual(renamed.omission, plain.omission)


class TestTileScheduler(TestCase):
    """One class; the loop-omission check needs no word about it."""

    def test_takes_effect(self):
        with registered(SCHEDULERS):

            class Backwards(TileScheduler):
                """The same tiles, the last of the raster first."""

                name = "backwards"
                kind = SchedulerKind.STATIC_PERSISTENT

                def position(self, work: Var) -> Expr:
                    tiles = BinOp("*", Param("tiles_m"), Param("tiles_n"))
                    return BinOp("-", BinOp("-", tiles, Const(1)), Ref(work))

            schedule = replace(S90, scheduler="backwards")
            self.assertEqual(str(schedule.validate(fp8(), SM90)), "ok")
            result = build(fp8(), schedule, SM90)
            self.assertEqual(result.omission.decision, "omitted")
            self.assertTrue(compile_kernel(result.source).gate)
            found = self.tiles(result.source.text, tiles_m=3, tiles_n=2, clusters=4)
        every = [(m, n) for n in range(2) for m in range(3)]
        self.assertEqual(found, [every[5 - i] for i in (0, 4, 1, 5, 2, 3)])
        status = schedule.validate(fp8(), SM90)
        self.assertIn("scheduler 'backwards' is unknown", str(status))

    def tiles(self, text: str, **sizes: int) -> list[tuple[int, int]]:
        """The tiles that clusters 0, 1, ... take, from the load role's own loop."""
        kernel = next(
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("cute_")
        )
        loop = next(n for n in ast.walk(kernel) if isinstance(n, ast.While))
        lets = [n for n in loop.body if isinstance(n, (ast.Assign, ast.AugAssign))]
        found = []
        divisors = {f"{name}_divisor": size for name, size in sizes.items()}
        for cluster in range(sizes["clusters"]):
            scope = {**sizes, **divisors, "tile_idx": cluster, "cluster_id": cluster}
            while eval(ast.unparse(loop.test), scope):
                for let in lets:
                    exec(ast.unparse(let), scope)
                    if ast.unparse(let).startswith("tile_n ="):
                        found.append((scope["tile_m"], scope["tile_n"]))
        return found

    def test_the_shipped_one_for_comparison(self):
        text = build(fp8(), S90, SM90).source.text
        found = self.tiles(text, tiles_m=3, tiles_n=2, clusters=4)
        every = [(m, n) for n in range(2) for m in range(3)]
        self.assertEqual(found, [every[i] for i in (0, 4, 1, 5, 2, 3)])

    def explained(self, *arguments: str) -> tuple[int, str]:
        """Exit status and text of ``explain``."""
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            status = main(["explain", *arguments])
        return status, out.getvalue()

    def test_one_that_claims_its_work_is_refused(self):
        """No role may walk its tiles again; without partitioning it may run."""
        sizes = ("--m", "64", "--n", "64", "--k", "128", "--arch", "sm_90a")
        with registered(SCHEDULERS):

            class Claiming(TileScheduler):
                name = "claiming"
                kind = SchedulerKind.CLC_PERSISTENT

            schedule = replace(S90, scheduler="claiming")
            refused = build_kernel(fp8(), schedule, SM90)
            kept = build_kernel(fp8(), replace(schedule, shared_loop="keep"), SM90)
            _, text = self.explained("scaled_mm", *sizes, "--scheduler", "claiming")
        self.assertIsInstance(refused, Status)
        self.assertIsInstance(kept, Status)
        self.assertIn("tiles cannot be walked once a role", str(refused))
        self.assertRegex(text, "no kernel: .*tiles cannot be walked once a role")

    def test_one_that_computes_its_step_is_kept(self):
        """Rule ``scheduler``: that a step is the same in every walk is known only of
        launch parameters. The kept kernel is right."""
        stride = Var("stride")
        sizes = ("--m", "300", "--n", "136", "--k", "200", "--groups", "6")
        with registered(SCHEDULERS):

            class ComputedStep(GroupedStatic):
                name = "computed_step"

                def step(self) -> Expr:
                    return Ref(stride)

                def find_group(self, *args: Any, **kwargs: Any) -> Body:
                    found = super().find_group(*args, **kwargs)
                    return (*found, Let(var=stride, value=Param("clusters")))

            schedule = replace(grouped_cases.S64, scheduler="computed_step")
            problem = grouped_cases.small(grouped_cases.M)
            kernel = build(problem, schedule, SM90)
            arch = ("--arch", "sm_90a", "--scheduler", "computed_step")
            status, text = self.explained("grouped_mm", *sizes, *arch)
            gate = compile_kernel(kernel.source).gate
        omission = kernel.omission
        self.assertEqual((omission.decision, omission.rule), ("kept", "scheduler"))
        self.assertEqual(status, 0)
        why = "first, limit or step do not follow from launch parameters alone"
        (remark,) = (r for r in omission.remarks if r.rule == "scheduler")
        self.assertEqual((remark.applied, remark.message), (False, why))
        self.assertIn(f": {why}", text)
        self.assertIn("MISSED scheduler: ", kernel.source.text)
        self.assertTrue(gate)
        operands = grouped_case.make(kernel, problem, grouped_cases.ENDS)
        child = SimChild()
        self.addCleanup(child.close)
        child.simulate(kernel.source, operands.tensors, num_ctas=3)
        self.assertTrue(operands.exact())

    def test_a_nameless_one_is_refused(self):
        with self.assertRaisesRegex(TypeError, "declares no scheduler name"):
            type("Nameless", (TileScheduler,), {})


class TestPretunedRow(TestCase):
    """One line of JSON."""

    def test_takes_effect(self):
        problem = fp8(48, 3000, 4096)
        self.assertNotEqual(lookup.choose(problem, SM90).source, "pretuned-exact")
        line = {
            "name": "toy",
            "family": "fp8-rowwise",
            "accum": "fast",
            "a_major": "k",
            "b_major": "k",
            "m": 48,
            "n": 3000,
            "k": 4096,
            "schedule": {"tile_m": 64, "tile_n": 24, "tile_k": 128, "ab_stages": 5}
            | {"epi_n": 24},
            "provenance": {"kind": "model"},
        }
        shipped = (tables.TABLES / "sm_90a.json").read_text()
        text = shipped.replace('"rows": [\n', f'"rows": [\n  {json.dumps(line)},\n')
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sm_90a.json").write_text(text)
            with mock.patch.object(tables, "TABLES", Path(folder)):
                tables.table.cache_clear()
                choice = lookup.choose(problem, SM90)
        tables.table.cache_clear()
        self.assertEqual((choice.source, choice.row.name), ("pretuned-exact", "toy"))
        self.assertEqual(choice.schedule, GemmSchedule(64, 24, 128, 5, epi_n=24))
        self.assertTrue(math.isfinite(model.seconds(problem, choice.schedule, SM90)))


if __name__ == "__main__":
    run_tests()
