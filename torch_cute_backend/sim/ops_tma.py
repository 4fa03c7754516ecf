"""Bulk asynchronous copies: TMA tensor loads, stores and reductions, plain bulk copies.

A load is queued at issue and, when it completes, writes shared memory as the agent of
its mbarrier and signals the transaction bytes. A store reads shared memory as the bulk
agent of the issuing warp; ``wait_group`` orders the warp behind it.
"""

from __future__ import annotations

from .barriers import MBarrier
from .boxes import clip, place_of, read_box, strided, write_box
from .clocks import Stamp
from .codegen import PARAM_BASE
from .global_history import Access
from .lanes import M32, Value
from .machine import SHARED_WINDOW, Cta, Group
from .memory import Region
from .ops_sync import SyncOps
from .report import BadInput, SimError
from .tensormap import TensorMap, decode

_OFFSET = SHARED_WINDOW - 1
LoadJob = tuple[Cta, int, MBarrier, int]


class BulkGroups:
    """Bulk-store groups of one warp; clock ``i + 1`` of its agent means group ``i`` is
    done.
    """

    def __init__(self, agent: int, write_agent: int) -> None:
        self.agent = agent
        self.write_agent = write_agent
        self.open = 0
        self.outstanding: dict[int, int] = {}
        self.issued = False
        self.waiters: list[object] = []

    def done_through(self, group: int) -> bool:
        """Have all operations of groups up to ``group`` completed?"""
        return all(number > group for number in self.outstanding)


