"""Every parser and loader as a row of data: of documents, of tools' outputs, of words that a person types.

Run: ``python -m tests.fuzz.run --list``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import asdict, replace
from functools import cache
import gzip
import io
import json
from pathlib import Path
import re
from typing import Any

from pydantic import ValidationError

from flashladder import program
from flashladder.arguments import seconds, whole
from flashladder.bench import command as bench
from flashladder.bench.cross_checks import METRICS, Rounds, by_turn, read_nvbench
from flashladder.binaries import Kind, images, kernels_of, shortened, with_facts
from flashladder.build import store
from flashladder.build.command import is_fresh
from flashladder.build.wheel import checked_manifest
from flashladder.check import command as check
from flashladder.emulate.mutation import read_equivalent
from flashladder.emulate.reading import READING, load_reading
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, load_json, sha256
from flashladder.gpu.ncu import read_launches, read_peer
from flashladder.gpu.sanitize import count_errors
from flashladder.ladder.ablation import load_description, parse_subject, split_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import read_gpu
from flashladder.ladder.grid import grid_file, load_grid
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.located import read_yaml
from flashladder.lock.schema import LOCKS, read_lock
from flashladder.lock.step_counts import COUNTS, read_counts
from flashladder.machine_code import cubin, flow, ptx, ptxas, sass
from flashladder.machine_code.opcodes import read_opcodes
from flashladder.names import DURATION, EXAMPLE, KERNEL
from flashladder.paths import CONFIGS
from flashladder.problem import Problem
from flashladder.report.plot import rendered_by
from flashladder.results import published
from flashladder.results.files import load_result, read_json, write_result
from flashladder.results.published import PUBLISHED
from flashladder.results.schema import Failure, PlannedCell
from flashladder.sweep import command as sweep
from flashladder.sweep.place import Card, chosen, named, read_manifest
from flashladder.sweep.records import SUFFIX, CellRecord, Records, packed
from flashladder.sweep.slurm import parse_options
from flashladder.sweep.workers import answer_of
from flashladder.tool_runs import diagnose
from flashladder.toolchain import load_pins
from ptxemu.command import parse_all
from ptxemu.syntax.parser import parse as parse_ptx
from ptxemu.text import parse_bytes
from tests import typed
from tests.data_files import text_of
from tests.fuzz.target import DECLARED, Target, decoded, filed, packed_bombs, scratch, spoken
from tests.null.bench_fixture import NAMES, ROUNDS, ncu_csv, write_nvbench
from tests.null.binaries.fatbin_fixture import CUBIN, container, entry, wheel
from tests.null.binaries.test_binaries import BACKWARD, FORWARD
from tests.null.ladder.test_iteration import ROOT as BASE
from tests.null.ladder.test_iteration import STEP
from tests.null.machine_code.test_ptx import LOG_SM_80, LOG_SM_90
from tests.null.test_command_lines import CASES

ADDRESS = "0123456789abcdef"
YAML = (
    *("&a ", "*a", "!!str ", "|\n ", ">\n ", "? ", ": ", "- ", "---\n", "{", "}", "[", "]", "<<: ", "'", '"', "#"),
    *("%YAML 1.1\n", "0o17", "1:30", "2001-01-01", ".inf", "no", "\\x1b", '"\\e[31m"', '"\\u202e"'),
)
KINDS = "floating integer conversion movement predicates memory uniform warpgroup tensor_memory texture control other"
OPCODES = "\n".join(("source: s", "url: u", *(f"{name}: [FADD]" for name in KINDS.split()), "ptx: [add]", ""))
GRID = ("prog", "all", "tune", "16 - swizzle", "seq_lens", "toolchains: ['13.1']", "exclude", "pairs: 3", *YAML)
CLAIMS = (
    *("layout", "xor", "softmax", "exp2_folded", "parent", "family: ampere", "h200: {B_c: 32}", *YAML),
    *["falls", "rises", "unchanged", "IADD3+LOP3", "ptx:", "main_loop:", "counters:", "at:"],
    *("{falls: 0.5}", "{equals: 1, within: 0.1}", "on: [sm_80]", "load_tiles: [2, 2, 2]"),
)


def _committed(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [_lean((CONFIGS / name).read_bytes()) for name in names]


def _lean(text: bytes) -> bytes:
    """YAML without comments and with words of prose left out: PyYAML needs a millisecond for a kilobyte."""
    kept = [line for line in text.split(b"\n") if line.strip() and not line.lstrip().startswith(b"#")]
    prose = re.compile(rb"^( *(?:holds|source|note|document): \w+ \w+).*| #.*")
    return b"\n".join(prose.sub(rb"\1", line) for line in kept) + b"\n"


def _iteration(path: Path) -> None:
    (path.parent / "01_base.yaml").write_text(BASE, encoding="utf-8")
    found = load_iteration(2, path.parent)
    assert found.number == 2
    assert found.title.isprintable()


_description_of_published = cache(published.load_description)


def _published_csv(path: Path) -> None:
    """A table whose digest is the noted one, so that the reader gets to its content."""
    description = _description_of_published()
    noted = description.files[published.PROGRESSION].model_copy(update={"sha256": sha256(path.read_bytes())})
    files = {**description.files, published.PROGRESSION: noted}
    published.read_csv(path.parent, published.PROGRESSION, description.model_copy(update={"files": files}))


def _result(path: Path) -> None:
    """What was read is written and read back equal."""
    result = load_result(path)
    again = scratch() / "again.json"
    assert load_result(write_result(again, result)) == result


def _results() -> list[bytes]:
    """A small document of each kind."""
    return [dump_json(one).encode() for one in json.loads((DATA / "results.json").read_bytes()).values()]


def _shortened(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A document with the first of the entries under each of `keys`."""
    return document | {key: dict([next(iter(document[key].items()))]) for key in keys}


