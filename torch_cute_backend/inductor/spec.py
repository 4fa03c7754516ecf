"""A kernel as JSON: what the generated wrapper holds of it, and reads back.

The text holds problem, epilogue, arch and schedules, from which the kernel's source is
printed again; its sha256 says that it is the same one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.errors import CacheError, CuteBackendError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

FORMAT = 3


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
            "problem": self.problem.to_json(),
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
            problem = GemmProblem.from_json(value["problem"])
            return cls(arch_spec(value["arch"]), problem, variants)
        except (ValueError, KeyError, TypeError, CuteBackendError) as error:
            raise CacheError(f"malformed kernel spec: {error!r}") from error
