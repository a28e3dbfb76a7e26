"""Cases of warps, mbarriers and clusters: what threads tell each other.

Whole warps, parts of warps, several groups at once: expectations are loops over single lanes, written after the ISA's
pseudocode with Python's integers. Of mbarriers every spelling of arrivals and waits, counts, bytes, phases, states:
each block initialises one, its threads leave a word each in shared memory, meet, and read what another warp left. In
clusters of two or four blocks the partner of a block is the next one.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import product
import operator

import numpy as np
from tests.cases.harness import Case, Typed, given, named, sample, text_of
from tests.cases.memory import RULES
from tests.cases.reference_int import column

from ptxemu.values import DTYPES, Array

N = 128
WARP = 32
FULL, EVEN = 0xFFFFFFFF, 0x55555555
HALVES = np.where(np.arange(N) % WARP < 16, 0x0000FFFF, 0xFFFF0000).astype(np.uint32)
EVENS = np.arange(N) % 2 == 0
Rule = Callable[[int, list[int]], int]


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """PTX ISA, shfl.sync, semantics: the lane that a lane reads, and whether it is inside."""
    bval, cval, segmask = b & 31, c & 31, (c >> 8) & 31
    max_lane = (lane & segmask) | (cval & ~segmask & 31)
    min_lane = lane & segmask
    j = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": min_lane | (bval & ~segmask & 31)}[mode]
    inside = j >= max_lane if mode == "up" else j <= max_lane
    return (j if inside else lane), inside


def shuffled(mode: str, a: Array, b: Array | int, c: Array | int) -> Typed:
    bs, cs = (np.broadcast_to(each, N) for each in (b, c))
    found = [source_lane(mode, i % WARP, int(bs[i]), int(cs[i])) for i in range(N)]
    d = [a[i - i % WARP + j] for i, (j, _) in enumerate(found)]
    return {"d": ("b32", np.array(d, np.uint32)), "p": ("pred", np.array([inside for _, inside in found]))}


def shuffles(mode: str) -> Iterator[Case]:
    opcode, a = f"shfl.sync.{mode}.b32", sample("b32", N, "shfl")
    # the clamp of up counts from below; 0x1c00 and 0x1800: segments of 4 and 8 lanes; the odd ones are defined too
    clamps = (0x0000, 0x1C00, 0x1800, 0x0005) if mode == "up" else (0x001F, 0x1C1F, 0x181F, 0x0013, 0x0A15)
    for c in clamps:
        for b in (0, 1, 2, 4, 7, 16, 31, 34):
            yield given(opcode, f"{opcode} d|p, a, {b}, {c:#x}, -1;", named("b32", a), shuffled(mode, a, b, c))
    bs, cs = sample("b32", N, "shfl b") >> 3, np.array(clamps, np.uint32)[np.arange(N) // 8 % len(clamps)]
    yield given(opcode, f"{opcode} d|p, a, b, c, 0xffffffff;", named("b32", a, bs, cs), shuffled(mode, a, bs, cs))
    text = f".reg .b32 %three, %clamp, %all;\nmov.u32 %three, 3;\nmov.u32 %clamp, {clamps[0]};\nmov.u32 %all, -1;\n"
    text += f"{opcode} d, a, %three, %clamp, %all;"
    yield given(opcode, text, named("b32", a), {"d": shuffled(mode, a, 3, clamps[0])["d"]})


def grouped_shuffles() -> Iterator[Case]:
    """Even lanes alone; two halves of a warp that do not know of each other."""
    opcode, a = "shfl.sync.bfly.b32", sample("b32", N, "shfl groups")
    wanted, inputs = shuffled("bfly", a, 2, 0x1F), named("b32", a)
    text = f"mov.b32 d, a;\n@q {opcode} d, a, 2, 0x1f, {EVEN:#x};"
    alone: Typed = {"d": ("b32", np.where(EVENS, wanted["d"][1], a))}
    yield given(opcode, text, inputs | {"q": ("pred", EVENS)}, alone)
    yield given(opcode, f"{opcode} d|p, a, 2, 0x1f, m;", inputs | {"m": ("b32", HALVES)}, wanted)


def members(i: int, mask: int) -> list[int]:
    return [i - i % WARP + lane for lane in range(WARP) if mask >> lane & 1]


def lane_set(threads: Iterable[int]) -> int:
    return sum(1 << (thread % WARP) for thread in threads)


def three(opcode: str, ptx_type: str, a: Array, kind: str, rule: Rule, pair: Rule | None = None) -> Iterator[Case]:
    """An instruction `opcode d, a, mask` for whole warps, for two halves at once, and for the even lanes alone."""
    names, rules = ("d|p", {"d": (kind, rule), "p": ("pred", pair)}) if pair else ("d", {"d": (kind, rule)})

    def expected(masks: Array | int, lanes: Array | bool = True) -> Typed:
        each = [members(i, int(mask)) for i, mask in enumerate(np.broadcast_to(masks, N))]
        found: Typed = {}
        for name, (result, function) in rules.items():
            assert function is not None
            values = np.array([function(i, group) % (1 << 32) for i, group in enumerate(each)])
            found[name] = (result, np.where(lanes, values, 0).astype(np.bool_ if result == "pred" else np.uint32))
        return found

    inputs = {"a": (ptx_type, a)}
    yield given(opcode, f"{opcode} {names}, a, -1;", inputs, expected(FULL))
    yield given(opcode, f"{opcode} {names}, a, m;", inputs | {"m": ("b32", HALVES)}, expected(HALVES))
    start = "setp.ne.u32 d, 0, 0;" if kind == "pred" else "mov.b32 d, 0;"
    text = f"{start}{chr(10) + 'setp.ne.u32 p, 0, 0;' if pair else ''}\n@q {opcode} {names}, a, {EVEN:#x};"
    yield given(opcode, text, inputs | {"q": ("pred", EVENS)}, expected(EVEN, EVENS))


def votes() -> Iterator[Case]:
    warp, lane = np.arange(N) // WARP, np.arange(N) % WARP
    # predicates: random; warps that agree on true and on false; one lane that differs
    flags = [sample("pred", N, "vote"), warp % 2 == 0, (lane != 6) ^ (warp > 1), (lane < 16) | (warp == 3)]
    for a in flags:
        rules: dict[str, Callable[[list[int], list[int]], int]] = {
            "all": lambda true, group: int(true == group),
            "any": lambda true, _: int(true != []),
            "uni": lambda true, group: int(true in ([], group)),
            "ballot": lambda true, _: lane_set(true),
        }
        for mode, rule in rules.items():

            def asked(_: int, group: list[int], rule: Callable[..., int] = rule, a: Array = a) -> int:
                return rule([j for j in group if a[j]], group)

            kind = "b32" if mode == "ballot" else "pred"
            yield from three(f"vote.sync.{mode}.{kind}", "pred", a, kind, asked)
    inverse = [lane_set(j for j in members(i, FULL) if not flags[0][j]) for i in range(N)]
    opcode, results = "vote.sync.ballot.b32", {"d": ("b32", np.array(inverse, np.uint32))}
    yield given(opcode, f"{opcode} d, !a, -1;", named("pred", flags[0]), results)


def matches() -> Iterator[Case]:
    for bits in (32, 64):
        few = (sample("u32", N, "match") % 5).astype(f"u{bits // 8}") << (bits - 3)  # differ in the top bits only
        even_alike, by_warp = np.where(EVENS, 7, few), np.arange(N) // WARP
        for a in (few, even_alike.astype(few.dtype), by_warp.astype(few.dtype)):

            def alike(i: int, group: list[int], a: Array = a) -> int:
                return lane_set(j for j in group if a[j] == a[i])

            def unanimous(_: int, group: list[int], a: Array = a) -> int:
                return int(len({int(a[j]) for j in group}) == 1)

            def everyone(i: int, group: list[int], agree: Rule = unanimous) -> int:
                return lane_set(group) if agree(i, group) else 0

            yield from three(f"match.any.sync.b{bits}", f"b{bits}", a, "b32", alike)
            yield from three(f"match.all.sync.b{bits}", f"b{bits}", a, "b32", everyone, unanimous)


def reductions() -> Iterator[Case]:
    rules: dict[str, Callable[[int, int], int]] = {
        "add": operator.add, "min": min, "max": max, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    }  # fmt: skip
    for name, rule in rules.items():
        for kind in ("b32",) if name in {"and", "or", "xor"} else ("u32", "s32"):
            a = sample(kind, N, "redux")
            if name in {"and", "or"}:  # random bits would leave nothing
                a = a | np.uint32(0xF0F0F0F0) if name == "and" else a & np.uint32(1) << (np.arange(N) % 32).astype("u4")

            def folded(_: int, group: list[int], a: Array = a, rule: Callable[[int, int], int] = rule) -> int:
                return reduce(rule, [int(a[j]) for j in group])

            yield from three(f"redux.sync.{name}.{kind}", kind, a, "b32", folded)


def others() -> Iterator[Case]:
    a = sample("b32", N, "bar")
    shared = text_of("neighbours")
    neighbour = text_of("neighbour")
    swapped: Typed = {"d": ("b32", a.reshape(-1, 2)[:, ::-1].reshape(-1).copy())}
    inputs, opcode, even = named("b32", a), "activemask.b32", np.where(EVENS, EVEN, 0).astype(np.uint32)
    yield given(opcode, f"{opcode} d;", inputs, {"d": ("b32", np.full(N, FULL, np.uint32))})
    yield given(opcode, f"mov.b32 d, 0;\n@q {opcode} d;", {"q": ("pred", EVENS)}, {"d": ("b32", even)})
    yield given("bar.warp.sync", f"{shared}bar.warp.sync -1;{neighbour}", inputs, swapped)
    yield given("bar.warp.sync", f"{shared}bar.warp.sync m;{neighbour}", inputs | {"m": ("b32", HALVES)}, swapped)


hopper = partial(given, target="sm_90a", version="8.6")
N = 128
HEAD = text_of("mbarrier")
BEGIN = f"{HEAD}@%first mbarrier.init.shared::cta.b64 [%bar], {N};\nbar.sync 0;\n"
SPACES = ("", ".shared", ".shared::cta")
RELEASES = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
ACQUIRES = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")
ARRIVE, WAIT = "mbarrier.arrive.shared::cta.b64", "mbarrier.try_wait.parity.shared::cta.b64"
COMPLETE = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64"


def at(opcode: str) -> str:
    """The mbarrier's address as an opcode takes it: generic where it names no state space."""
    return "%bar" if ".shared" in opcode else "%gbar"