def _lock() -> list[bytes]:
    """The lock of sm_80 with one kernel of one iteration."""
    document = json.loads((LOCKS / "sm_80.json").read_bytes())
    one = _shortened(document["iterations"]["1"], "kernels", "files")
    return [dump_json({**document, "iterations": {"1": one}}).encode()]


def _first(path: Path, key: str) -> Callable[[], list[bytes]]:
    """A committed document with the first of the entries under `key`."""
    return lambda: [dump_json(_shortened(json.loads(path.read_bytes()), key)).encode()]


def _record() -> list[bytes]:
    shape = Problem(batch=1, seq_len=64, n_heads=1, d_head=128)
    cell = PlannedCell(subject="16", config="x", dtype="fp16", shape=shape, code="c", address=ADDRESS)
    failure = Failure(address=ADDRESS, kind="crash", message="it ended", exit_code=-9, tail="x")
    record = CellRecord(cell=cell, failure=failure, lane="gpu0", attempts=1, seconds=1.0)
    return [dump_json(record.model_dump(mode="json")).encode()]


def _cell(data: bytes) -> None:
    """A record's document; that the file is gzip at all is asked by the target ``packed``."""
    folder = scratch() / "cells"
    folder.mkdir(exist_ok=True)
    (folder / f"{ADDRESS}{SUFFIX}").write_bytes(gzip.compress(data, compresslevel=0))
    records = Records(folder)
    record = records.read(ADDRESS)
    assert packed(record.model_dump(mode="json"))


def _manifest(path: Path) -> None:
    """An installed wheel's manifest, for the loader, for a plan and for the build that made it."""
    folder = path.parent
    (folder / "x.so").write_bytes(b"code")
    assert is_fresh(folder, "d") in (True, False)
    read_manifest(path)
    checked_manifest(folder, "build it again")


def _manifests() -> list[bytes]:
    kernels = {"(FP16, ...)": {"sm_90": {"text_sha256": "ab", "registers": 128}}}
    document = {"inputs_digest": "d", "outputs": {"x.so": sha256(b"code")}, "kernels": kernels}
    return [dump_json({**document, "library_sha256": "00"}).encode(), dump_json(document).encode()]


