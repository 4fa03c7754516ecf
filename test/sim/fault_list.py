"""Faults injected into the PTX of our kernels, by architecture.

Each entry removes or changes one thing that a correct kernel needs. ``SURVIVORS``
explains the ones that the simulator cannot call wrong, because they are not.
"""

from __future__ import annotations

from torch_cute_backend.sim.faults import Fault

TRY_WAIT = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, \[[^\]]*\], [^,]*, \d+;"
PASSED = "setp.eq.u32 P1, 0, 0;"
LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared"
STORE = r"cp\.async\.bulk\.tensor\.2d\.global"
EXPECT = r"(mov\.b32 \t%r\d+, )(\d{5});\n(\tmbarrier\.arrive\.expect_tx)"
PRODUCER_PHASE = r"mov\.b32 \t(%r\d+), 1;\n(?=(?:(?!mbarrier\.init).*\n){0,40}\$L__BB)"

COMMON = (
    Fault("no barrier behind the inits", r"^\tbar\.sync \t0;"),
    Fault("no mbarrier_init fence", r"^\tfence\.mbarrier_init[^;]*;"),
    Fault("no proxy fence before the first store", r"^\tfence\.proxy\.async[^;]*;"),
    Fault(
        "no proxy fence before the last store",
        r"^\tfence\.proxy\.async[^;]*;",
        which=-1,
    ),
    Fault("no barrier before staging is reused", r"^\tbar\.sync \t1, \d+;", which=2),
    Fault("no barrier between staging and store", r"^\tbar\.sync \t1, \d+;", which=1),
    Fault(
        "barrier counts too few threads",
        r"^\tbar\.sync \t1, \d+;",
        "\tbar.sync \t1, 64;",
    ),
    Fault(
        "barrier counts too many threads",
        r"^\tbar\.sync \t1, \d+;",
        "\tbar.sync \t1, 288;",
    ),
    Fault(
        "staging reused before the store has read it",
        r"^\tcp\.async\.bulk\.wait_group\.read \t0;",
        which=1,
    ),
    Fault(
        "store wait allows one group",
        r"^\tcp\.async\.bulk\.wait_group\.read \t0;",
        "\tcp.async.bulk.wait_group.read \t1;",
        which=1,
    ),
    Fault(
        "exit before the last store has read",
        r"^\tcp\.async\.bulk\.wait_group\.read \t0;",
        which=-1,
    ),
    Fault("first store not committed", r"^\tcp\.async\.bulk\.commit_group;"),
    Fault("last store not committed", r"^\tcp\.async\.bulk\.commit_group;", which=-1),
    Fault("producer does not wait for a free stage", TRY_WAIT, PASSED),
    Fault("too few bytes expected", EXPECT, r"\g<1>16384;\n\g<3>"),
    Fault("too many bytes expected", EXPECT, r"\g<1>32784;\n\g<3>"),
    Fault("no bytes expected", r"^\tmbarrier\.arrive\.expect_tx[^;]*;"),
    Fault("bytes expected twice", r"^(\tmbarrier\.arrive\.expect_tx[^;]*;)", r"\1\n\1"),
    Fault(
        "load signals the wrong stage",
        r"(\[%rd\d+, \{[^}]*\}\]), \[(%r\d+)\]",
        r"\1, [\2+8]",
    ),
    Fault(
        "B is loaded over A", r"(complete_tx::bytes\S* \[%r\d+)\+50176\]", r"\1+1024]"
    ),
    Fault(
        "A is loaded into the wrong stage",
        r"(complete_tx::bytes\S* \[%r\d+)\+1024\]",
        r"\1+17408]",
    ),
    Fault(
        "load coordinates swapped",
        rf"({LOAD}\S* \[\S+\], \[%rd\d+, \{{)(%r\d+), (%r\d+)",
        r"\1\3, \2",
    ),
    Fault(
        "store coordinates swapped",
        rf"({STORE}\S* \[%rd\d+, \{{)(%r\d+), (%r\d+)",
        r"\1\3, \2",
    ),
    Fault(
        "store from the wrong place",
        rf"({STORE}\S* \[%rd\d+, \{{[^}}]*\}}\], \[%r\d+)\]",
        r"\1+128]",
    ),
    Fault("a subtile stored twice", rf"^(\t{STORE}[^;]*;)", r"\1\n\1"),
    Fault("a subtile not stored", rf"^\t{STORE}[^;]*;", which=1),
    Fault("B is not loaded", rf"^\t{LOAD}[^;]*;", which=1),
    Fault(
        "load issued by all lanes",
        rf"^\t@%p\d+ bra \t\$L__BB0_\d+;\n((.*\n){{0,4}}?\t{LOAD})",
        r"\1",
    ),
    Fault(
        "mbarrier count one too high",
        r"mov\.b32 \t(%r\d+), 1;\n(\tmbarrier\.init)",
        r"mov.b32 \t\1, 2;\n\2",
    ),
    Fault(
        "an mbarrier not initialised",
        r"^\tmbarrier\.init\.shared\.b64 \t\[%r\d+\+8\][^;]*;",
    ),
    Fault(
        "an mbarrier initialised twice",
        r"^(\tmbarrier\.init\.shared\.b64 \t\[%r\d+\+8\][^;]*;)",
        r"\1\n\1",
    ),
    Fault(
        "producer starts in the wrong phase",
        PRODUCER_PHASE,
        r"mov.b32 \t\1, 0;\n",
        which=1,
        after=r"^\tbar\.sync \t0;",
    ),
    Fault("ring one stage too long", r"(setp\.eq\.b32 \t%p\d+, %r\d+, )3;", r"\g<1>4;"),
    Fault(
        "ring one stage too short", r"(setp\.eq\.b32 \t%p\d+, %r\d+, )3;", r"\g<1>2;"
    ),
)