def waiting(opcode: str, phase: str, label: str = "again", more: str = "") -> str:
    """A loop until the phase (a parity, or the register of a state) is complete."""
    return f"{label}:\n{opcode} %done, [{at(opcode)}], {phase}{more};\n@!%done bra {label};\n"


def exchange(opcode: str, arrive: str, wait: str, phase: str = "0", more: str = "") -> Case:
    """Threads swap words across the block, t reads that of 127 - t; a relaxed operation orders nothing by itself."""
    a = sample("b32", N, opcode)
    fence = "fence.acq_rel.cta;\n" if ".relaxed" in opcode else ""
    text = f"{BEGIN}st.shared.b32 [%place], a;\n{fence}{arrive}\n{waiting(wait, phase, more=more)}{fence}"
    return hopper(opcode, f"{text}ld.shared.b32 d, [%other];", named("b32", a), {"d": ("b32", a[::-1].copy())})


def arrivals() -> Iterator[Case]:
    for sem, space in product(RELEASES, SPACES):
        opcode = f"mbarrier.arrive{sem}{space}.b64"
        yield exchange(opcode, f"{opcode} _, [{at(opcode)}];", WAIT)
        yield exchange(opcode, f"{opcode} %state, [{at(opcode)}];", "mbarrier.test_wait.shared::cta.b64", "%state")
        opcode = f"mbarrier.arrive.expect_tx{sem}{space}.b64"
        yield exchange(opcode, f"{opcode} _, [{at(opcode)}], 12;\n{COMPLETE} [%bar], 12;", WAIT)