def _entry(path: Path) -> None:
    """The record of a compiled kernel."""
    assert store.is_whole(path.parent, store.CubinEntry.OUTPUT, store.CubinEntry.LOG) in (True, False)
    load_json(path.read_bytes())


def _entries() -> list[bytes]:
    usage = {"arch": "sm_80", "registers": 8, "stack": 0, "spill_stores": 0, "spill_loads": 0, "barriers": 1,
             "smem_static": 0, "cmem": None, "compile_ms": 1.5, "warnings": []}  # fmt: skip
    return [dump_json({**usage, "key": "entry", "sha256": "ab"}).encode()]


DESCRIBED = published.PUBLISHED / published.DESCRIPTION
SOME_YAML = (STEP, "a: [1, {b: 'c'}]\n\"d\": >\n  text\n  more\ne: [0.25, true, null, 'x']\n")
MUTANTS = b"\n- ".join((CONFIGS / "equivalent_mutants.yaml").read_bytes().split(b"\n- ")[:4])
DOCUMENTS = (
    Target("yaml", "located.read_yaml", filed("x.yaml", read_yaml), SOME_YAML, YAML),
    Target("iteration", "ladder.iteration.load_iteration", filed("steps/02_step.yaml", _iteration), (STEP,), CLAIMS),
    Target(
        "grid",
        "ladder.grid.load_grid",
        filed("g/mine.yaml", lambda path: load_grid(str(path))),
        _committed("grids/smoke.yaml"),
        GRID,
    ),
    Target("gpu", "ladder.gpus.read_gpu", filed("a100.yaml", read_gpu), _committed("gpus/a100.yaml"), YAML),
    Target(
        "toolchain",
        "toolchain.load_pins",
        filed("toolchain.yaml", load_pins.__wrapped__),
        _committed("toolchain.yaml"),
        YAML,
    ),
    Target("opcodes", "machine_code.opcodes.read_opcodes", filed("opcodes.yaml", read_opcodes), (OPCODES,), YAML),
    Target("mutants", "emulate.mutation.read_equivalent", filed("mutants.yaml", read_equivalent), (MUTANTS,), YAML),
    Target(
        "progression",
        "results.published.load_description",
        filed(f"described/{DESCRIBED.name}", lambda path: published.load_description(path.parent)),
        lambda: [_lean(DESCRIBED.read_bytes())],
        YAML,
    ),
    Target(
        "published-table",
        "results.published.read_csv",
        filed(f"csv/{published.PROGRESSION}", _published_csv),
        lambda: [(published.PUBLISHED / published.PROGRESSION).read_bytes()],
        (",", "\r\n", '"'),
    ),
    Target("result", "results.files.load_result", filed("r.json", _result), _results),
    Target(
        "packed",
        "results.files.read_json of .json.gz",
        filed("r.json.gz", read_json),
        (gzip.compress(b'{"schema_version": 2}', mtime=0),),
        (),
        DECLARED,
        packed_bombs,
    ),
    Target("lock", "lock.schema.read_lock", filed("sm_80.json", lambda path: read_lock("sm_80", path.parent)), _lock),
    Target("step-counts", "lock.step_counts.read_counts", filed("counts.json", read_counts), _first(COUNTS, "kernels")),
    Target("reading", "emulate.reading.load_reading", filed("reading.json", load_reading), _first(READING, "kernels")),
    Target("cell-record", "sweep.records.Records.read", _cell, _record),
    Target(
        "manifest", "build.wheel.checked_manifest, sweep inventory", filed("wheel/manifest.json", _manifest), _manifests
    ),
    Target(
        "store-entry",
        "build.store.is_whole",
        filed("entry/meta.json", _entry),
        _entries,
        (),
        (FlashladderError, ValidationError, ValueError),
    ),
)


