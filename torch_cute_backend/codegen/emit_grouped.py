"""What grouped kernels add to the statements that both archs share.

Groups are looked up by a function of the generated module, :data:`FIND_GROUP`; tiles
start at any element, or at the 16 bytes that hold it where TMA asks for that; a tile
that reaches beyond its group is stored by element.
"""

from __future__ import annotations

from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import Emitter, emits
from torch_cute_backend.codegen.shapes import Where, output_index, where
from torch_cute_backend.dtypes import dtype
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir import dataflow as flow
from torch_cute_backend.ir import structure as st
from torch_cute_backend.ir.values import Buffer
from torch_cute_backend.problem import Grouping, Major

CHUNK_BYTES = 16
"""What one thread stores at a time."""
RAGGED_SIZES = {
    Grouping.M: ("m", "TILE_M * CLUSTER_M", "tiles_n"),
    Grouping.N: ("n", "TILE_N * CLUSTER_N", "tiles_m"),
}
"""The ragged extent, what a cluster covers of it, and its tiles across."""

FIND_GROUP = '''\
@cute.jit
def find_group(offsets, groups, work, extent, size, across):
    """The group whose tile a work index is, the work indices of the group's first tile
    and behind its last, its clusters along the ragged dimension, and where it starts
    and stops. A warp looks at 32 groups at a time, one a lane; each is cut to lie
    behind the one before it and within ``extent``. Behind all tiles, the group is
    ``groups``."""
    lane = cute.arch.lane_idx()
    group, head, until = groups, work, Int32(0x7FFFFFFF)
    count, start, stop = Int32(0), Int32(0), Int32(0)
    first, tiles, done = Int32(0), Int32(0), Int32(0)
    while first < groups:
        # Lanes behind the last group have its end, hence no tiles.
        end = cutlass.min(offsets[cutlass.min(first + lane, groups - 1)], extent)
        begin = cute.arch.shuffle_sync_up(end, 1)
        begin = cutlass.select_(lane > 0, begin, done)
        if cute.arch.vote_any_sync(end < begin):
            # Bad ends: the largest one so far counts.
            end = cutlass.max(end, done)
            for i in range_constexpr(5):
                end = cutlass.max(end, cute.arch.shuffle_sync_up(end, 1 << i))
            begin = cute.arch.shuffle_sync_up(end, 1)
            begin = cutlass.select_(lane > 0, begin, done)
        own = (end - begin + size - 1) // size
        upto = own
        for i in range_constexpr(5):
            other = cute.arch.shuffle_sync_up(upto, 1 << i)
            upto = upto + cutlass.select_(lane >= 1 << i, other, 0)
        upto = upto + tiles
        passed = cute.arch.popc(cute.arch.vote_ballot_sync(upto * across <= work))
        lane_of = cutlass.min(passed, 31)
        hit_upto = cute.arch.shuffle_sync(upto, lane_of)
        hit_own = cute.arch.shuffle_sync(own, lane_of)
        hit_end = cute.arch.shuffle_sync(end, lane_of)
        hit_begin = cute.arch.shuffle_sync(begin, lane_of)
        first += 32
        if passed < 32:
            group = first - 32 + passed
            head, until = (hit_upto - hit_own) * across, hit_upto * across
            count, start, stop = hit_own, hit_begin, hit_end
            first = groups
        tiles, done = hit_upto, hit_end
    return group, head, until, count, start, stop
'''
OWN_TILES = "own = (end - begin + size - 1) // size"
"""Line of :data:`FIND_GROUP`; :data:`OWN_TILES_AHEAD` where first tiles start up to 16
bytes before their group."""
OWN_TILES_AHEAD = """\
# The first tile starts at the 16 bytes that hold the group's start.
        own = (end - begin + begin % {align} + size - 1) // size
        own = cutlass.select_(end > begin, own, 0)"""
SPLIT_GROUP = '''\
@cute.jit
def split_group(offsets, work, extent, tiles):
    """The group and the place of a work index where each group has ``tiles`` of them,
    and the group's part of the ragged dimension, cut to lie within ``extent``."""
    group, place = work // tiles, work % tiles
    start = Int32(0)
    if group > 0:
        start = cutlass.max(cutlass.min(offsets[group - 1], extent), 0)
    stop = cutlass.max(cutlass.min(offsets[group], extent), start)
    return group, place, start, stop
'''


