"""The effects that a statement declares cover what its PTX does.

Kernels that hold every statement class are printed with a marking instruction before
and after each statement and compiled; each instruction of the PTX is traced back to the
statement that is open there; and its family must be among those that the statement's
declared effects allow. An effect that is missing from a declaration would let a pass
drop or reorder real work.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import _paths  # noqa: F401
from build_helper import build
from grouped_kernel_cases import GROUPED
from kernel_cases import CASES
from test_rules_matter import Kernel
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.codegen.emit import Emitter
from torch_cute_backend.codegen.module import EMITTERS
from torch_cute_backend.ir import effects as fx
from torch_cute_backend.ir.ops import STATEMENTS, Stmt, walk
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.sync import ClusterArrive, ClusterWait, PdlLaunch, PdlWait
from torch_cute_backend.ir.values import Proxy, Space
from torch_cute_backend.runtime.compile import compile_kernel
from torch_cute_backend.sim.parse import Instr, parse
from torch_cute_backend.sim.parse import Kernel as PtxKernel

NAMES = {
    "sm_90a": (
        "bf16_mn",
        "kept",
        "direct_store",
        "rowwise_exact",
        "exact_overlap",
        "m16",
        "cluster_2x1",
        "fused_gelu_residual",
        "walk_end",
        "two_roots",
        "pingpong",
        "grouped_k",
        "grouped_m_rank3",
        "grouped_n_fp8",
    ),
    "sm_100a": (
        "tensorwise_bias",
        "inline",
        "fused_gelu_residual",
        "pair",
        "cluster_2x1",
        "two_roots",
        "mxfp8",
    ),
}
NOT_PRINTED = {"ClcClaim", "DebugPrint"}
"""Statement classes that no emitter has text for."""
SETUP = {"PartitionMma", "PartitionEpilogue"}
"""May read the address of tensor memory, a word that the prologue's barrier publishes
and nothing writes afterwards; it is no buffer of the program."""


def has(kind: type[fx.Effect], **wanted: object) -> Callable[[fx.Effect], bool]:
    """An effect of that class with those attributes; ``space`` is its buffer's."""

    def test(effect: fx.Effect) -> bool:
        if not isinstance(effect, kind):
            return False
        return all(
            (effect.buffer.space if name == "space" else getattr(effect, name)) == value
            for name, value in wanted.items()
        )

    return test


