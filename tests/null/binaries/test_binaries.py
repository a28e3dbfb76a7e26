"""Foreign binaries: fatbins, wheels and libraries, and the names of their kernels."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
from typing import Any, cast
import zipfile

import pytest

from flashladder import binaries
from flashladder.binaries import MOST_UNPACKED, Kernel, chosen, configuration, entries, images, kernels_of, shortened
from flashladder.errors import FlashladderError
from flashladder.machine_code import cubin
from flashladder.machine_code.cubin import read_cubin
from flashladder.names import KERNEL
from tests.data_files import table_of
from tests.null.binaries.fatbin_fixture import CUBIN, DATA, PTX, container, entry, wheel
from tests.typed import error_line


@pytest.mark.parametrize("form", ["plain", "lz4", "zstd"])
def test_an_entry_is_read_back_whole_and_in_part(form: str) -> None:
    data = b"\x7fELF" * 3 + container(entry(CUBIN, form=form), entry(PTX, kind=1, number=90, form=form)) + b"tail"
    cubin, ptx = entries(data)
    assert (cubin.kind, cubin.arch, cubin.size, cubin.container) == ("SASS", "sm_80", len(CUBIN), 12)
    assert (ptx.kind, ptx.arch) == ("PTX", "compute_90")
    assert cubin.read() == CUBIN
    assert cubin.read(100) == CUBIN[:100]
    assert ptx.read()[: len(PTX)] == PTX


def test_several_fatbins_of_a_file_and_places_that_only_look_like_one() -> None:
    fake = container()[:4] + b"\1\0\x10\0" + (1 << 40).to_bytes(8, "little")
    broken = container(entry(PTX)[:64])
    data = fake + container(entry(CUBIN)) + broken + b"\x50\xed\x55\xba" + container(entry(CUBIN, number=90), b"")
    assert [one.arch for one in entries(data)] == ["sm_80", "sm_90"]


@pytest.mark.parametrize("form", ["lz4", "zstd"])
def test_another_size_than_what_is_packed_is_damage(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_of(size: int) -> binaries.Image:
        (found,) = entries(container(entry(CUBIN, form=form, size=size)), "x.so")
        return found

    assert entry_of(len(CUBIN) - 1).read() == CUBIN[:-1]  # the beginning of it is there
    for change in (1, 1000):
        with pytest.raises(FlashladderError, match=r"x\.so: entry at byte 80: .* damaged: expected \d+ bytes"):
            entry_of(len(CUBIN) + change).read()
    for size in (MOST_UNPACKED + 1, 1 << 62):
        assert "the fatbin is damaged: expected a size that can be true, found" in error_line(entry_of(size).read)
    monkeypatch.setattr(binaries, "library", lambda _: None)
    assert f"packed with {form}: expected lib{form}.so.1" in error_line(entry_of(len(CUBIN)).read, 10)


FORWARD = table_of("null/binaries/binaries", "forward")
BACKWARD = table_of("null/binaries/binaries", "backward")
BEFORE_ITS_TRAITS = (
    "_ZN5flash25flash_bwd_dot_do_o_kernelILb1E23Flash_bwd_kernel_traitsILi128ELi64ELi128ELi8ELi2ELi4ELi2ELb0ELb0EN7"
    "cutlass10bfloat16_tE19Flash_kernel_traitsILi128ELi64ELi128ELi8ES3_EEEEvNS_16Flash_bwd_paramsE"
)


@pytest.mark.parametrize("forms", [FORWARD[1:], BACKWARD], ids=["forward", "backward"])
def test_every_form_gives_the_same_configuration(forms: tuple[str, ...]) -> None:
    for name in forms[:-1]:
        assert configuration(name) == shortened(name) == forms[-1]


@pytest.mark.parametrize(
    "name",
    [
        KERNEL,
        FORWARD[1].replace("true, true, false, false>", "true, true, false>"),  # seven switches: an older version
        FORWARD[1].replace("flash_fwd_kernel", "flash_fwd_x_kernel"),
        FORWARD[1].replace("half_t, F", "float_8, F"),
        FORWARD[1].replace("128, 128, 64, 4, false, false", "128, 128, 64, false, false"),
        FORWARD[1].replace("128, 128", "١28, 128"),
    ],
)
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    assert configuration(name) == ""


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="binutils are not here")
def test_names_are_demangled_in_one_run_and_others_stay() -> None:
    names = binaries.demangled([FORWARD[0], BEFORE_ITS_TRAITS, KERNEL, "_Zno", "_Z1a\nb"])
    before = names.pop(BEFORE_ITS_TRAITS)
    assert names == {FORWARD[0]: FORWARD[1], KERNEL: KERNEL, "_Zno": "_Zno", "_Z1a\nb": "_Z1a\nb"}
    words = "layout_MSdP=2+layout_NdKV=4+layout_MdQ=2+clear_dQaccum"
    assert configuration(before) == f"flash_bwd_dot_do_o_kernel (BF16, 128, 64, 128, 8): {words}"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (KERNEL, KERNEL),
        ("void at::native::(anonymous namespace)::adaptive_average_pool_nhwc<int, float>(float const*, int)",
         "adaptive_average_pool_nhwc<int, float>"),
        ("void a::b<c::d<(int)4> >(e::f)", "b<d<(int)4> >"),
        ("f" * 100, "f" * 69 + "..."),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert shortened(name) == short


IMAGE = cast("Any", None)  # nothing of it is read
CONFIGS = ("(FP16, 128, 64, 64, 4): async+eager", "(FP16, 128, 128, 64, 4): async", "(BF16, 128, 128, 64, 4): async")
OURS = [Kernel("flash_fwd_kernel", "flash_fwd_kernel", config, "sm_80", "SASS", IMAGE) for config in CONFIGS]
LONG = f"void library::detail::attention<{'int, ' * 30}float>(float*, int)"
THEIRS = Kernel("_ZN7library6detail", LONG, "", "sm_80", "SASS", IMAGE)


def test_what_the_list_prints_names_the_kernel() -> None:
    for one in (*OURS, THEIRS):
        for wanted in (one.title, one.title.replace(", ", ",")):
            assert chosen([*OURS, THEIRS], wanted) == [one]
    for wanted in (f"flash_fwd_kernel {CONFIGS[0]}", "flash_fwd_kernel (FP16, 128, 64, 64, 4)"):
        assert chosen(OURS, wanted) == OURS[:1]
    assert "--list" in error_line(chosen, OURS, "flash_bwd_kernel (FP16, 128, 64, 64, 4)")


SM_90 = (DATA / "tiny.sm_90.cubin").read_bytes()
FATBIN = container(entry(CUBIN, form="zstd"), entry(SM_90, number=90), entry(PTX, kind=1, form="lz4"))
ARCHES = ("sm_80", "sm_90", "compute_80")
LIBRARY = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\x3e\0" + bytes(100) + FATBIN + b"\0" * 64


def kinds(path: Path) -> list[tuple[str, str, str]]:
    with images(path) as found:
        return [(one.kind, one.arch, one.place) for one in found]


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    for name, data, expected in (
        ("any", CUBIN, [("SASS", "sm_80", "any")]),
        ("b", SM_90, [("SASS", "sm_90", "b")]),
        ("c.txt", b"\n// a comment\n" + PTX, [("PTX", "compute_80", "c.txt")]),
        ("d", FATBIN, [("SASS", "sm_80", "d"), ("SASS", "sm_90", "d"), ("PTX", "compute_80", "d")]),
        ("e.so.13", LIBRARY, [(*one, "e.so.13") for one in zip(("SASS", "SASS", "PTX"), ARCHES, strict=True)]),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        assert kinds(tmp_path / name) == expected


def test_a_wheel_gives_what_its_libraries_hold_and_its_names_are_no_paths(tmp_path: Path) -> None:
    path = wheel(tmp_path / "x.whl", _C__abi3__so=LIBRARY, readme__txt=FATBIN, empty__so=b"")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escape.cubin", CUBIN)
        archive.writestr("/tmp/absolute.cubin", CUBIN)
    assert [place for *_, place in kinds(path)] == ["_C.abi3.so"] * 3 + ["escape.cubin", "absolute.cubin"]
    assert list(tmp_path.rglob("*")) == [path]
    assert not Path("/tmp/absolute.cubin").exists()


def test_a_file_without_kernels_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    whole = wheel(tmp_path / "x.whl", a__so=LIBRARY * 20).read_bytes()
    for name, data, says in (
        ("empty", b"", "no GPU code in the file: expected a wheel, library, object, fatbin, cubin or PTX file"),
        ("elf", b"\x7fELF" + bytes(200), "no GPU code in the file"),
        ("fatbin", FATBIN[:40], "no GPU code in the file"),
        ("ptx", b".version 9.0\n.entry k() {}", "not PTX: expected a .target directive, found none"),
        ("zip", b"PK\x03\x04" + bytes(100), "the archive is damaged"),
        ("cut.whl", whole[:-30], "the archive is damaged"),
        ("changed.whl", whole[:60] + b"\xff" * 9 + whole[69:], "the archive is damaged"),
        ("pipe", None, "not a regular file"),
        (".", None, "not a regular file"),
        ("x.so", None, "no such file"),
    ):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        assert f"{path}: {says}" in error_line(kinds, path)


def test_a_bomb_in_a_wheel_is_refused_before_it_is_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "MOST_BYTES", 1 << 20)
    path = wheel(tmp_path / "x.whl", a__so=bytes(2 << 20))
    with pytest.raises(FlashladderError, match=r"x\.whl: a\.so: a member .* is too large: expected at most"):
        kinds(path)


def test_kernels_of_a_library_and_what_they_take(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(LIBRARY)
    with images(tmp_path / "x.so") as found:
        kernels = binaries.with_facts(kernels_of(found, "SASS"))
        for one, arch in zip(kernels, ("sm_80", "sm_90"), strict=True):
            known, facts = read_cubin(DATA / f"tiny.{arch}.cubin"), one.facts
            assert (one.symbol, one.arch, one.kind) == (KERNEL, arch, "SASS")
            assert facts is not None
            assert (facts.registers, facts.frame_bytes) == (known.registers, 0)
            assert (facts.code_bytes, facts.shared_bytes) == (len(known.text), 512)
            assert cubin.code_of(one.image.read(), KERNEL) == known.text
        assert [one.arch for one in kernels_of(found, "PTX")] == ["compute_80"]
        assert [one.arch for one in kernels_of(found, "SASS", "sm_90")] == ["sm_90"]
        assert len(chosen(kernels, "fwd_ker")) == 2
        assert "no such kernel in the file: expected a part of one of 1 names" in error_line(chosen, kernels, "bwd")