def waits() -> Iterator[Case]:
    for kind, sem, space in product(("try_wait", "test_wait"), ACQUIRES, SPACES):
        opcode = f"mbarrier.{kind}.parity{sem}{space}.b64"
        yield exchange(opcode, f"{ARRIVE} _, [%bar];", opcode)
        opcode = f"mbarrier.{kind}{sem}{space}.b64"
        yield exchange(opcode, f"{ARRIVE} %state, [%bar];", opcode, "%state")
    hint = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
    yield exchange(hint, f"{ARRIVE} _, [%bar];", hint, more=", 1000")


def phases() -> Case:
    """Several phases of one mbarrier: words wander around the block, by eight threads per phase."""
    a = sample("b32", N, "phases")
    text = text_of("phases", begin=BEGIN, wait=waiting(WAIT, "%phase"))
    return hopper(WAIT, text, named("b32", a), {"d": ("b32", np.roll(a, -40))})


def dropped(sem: str) -> Case:
    """The first two warps leave after a phase: later ones take half as many arrivals."""
    a, opcode = sample("b32", N, "drop"), f"mbarrier.arrive_drop{sem}.shared::cta.b64"
    waits_ = {"first": waiting(WAIT, "0"), "second": waiting(WAIT, "1", "once_more")}
    text = text_of("dropped", begin=BEGIN, opcode=opcode, arrive=ARRIVE, **waits_)
    return hopper(opcode, text, named("b32", a), {"d": ("b32", np.where(np.arange(N) < 64, a, a[::-1]))})


