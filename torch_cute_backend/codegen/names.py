"""How resources are spelled in generated source. One place, so that every emitter and
both archs agree with the field's conventions (``gA_mk``, ``tAsA``, ``tCrC``)."""

from __future__ import annotations

import re

from torch_cute_backend.ir.values import Buffer, Pipeline, Role

MODES = {"A": "mk", "B": "nk"}


def camel(name: str) -> str:
    """``scale_a`` -> ``ScaleA``; a buffer's prefix ``r_`` or ``s`` is dropped."""
    bare = name.removeprefix("r_")
    return "".join(part[:1].upper() + part[1:] for part in bare.split("_"))


def gmem(buffer: Buffer) -> str:
    """The kernel's parameter for a tensor: ``mA_mk``, ``mD_mn``, ``mScaleA``."""
    return f"m{camel(buffer.name)}{_modes(buffer)}"


def plain(buffer: Buffer) -> str:
    """The tensor itself, where :func:`gmem` is its view for TMA: ``mD_plain``."""
    return f"m{camel(buffer.name)}_plain"


def tiled(buffer: Buffer) -> str:
    """The tensor cut into CTA tiles: ``gA_mk``."""
    return f"g{camel(buffer.name)}{_modes(buffer)}"


def _modes(buffer: Buffer) -> str:
    modes = MODES.get(operand(buffer.name))
    return "" if modes is None else f"_{modes}"


def operand(name: str) -> str:
    """``B1``, the B of a second product, is laid out and partitioned as ``B``."""
    return name.rstrip("0123456789")


def tma_atom(buffer: Buffer) -> str:
    return f"tma_atom_{buffer.name.lower()}"


def smem_layout(buffer: Buffer) -> str:
    """Parameter with the staged layout of shared buffer ``sA``: ``a_smem_layout``."""
    bare = operand(buffer.name.removeprefix("s"))
    return f"{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', bare).lower()}_smem_layout"


def registers(buffer: Buffer) -> str:
    """This thread's registers: ``tCrAcc``, ``tCrD``, ``tCrScaleA``."""
    return f"tCr{camel(buffer.name)}"


def fragment(buffer: Buffer) -> str:
    """The MMA's view of staged operand ``sB``: ``tCrB``."""
    return f"tCr{buffer.name.removeprefix('s')}"


def pipeline(p: Pipeline) -> str:
    return f"{p.name}_pipeline"


def producer_state(p: Pipeline) -> str:
    return f"{p.name}_producer"


def consumer_state(p: Pipeline) -> str:
    return f"{p.name}_consumer"


def release_state(p: Pipeline) -> str:
    """Second consumer state, for releases that lag behind the waits."""
    return f"{p.name}_release"


def role_condition(role: Role) -> str:
    """Which warps the role is."""
    if role.warps == 1:
        leader = " and is_leader" if role.leader else ""
        return f"warp_idx == {role_constant(role)}{leader}"
    if role.first_warp == 0:
        return f"warp_idx < {role_constant(role)}"
    last = role.first_warp + role.all_warps
    return f"warp_idx >= {role.first_warp} and warp_idx < {last}"


def role_constant(role: Role) -> str:
    """``LOAD_WARP`` (its index) or ``MATH_WARPS`` (how many, from warp 0)."""
    return f"{role.name.upper()}_{'WARP' if role.warps == 1 else 'WARPS'}"


def divisor(size: str) -> str:
    """A launch-time size with the multiplier that divides by it."""
    return f"{size}_divisor"


def identifier(name: str) -> str:
    """A kernel name as a Python identifier."""
    return re.sub(r"\W", "_", name)