SM90 = (
    Fault("no wgmma.fence", r"^\twgmma\.fence[^;]*;"),
    Fault("wgmma not committed", r"^\twgmma\.commit_group[^;]*;"),
    Fault("no wgmma wait in the loop", r"^\twgmma\.wait_group\.sync\.aligned \t1;"),
    Fault(
        "wgmma wait in the loop allows two",
        r"^\twgmma\.wait_group\.sync\.aligned \t1;",
        "\twgmma.wait_group.sync.aligned \t2;",
    ),
    Fault(
        "no wgmma wait before the epilogue", r"^\twgmma\.wait_group\.sync\.aligned \t0;"
    ),
    Fault(
        "wgmma wait before the epilogue allows one",
        r"^\twgmma\.wait_group\.sync\.aligned \t0;",
        "\twgmma.wait_group.sync.aligned \t1;",
    ),
    Fault("math warps do not wait for data", TRY_WAIT, PASSED, which=-1),
    Fault("stage not released in the loop", r"^\tmbarrier\.arrive\.shared\.b64[^;]*;"),
    Fault(
        "stage not released behind the loop",
        r"^\tmbarrier\.arrive\.shared\.b64[^;]*;",
        which=1,
    ),
    Fault(
        "wrong stage released",
        r"(^\tmbarrier\.arrive\.shared\.b64 %rd\d+, \[%r\d+)\+24\]",
        r"\1+32]",
    ),
    Fault(
        "full barrier released",
        r"(^\tmbarrier\.arrive\.shared\.b64 %rd\d+, \[%r\d+)\+24\]",
        r"\1]",
    ),
    Fault(
        "64-byte swizzle in the descriptors",
        "4611686293305360384",
        "-9223371762120556544",
        every=True,
    ),
    Fault("B negated", r"(wgmma\.mma_async[^;]*), p, 1,  1;", r"\1, p, 1, -1;"),
    Fault("wrong operand type", r"(wgmma\.mma_async\S*)\.e4m3\.e4m3", r"\1.e5m2.e4m3"),
    Fault("stmatrix to the wrong chunk", r"(stmatrix\S* \[%r\d+)\]", r"\1+16]"),
    Fault(
        "empty barrier count too low",
        r"mov\.b32 \t(%r\d+), (\d+);\n(\tmbarrier\.init\.shared\.b64 \t\[%r\d+\+24)",
        r"mov.b32 \t\1, 1;\n\3",
    ),
)

PINGPONG = (
    Fault("no turn is awaited", r"^\tbar\.sync \t%r\d+, 256;"),
    Fault("the turn is passed to nobody", r"bar\.arrive[^,]*,", "bar.arrive 9,"),
    Fault(
        "a turn counts one warpgroup",
        r"^\tbar\.sync \t%r\d+, 256;",
        "\tbar.sync \t3, 128;",
    ),
    Fault(
        "no barrier before staging is reused",
        r"^\tbar\.sync \t%r\d+, 128;",
        which=2,
    ),
    Fault("stage not released in the loop", r"^\tmbarrier\.arrive\.shared\.b64[^;]*;"),
)
"""Two warpgroups that take turns."""

K_TILE_WAIT = r"^\twgmma\.wait_group\.sync\.aligned \t1;"
OVERLAP = (
    Fault(
        "first accumulator read while it is written",
        K_TILE_WAIT,
        "\twgmma.wait_group.sync.aligned \t2;",
    ),
    Fault(
        "second accumulator read while it is written",
        K_TILE_WAIT,
        "\twgmma.wait_group.sync.aligned \t2;",
        which=1,
    ),
    Fault(
        "last k tile's sum read while it is written",
        r"^\twgmma\.wait_group\.sync\.aligned \t0;",
        "\twgmma.wait_group.sync.aligned \t1;",
        every=True,
    ),
)
"""Accumulators that take turns; an odd number of k tiles."""