def alone(opcode: str, body: str, *answers: int) -> Case:
    """One thread uses an mbarrier of ten arrivals; its answers are d, e, f, those of the others 0."""
    number, names = named("b32", sample("b32", 32, "looks")), "def"[: len(answers)]
    begin = "\n".join(f"mov.u32 {name}, 0;" for name in names)
    text = f"{begin}\n{HEAD}@!%first bra end;\nmbarrier.init.shared::cta.b64 [%bar], 10;\n\n{body}\nend:"
    first = np.arange(32) == 0
    results: Typed = {
        name: ("b32", (first * answer).astype(np.uint32)) for name, answer in zip(names, answers, strict=True)
    }
    return hopper(opcode, text, number, results)


def looks() -> Iterator[Case]:
    """Looks before and after the last arrival; counts of states; bytes before they are announced."""

    def look(opcode: str, phase: int, name: str) -> str:
        return f"{opcode} %done, [%bar], {phase};\nselp.u32 {name}, 1, 0, %done;"

    for kind in ("try_wait", "test_wait"):
        opcode = f"mbarrier.{kind}.parity.shared::cta.b64"
        first, last = f"{look(opcode, 0, 'd')}\n{look(opcode, 1, 'e')}", look(opcode, 0, "f")
        yield alone(opcode, f"{ARRIVE} _, [%bar], 9;\n{first}\n{ARRIVE} _, [%bar];\n{last}", 0, 1, 1)
    count = "mbarrier.pending_count.b64"
    counts = text_of("pending_counts", arrive=ARRIVE, count=count)
    yield alone(count, counts, 10, 7, 5)
    expect = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
    text = f"""{COMPLETE} [%bar], 64;
{ARRIVE} _, [%bar], 9;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 96;
{look(WAIT, 0, "d")}
{expect} [%bar], 8;
{COMPLETE} [%bar], 40;
{look(WAIT, 0, "e")}"""
    yield alone(expect, text, 0, 1)


THREADS = 128
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
TRY = "again:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0;\n@!%done bra again;\n"
SHOW = "ld.shared.b32 d, [%place];"


def case(opcode: str, text: str, a: Array, size: int, kind: str = "b32", **results: Array) -> Case:
    """A case in clusters of `size` blocks, behind the addresses of a word here (%place) and in the next one (%peer)."""
    typed = {name: (kind, array) for name, array in results.items()}
    return hopper(opcode, text_of("clusters", size=size) + text, named(kind, a), typed, cluster=size)


def turned(a: Array, size: int, by: int) -> Array:
    """Each block's part replaced by that of the block `by` ranks on."""
    return np.roll(a.reshape(-1, size, THREADS), -by, axis=1).reshape(-1).copy()


