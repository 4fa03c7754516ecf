"""Synchronisation instructions: mbarriers, named barriers, cluster barrier, fences."""

from __future__ import annotations

import numpy as np

from .barriers import MBarrier, NamedBarrier
from .lanes import Value
from .machine import SHARED_WINDOW, Cta, Group
from .ops_memory import MemoryOps

_OFFSET = SHARED_WINDOW - 1


class Waiting:
    """What a blocked warp waits for, with the state at the time of asking."""

    def __init__(self, text: str, barrier: object) -> None:
        self.text = text
        self.barrier = barrier

    def __str__(self) -> str:
        return self.text.format(self.barrier)


class SyncOps(MemoryOps):
    """Barriers and fences; blocking methods return a false value while the warp must
    wait.
    """

    def _one(self, g: Group, value: Value, line: int) -> int:
        """A value that all active lanes agree on."""
        if value.__class__ is int or value.__class__ is bool:
            return value
        lanes = value[g.mask]
        if (lanes != lanes[0]).any():
            self.report(
                "misuse", "lanes disagree on an operand that must be uniform", line
            )
        return int(lanes[0])

    def mbar_init(self, g: Group, address: Value, count: Value, line: int) -> None:
        """mbarrier.init."""
        where, count = self._one(g, address, line), self._one(g, count, line)
        cta, at = self.peer(where, line), where & _OFFSET
        if cta is None or not self._in_shared(cta, at, at, 8, line):
            return
        if at % 8 or not 0 < count < 1 << 20:
            self.report("misuse", f"mbarrier.init at {at:#x} with count {count}", line)
            return
        old = cta.mbarriers.get(at)
        if old is not None:
            self.report(
                "misuse", f"mbarrier {at:#x} is initialised twice without inval", line
            )
        barrier = MBarrier(at, count, self.cluster.clocks.rows(), self.engine.wake)
        barrier.init_agent, barrier.init_clock = self.agent, self.clock.epoch()
        cta.mbarriers[at] = barrier
        self.fresh_mbarriers.append(barrier)

    def mbar_inval(self, g: Group, address: Value, line: int) -> None:
        """mbarrier.inval."""
        where = self._one(g, address, line)
        cta = self.peer(where, line)
        if cta is not None and cta.mbarriers.pop(where & _OFFSET, None) is None:
            self.report(
                "misuse",
                f"mbarrier.inval of {where:#x}, which is not initialised",
                line,
            )

    def find_mbar(
        self, address: int, line: int, order: np.ndarray | None = None
    ) -> tuple[MBarrier | None, Cta | None]:
        """The mbarrier at a shared address.

        Checked to be initialised before this use.
        """
        cta = self.peer(address, line)
        if cta is None:
            return None, None
        barrier = cta.mbarriers.get(address & _OFFSET)
        if barrier is None:
            self.report(
                "uninitialised",
                f"no mbarrier is initialised at {address & _OFFSET:#x}",
                line,
            )
            return None, cta
        known = self.clock.rows[0] if order is None else order
        if known[barrier.init_agent] < barrier.init_clock:
            self.report(
                "race",
                f"mbarrier {barrier.address:#x} of CTA {cta.label} is used, but "
                f"its init is not "
                "ordered before",
                line,
            )
        if order is not None and not barrier.init_fenced:
            self.report(
                "proxy",
                f"mbarrier {barrier.address:#x} of CTA {cta.label} is used by the "
                f"async proxy, "
                "but no fence.mbarrier_init or fence.proxy.async followed its init",
                line,
            )
        return barrier, cta

    def mbar_arrive(
        self, g: Group, address: Value, count: Value, tx: Value, line: int
    ) -> None:
        """mbarrier.arrive(.expect_tx) and expect_tx, once per active lane."""
        if address.__class__ is int:
            targets = [(address, g.n)]
        elif g.n <= 16:
            targets = [(where, 1) for where in address[g.mask].tolist()]
        else:
            lanes, repeats = np.unique(address[g.mask], return_counts=True)
            targets = list(zip(lanes.tolist(), repeats.tolist(), strict=True))
        arrivals, bytes_ = self._one(g, count, line), self._one(g, tx, line)
        for where, times in targets:
            barrier, cta = self.find_mbar(where, line)
            if barrier is None or cta is None:
                continue
            if bytes_:
                barrier.expect(bytes_ * times)
            if cta is not self.cta:
                self.note_remote(cta, self.agent, self.clock.epoch(), line)
            if arrivals:
                complaint = barrier.arrive(arrivals * times, self.clock.release())
                if complaint:
                    self.report(
                        "misuse", f"mbarrier {barrier.address:#x}: {complaint}", line
                    )

    def mbar_try(
        self,
        g: Group,
        address: Value,
        parity: Value,
        pc: int,
        line: int,
        may_fail: bool,
    ) -> bool | None:
        """try_wait/test_wait.parity: True, False, or None to block.

        The first poll of an incomplete phase fails, a repeated one blocks. In random
        mode a first ``try_wait`` may also fail although the phase is complete.
        """
        where = self._one(g, address, line)
        odd = self._one(g, parity, line) & 1
        barrier, cta = self.find_mbar(where, line)
        if barrier is None or cta is None:
            return True
        if cta is not self.cta:
            self.report("misuse", "wait on an mbarrier of another CTA", line)
        key = (pc, where, odd)
        if barrier.complete(odd):
            if may_fail and self.poll != key and self.engine.spurious():
                self.poll = key
                return False
            self.poll = None
            self.clock.acquire(barrier.done[odd])
            return True
        if self.poll != key:
            self.poll = key
            return False
        self.block(barrier, f"parity {odd} of {{}}", line)
        return None

    def block(self, barrier: object, reason: str, line: int) -> None:
        """Wait until the barrier object wakes this warp; the reason is formatted when
        needed.
        """
        self.waiting = Waiting(reason, barrier)
        self.wait_line = line
        barrier.waiters.append(self)  # type: ignore[attr-defined]

    def _named(self, number: int) -> NamedBarrier:
        found = self.cta.named.get(number)
        if found is None:
            found = NamedBarrier(number, self.cluster.clocks.rows(), self.engine.wake)
            self.cta.named[number] = found
        return found

    def _bar_count(self, g: Group, number: int, count: Value | None, line: int) -> int:
        self._whole(g, 0xFFFFFFFF, line)
        threads = self.cta.threads if count is None else self._one(g, count, line)
        if (
            not 0 <= number < 16
            or threads % 32
            or threads > self.cta.threads
            or not threads
        ):
            self.report("misuse", f"barrier {number} with {threads} threads", line)
        return threads

    def bar_sync(self, g: Group, number: Value, count: Value | None, line: int) -> bool:
        """bar.sync: arrive, then wait for the generation to complete."""
        if self.token is None:
            which = self._one(g, number, line)
            barrier = self._named(which)
            threads = self._bar_count(g, which, count, line)
            generation = barrier.generation
            complaint = barrier.arrive(threads, self.clock.release())
            if complaint:
                self.report("misuse", complaint, line)
            self.token = (barrier, generation)
        barrier, generation = self.token
        if barrier.generation > generation:
            self.token = None
            self.clock.acquire(barrier.done)
            return True
        self.block(barrier, "{}", line)
        return False

    def bar_arrive(
        self, g: Group, number: Value, count: Value | None, line: int
    ) -> None:
        """bar.arrive: arrive without waiting."""
        which = self._one(g, number, line)
        threads = self._bar_count(g, which, count, line)
        complaint = self._named(which).arrive(threads, self.clock.release())
        if complaint:
            self.report("misuse", complaint, line)

    def cluster_arrive(self, g: Group, release: bool, line: int) -> None:
        """barrier.cluster.arrive.

        The relaxed form publishes only what a fence ordered.
        """
        self._whole(g, 0xFFFFFFFF, line)
        barrier = self.cluster.barrier
        if self.cluster_token is not None:
            self.report("misuse", "barrier.cluster.arrive twice without wait", line)
        self.cluster_token = barrier.generation
        barrier.arrive(self.clock.release() if release else self.fenced)

    def cluster_wait(self, g: Group, line: int) -> bool:
        """barrier.cluster.wait."""
        barrier = self.cluster.barrier
        if self.cluster_token is None:
            self.report("misuse", "barrier.cluster.wait without arrive", line)
            return True
        if barrier.generation > self.cluster_token:
            self.cluster_token = None
            self.clock.acquire(barrier.done)
            return True
        self.block(barrier, "{}", line)
        return False

    def fence_async(self) -> None:
        """fence.proxy.async."""
        self.clock.fence_async()
        self._publish_mbarriers()

    def fence_thread(self) -> None:
        """fence.acq_rel / membar.

        What precedes may be published by a relaxed arrive.
        """
        self.fenced = self.clock.release().copy()
        self.engine.global_release(self)

    def fence_mbarrier_init(self) -> None:
        """fence.mbarrier_init.release.cluster: mbarrier inits may be published."""
        self.fenced = self.clock.release().copy()
        self._publish_mbarriers()

    def _publish_mbarriers(self) -> None:
        for barrier in self.fresh_mbarriers:
            barrier.init_fenced = True
        self.fresh_mbarriers.clear()

    cluster_token: int | None = None
