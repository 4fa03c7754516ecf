"""``Program``: a whole kernel in one of its three forms.

============  ===========  ==============  =======================================
form          ``regions``  ``loop``        meaning
============  ===========  ==============  =======================================
``inline``    empty        the tile loop   one CTA-wide loop, role-tagged statements
``kept``      one a role   the residual    role loops, then the shared loop
``omitted``   one a role   None            role loops only
============  ===========  ==============  =======================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_cute_backend.ir.ops import Body, Stmt, walk
from torch_cute_backend.ir.structure import RoleRegion, TileLoop
from torch_cute_backend.ir.values import Buffer, NamedBarrier, Pipeline, Role


@dataclass(frozen=True)
class Program:
    """See the module docstring.

    Attributes:
        roots: names of the root computations; one for a single GEMM.
        cluster_size: CTAs of a cluster; ``cluster_shape`` (M, N) as soon as that is
            more than one: arrival counts are recomputed from it.
        cta_group: CTAs that share one tcgen05 MMA.
        prologue: run by all threads (role-tagged statements by their role) before
            anything else; it ends in a CTA or cluster barrier.
        post: what follows the loop, role-tagged or shared.
    """

    name: str
    arch: str
    roots: tuple[str, ...]
    roles: tuple[Role, ...]
    buffers: tuple[Buffer, ...]
    pipelines: tuple[Pipeline, ...]
    barriers: tuple[NamedBarrier, ...]
    prologue: Body
    regions: tuple[RoleRegion, ...] = ()
    loop: TileLoop | None = None
    post: Body = ()
    cluster_size: int = 1
    cluster_shape: tuple[int, int] = (1, 1)
    cta_group: int = 1

    @property
    def form(self) -> str:
        if not self.regions:
            return "inline"
        return "kept" if self.loop is not None else "omitted"

    def top(self) -> Body:
        """The top-level statements in the order they run."""
        loop: tuple[Stmt, ...] = () if self.loop is None else (self.loop,)
        return (*self.prologue, *self.regions, *loop, *self.post)

    def walk(self) -> Iterator[Stmt]:
        yield from walk(self.top())

    def role(self, name: str) -> Role | None:
        for role in self.roles:
            if role.name == name:
                return role
        return None