def remote(size: int) -> Iterator[Case]:
    """The next block's words: loads, stores and atomics by 32-bit and by generic addresses; arrivals there."""
    n = 4 * THREADS
    a = sample("b32", n, f"remote {size}")
    before, after = turned(a, size, 1), turned(a, size, -1)
    for opcode in ("ld.shared::cluster.b32", "ld.relaxed.cluster.shared::cluster.b32",
                   "ld.volatile.shared::cluster.b32", "ld.b32", "ld.acquire.cluster.b32"):  # fmt: skip
        where = "%peer" if "shared" in opcode else "%gpeer"
        yield case(opcode, f"st.shared.b32 [%place], a;\n{MEET}{opcode} d, [{where}];\n{MEET}", a, size, d=before)
    for opcode in ("st.shared::cluster.b32", "st.relaxed.cluster.shared::cluster.b32", "st.b32",
                   "st.release.cluster.b32"):  # fmt: skip
        where = "%peer" if "shared" in opcode else "%gpeer"
        yield case(opcode, f"{MEET}{opcode} [{where}], a;\n{MEET}{SHOW}", a, size, d=after)
    wide = f"{MEET}st.shared::cluster.v4.b32 [%peer], {{a, a, %t, a}};\n{MEET}"
    wide += "ld.shared.b32 d, [%place+4];\nld.shared.b32 e, [%place+8];"
    threads = np.tile(np.arange(THREADS, dtype=np.uint32), 4)
    yield case("st.shared::cluster.v4.b32", wide, a, size, d=after, e=threads)
    small = (a >> np.uint32(8)).astype(np.uint32)
    sums = np.repeat(small.reshape(-1, THREADS).astype(np.uint64).sum(axis=1), THREADS)
    total = turned(sums, size, -1).astype(np.uint32)
    one = "mov.u32 %peer, words;\nmapa.shared::cluster.u32 %peer, %peer, %next;\n"
    for opcode in ("red.shared::cluster.add.u32", "red.relaxed.cluster.shared::cluster.add.u32"):
        text = f"mov.u32 d, 0;\nst.shared.b32 [%place], d;\n{one}{MEET}{opcode} [%peer], a;\n{MEET}"
        yield case(opcode, f"{text}mov.u32 %place, words;\n{SHOW}", small, size, "u32", d=total)
    five = np.full(n, 5, np.uint32)
    for opcode in ("atom.shared::cluster.exch.b32", "atom.acq_rel.cluster.shared::cluster.exch.b32"):
        text = f"st.shared.b32 [%place], a;\n{MEET}{opcode} d, [%peer], 5;\n{MEET}ld.shared.b32 e, [%place];"
        yield case(opcode, text, a, size, d=before, e=five)
    fence = "fence.acq_rel.cluster;\n"
    for sem, expects in product(("", ".release.cluster", ".relaxed.cluster"), ("", ".expect_tx")):
        opcode = f"mbarrier.arrive{expects}{sem}.shared::cluster.b64"
        told = "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%far], 4;\n" if expects else ""
        begin = f"@%first mbarrier.init.shared::cta.b64 [%bar], {THREADS};\nfence.mbarrier_init.release.cluster;\n"
        text = (
            f"{begin}{MEET}st.shared::cluster.b32 [%peer], a;\n{fence}{opcode} _, [%far]{', 4' if expects else ''};\n"
        )
        yield case(opcode, f"{text}{told}{TRY}{fence}{SHOW}\n{MEET}", a, size, d=after)


def asynchronous() -> Iterator[Case]:
    """Stores and reductions that tell the mbarrier of the block that they go to."""
    a = sample("b32", 2 * THREADS, "st.async")
    other = turned(a, 2, -1)
    path = "shared::cluster.mbarrier::complete_tx::bytes"

    def told(opcode: str, source: str, nbytes: int, kind: str = "b32", expected: Array = other) -> Case:
        names = {"opcode": opcode, "source": source, "kind": kind, "again": TRY}
        text = text_of("asynchronous", meet=MEET, bytes=THREADS * nbytes, last=nbytes - 4, **names)
        return case(opcode, text, a.view(DTYPES[kind]), 2, kind, d=expected)

    for suffix, source, nbytes in (
        ("b32", "a", 4), ("u32", "a", 4), ("b64", "%wide", 8), ("v2.b32", "{%t, a}", 8),
        ("v2.u64", "{%wide, %wide}", 16), ("v4.s32", "{%t, %t, %t, a}", 16),
    ):  # fmt: skip
        yield told(f"st.async.weak.{path}.{suffix}", source, nbytes)
    for suffix in ("add.u32", "add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32"):
        name, kind = suffix.split(".")
        expected = column([RULES[name](100, each) for each in other.view(DTYPES[kind]).tolist()], kind)
        yield told(f"red.async.relaxed.cluster.{path}.{suffix}", "a", 4, kind, expected)


