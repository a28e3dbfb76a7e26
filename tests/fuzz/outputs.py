"""Targets that read what tools print or write: PTX, SASS, cubins, logs, tables of ncu, documents of NVBench.

Nothing to run here; `tests.fuzz.targets` lists them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

from flashladder.bench.cross_timers import METRICS, Rounds, by_turn, read_nvbench
from flashladder.binaries.images import images
from flashladder.binaries.kernels import Kind, configuration, kernels_of, shortened, with_facts
from flashladder.gpu.ncu import read_launches, read_peer
from flashladder.gpu.sanitize import count_errors
from flashladder.machine_code import cubin, flow, ptx, ptxas, sass
from flashladder.machine_code.cubin import read_cubin
from flashladder.names import DURATION, KERNEL
from flashladder.problem import Shape
from flashladder.report.plot import rendered_by
from flashladder.results.published import PUBLISHED
from flashladder.sweep.workers import answer_of
from flashladder.toolchain.errors import diagnose
from ptxemu.syntax.parser import parse as parse_ptx
from tests.fuzz.target import Target, decoded, filed, scratch, spoken
from tests.null.binaries import fatbin_fixture
from tests.null.binaries.test_binaries import BACKWARD, FORWARD
from tests.null.machine_code.test_ptx import LOG_SM_80, LOG_SM_90
from tests.null.opinion_fixture import NAMES, ROUNDS, ncu_csv, write_nvbench

SMALL = replace(ROUNDS, subjects=ROUNDS.subjects[:2], rounds=2)
DATA = Path(__file__).parent.parent / "data"
PTX_WORDS = (
    *(".reg .b32 %r<9>;", ".shared .align 16 .b8 s[64];", "@%p1 bra", "ld.shared.f32", "{", "}", "ret;", ".entry k("),
    *(");", "$L__1:", ".loc 1 2 3", ".param .u64 p", "mov.u32 %r1, %tid.x;", "0f3F800000", "// x\n", "/* */"),
    *(".func f()", "call.uni (a), f, (b);", ".version 9.0", ".target sm_80", ".address_size 64"),
    ".global .f32 g[2] = {1.0, 2.0};",
)
SMALL_PTX = b""".version 9.0
.target sm_80
.address_size 64
.global .align 4 .f32 g[3] = {0f3F800000, 2.0, -1};
.visible .entry k(.param .u64 p, .param .u32 n)
{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<3>; .shared .align 16 .b8 s[64];
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7;
$L__1: @!%p1 bra $L__1; { .reg .f32 f; ld.shared.v2.f32 {f, _}, [s+8]; }
  st.global.u32 [%rd1+4], %r1; ret; }
"""
ERRORS = (
    b'kernels/ampere/x.cuh(12): error: identifier "q" is undefined\n1 error detected\n',
    b"ptxas kernel.ptx, line 7; error   : Illegal modifier\nptxas fatal   : aborted\n",
    b"/usr/bin/g++: error: unsupported GNU version! gcc versions later than 15 are not supported\n",
    b"nvcc fatal   : Unsupported gpu architecture 'compute_999'\n",
    b"Killed\n",
    b"No space left on device",
)


def _ptx_text(text: str) -> None:
    normal = ptx.normalise(text)
    assert ptx.normalise(normal) == normal
    assert ptx.opcode_counts(text)["total"] == len(ptx.opcodes(text))


def _sass(text: str) -> None:
    code = sass.parse(text)
    assert code.counts()["total"] == len(code.instructions)
    assert len(flow.main_loop(code)) <= len(code.instructions)


def _binary(path: Path) -> None:
    kinds: tuple[Kind, ...] = ("SASS", "PTX")
    with images(path) as found:
        for kind in kinds:
            assert all(one.facts or one.kind == "PTX" for one in with_facts(kernels_of(found, kind)))


def _all_of_cubin(data: bytes) -> None:
    for one in cubin.kernels_of(data):
        assert len(cubin.code_of(data, one.symbol)) <= len(data)
    cubin.debug_ptx(data)


def _symbol(text: str) -> None:
    shortened(text)
    if found := configuration(text):
        assert configuration(found.short_form()) == found


@cache
def _binaries() -> list[bytes]:
    """A fatbin of every form, one in a library, and a wheel that holds it."""
    forms = [
        fatbin_fixture.container(
            fatbin_fixture.entry(fatbin_fixture.CUBIN, form=form), fatbin_fixture.entry(SMALL_PTX, kind=1, form=form)
        )
        for form in ("plain", "lz4", "zstd")
    ]
    library = b"\x7fELF\x02\x01\x01" + bytes(100) + forms[2]
    path = scratch() / "x.whl"
    return [*forms, library, fatbin_fixture.wheel(path, a__so=library, b__ptx=SMALL_PTX).read_bytes()]


def _ptxas_log(text: str) -> None:
    usage = ptxas.parse_log(text)
    assert ptxas.to_csv([ptxas.PtxasRow.of("07", "x", 0, usage)]).count("\n") == 2


def _launches(text: str) -> None:
    found = read_launches(text, METRICS)
    by_turn(found, [SMALL])
    assert all(metric == DURATION or value == round(value) for _, one in found for metric, value in one.items())


@cache
def _rounds() -> Rounds:
    return replace(ROUNDS, subjects=("fa2",), rounds=2, shape=Shape(batch=1, seq_len=64, n_heads=1, d_head=128))


@cache
def _nvbench() -> bytes:
    """NVBench's document; its binary files are beside the inputs."""
    path = scratch() / "nvbench" / "x.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_nvbench(path, _rounds())
    return path.read_bytes()


