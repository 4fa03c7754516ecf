"""A kernel as JSON: what the generated wrapper holds of it, and reads back.

The text holds problem, epilogue, arch and schedules, from which the kernel's source is
printed again; its sha256 says that it is the same one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.dtypes import dtype
from torch_cute_backend.epilogue.graph import (
    EpilogueGraph,
    EpilogueInput,
    EpilogueNode,
    EpilogueOutput,
    InputKind,
)
from torch_cute_backend.errors import CacheError, CuteBackendError
from torch_cute_backend.problem import Accum, GemmProblem, Grouping, Major
from torch_cute_backend.schedule import GemmSchedule

FORMAT = 2


@dataclass(frozen=True)
class Variant:
    """One schedule of a GEMM.

    Attributes:
        up_to_m: it serves M up to this; None for all that remain.
        schedule: see :class:`GemmSchedule`.
        sha256: digest of the kernel's source; empty before it is built.
    """

    up_to_m: int | None
    schedule: GemmSchedule
    sha256: str = ""


@dataclass(frozen=True)
class KernelSpec:
    """One GEMM of a wrapper: at most four variants, told apart by M at run time."""

    arch: ArchSpec
    problem: GemmProblem
    variants: tuple[Variant, ...]

    @property
    def digest(self) -> str:
        """Hex digest of the whole text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """One line of JSON; equal specs give equal text."""
        value = {
            "format": FORMAT,
            "arch": self.arch.name,
            "problem": _problem_to_json(self.problem),
            "variants": [
                {
                    "up_to_m": v.up_to_m,
                    "schedule": v.schedule.to_json(),
                    "sha256": v.sha256,
                }
                for v in self.variants
            ],
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> KernelSpec:
        """Inverse of :meth:`to_json`; ``CacheError`` for anything else."""
        try:
            value = json.loads(text)
            if value["format"] != FORMAT:
                raise CacheError(f"kernel spec of format {value['format']}")
            variants = tuple(
                Variant(
                    v["up_to_m"], GemmSchedule.from_json(v["schedule"]), v["sha256"]
                )
                for v in value["variants"]
            )
            problem = _problem_from_json(value["problem"])
            return cls(arch_spec(value["arch"]), problem, variants)
        except (ValueError, KeyError, TypeError, CuteBackendError) as error:
            raise CacheError(f"malformed kernel spec: {error!r}") from error


def _problem_to_json(problem: GemmProblem) -> dict[str, Any]:
    return {
        "op": problem.op,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "a_dtype": problem.a_dtype.name,
        "b_dtype": problem.b_dtype.name,
        "a_major": problem.a_major.value,
        "b_major": problem.b_major.value,
        "scaling": problem.scaling,
        "accum": problem.accum.value,
        "epilogue": _graph_to_json(problem.epilogue),
        "out_aligned": problem.out_aligned,
        "grouping": problem.grouping.value,
        "groups": problem.groups,
    }


def _problem_from_json(row: dict[str, Any]) -> GemmProblem:
    return GemmProblem(
        row["op"],
        row["m"],
        row["n"],
        row["k"],
        a_dtype=dtype(row["a_dtype"]),
        b_dtype=dtype(row["b_dtype"]),
        a_major=Major(row["a_major"]),
        b_major=Major(row["b_major"]),
        scaling=row["scaling"],
        accum=Accum(row["accum"]),
        epilogue=_graph_from_json(row["epilogue"]),
        out_aligned=row["out_aligned"],
        grouping=Grouping(row["grouping"]),
        groups=row["groups"],
    )


def _graph_to_json(graph: EpilogueGraph) -> dict[str, Any]:
    return {
        "inputs": [[i.name, i.kind.value, i.dtype.name] for i in graph.inputs],
        "nodes": [[n.op, list(n.args), n.attr] for n in graph.nodes],
        "outputs": [[o.node, o.dtype.name, o.name] for o in graph.outputs],
    }


def _graph_from_json(row: dict[str, Any]) -> EpilogueGraph:
    return EpilogueGraph(
        tuple(EpilogueInput(n, InputKind(k), dtype(d)) for n, k, d in row["inputs"]),
        tuple(EpilogueNode(op, tuple(args), attr) for op, args, attr in row["nodes"]),
        tuple(EpilogueOutput(node, dtype(d), name) for node, d, name in row["outputs"]),
    )
