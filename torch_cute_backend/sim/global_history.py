"""Who wrote each byte of global memory, and whether a later access is ordered behind.

Within a cluster the vector clocks decide. Between clusters only releases and acquires
at gpu scope order anything: a release of any warp publishes all earlier writes of its
cluster, an acquire sees everything published so far. That is lenient towards kernels
that do synchronise, and exact for kernels that do not. Reads are not recorded, so a
write over data that another CTA may still read is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .memory import Region

Pick = Callable[[np.ndarray], Any] | np.ndarray | slice
Report = Callable[[str, str, int], None]
_STRIDE = 1 << 16


@dataclass(frozen=True)
class Access:
    """The agent of an access, its clock, and what happened before it."""

    cluster: int
    agent: int
    name: str
    clock: int
    need: np.ndarray
    order: np.ndarray


class GlobalHistory:
    """Last writer of every byte of the tensors that a launch writes.

    ``dependent``: the kernel before this one may still run and touch every tensor,
    until a ``griddepcontrol.wait``.
    """

    def __init__(self, clusters: int, report: Report, dependent: bool = False) -> None:
        self.report = report
        self.dependent = dependent
        self.waits: list[dict[int, int]] = [{} for _ in range(clusters)]
        self.published = np.ones(clusters, np.int64)
        self.seen = np.zeros((clusters, clusters), np.int64)
        self.rows: dict[int, np.ndarray] = {}

    def release(self, cluster: int) -> None:
        """Earlier writes of a cluster become visible to later acquires."""
        self.published[cluster] += 1

    def acquire(self, cluster: int) -> None:
        """A cluster sees everything published so far."""
        np.maximum(self.seen[cluster], self.published - 1, out=self.seen[cluster])

    def wait_predecessor(self, cluster: int, agent: int, clock: int) -> None:
        """An agent has seen the end of the kernel before this one."""
        self.waits[cluster].setdefault(agent, clock)

    def _predecessor(self, region: Region, access: Access, line: int) -> None:
        """Is the access ordered behind some agent's wait for the kernel before?"""
        waits = self.waits[access.cluster]
        if any(clock <= access.order[agent] for agent, clock in waits.items()):
            return
        self.report(
            "race",
            f"global memory {region.tensor.name}: access by {access.name} is not "
            "ordered behind griddepcontrol.wait; the kernel before may still run",
            line,
        )

    def read(self, region: Region, pick: Pick, access: Access, line: int) -> None:
        """Check a read of the bytes that ``pick`` selects.

        ``pick`` is an index, or a function from a per-byte array to a view of it.
        """
        if self.dependent:
            self._predecessor(region, access, line)
        rows = self.rows.get(region.start)
        if rows is not None:
            self._check(rows, region, pick, access, line, "read")

    def write(self, region: Region, pick: Pick, access: Access, line: int) -> None:
        """Check and record a write."""
        if self.dependent:
            self._predecessor(region, access, line)
        rows = self.rows.get(region.start)
        if rows is None:
            rows = np.zeros((3, len(region.bytes)), np.int32)
            rows[0] = -1
            self.rows[region.start] = rows
        else:
            self._check(rows, region, pick, access, line, "write")
        for row, value in zip(
            rows,
            (
                access.cluster * _STRIDE + access.agent,
                access.clock,
                self.published[access.cluster],
            ),
            strict=True,
        ):
            _set(row, pick, value)

    def _check(
        self,
        rows: np.ndarray,
        region: Region,
        pick: Pick,
        access: Access,
        line: int,
        verb: str,
    ) -> None:
        writer, clock, epoch = (_get(row, pick) for row in rows)
        known = writer >= 0
        if not known.any():
            return
        cluster, agent = writer // _STRIDE, writer % _STRIDE
        mine = known & (cluster == access.cluster)
        late = np.zeros(len(writer), np.bool_)
        late[mine] = clock[mine] > access.need[agent[mine]]
        other = known & ~mine
        late[other] = epoch[other] > self.seen[access.cluster][cluster[other]]
        if not late.any():
            return
        first = int(np.flatnonzero(late)[0])
        kind = "race"
        if mine[first] and clock[first] <= access.order[agent[first]]:
            kind = "proxy"
        self.report(
            kind,
            f"global memory {region.tensor.name}: {verb} by {access.name} is not "
            f"ordered behind a write by cluster {cluster[first]}",
            line,
        )


def _get(row: np.ndarray, pick: Pick) -> np.ndarray:
    return np.asarray(pick(row) if callable(pick) else row[pick]).reshape(-1)


def _set(row: np.ndarray, pick: Pick, value: int) -> None:
    if callable(pick):
        pick(row)[...] = value
    else:
        row[pick] = value


class NoHistory(GlobalHistory):
    """Stands in when checks are off."""

    def __init__(self) -> None:
        pass

    def wait_predecessor(self, *_: Any, **__: Any) -> None:
        return

    def release(self, cluster: int) -> None:
        return

    def acquire(self, cluster: int) -> None:
        return

    def read(self, *_: Any, **__: Any) -> None:
        return

    def write(self, *_: Any, **__: Any) -> None:
        return
