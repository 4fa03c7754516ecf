"""Cluster launch control: running CTAs take over clusters not yet launched.

The 16-byte response is opaque to a kernel; the model's own encoding is a valid bit and
the first CTA's coordinates. At most ``sms`` CTAs are resident at a time; the rest of
the grid waits and is what ``try_cancel`` can get.
"""

from __future__ import annotations

import numpy as np

from .lanes import M32, Value
from .machine import SHARED_WINDOW, Group
from .ops_tensormap import TensorMapOps
from .report import UnsupportedPtx

_OFFSET = SHARED_WINDOW - 1
_RESPONSE_BYTES = 16


class LaunchControlOps(TensorMapOps):
    """clusterlaunchcontrol instructions."""

    def try_cancel(
        self, g: Group, target: Value, barrier: Value, multicast: bool, line: int
    ) -> None:
        """Ask for a cluster; the response arrives like a bulk copy of 16 bytes."""
        if g.n > 1:
            self.report("misuse", f"try_cancel issued by {g.n} lanes", line)
        where, signal = self._one(g, target, line), self._one(g, barrier, line)
        stamp = self.clock.issue()
        ranks = range(len(self.cluster.ctas)) if multicast else [where >> 24]
        jobs = []
        for rank in ranks:
            home = signal & _OFFSET | rank << 24
            found, owner = self.find_mbar(home, line, stamp.order)
            cta, at = self.peer(rank << 24, line), where & _OFFSET
            if found is None or owner is None or cta is None:
                continue
            if at % 16 or not self._in_shared(cta, at, at, _RESPONSE_BYTES, line):
                self.report("misuse", f"try_cancel response at {at:#x}", line)
                continue
            if found.agent < 0:
                found.agent = self.cluster.clocks.add(
                    f"responses into mbarrier {found.address:#x} of CTA {cta.label}"
                )
            found.loads += 1
            jobs.append((cta, at, found, found.loads))

        def complete() -> None:
            waiting = self.engine.waiting_clusters
            words = np.zeros(4, np.uint32)
            if waiting:
                words[:] = (1, *waiting.popleft()[0])
            for cta, at, held, clock in jobs:
                cta.shadow.write(
                    slice(at >> 4, (at >> 4) + 1),
                    held.agent,
                    clock,
                    stamp.need,
                    stamp.order,
                    line,
                )
                cta.smem[at : at + _RESPONSE_BYTES] = words.view(np.uint8)
                held.transfer(_RESPONSE_BYTES, held.agent, clock)

        self.engine.post_load(complete)

    def query_cancel(self, handle: Value, line: int) -> tuple[int, ...] | None:
        """First CTA of the cluster taken over, or None."""
        low, high = handle
        if low.__class__ is not int or high.__class__ is not int:
            raise UnsupportedPtx("per-lane cancel responses", line)
        if not low & 1:
            return None
        return low >> 32, high & M32, high >> 32

    def first_ctaid(self, handle: Value, axis: int, line: int) -> int:
        """One coordinate of the first CTA; undefined (a note, and 0) if refused."""
        found = self.query_cancel(handle, line)
        if found is None:
            text = "the CTA id of a cancel request that failed is undefined"
            self.report("undefined_value", text, line, advice=True)
            return 0
        return found[axis]