READ, WRITE = fx.Read, fx.Write
GMEM, SMEM, TMEM = Space.GMEM, Space.SMEM, Space.TMEM
ASYNC = Proxy.ASYNC
FAMILIES: tuple[tuple[str, tuple[Callable[[fx.Effect], bool], ...]], ...] = (
    # One of the effects in each row allows the family; rows with the same pattern must
    # all be met.
    (r"ld\.global|ld\.acquire", (has(READ, space=GMEM),)),
    (r"st\.global|st\.release", (has(WRITE, space=GMEM),)),
    (r"ld\.shared|ldmatrix", (has(READ, space=SMEM),)),
    (r"st\.shared|stmatrix", (has(WRITE, space=SMEM),)),
    (r"atom|red\.", (has(fx.Claim),)),
    (r"cp\.async\.bulk\.tensor.*shared\S*\.global", (has(READ, space=GMEM),)),
    (
        r"cp\.async\.bulk\.tensor.*shared\S*\.global",
        (has(WRITE, space=SMEM, proxy=ASYNC),),
    ),
    (r"cp\.async\.bulk\.tensor.*shared\S*\.global", (has(fx.Arrive, full=True),)),
    (
        r"cp\.async\.bulk\.tensor.*global\.shared",
        (has(READ, space=SMEM, proxy=ASYNC),),
    ),
    (
        r"cp\.async\.bulk\.tensor.*global\.shared",
        (has(WRITE, space=GMEM, proxy=ASYNC),),
    ),
    (
        r"cp\.async\.bulk\.tensor.*global\.shared",
        (has(fx.Issue, queue=fx.Queue.STORE),),
    ),
    (r"cp\.async\.bulk\.commit_group", (has(fx.Issue, queue=fx.Queue.STORE),)),
    (r"cp\.async\.bulk\.wait_group", (has(fx.Drain, queue=fx.Queue.STORE),)),
    (r"prefetch\.tensormap", (has(READ, space=GMEM),)),
    (r"wgmma\.mma_async", (has(READ, space=SMEM, proxy=ASYNC),)),
    (r"wgmma\.mma_async", (has(WRITE, space=Space.RMEM, proxy=ASYNC),)),
    (
        r"wgmma\.(mma_async|commit_group)",
        (has(fx.Issue, queue=fx.Queue.WGMMA),),
    ),
    (r"wgmma\.wait_group", (has(fx.Drain, queue=fx.Queue.WGMMA),)),
    (r"tcgen05\.mma", (has(READ, space=SMEM, proxy=ASYNC),)),
    (r"tcgen05\.mma", (has(WRITE, space=TMEM, proxy=ASYNC),)),
    (r"tcgen05\.cp", (has(READ, space=SMEM, proxy=ASYNC),)),
    (r"tcgen05\.cp", (has(WRITE, space=TMEM, proxy=ASYNC),)),
    (r"tcgen05\.ld", (has(READ, space=TMEM),)),
    (r"tcgen05\.st", (has(WRITE, space=TMEM),)),
    (r"tcgen05\.commit", (has(fx.Arrive),)),
    (r"tcgen05\.(alloc|relinquish)", (has(fx.Alloc),)),
    (r"tcgen05\.dealloc", (has(fx.Free),)),
    # The pair's handshake before it frees its tensor memory is part of the free.
    (r"mbarrier\.init", (has(fx.Init), has(fx.Alloc, space=TMEM))),
    (r"mbarrier\.(try_wait|test_wait)", (has(fx.Wait), has(fx.Free))),
    (r"mbarrier\.arrive", (has(fx.Arrive), has(fx.Free))),
    # What publishes the barriers holds the fence behind their initialisation.
    (r"fence\.mbarrier_init", (has(fx.Init), has(fx.Sync))),
    (r"fence\.proxy\.async", (has(fx.ProxyFence),)),
    (r"(bar|barrier)(\.cta)?\.sync 0[,;]", (has(fx.Sync),)),
    (r"(bar|barrier)(\.cta)?\.sync [1-9]\d*[,;]", (has(fx.NamedSync),)),
    # The barrier's number is computed from the instance that runs.
    (r"(bar|barrier)(\.cta)?\.sync %", (has(fx.TurnWait), has(fx.NamedSync))),
    (r"(bar|barrier)(\.cta)?\.arrive", (has(fx.TurnPass),)),
    (r"barrier\.cluster\.arrive", (has(fx.Sync), has(fx.SyncArrive), has(fx.Init))),
    (r"barrier\.cluster\.wait", (has(fx.Sync), has(fx.SyncWait))),
    (r"setmaxnreg", (has(fx.Registers),)),
    (r"griddepcontrol", (has(fx.Launch),)),
    (r"clusterlaunchcontrol", (has(fx.Claim),)),
    (r"call|trap|brkpt", (has(fx.Debug),)),
)
EFFECTIVE = re.compile(
    r"(ld\.(global|shared|acquire)|st\.(global|shared|release)|stmatrix|ldmatrix|atom"
    r"|red\.|cp\.|prefetch|wgmma|tcgen05|mbarrier|mapa|fence|bar|barrier|setmaxnreg"
    r"|griddep|clusterlaunch|call|trap|brkpt|membar)"
)
HARMLESS = re.compile(
    # Waits of the issuing thread for its own registers; the statements that hold them
    # declare the access as complete when they end.
    r"wgmma\.fence|tcgen05\.wait|tcgen05\.fence|bar\.warp|mapa"
)
MARK = 0x5EED0000
"""Nanoseconds that no kernel sleeps: the first of the numbers that mark statements."""


class Marked:
    """Prints an instruction before and after every statement.

    A side effect that the compiler must keep in order with every other one, so that in
    each path through the PTX the statements open and close as they were printed.
    """

    def __init__(self) -> None:
        self.statements: list[Stmt] = []

    def __enter__(self) -> Marked:
        original, marked = Emitter.emit, self

        def emit(emitter: Emitter, statement: Stmt) -> None:
            number = 2 * len(marked.statements) + MARK
            marked.statements.append(statement)
            emitter.out.line(mark(number))
            original(emitter, statement)
            emitter.out.line(mark(number + 1))

        self._patch = mock.patch.object(Emitter, "emit", emit)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def mark(number: int) -> str:
    return f'cute.arch.inline_ptx("nanosleep.u32 {number};")'


def uncovered(stmt: Stmt, text: str) -> Iterator[str]:
    """``text``, once for each of its ``FAMILIES`` that is not declared."""
    if HARMLESS.match(text):
        return
    if text.startswith("ld.shared") and type(stmt).__name__ in SETUP:
        return
    # A loop that is unrolled by its handler prints its body itself.
    effects = [e for s in walk((stmt,)) for e in s.effects()]
    rows = [allowed for pattern, allowed in FAMILIES if re.match(pattern, text)]
    if not rows:
        yield f"{text}: no row of FAMILIES"
    for allowed in rows:
        if not any(test(e) for test in allowed for e in effects):
            yield text


def dependent_launch() -> KernelBuild:
    """A mini kernel with the statements that no template uses."""

    def edit(program: Program) -> Program:
        first = (*program.prologue, PdlWait(), ClusterArrive(), ClusterWait())
        return replace(program, prologue=first, post=(*program.post, PdlLaunch()))

    kernel = Kernel.of(edit)
    return kernel.build(kernel.inline)


