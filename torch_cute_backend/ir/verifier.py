"""The verifier: a table of rules, each with its name, over a whole program.

In: a program in any of its forms. Out: nothing, or a ``VerifyError`` with all messages,
each with the rule's name, what was found and what was expected. A rule that does not
apply to a form yields nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_cute_backend.errors import VerifyError
from torch_cute_backend.ir import verify_forms as forms
from torch_cute_backend.ir import verify_instances
from torch_cute_backend.ir import verify_pipelines as pipelines
from torch_cute_backend.ir import verify_structure as structure
from torch_cute_backend.ir.program import Program


@dataclass(frozen=True)
class Rule:
    """``check`` yields one message for each violation. ``final``: it binds what is
    printed, not the programs between passes."""

    name: str
    check: Callable[[Program], Iterator[str]]
    final: bool = False


RULES: tuple[Rule, ...] = (
    Rule("names", structure.names),
    Rule("scoping", structure.scoping),
    Rule("role_nesting", structure.role_nesting),
    Rule("loop_step", structure.loop_step),
    Rule("loop_variables", structure.loop_variables),
    Rule("region_shape", structure.region_shape),
    Rule("prologue_sync", structure.prologue_sync),
    Rule("cta_barriers", structure.cta_barriers),
    Rule("dependent_launch", structure.dependent_launch),
    Rule("pipeline_roles", pipelines.pipeline_roles),
    Rule("bracketing", pipelines.bracketing),
    Rule("in_step", pipelines.in_step),
    Rule("arrivals", pipelines.arrivals),
    Rule("tx_bytes", pipelines.tx_bytes),
    Rule("named_barriers", pipelines.named_barriers),
    Rule("tmem_lifetime", pipelines.tmem_lifetime),
    Rule("drained_accumulators", pipelines.drained_accumulators),
    Rule("same_tiles", forms.same_tiles),
    Rule("own_schedulers", forms.own_schedulers),
    Rule("kept_contract", forms.kept_contract, final=True),
    Rule("register_counts", forms.register_counts),
    Rule("instances", verify_instances.instances),
    Rule("ordering", forms.ordering),
)


def violations(program: Program, final: bool = True) -> tuple[str, ...]:
    """``rule: message`` of everything that is wrong, in the table's order."""
    rules = [rule for rule in RULES if final or not rule.final]
    return tuple(f"{r.name}: {message}" for r in rules for message in r.check(program))


def verify(program: Program, final: bool = True) -> None:
    """Raise ``VerifyError`` unless every rule holds (or every rule that is not
    ``final``)."""
    found = violations(program, final)
    if found:
        raise VerifyError(f"{program.name}: " + "; ".join(found))