class TmaOps(SyncOps):
    """cp.async.bulk instructions."""

    bulk: BulkGroups | None = None

    def tensor_map(self, address: Value, g: Group, line: int) -> TensorMap:
        """Decode the tensor map at a parameter or global address."""
        where = self._one(g, address, line)
        known = self.engine.maps.get(where)
        if known is not None:
            result: TensorMap = known
            return result
        if where >= PARAM_BASE:
            at = where - PARAM_BASE
            raw = self.engine.params[at : at + 128]
        else:
            region = self.engine.memory.find(where, 128)
            if region is None:
                raise SimError(
                    f"tensor map at {self.engine.memory.describe(where)}", line
                )
            raw = region.bytes[where - region.base :][:128].tobytes()
        if len(raw) < 64 or where % 64:
            raise SimError(f"tensor map address {where:#x}", line)
        found = decode(raw)
        if where >= PARAM_BASE:
            self.engine.maps[where] = found
        return found

    def prefetch_tensormap(self, g: Group, address: Value, line: int) -> None:
        """prefetch.tensormap: decoding it checks the descriptor."""
        self.tensor_map(address, g, line)

    def map_region(self, tensor: TensorMap, line: int) -> Region | None:
        """The registered tensor behind a map.

        A finding if it does not hold all of it.
        """
        if min(tensor.dims) <= 0:
            return None
        region = self.engine.memory.find(tensor.address, tensor.footprint)
        if region is None:
            self._refuse_small_tensor(tensor, line)
            self.report(
                "out_of_bounds",
                f"tensor map of {tensor.footprint} bytes at "
                f"{self.engine.memory.describe(tensor.address)} reaches outside "
                f"every tensor",
                line,
            )
        return region

    def _refuse_small_tensor(self, tensor: TensorMap, line: int) -> None:
        """A map from the host that starts in a tensor and ends behind it is an input
        error; one that the kernel made is a fault of the kernel.
        """
        region = self.engine.memory.find(tensor.address)
        if region is not None and tensor in self.engine.maps.values():
            raise BadInput(
                f"tensor {region.tensor.name} is too small: the host code describes "
                f"{tensor.footprint} bytes, {region.stop - tensor.address} are there",
                line,
            )

    def tma_load(
        self,
        g: Group,
        target: Value,
        map_address: Value,
        coordinates: tuple[Value, ...],
        barrier_address: Value,
        mask: Value | None,
        pair: bool,
        line: int,
    ) -> None:
        """cp.async.bulk.tensor global -> shared.

        Optionally multicast over the cluster.
        """
        if g.n > 1:
            self.report("misuse", f"TMA load issued by {g.n} lanes", line)
        tensor = self.tensor_map(map_address, g, line)
        where = self._one(g, target, line)
        signal = self._one(g, barrier_address, line)
        at = tuple(_signed(self._one(g, c, line)) for c in coordinates)
        if len(at) != len(tensor.dims) or where % 128:
            self.report(
                "misuse",
                f"TMA load of rank {len(at)} (map: {len(tensor.dims)}) to {where:#x}",
                line,
            )
            return
        self._check_start("load", tensor, at, line)
        stamp = self.clock.issue()
        ranks = [where >> 24]
        if mask is not None:
            ranks = _bits(self._one(g, mask, line))
        jobs = []
        for rank in ranks:
            home = signal
            if mask is not None:
                parity = rank & ~1 | signal >> 24 & 1
                home = signal & _OFFSET | (parity if pair else rank) << 24
            job = self._load_job(tensor, rank, where & _OFFSET, home, stamp, line)
            if job is not None:
                jobs.append(job)
        self._post_load(tensor, at, jobs, stamp, line)

    def tma_prefetch(
        self,
        g: Group,
        map_address: Value,
        coordinates: tuple[Value, ...],
        line: int,
    ) -> None:
        """cp.async.bulk.prefetch.tensor: changes nothing, but is held to the rules."""
        tensor = self.tensor_map(map_address, g, line)
        at = tuple(_signed(self._one(g, c, line)) for c in coordinates)
        self._check_start("prefetch", tensor, at, line)

    def _check_start(
        self, what: str, tensor: TensorMap, at: tuple[int, ...], line: int
    ) -> None:
        """A box starts at a multiple of 16 bytes along the contiguous dimension; from
        any other element the hardware ends the kernel (illegal instruction).
        """
        behind = at[0] * tensor.item_bits // 8 % 16
        if behind:
            self.report(
                "misuse",
                f"TMA {what} at innermost coordinate {at[0]}, which is {behind} bytes "
                "behind a multiple of 16",
                line,
            )

    def _load_job(
        self,
        tensor: TensorMap,
        rank: int,
        first: int,
        home: int,
        stamp: Stamp,
        line: int,
    ) -> LoadJob | None:
        """One destination CTA of a load, checked; None if it cannot be done."""
        barrier, owner = self.find_mbar(home, line, stamp.order)
        cta = self.peer(rank << 24 | first, line)
        if barrier is None or owner is None or cta is None:
            return None
        if not self._in_shared(cta, first, first, tensor.box_bytes, line):
            return None
        if barrier.agent < 0:
            barrier.agent = self.cluster.clocks.add(
                f"TMA loads into mbarrier {barrier.address:#x} of CTA {owner.label}"
            )
        barrier.loads += 1
        if cta is not self.cta or owner is not self.cta:
            self.note_remote(cta, barrier.agent, barrier.loads, line)
        return cta, first, barrier, barrier.loads

    def _post_load(
        self,
        tensor: TensorMap,
        at: tuple[int, ...],
        jobs: list[LoadJob],
        stamp: Stamp,
        line: int,
    ) -> None:
        region = self.map_region(tensor, line)
        parts = clip(tensor, at)
        access = self.async_access(stamp, self.agent, 0)
        trace = self.engine.trace
        issued = trace.now if trace else 0

        def complete() -> None:
            data = read_box(tensor, at, region)
            if region is not None and parts is not None:
                self.engine.history.read(
                    region,
                    lambda row: strided(row, region, tensor)[parts[0]],
                    access,
                    line,
                )
            for cta, first, barrier, clock in jobs:
                if trace:
                    trace.operation(
                        "tma",
                        cta.label,
                        f"load into stage {barrier.address:#x}",
                        issued,
                        coordinates=list(at),
                        bytes=tensor.box_bytes,
                    )
                if cta.live_warps == 0:
                    text = f"TMA load into CTA {cta.label}, which has exited"
                    self.report("race", text, line)
                    continue
                granule = first >> 4
                cta.shadow.write(
                    slice(granule, granule + len(data)),
                    barrier.agent,
                    clock,
                    stamp.need,
                    stamp.order,
                    line,
                )
                cta.views[16][place_of(tensor, granule)] = data
                barrier.transfer(tensor.box_bytes, barrier.agent, clock)

        self.engine.post_load(complete)

    def async_access(self, stamp: Stamp, agent: int, clock: int) -> Access:
        """An async-proxy access to global memory with the order of its issue."""
        return Access(
            self.cluster.number, agent, self.name, clock, stamp.need, stamp.order
        )

    def _bulk(self) -> BulkGroups:
        if self.bulk is None:
            add = self.cluster.clocks.add
            self.bulk = BulkGroups(
                add(f"bulk stores of {self.name}"),
                add(f"global writes of bulk stores of {self.name}"),
            )
        return self.bulk

    def _post_store(
        self, stamp: Stamp, cta: Cta, first: int, count: int, line: int, action: object
    ) -> None:
        bulk = self._bulk()
        group = bulk.open
        bulk.issued = True
        bulk.outstanding[group] = bulk.outstanding.get(group, 0) + 1
        trace = self.engine.trace
        issued = trace.now if trace else 0

        def complete() -> None:
            if trace:
                trace.operation(
                    "bulk store",
                    cta.label,
                    f"store group {group}",
                    issued,
                    bytes=count * 16,
                )
            cta.shadow.read(
                slice(first, first + count),
                bulk.agent,
                group + 1,
                stamp.need,
                stamp.order,
                line,
            )
            action()  # type: ignore[operator]
            bulk.outstanding[group] -= 1
            if not bulk.outstanding[group]:
                del bulk.outstanding[group]
                waiters, bulk.waiters = bulk.waiters, []
                self.engine.wake(waiters)

        self.engine.post_store(complete)

    def tma_store(
        self,
        g: Group,
        map_address: Value,
        coordinates: tuple[Value, ...],
        source: Value,
        reduction: str | None,
        line: int,
    ) -> None:
        """cp(.reduce).async.bulk.tensor shared -> global."""
        if g.n > 1:
            self.report(
                "multi_issue", f"bulk store issued by {g.n} lanes", line, advice=True
            )
        tensor = self.tensor_map(map_address, g, line)
        where = self._one(g, source, line)
        at = tuple(_signed(self._one(g, c, line)) for c in coordinates)
        cta, first = self.peer(where, line), where & _OFFSET
        if len(at) != len(tensor.dims) or first % 128:
            self.report("misuse", f"bulk store rank {len(at)} from {first:#x}", line)
            return
        what = "store" if reduction is None else "reduction"
        self._check_start(what, tensor, at, line)
        if cta is None or not self._in_shared(
            cta, first, first, tensor.box_bytes, line
        ):
            return
        region = self.map_region(tensor, line)
        granules = tensor.box_bytes // 16
        owner = cta

        stamp = self.clock.issue()
        bulk = self._bulk()
        access = self.async_access(stamp, bulk.write_agent, bulk.open + 1)
        parts = clip(tensor, at)

        def action() -> None:
            place = place_of(tensor, first >> 4)
            if region is not None and parts is not None:
                if reduction is None:
                    self.engine.history.write(
                        region,
                        lambda row: strided(row, region, tensor)[parts[0]],
                        access,
                        line,
                    )
                write_box(tensor, at, region, owner.views[16][place], reduction, line)

        self._post_store(stamp, cta, first >> 4, granules, line, action)

    def bulk_load(
        self,
        g: Group,
        target: Value,
        source: Value,
        size: Value,
        barrier_address: Value,
        line: int,
    ) -> None:
        """cp.async.bulk global -> shared (not tensor)."""
        where, origin = self._one(g, target, line), self._one(g, source, line)
        count, signal = self._one(g, size, line), self._one(g, barrier_address, line)
        stamp = self.clock.issue()
        barrier, owner = self.find_mbar(signal, line, stamp.order)
        cta, first = self.peer(where, line), where & _OFFSET
        if g.n > 1 or where % 16 or origin % 16 or count % 16:
            self.report("misuse", "bulk copy: lanes or 16-byte alignment", line)
            return
        if barrier is None or owner is None or cta is None:
            return
        region = self.engine.memory.find(origin, count)
        if region is None:
            self.report(
                "out_of_bounds",
                f"bulk read at {self.engine.memory.describe(origin)}",
                line,
            )
            return
        if not self._in_shared(cta, first, first, count, line):
            return
        if barrier.agent < 0:
            barrier.agent = self.cluster.clocks.add(
                f"bulk loads into mbarrier {barrier.address:#x}"
            )
        barrier.loads += 1
        clock, held, into = barrier.loads, barrier, cta

        def complete() -> None:
            into.shadow.write(
                slice(first >> 4, first + count >> 4),
                held.agent,
                clock,
                stamp.need,
                stamp.order,
                line,
            )
            data = region.bytes[origin - region.base :][:count]
            into.smem[first : first + count] = data
            held.transfer(count, held.agent, clock)

        self.engine.post_load(complete)

    def bulk_store(
        self, g: Group, target: Value, source: Value, size: Value, line: int
    ) -> None:
        """cp.async.bulk shared -> global (not tensor)."""
        where, origin = self._one(g, target, line), self._one(g, source, line)
        count = self._one(g, size, line)
        cta, first = self.peer(origin, line), origin & _OFFSET
        region = self.engine.memory.find(where, count)
        if g.n > 1 or where % 16 or origin % 16 or count % 16:
            self.report("misuse", "bulk store: lanes or 16-byte alignment", line)
            return
        if cta is None or not self._in_shared(cta, first, first, count, line):
            return
        if region is None:
            self.report(
                "out_of_bounds",
                f"bulk write at {self.engine.memory.describe(where)}",
                line,
            )
            return
        owner, into = cta, region

        def action() -> None:
            at = where - into.base
            into.bytes[at : at + count] = owner.smem[first : first + count]
            if into.count is not None:
                into.count[at : at + count] += 1

        self._post_store(self.clock.issue(), cta, first >> 4, count // 16, line, action)

    def bulk_commit(self) -> None:
        """cp.async.bulk.commit_group."""
        bulk = self._bulk()
        bulk.open += 1
        bulk.issued = False

    def bulk_wait(self, g: Group, count: Value, read: bool, line: int) -> bool:
        """cp.async.bulk.wait_group(.read).

        All but the last ``count`` groups are done.
        """
        bulk = self._bulk()
        last = bulk.open - 1 - self._one(g, count, line)
        if last < 0:
            return True
        if not bulk.done_through(last):
            self.block(bulk, f"bulk group {last} of {bulk.open}", line)
            return False
        self.clock.acquire_agent(bulk.agent, last + 1)
        if not read:
            self.clock.acquire_agent(bulk.write_agent, last + 1)
        return True

    def before_exit(self) -> None:
        """Shared memory must not go away under an unread bulk store."""
        super().before_exit()
        bulk = self.bulk
        if bulk is None:
            return
        if bulk.issued:
            self.report(
                "unread_store", f"{self.name} exits with an uncommitted bulk store", 0
            )
        elif self.clock.rows[0, bulk.agent] < bulk.open:
            self.report(
                "unread_store",
                f"{self.name} exits without waiting (wait_group.read) for its last "
                "bulk stores",
                0,
            )


def _signed(value: int) -> int:
    return value - (1 << 32) if value > 0x7FFFFFFF else value & M32


def _bits(mask: int) -> list[int]:
    return [i for i in range(16) if mask >> i & 1]