SMALL = replace(ROUNDS, subjects=ROUNDS.subjects[:2], rounds=2)
DATA = Path(__file__).parent.parent / "data"
PTX_WORDS = (
    *(".reg .b32 %r<9>;", ".shared .align 16 .b8 s[64];", "@%p1 bra", "ld.shared.f32", "{", "}", "ret;", ".entry k("),
    *(");", "$L__1:", ".loc 1 2 3", ".param .u64 p", "mov.u32 %r1, %tid.x;", "0f3F800000", "// x\n", "/* */"),
    *(".func f()", "call.uni (a), f, (b);", ".version 9.0", ".target sm_80", ".address_size 64"),
    ".global .f32 g[2] = {1.0, 2.0};",
)
SMALL_PTX = text_of("fuzz/targets", "small_ptx").encode()
ERRORS = (
    b'kernels/ampere/x.cuh(12): error: identifier "q" is undefined\n1 error detected\n',
    b"ptxas kernel.ptx, line 7; error   : Illegal modifier\nptxas fatal   : aborted\n",
    b"/usr/bin/g++: error: unsupported GNU version! gcc versions later than 15 are not supported\n",
    b"nvcc fatal   : Unsupported gpu architecture 'compute_999'\n",
    b"Killed\n",
    b"No space left on device",
)