SM100 = (
    Fault("no tcgen05.wait::ld", r"^\ttcgen05\.wait::ld[^;]*;"),
    Fault("no commit to the empty barrier", r"^\ttcgen05\.commit[^;]*;"),
    Fault("no commit to the accumulator barrier", r"^\ttcgen05\.commit[^;]*;", which=1),
    Fault(
        "commit to the wrong stage", r"(tcgen05\.commit\S* \t\[%r\d+)\+24\]", r"\1+32]"
    ),
    Fault("accumulator not released", r"^\tmbarrier\.arrive\.shared\.b64[^;]*;"),
    Fault(
        "accumulator count too high",
        r"mov\.b32 \t(%r\d+), 4;\n(\tmbarrier\.init)",
        r"mov.b32 \t\1, 5;\n\2",
    ),
    Fault(
        "accumulator count too low",
        r"mov\.b32 \t(%r\d+), 4;\n(\tmbarrier\.init)",
        r"mov.b32 \t\1, 3;\n\2",
    ),
    Fault("tensor memory not freed", r"^\ttcgen05\.dealloc[^;]*;"),
    Fault("no barrier before the dealloc", r"^\tbar\.sync \t1, \d+;", which=-1),
    Fault(
        "half the columns freed",
        r"mov\.b32 \t(%r\d+), 256;\n(\ttcgen05\.dealloc)",
        r"mov.b32 \t\1, 128;\n\2",
    ),
    Fault(
        "half the columns allocated",
        r"mov\.b32 \t(%r\d+), 256;\n(\ttcgen05\.alloc)",
        r"mov.b32 \t\1, 128;\n\2",
    ),
    Fault("tensor memory not allocated", r"^\ttcgen05\.alloc[^;]*;"),
    Fault(
        "permit given back before the alloc",
        r"^(\ttcgen05\.alloc[^;]*;)\n((?:\t\.loc.*\n)*)(\ttcgen05\.relinquish[^;]*;)",
        r"\3\n\2\1",
    ),
    Fault(
        "MMA issued by all lanes",
        r"^\t@%p\d+ bra \t\$L__BB0_\d+;\n((.*\n){0,12}?\ttcgen05\.mma)",
        r"\1",
    ),
    Fault(
        "lanes of another warp read",
        r"(tcgen05\.ld\.sync[^\[]*\[%r\d+)\]",
        r"\1+2097152]",
    ),
    Fault("wrong columns read", r"(tcgen05\.ld\.sync[^\[]*\[%r\d+)\]", r"\1+32]"),
    Fault("first MMA accumulates", r"(tcgen05\.mma[^;]*\}), %p\d+;", r"\1, 1;"),
    Fault(
        "an MMA does not accumulate",
        r"(tcgen05\.mma[^;]*\}), %p\d+;",
        r"\1, 0;",
        which=2,
    ),
    Fault("an MMA is missing", r"^\ttcgen05\.mma[^;]*;", which=1),
    Fault("MMA does not wait for the accumulator", TRY_WAIT, PASSED, which=4),
    Fault("MMA does not wait for data", TRY_WAIT, PASSED, which=5),
    Fault("epilogue does not wait for the accumulator", TRY_WAIT, PASSED, which=-1),
)

CLUSTER = (
    Fault("no cluster wait behind the inits", r"^\tbarrier\.cluster\.wait[^;]*;"),
    Fault("no multicast to the peer", r"mov\.b16 \t(%rs\d+), 3;", r"mov.b16 \t\1, 1;"),
    Fault("producer exits before its stages are released", TRY_WAIT, PASSED, which=3),
    Fault(
        "release only at the own CTA",
        r"^\tmapa\.shared::cluster\.u32 \t(%r\d+), (%r\d+), (%r\d+);",
        r"\tmov.b32 \t\1, \2;",
    ),
    Fault(
        "release to the wrong CTA",
        r"^\tmapa\.shared::cluster\.u32 \t(%r\d+), (%r\d+), (%r\d+);",
        r"\tmapa.shared::cluster.u32 \t\1, \2, 1;",
    ),
    Fault(
        "no remote release",
        r"^\tmbarrier\.arrive\.(release\.cluster\.)?shared::cluster\.b64[^;]*;",
    ),
)

DEPENDENT = (
    Fault("no wait for the kernel before", r"griddepcontrol\.wait;"),
    Fault(
        "wait for the kernel before behind the first load",
        r"griddepcontrol\.wait;((?:.|\n)*?cp\.async\.bulk\.tensor[^;]*;)",
        r"\1\n\tgriddepcontrol.wait;",
    ),
)

SURVIVORS = {
    ("sm_100a", "no barrier before the dealloc"): (
        "the barrier of the last subtile's store already orders every tcgen05.ld "
        "(waited for) before "
        "warp 0 frees the columns"
    ),
}
