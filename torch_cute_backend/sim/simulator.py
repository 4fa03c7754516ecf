"""Run launches through the engine and build the report.

``run_launch`` is the core entry without any DSL: PTX text, a ``Launch`` and tensor
regions in, a ``SimReport`` out. ``simulate`` (in the package) adds launch capture.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from .codegen import Program, compile_kernel
from .global_history import GlobalHistory
from .launch_record import Launch, TensorRegion
from .machine import Cluster
from .memory import GlobalMemory
from .parse import parse
from .report import BadInput, SimError, SimReport
from .sched import Engine
from .trace import Trace
from .warp import Warp

Progress = Callable[[int, int], None]
_TARGETS = ("sm_90a", "sm_100", "sm_103")


@lru_cache(maxsize=32)
def _programs(ptx: str) -> Mapping[str, Program]:
    return {name: compile_kernel(kernel) for name, kernel in parse(ptx).items()}


def cluster_positions(launch: Launch) -> list[list[tuple[int, int, int]]]:
    """CTA positions, cluster by cluster; rank order is x fastest."""
    grid, cluster = launch.grid, launch.cluster
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise SimError(f"grid {grid} is not a multiple of the cluster {cluster}")
    counts = [range(g // c) for g, c in zip(grid, cluster, strict=True)]
    inner = [range(c) for c in cluster]
    return [
        [
            (cx * cluster[0] + x, cy * cluster[1] + y, cz * cluster[2] + z)
            for z, y, x in itertools.product(inner[2], inner[1], inner[0])
        ]
        for cz, cy, cx in itertools.product(counts[2], counts[1], counts[0])
    ]


def run_launch(
    ptx: str,
    launch: Launch,
    tensors: Sequence[TensorRegion],
    *,
    mode: str = "lazy",
    checks: bool = True,
    sms: int = 132,
    roles: Mapping[int, str] | None = None,
    trace: str | None = None,
    progress: Progress | None = None,
) -> SimReport:
    """Simulate one launch; faults of the kernel come back as findings.

    ``progress(done, total)`` is called as clusters finish.

    Raises:
        BadInput: not PTX, an unsupported target, or tensors too small for the launch.
        UnsupportedPtx: an instruction or field that is not modelled.
    """
    program = _program(ptx, launch.kernel)
    started = time.perf_counter()
    engine = _engine(ptx, program, launch, tensors, mode, checks, sms)
    engine.roles = dict(roles or {})
    engine.trace = Trace() if trace else None
    counts = _run_clusters(engine, program, launch, progress)
    once = False if engine.deadlocked else engine.memory.final_check()
    seconds = time.perf_counter() - started
    if trace:
        engine.trace.write(trace)
    found = tuple(engine.findings.values())
    return SimReport(
        findings=tuple(f for f in found if not f.advice),
        notes=tuple(f for f in found if f.advice),
        counts={name: dict(c) for name, c in counts.items()},
        tiles_written_once=once,
        seconds=seconds,
        mode=mode,
        grid=launch.grid,
        cluster=launch.cluster,
        kernel=launch.kernel,
        deadlocked=engine.deadlocked,
        ptx=ptx,
    )


def _program(ptx: str, name: str) -> Program:
    """The translated kernel; ``BadInput`` if there is none or its target is unknown."""
    programs = _programs(ptx)
    if name not in programs:
        raise BadInput(f"kernel {name!r} is not in the PTX")
    check_target(programs[name].kernel.target)
    return programs[name]


def _engine(
    ptx: str,
    program: Program,
    launch: Launch,
    tensors: Sequence[TensorRegion],
    mode: str,
    checks: bool,
    sms: int,
) -> Engine:
    """An engine with the launch's memory, parameters and waiting clusters."""
    engine = Engine(mode, checks, sms)
    clusters = cluster_positions(launch)
    if checks:
        engine.history = GlobalHistory(
            len(clusters), engine.report, _is_dependent(program)
        )
    engine.memory = GlobalMemory(tensors, engine.report, engine.history)
    engine.params = _pack_params(program, launch)
    engine.strict_wait = "tcgen05.wait::ld" in ptx
    engine.waiting_clusters.extend(clusters)
    lines = {i.line: i for b in program.flow.blocks for i in b.instrs}
    engine.source_line = lambda line: (
        program.kernel.source_line(lines[line]) if line in lines else None
    )
    return engine


def _run_clusters(
    engine: Engine, program: Program, launch: Launch, progress: Progress | None
) -> dict[str, Counter[str]]:
    """Run the waiting clusters, as many at a time as must be resident together; returns
    what each role's warps executed."""
    counts: dict[str, Counter[str]] = {}
    waiting = engine.waiting_clusters
    total, number = len(waiting), 0
    together = needs_all_ctas(program)
    engine.slice = 200 if together else -1
    resident = 1
    if together:
        resident = total
    elif uses_launch_control(program):
        resident = max(1, engine.sms // len(waiting[0]))
    while waiting:
        batch = [waiting.popleft() for _ in range(min(resident, len(waiting)))]
        clusters = [
            Cluster(engine, program, launch, number + i, positions)
            for i, positions in enumerate(batch)
        ]
        number += len(batch)
        warps = [w for cluster in clusters for w in cluster.start(Warp)]
        engine.run(warps)
        _count(warps, program, engine.roles, counts)
        if progress is not None:
            progress(total - len(waiting), total)
        if engine.deadlocked:
            break
        engine.queues.clear()
        engine.cores.clear()
    return counts


def _is_dependent(program: Program) -> bool:
    """Is the kernel made to start before the one before it has ended?"""
    instructions = (i for block in program.flow.blocks for i in block.instrs)
    return any(i.parts[0] == "griddepcontrol" for i in instructions)


def check_target(target: str) -> None:
    """``BadInput`` for a target whose instructions are not modelled."""
    if not target.startswith(_TARGETS):
        raise BadInput(
            f"the simulator knows {', '.join(_TARGETS)}*, not {target!r}: "
            "other targets differ in instructions and shared memory"
        )


def needs_all_ctas(program: Program) -> bool:
    """CTAs may wait for each other through global memory: run all of them together."""
    for block in program.flow.blocks:
        for instr in block.instrs:
            parts = instr.parts
            shared = any(p.startswith("shared") for p in parts)
            if parts[0] in ("atom", "red") and not shared:
                return True
            if parts[0] == "ld" and "acquire" in parts and not shared:
                return True
    return False


def uses_launch_control(program: Program) -> bool:
    """CTAs take over the work of clusters that have not been launched."""
    return any(
        instr.opcode.startswith("clusterlaunchcontrol.try_cancel")
        for block in program.flow.blocks
        for instr in block.instrs
    )


def _pack_params(program: Program, launch: Launch) -> bytes:
    sizes = [p.size for p in program.kernel.params]
    if [len(p) for p in launch.params] != sizes:
        raise BadInput(
            f"launch has parameters of {[len(p) for p in launch.params]} bytes, "
            f"the kernel {sizes}"
        )
    packed = b""
    for value in launch.params:
        packed += value + bytes(-len(value) % 64)
    return packed


def _count(
    warps: list[Warp],
    program: Program,
    roles: Mapping[int, str],
    counts: dict[str, Counter[str]],
) -> None:
    for warp in warps:
        total: Counter[str] = Counter()
        for executed, categories in zip(warp.counts, program.categories, strict=True):
            if executed:
                for name, value in categories.items():
                    total[name] += executed * value
        for name in {f"warp {warp.index}", roles.get(warp.index, f"warp {warp.index}")}:
            counts.setdefault(name, Counter()).update(total)