def _diagnosed(text: str) -> None:
    raise diagnose("nvcc", 2, text, scratch() / "log", scratch())


def _sass_seeds() -> list[bytes]:
    text = (DATA / "tiny.sm_80.sass").read_bytes()
    return [text, b"".join(islice(text.splitlines(keepends=True), 4, 30))]


TARGETS = (
    Target(
        "ptx",
        "ptxemu.syntax.parser.parse",
        decoded(lambda text: parse_ptx(text, "x.ptx")),
        lambda: [SMALL_PTX],
        PTX_WORDS,
    ),
    Target(
        "ptx-text",
        "machine_code.ptx.normalise, opcodes",
        decoded(_ptx_text),
        lambda: [SMALL_PTX, (DATA / "tiny.ptx").read_bytes()],
        (*PTX_WORDS, ".section .debug_str\n{\n", '.file 1 "x"'),
    ),
    Target("ptx-file", "machine_code.ptx.read_ptx", filed("x.ptx", ptx.read_ptx), lambda: [SMALL_PTX]),
    Target(
        "sass",
        "machine_code.sass.parse, flow.main_loop",
        decoded(_sass),
        _sass_seeds,
        (".L_x_1:", "BRA `(.L_x_1)", "/*0010*/", "@P0", "EXIT ;", "HMMA.16816.F32", '//## File "x", line 1'),
    ),
    Target(
        "cubin",
        "machine_code.cubin.read_cubin",
        filed("x.cubin", read_cubin),
        lambda: [(DATA / f"tiny.sm_{arch}.cubin").read_bytes() for arch in (80, 90)],
    ),
    Target(
        "cubin-all",
        "machine_code.cubin.kernels_of, code_of, debug_ptx",
        _all_of_cubin,
        lambda: [(DATA / f"tiny.sm_{arch}.cubin").read_bytes() for arch in (80, 90)],
    ),
    Target("binary", "binaries.images.images, kernels_of", filed("x.bin", _binary), _binaries),
    Target(
        "symbol",
        "binaries.kernels.configuration, shortened",
        spoken(_symbol),
        lambda: [one.encode() for one in (*FORWARD, *BACKWARD)],
        ("Flash_fwd_kernel_traits<", "ILi128E", "Lb1E", "cutlass::half_t", "(int)", "> >", "+", "="),
    ),
    Target(
        "ptxas-log",
        "machine_code.ptxas.parse_log",
        decoded(_ptxas_log),
        lambda: [LOG_SM_80.encode(), LOG_SM_90.encode()],
        ("Used 10 registers", "bytes cmem[0]", "Compile time = 1.7 ms", "flash_fwd_kernel", "warning", "bytes smem"),
    ),
    Target(
        "compiler-log",
        "toolchain.errors.diagnose",
        decoded(_diagnosed),
        lambda: list(ERRORS),
        ("error:", "fatal", "[with Part=Kernel::Layout]", "died due to signal 9"),
    ),
    Target(
        "ncu-table",
        "gpu.ncu.read_launches, bench.cross_timers.by_turn",
        decoded(_launches),
        lambda: [ncu_csv([NAMES.get(subject, KERNEL) for _, subject in SMALL.turns()]).encode()],
        ('"ID"', '","', METRICS[0], "\r", "1,000"),
    ),
    Target(
        "ncu-published",
        "gpu.ncu.read_peer",
        filed("peer.csv", read_peer),
        lambda: [b"".join((PUBLISHED / "peer_h200_counters.csv").read_bytes().splitlines(keepends=True)[:3])],
    ),
    Target(
        "sanitizer-log",
        "gpu.sanitize.count_errors",
        decoded(count_errors),
        lambda: [
            b"========= ERROR SUMMARY: 2 errors\n",
            b"========= RACECHECK SUMMARY: 1 hazard displayed (0 errors)\n",
        ],
    ),
    Target(
        "nvbench",
        "bench.cross_timers.read_nvbench",
        filed("nvbench/in.json", lambda path: read_nvbench(path, [_rounds()])),
        lambda: [_nvbench()],
    ),
    Target(
        "worker-answer",
        "sweep.workers.answer_of",
        answer_of,
        lambda: [b'{"event": "held-back", "others": 2}\n', b'{"event": "done", "record": {}}\n'],
    ),
    Target(
        "plot", "report.plot.rendered_by", rendered_by, lambda: [b"<svg>Matplotlib v3.8 data " + b"ab" * 32 + b"</svg>"]
    ),
)