def _ptx_text(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    normal = ptx.normalise(text)
    assert ptx.normalise(normal) == normal
    assert ptx.opcode_counts(text)["total"] == len(ptx.opcodes(text))
    ptx.read_ptx(path)


def _sass(text: str) -> None:
    code = sass.parse(text)
    assert code.counts()["total"] == len(code.instructions)
    assert len(flow.main_loop(code)) <= len(code.instructions)


def _binary(path: Path) -> None:
    kinds: tuple[Kind, ...] = ("SASS", "PTX")
    with images(path) as found:
        for kind in kinds:
            assert all(one.facts or one.kind == "PTX" for one in with_facts(kernels_of(found, kind)))


def _cubin(path: Path) -> None:
    data = path.read_bytes()
    for one in cubin.kernels_of(data):
        assert len(cubin.code_of(data, one.symbol)) <= len(data)
    cubin.debug_ptx(data)
    cubin.read_cubin(path)
    lines = cubin.read_ptx_lines(path)
    assert all(0 <= line <= len(lines.text) for _, line in lines.starts)


@cache
def _binaries() -> list[bytes]:
    """A fatbin of every form, one in a library, and a wheel that holds it."""
    forms = [
        container(entry(CUBIN, form=form), entry(SMALL_PTX, kind=1, form=form)) for form in ("plain", "lz4", "zstd")
    ]
    library = b"\x7fELF\x02\x01\x01" + bytes(100) + forms[2]
    return [*forms, library, wheel(scratch() / "x.whl", a__so=library, b__ptx=SMALL_PTX).read_bytes()]


def _ptxas_log(text: str) -> None:
    usage = ptxas.parse_log(text)
    assert ptxas.to_csv([ptxas.PtxasRow(**asdict(usage), kernel="07", config="x", smem_dynamic=0)]).count("\n") == 2


def _launches(text: str) -> None:
    found = read_launches(text, METRICS)
    by_turn(found, [SMALL])
    assert all(metric == DURATION or value == round(value) for _, one in found for metric, value in one.items())


@cache
def _rounds() -> Rounds:
    return replace(ROUNDS, subjects=("fa2",), rounds=2, shape=Problem(batch=1, seq_len=64, n_heads=1, d_head=128))


@cache
def _nvbench() -> list[bytes]:
    """NVBench's document; its binary files are beside the inputs."""
    path = scratch() / "nvbench" / "x.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_nvbench(path, _rounds())
    return [path.read_bytes()]


def _diagnosed(text: str) -> None:
    raise diagnose("nvcc", 2, text, scratch() / "log", scratch())


LISTING = (DATA / "tiny.sm_80.sass").read_text(encoding="utf-8")
CUBINS = tuple((DATA / f"tiny.{made}.cubin").read_bytes() for made in ("sm_80", "sm_90", "lines.sm_80", "lines.sm_90"))
TINY = (DATA / "tiny.ptx").read_bytes()
NCU_TABLE = ncu_csv([NAMES.get(subject, KERNEL) for _, subject in SMALL.turns()])
PEER = b"".join((PUBLISHED / "peer_h200_counters.csv").read_bytes().splitlines(keepends=True)[:3])
SANITIZED = ("========= ERROR SUMMARY: 2 errors\n", "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors)\n")
ANSWERS = ('{"event": "held-back", "others": 2}\n', '{"event": "done", "record": {}}\n')
SVG = f"<svg>Matplotlib v3.8 data {'ab' * 32}</svg>"
OUTPUTS = (
    Target(
        "ptx", "ptxemu.syntax.parser.parse", decoded(lambda text: parse_ptx(text, "x.ptx")), (SMALL_PTX,), PTX_WORDS
    ),
    Target("ptx-text", "machine_code.ptx.normalise, opcodes", filed("x.ptx", _ptx_text), (SMALL_PTX, TINY), PTX_WORDS),
    Target(
        "sass",
        "machine_code.sass.parse, flow.main_loop",
        decoded(_sass),
        (LISTING, "".join(LISTING.splitlines(keepends=True)[4:30])),
    ),
    Target("cubin", "machine_code.cubin: kernels_of, code_of, read_cubin", filed("x.cubin", _cubin), CUBINS),
    Target("binary", "binaries.images, kernels_of", filed("x.bin", _binary), _binaries),
    Target("symbol", "binaries.configuration, shortened", spoken(shortened), (*FORWARD, *BACKWARD)),
    Target("ptxas-log", "machine_code.ptxas.parse_log", decoded(_ptxas_log), (LOG_SM_80, LOG_SM_90)),
    Target("compiler-log", "tool_runs.diagnose", decoded(_diagnosed), ERRORS),
    Target("ncu-table", "gpu.ncu.read_launches, bench.cross_checks.by_turn", decoded(_launches), (NCU_TABLE,)),
    Target("ncu-published", "gpu.ncu.read_peer", filed("peer.csv", read_peer), (PEER,)),
    Target("sanitizer-log", "gpu.sanitize.count_errors", decoded(count_errors), SANITIZED),
    Target(
        "nvbench",
        "bench.cross_checks.read_nvbench",
        filed("nvbench/in.json", lambda path: read_nvbench(path, [_rounds()])),
        _nvbench,
    ),
    Target("worker-answer", "sweep.workers.answer_of", answer_of, ANSWERS),
    Target("plot", "report.plot.rendered_by", rendered_by, (SVG,)),
)


def _description(text: str) -> None:
    """An ablation's description leads back to the same ablation."""
    found = load_description(text)
    assert load_description(found.description) == found


def _subject(text: str) -> None:
    subject = parse_subject(text)
    assert parse_subject(subject.text) == subject
    assert split_description(subject.text) == (subject.number, subject.sign, subject.change)


def _short_form(text: str) -> None:
    config = KernelConfig.parse(text)
    assert config.short_form() == text
    assert KernelConfig.parse(config.with_dtype("bf16").short_form()).slug().startswith("bf16")


def _selection(text: str) -> None:
    iteration = load_iteration(16)
    for config in select_configs(iteration, text, ("fp16",)):
        assert select_configs(iteration, config.short_form()) == (config,)


def _argument(text: str) -> None:
    """No array of more than a megabyte is made here: the limit has a test of its own."""
    digits = sum(one.isdigit() for one in text)
    if digits < 7:
        parse_all(text.split("\n"), seed=1)


def _cards(text: str) -> None:
    cards = [Card(index, "NVIDIA H200", f"GPU-{index}{index}aa-bb", "sm_90") for index in range(4)]
    assert set(named(cards, text)) <= set(cards)
    picked = chosen(cards, text)
    assert len(set(picked)) == len(picked)


def _numbers(text: str) -> None:
    import argparse

    for read in (whole, seconds):
        with contextlib.suppress(argparse.ArgumentTypeError):
            assert read(text) >= 0


PARSERS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "bench": bench.parse_arguments,
    "check": check.parse_arguments,
    "sweep": sweep.parse_arguments,
}


