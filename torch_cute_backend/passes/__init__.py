"""The passes and their only ordered list.

In: an inline program, the roles that the arch requires, and what the schedule asks for.
Out: the partitioned program, the final one, and the decision on the shared loop; or a
falsy :class:`Refused` with the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.errors import IRError
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.verifier import verify
from torch_cute_backend.passes.base import Pass, PassContext, PassResult
from torch_cute_backend.passes.drop_dead_loads import DropDeadLoads
from torch_cute_backend.passes.drop_placeholders import DropPlaceholders
from torch_cute_backend.passes.omit_shared_loop import OmitSharedLoop
from torch_cute_backend.passes.partition_roles import PartitionRoles
from torch_cute_backend.passes.remarks import Omission, Remark
from torch_cute_backend.status import Status

PIPELINE: tuple[Pass, ...] = (
    # Shared tile loop -> role loops and a residual loop, or the reason why not.
    PartitionRoles(),
    # Only where asked for: dead read-only scalar loads out of the residual loop.
    DropDeadLoads(),
    # The check the project is named for: residual loop out iff it does nothing.
    OmitSharedLoop(),
    # Marks are for the check and for people; nothing is printed for them.
    DropPlaceholders(),
)


_REFUSED = Omission("refused", None)


@dataclass(frozen=True)
class PipelineResult:
    """``before``: partitioned, with its residual loop (inline programs: as built);
    ``after``: what is printed."""

    before: Program
    after: Program
    omission: Omission


@dataclass(frozen=True)
class Refused(Status):
    """Why no kernel comes out; ``omission`` has the remarks for ``explain``."""

    omission: Omission = _REFUSED


def run_pipeline(
    program: Program,
    required_roles: tuple[str, ...],
    shared_loop: str = "auto",
    drop_dead_loads: bool = False,
) -> PipelineResult | Refused:
    """Run ``PIPELINE`` on an inline program.

    ``shared_loop``: ``"auto"`` runs the check, ``"keep"`` keeps the residual loop,
    ``"inline"`` leaves the program unpartitioned. ``drop_dead_loads`` takes dead
    read-only scalar loads out before the check. Raises ``VerifyError`` if the program
    is ill-formed, or becomes so in a pass.
    """
    if shared_loop not in ("auto", "keep", "inline"):
        raise IRError(f"unknown shared_loop {shared_loop!r}")
    verify(program)
    if shared_loop == "inline":
        remark = Remark(False, "partition_roles", program.name, "inline form requested")
        return PipelineResult(program, program, Omission("kept", None, (remark,)))
    context = PassContext(required_roles, shared_loop, drop_dead_loads)
    before, omission = program, Omission("not_applicable", None)
    for step in PIPELINE:
        result = step.run(program, context)
        if isinstance(result, Status):
            return _refused(step, program, result)
        program = result.program
        verify(program, final=False)
        omission = result.omission or omission
        if isinstance(step, PartitionRoles):
            before = program
        if omission.decision == "refused":
            reasons = tuple(str(r) for r in omission.remarks if not r.applied)
            return Refused(reasons, omission)
    verify(program)
    return PipelineResult(before, program, omission)


def _refused(step: Pass, program: Program, status: Status) -> Refused:
    remarks = tuple(
        Remark(False, step.name, program.name, reason) for reason in status.reasons
    )
    return Refused(status.reasons, Omission("refused", None, remarks))


__all__ = [
    "PIPELINE",
    "Omission",
    "Pass",
    "PassContext",
    "PassResult",
    "PipelineResult",
    "Refused",
    "Remark",
    "run_pipeline",
]