class TestConformance(TestCase):
    def kernels(self) -> Iterator[tuple[str, list[Stmt], KernelBuild]]:
        for case in (*CASES, *GROUPED):
            if case.name in NAMES[case.arch.name]:
                with Marked() as marked:
                    build_kernel.cache_clear()
                    built = build(case.problem, case.schedule, case.arch)
                build_kernel.cache_clear()
                yield str(case), marked.statements, built
        with Marked() as marked:
            built = dependent_launch()
        yield "dependent_launch", marked.statements, built

    def test_every_class(self):
        seen: dict[str, set[str]] = defaultdict(set)
        wrong: dict[str, set[str]] = defaultdict(set)
        for name, statements, built in self.kernels():
            for stmt in statements:
                seen.setdefault(type(stmt).__name__, set())
            for stmt, text in traced(statements, ptx_of(built)):
                kind = "no statement" if stmt is None else type(stmt).__name__
                seen[kind].add(text.split()[0])
                for family in (text,) if stmt is None else uncovered(stmt, text):
                    wrong[f"{kind}: {' '.join(family.split()[:2])}"].add(name)
        rows = (f"{k}: {sorted(v)[:3]}" for k, v in sorted(wrong.items()))
        self.assertEqual("\n".join(rows), "")
        handled = {k.__name__ for e in EMITTERS.values() for k in e.handlers}
        # A placeholder has text, but is taken out before a program is printed.
        self.assertEqual(handled - set(seen), {"Placeholder"})
        package = Stmt.__module__.split(".")[0]
        own = {n for n, k in STATEMENTS.items() if k.__module__.startswith(package)}
        self.assertEqual(own - handled, NOT_PRINTED)
        # And the other way round: a statement with an effect does something.
        silent = {kind for kind, texts in seen.items() if not texts}
        self.assertEqual(" ".join(sorted(silent)), " ".join(sorted(SILENT)))

    def test_an_undeclared_effect_is_noticed(self):
        for kind, text in (
            ("Let", "st.global.b32 [%rd1], %r1;"),
            ("CtaBarrier", "mbarrier.arrive.shared.b64 %rd2, [%r1];"),
            ("Fence", "bar.sync 1, 128;"),
        ):
            stmt = next(s for s in sample_statements() if type(s).__name__ == kind)
            self.assertEqual(list(uncovered(stmt, text)), [text])


SILENT = {
    "AccumulatorClear",
    "EpilogueApply",
    "If",
    "Let",
    "PartitionTma",
    "PipelineStates",
    "RoleRegion",
    "SchedulerAdvance",
    "SelectTile",
    "SkipStages",
    "SubtileLoop",
    "TileLoop",
    "AllocateShared",
}
"""Statements that compute in registers, or only structure others."""


def sample_statements() -> Iterator[Stmt]:
    kernel = Kernel.of()
    yield from kernel.inline.walk()


def ptx_of(built: KernelBuild) -> str:
    ptx = compile_kernel(built.source, gate=False, ptx=True).ptx
    if ptx is None:
        raise AssertionError("no PTX")
    return ptx


Open = tuple[int, ...]


def traced(statements: list[Stmt], ptx: str) -> Iterator[tuple[Stmt | None, str]]:
    """(innermost open statement, text) of each instruction that has an effect."""
    text = ptx.splitlines()
    for kernel in parse(ptx).values():
        for index, stack in sorted(open_statements(kernel).items()):
            instr = kernel.instrs[index]
            if EFFECTIVE.match(instr.opcode):
                shown = re.sub(r"^@!?%p\d+\s+", "", text[instr.line - 1].strip())
                stmt = statements[stack[-1]] if stack else None
                yield stmt, " ".join(shown.split())


def open_statements(ptx: PtxKernel) -> dict[int, Open]:
    """Which marked statements are open before each instruction that can be reached."""
    found: dict[int, Open] = {}
    todo: list[tuple[int, Open]] = [(0, ())]
    while todo:
        index, stack = todo.pop()
        while index < len(ptx.instrs):
            if index in found:
                if found[index] != stack:
                    raise AssertionError(f"paths meet in {stack} and {found[index]}")
                break
            found[index] = stack
            instr = ptx.instrs[index]
            if instr.opcode.startswith("nanosleep"):
                stack = after_mark(instr, stack)
            if instr.opcode.startswith("bra"):
                target = ptx.labels.get(str(getattr(instr.operands[0], "name", "")))
                if target is None:
                    raise AssertionError(f"branch to {instr.operands}")
                todo.append((target, stack))
                if instr.guard is None:
                    break
            if instr.opcode in ("ret", "exit") and instr.guard is None:
                break
            index += 1
    return found


def after_mark(instr: Instr, stack: Open) -> Open:
    number, closes = divmod(instr.operands[0].value - MARK, 2)
    if not closes:
        return (*stack, number)
    if not stack or stack[-1] != number:
        raise AssertionError(f"statement {number} closes while {stack} are open")
    return stack[:-1]


if __name__ == "__main__":
    run_tests()