@cache
def _contexts() -> tuple[Any, Any]:
    """What `invoke` parses a command line with, tasks of the checkout and its own flags."""
    from invoke.program import Program

    return Program(version="0").initial_context, typed.contexts()


def _command_line(text: str) -> None:
    """One word per line, read by `invoke` and, where the first is a command with a parser, by that; nothing runs."""
    words = [word.replace("\x00", "") for word in text.split("\n")]  # no argument of a process can hold a NUL
    initial, contexts = _contexts()
    with contextlib.suppress(program.UsageError):
        program.LineParser(contexts=contexts, initial=initial).parse_argv(words)
    if words[0] not in PARSERS:
        return
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            PARSERS[words[0]](words[1:])
    except SystemExit as left:
        code = left.code
    else:
        return
    lines = err.getvalue().splitlines()
    assert code == 0 or (code == 2 and len(lines) == 1 and lines[0].startswith("error: ")), lines


DESCRIPTIONS = ("16", "16 - swizzle", "7 + xor_static", "16 - double buffer", "16-swizzle", "1 + tuned", "12 - eager")
KEYS = ("a100", "prog", "prog:h200", "prog-all", "64,64", "128, 64", "64,64,4 2_2_2+buffer", EXAMPLE)
ARGUMENTS = ("n=1000", "y=float32:10:ones", "float16:6x12:randn", "int32:5", "1e-3", "a=@x.npy", "0x1f", "bfloat16:nan")
SLURM = ("partition=gpu,account=me,array=8,time=2:00:00", "gpu=h200,cpus=4", "time=1-0", "gres=1-2:3:4", "")
TYPED = tuple("\n".join(words) for words, _ in CASES if len("\n".join(words)) < 200)
OPTIONS = ("\n--json", "\n--config", "\n--configs=", "\n--help", "\n--arch", "sweep\n", "bench\n7", "-c", "\n--grid")
WORDS = (
    Target("description", "ladder.ablation.load_description", spoken(_description), DESCRIPTIONS),
    Target("subject", "ladder.ablation.parse_subject", spoken(_subject), DESCRIPTIONS),
    Target(
        "short-form",
        "ladder.config.KernelConfig.parse",
        spoken(_short_form),
        (EXAMPLE, "(BF16, 128, 128, 64, 4): async+load_0_2_0_tiles"),
    ),
    Target("selection", "ladder.selection.select_configs", spoken(_selection), KEYS),
    Target("grid-name", "ladder.grid.grid_file", spoken(grid_file), ("smoke", "a100", "x.yaml")),
    Target("argument", "ptxemu.command.parse_all", spoken(_argument), ARGUMENTS, ("uint8:", ":zeros", ":arange")),
    Target("bytes", "ptxemu.text.parse_bytes", spoken(parse_bytes), ("1GiB", "512 MiB", "2G", "1000", "1.5TB", "KB")),
    Target("numbers", "arguments.whole, seconds", spoken(_numbers), ("7", "1.5", "0")),
    Target("slurm-options", "sweep.slurm.parse_options", spoken(parse_options), SLURM),
    Target("cards", "sweep.place.named, chosen", spoken(_cards), ("0,1", "all", "GPU-11", "3", "GPU-22aa-bb,0")),
    Target(
        "command-line",
        "invoke's parser, and those of bench, check, emulate, sweep",
        spoken(_command_line),
        TYPED,
        OPTIONS,
        (FlashladderError, SystemExit),
    ),
)

TARGETS: dict[str, Target] = {one.name: one for one in (*DOCUMENTS, *OUTPUTS, *WORDS)}
