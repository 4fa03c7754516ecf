"""Architectures: one :class:`~torch_cute_backend.arch.spec.ArchSpec` a file.

To add one, write its file and add its line to ``ARCHS``.
"""

from torch_cute_backend.arch.sm90 import SM90
from torch_cute_backend.arch.sm100 import SM100
from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.errors import UserError

ARCHS: dict[str, ArchSpec] = {spec.name: spec for spec in (SM90, SM100)}


def arch_spec(name: str) -> ArchSpec:
    """The arch called ``name``; ``UserError`` listing the known ones otherwise."""
    if name not in ARCHS:
        raise UserError(f"unknown arch {name!r}; known: {', '.join(ARCHS)}")
    return ARCHS[name]


def arch_for_capability(major: int, minor: int) -> ArchSpec | None:
    """The arch whose cubins load on a GPU of this compute capability, if any."""
    for spec in ARCHS.values():
        if spec.capability == (major, minor):
            return spec
    return None


__all__ = ["ARCHS", "SM90", "SM100", "ArchSpec", "arch_for_capability", "arch_spec"]