class GroupedEmitter(Emitter):
    """See :class:`Emitter`."""

    @emits(st.ScalarLoad)
    def scalar_load(self, s: st.ScalarLoad) -> None:
        self.out.line(f"{s.var} = {names.gmem(s.buffer)}[{s.index}]")

    @emits(st.ScheduledCoordinates)
    def scheduled_coordinates(self, s: st.ScheduledCoordinates) -> None:
        offsets = names.gmem(s.buffer)
        if self.problem.grouping is Grouping.K:
            targets = ", ".join(v.name for v in s.targets)
            split = (offsets, str(s.work), "k_extent", "tiles_m * tiles_n")
            self.out.call(f"{targets} = split_group(", split)
            return
        extent, size, across = RAGGED_SIZES[self.problem.grouping]
        group, place, *rest = (v.name for v in s.targets)
        with self.out.block(f"if {s.work} >= until:"):
            args = (offsets, "groups", str(s.work), extent, size, across)
            known = ", ".join((group, "head", "until", *rest))
            self.out.call(f"{known} = find_group(", args)
        self.out.line(f"{place} = {s.work} - head")

    def tile_loop(self, s: st.TileLoop) -> None:
        """A loop remembers the group of its last tile: the next one is often of it."""
        ragged = self.problem.grouping in RAGGED_SIZES
        for stmt in s.body if ragged else ():
            if isinstance(stmt, st.ScheduledCoordinates):
                group, _, *rest = (v.name for v in stmt.targets)
                self.out.line(f"{group}, head, until = groups, Int32(0), Int32(0)")
                zeros = ", ".join("Int32(0)" for _ in rest)
                self.out.line(f"{', '.join(rest)} = {zeros}")
        super().tile_loop(s)

    @emits(flow.SelectTile)
    def select_tile(self, s: flow.SelectTile) -> None:
        x = names.camel(s.buffer.name)
        tensor = names.gmem(s.buffer)
        if len(s.origin) == 3:
            tensor += f"[(None, None, {s.origin[2]})]"
        start = f"({s.origin[0]}, {s.origin[1]})"
        self.select(x, f"cute.domain_offset({start}, {tensor})")

    def select(self, x: str, tensor: str) -> None:
        """Views of ``tensor``'s boxes from its first element on; an arch's to say."""
        raise CodegenError(f"{type(self).__name__} selects no tiles of {x}")

    @emits(flow.ZeroTail)
    def zero_tail(self, s: flow.ZeroTail) -> None:
        if s.role is None:
            raise CodegenError("a zeroed tail of all threads")
        out, problem = self.out, self.problem
        stage = f"{names.consumer_state(s.pipeline)}.index"
        if s.skip is None:
            out.comment("The group's K ends in this k tile: zero what follows, 16")
        else:
            out.comment(
                "The group's K starts or ends in this k tile: zero the rest, 16"
            )
        out.comment("bytes of one thread at a time.")
        out.line(f"tail = cutlass.max({s.left}, 0)")
        if s.skip is not None:
            out.line(f"ahead = cutlass.max({s.skip}, 0)")
        for buffer, rows, major in (
            (s.a, "TILE_M", problem.a_major),
            (s.b, "TILE_N", problem.b_major),
        ):
            kind = dtype(buffer.dtype)
            each, element = CHUNK_BYTES // kind.bytes, f"cutlass.{kind.cutlass}"
            zeros = f"zeros_{names.camel(buffer.name).lower()}"
            out.line(f"{zeros} = cute.make_rmem_tensor({each}, {element})")
            out.line(f"{zeros}.fill({element}(0.0))")
            count = f"{rows} * (TILE_K // {each} - tail // {each})"
            if major is Major.MN:
                count = f"{rows} // {each} * (TILE_K - tail)"
            steps = (self.mma_thread, count, f"{s.role.threads}", "unroll=1")
            out.call("for i in cutlass.range(", steps, "):")
            with out.indent():
                if major is Major.MN:
                    self._zero_column(buffer, rows, zeros, each, stage)
                else:
                    self._zero_row(buffer, rows, zeros, each, stage)
            if s.skip is not None:
                self._zero_ahead(buffer, rows, major, zeros, s.role.threads, stage)

    def _zero_ahead(
        self, buffer: Buffer, rows: str, major: Major, zeros: str, threads: int, st: str
    ) -> None:
        """The first ``ahead`` columns: less than a chunk of a row. A row's first chunk
        is the same thread's here as in its tail."""
        each = CHUNK_BYTES // dtype(buffer.dtype).bytes
        count = f"cutlass.min(ahead, 1) * {rows}"
        if major is Major.MN:
            count = f"{rows} // {each} * ahead"
        steps = (self.mma_thread, count, f"{threads}", "unroll=1")
        self.out.call("for i in cutlass.range(", steps, "):")
        with self.out.indent():
            if major is Major.MN:
                self._zero_column(buffer, rows, zeros, each, st, "0")
                return
            self._chunk(buffer, f"(1, {each}, 1)", f"(i, 0, {st})", "(0, None, 0)")
            with (
                self.out.block(f"for j in range_constexpr({each}):"),
                self.out.block("if j < ahead:"),
            ):
                self.out.line(f"chunk[j] = {zeros}[j]")

    mma_thread = "tidx"
    """A thread's number within the role that issues MMAs, which zeroes tails."""

    @property
    def storing_thread(self) -> str:
        """A thread's number among those that store its tile."""
        return "tidx"

    def rows_of(self, staged: Buffer) -> str:
        """A staged operand or output as (rows, columns, stages)."""
        return str(staged)

    def _zero_column(
        self,
        buffer: Buffer,
        rows: str,
        zeros: str,
        each: int,
        stage: str,
        first: str = "tail",
    ) -> None:
        """``each`` rows of one column, which are neighbours in MN-major memory."""
        groups = f"({rows} // {each})"
        self.out.line(f"row, col = i % {groups}, {first} + i // {groups}")
        where = f"(row, col, {stage})"
        self._chunk(buffer, f"({each}, 1, 1)", where, "(None, 0, 0)")
        self.out.line(f"cute.autovec_copy({zeros}, chunk)")

    def _zero_row(
        self, buffer: Buffer, rows: str, zeros: str, each: int, stage: str
    ) -> None:
        """``each`` columns of one row; of the first chunk only some may go."""
        out = self.out
        out.line(f"col = tail // {each} + i // {rows}")
        where = f"(i % {rows}, col, {stage})"
        self._chunk(buffer, f"(1, {each}, 1)", where, "(0, None, 0)")
        with out.block(f"if col * {each} >= tail:"):
            out.line(f"cute.autovec_copy({zeros}, chunk)")
        with (
            out.block("else:"),
            out.block(f"for j in range_constexpr({each}):"),
            out.block(f"if col * {each} + j >= tail:"),
        ):
            out.line(f"chunk[j] = {zeros}[j]")

    def _chunk(self, buffer: Buffer, tiler: str, where: str, mode: str) -> None:
        self.out.call("chunks = cute.local_tile(", (self.rows_of(buffer), tiler, where))
        self.out.line(f"chunk = chunks[{mode}]")

    @emits(flow.PartialStore)
    def partial_store(self, s: flow.PartialStore) -> None:
        if s.role is None:
            raise CodegenError("a partial store of all threads")
        out, at = self.out, where((), s.origin, s.end, s.begin)
        each = CHUNK_BYTES // self.problem.out_dtype.bytes
        chunks = f"(EPI_N // {each})"
        stage = self.staging_stage(s.subtile.name)
        first = self.storing_thread
        count = (f"TILE_M * {chunks}", f"{s.role.threads}", "unroll=1")
        with out.block(f"if {s.spare} < 0:"):
            part = "inside" if s.begin else "before it"
            out.comment(f"The tile reaches beyond its group: store what lies {part}.")
            if self.schedule.pingpong:
                stage = self.named(stage, "stage")
            out.call("for i in cutlass.range(", (first, *count), "):")
            with out.indent():
                place = f"(i // {chunks}, i % {chunks}, {stage})"
                self._chunk(s.source, f"(1, {each}, 1)", place, "(0, None, 0)")
                out.line("values = cute.make_fragment_like(chunk)")
                out.line("cute.autovec_copy(chunk, values)")
                out.line(f"row = {at.row} + i // {chunks}")
                out.line(
                    f"first = {at.col} + {s.subtile} * EPI_N + i % {chunks} * {each}"
                )
                self._store_chunk(s, at, each)

    def _store_chunk(self, s: flow.PartialStore, at: Where, each: int) -> None:
        """16 bytes at once where the group's rows end, but not its columns: there the
        address is a multiple of that."""
        out, target = self.out, names.plain(s.target)
        if self.problem.grouping is not Grouping.M:
            self._store_elements(target, at, each)
            return
        with out.block(f"if row < {at.row_end}{at.begins}:"):
            with out.block(f"if first + {each} <= {at.col_end}:"):
                tile = (target, f"(1, {each})", f"(row, first // {each})")
                out.call("target = cute.local_tile(", tile)
                out.line("cute.autovec_copy(values, target[(0, None)])")
            with out.block("else:"):
                self._store_elements(target, at, each)

    def _store_elements(self, target: str, at: Where, each: int) -> None:
        out = self.out
        with out.block(f"for j in range_constexpr({each}):"):
            out.line("col = first + j")
            with out.block(f"if {at.inside}:"):
                out.line(f"{target}[{output_index(self.problem, at)}] = values[j]")