def ranks(size: int) -> Iterator[Case]:
    block, a = np.arange(4 * THREADS, dtype=np.uint32) // THREADS, sample("b32", 4 * THREADS, "ranks")
    registers: dict[str, Array | int] = {
        "cluster_ctarank": block % size, "cluster_ctaid.x": block % size, "cluster_nctarank": size,
        "cluster_nctaid.x": size, "cluster_nctaid.y": 1, "clusterid.x": block // size, "nclusterid.x": 4 // size,
        "clusterid.z": 0,
    }  # fmt: skip
    for name, value in registers.items():
        wanted = np.broadcast_to(value, len(block)).astype(np.uint32)
        yield hopper("mov.u32", f"mov.u32 d, %{name};", named("b32", a), {"d": ("b32", wanted)}, cluster=size)
    text = "getctarank.shared::cluster.u32 d, %peer;\ngetctarank.u64 e, %gpeer;\n"
    text += "getctarank.shared::cluster.u32 f, %place;"
    after = ((block + 1) % size).astype(np.uint32)
    yield case("getctarank.shared::cluster.u32", text, a, size, d=after, e=after, f=(block % size).astype(np.uint32))


def barriers() -> Iterator[Case]:
    """Every spelling of the cluster's barrier, with work between arrival and wait."""
    a = sample("b32", 2 * THREADS, "cluster barrier")
    threads = np.arange(2 * THREADS, dtype=np.uint32) % THREADS
    for sem, acquire, aligned in product(("", ".release", ".relaxed"), ("", ".acquire"), ("", ".aligned")):
        arrive, wait = f"barrier.cluster.arrive{sem}{aligned}", f"barrier.cluster.wait{acquire}{aligned}"
        fence = "fence.acq_rel.cluster;\n" if sem == ".relaxed" else ""
        text = f"st.shared.b32 [%place], a;\n{fence}{arrive};\nmov.u32 e, %t;\n{wait};\n"
        text += f"{fence}ld.shared::cluster.b32 d, [%peer];\n{arrive};\n{wait};"
        yield case(arrive, text, a, 2, d=turned(a, 2, 1), e=threads)


def roles() -> Iterator[Case]:
    """One elected lane per warp, of all lanes and of some; what dependent launches wait for."""
    lane, a = np.arange(256) % 32, sample("b32", 256, "elect")
    for mask in ("0xffffffff", "0x0000fff0"):
        inside = np.array([int(mask, 0) >> int(i) & 1 for i in lane], np.uint32)
        text = text_of("elect", mask=mask)
        results = {"d": ("b32", inside), "e": ("b32", inside * np.uint32(0))}
        yield hopper("elect.sync", text, named("b32", a), results)
    text = "griddepcontrol.wait;\nmov.b32 d, a;\ngriddepcontrol.launch_dependents;"
    yield hopper("griddepcontrol.wait", text, named("b32", a), {"d": ("b32", a)})


WARPS = [
    *(case for mode in ("up", "down", "bfly", "idx") for case in shuffles(mode)),
    *(case for group in (grouped_shuffles, votes, matches, reductions, others) for case in group()),
]
CLUSTERS = [*remote(2), *remote(4), *ranks(2), *ranks(4), *barriers(), *asynchronous(), *roles()]
MBARRIERS = [*arrivals(), *waits(), phases(), *map(dropped, RELEASES), *looks()]
CASES = {"warp": WARPS, "mbarrier": MBARRIERS, "clusters": CLUSTERS}
