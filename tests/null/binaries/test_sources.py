"""Any file with kernels gives them, by its content; a file that is damaged or holds none is one line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import os
from pathlib import Path
import zipfile

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from flashladder.binaries import images as sources
from flashladder.binaries.images import images
from flashladder.binaries.kernels import chosen, kernels_of, with_facts
from flashladder.errors import FlashladderError
from flashladder.machine_code import cubin
from flashladder.machine_code.cubin import read_cubin
from flashladder.names import KERNEL
from flashladder.view.binary import Wanted, show_ptx_of_file, show_sass
from tests.null.binaries.fatbin_fixture import CUBIN, DATA, PTX, container, entry, wheel

SM_90 = (DATA / "tiny.sm_90.cubin").read_bytes()
FATBIN = container(entry(CUBIN, form="zstd"), entry(SM_90, number=90), entry(PTX, kind=1, form="lz4"))
ARCHES = ("sm_80", "sm_90", "compute_80")
LIBRARY = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\x3e\0" + bytes(100) + FATBIN + b"\0" * 64


def kinds(path: Path) -> list[tuple[str, str, str]]:
    with images(path) as found:
        return [(one.kind, one.arch, one.place) for one in found]


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    for name, data, expected in (
        ("any", CUBIN, [("cubin", "sm_80", "any")]),
        ("b", SM_90, [("cubin", "sm_90", "b")]),
        ("c.txt", b"\n// a comment\n" + PTX, [("ptx", "compute_80", "c.txt")]),
        ("d", FATBIN, [("cubin", "sm_80", "d"), ("cubin", "sm_90", "d"), ("ptx", "compute_80", "d")]),
        ("e.so.13", LIBRARY, [(*one, "e.so.13") for one in zip(("cubin", "cubin", "ptx"), ARCHES, strict=True)]),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        assert kinds(tmp_path / name) == expected


def test_a_wheel_gives_what_its_libraries_hold_and_nothing_is_left(tmp_path: Path) -> None:
    path = wheel(tmp_path / "x.whl", _C__abi3__so=LIBRARY, readme__txt=FATBIN, k__cubin=CUBIN, empty__so=b"")
    assert [place for *_, place in kinds(path)] == ["_C.abi3.so"] * 3 + ["k.cubin"]
    assert list(tmp_path.iterdir()) == [path]


def test_names_in_a_wheel_are_no_paths(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escape.cubin", CUBIN)
        archive.writestr("/tmp/absolute.cubin", CUBIN)
    assert [place for *_, place in kinds(path)] == ["escape.cubin", "absolute.cubin"]
    assert [one.name for one in tmp_path.rglob("*")] == ["x.whl"]
    assert not Path("/tmp/absolute.cubin").exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no GPU code in the file: expected a wheel, library, object, fatbin, cubin or PTX file"),
        (b"hello", "no GPU code in the file"),
        (b"\x7fELF" + bytes(200), "no GPU code in the file"),
        (FATBIN[:40], "no GPU code in the file"),
        (b".version 9.0\n.entry k() {}", "not PTX: expected a .target directive, found none"),
        (b"PK\x03\x04" + bytes(100), "the archive is damaged: expected its index at the end"),
    ],
)
def test_a_file_without_kernels_is_one_line(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(FlashladderError) as caught, images(tmp_path / "x"):
        pass
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("damage", [lambda whole: whole[:-30], lambda whole: whole[:60] + b"\xff" * 9 + whole[69:]])
def test_a_wheel_that_was_cut_or_changed_is_told_apart_from_one_without_kernels(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = wheel(tmp_path / "x.whl", a__so=LIBRARY * 20)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FlashladderError, match=r"x\.whl: the archive is damaged"):
        kinds(path)


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    wrong = {"pipe": "not a regular file.*; write it to a file first", "x.so": "no such file", ".": "a folder"}
    for name, says in wrong.items():
        with pytest.raises(FlashladderError, match=says):
            kinds(tmp_path / name)


def test_a_cubin_that_was_cut_is_named(tmp_path: Path) -> None:
    (tmp_path / "cut.cubin").write_bytes(CUBIN[:1000])
    with pytest.raises(FlashladderError, match=r"cut\.cubin: the cubin is damaged"):
        show_sass(tmp_path / "cut.cubin", Wanted())


@pytest.mark.parametrize("show", [show_ptx_of_file, show_sass])
def test_a_file_without_a_kernel_sends_nobody_to_another_command(
    tmp_path: Path, show: Callable[[Path, Wanted], None]
) -> None:
    (tmp_path / "none.ptx").write_text(".version 9.0\n.target sm_80\n.address_size 64\n")
    with pytest.raises(FlashladderError, match="no kernel is in it") as caught:
        show(tmp_path / "none.ptx", Wanted())
    assert "invoke" not in str(caught.value)


def test_a_bomb_in_a_wheel_is_refused_before_it_is_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_BYTES", 1 << 20)
    path = wheel(tmp_path / "x.whl", a__so=bytes(2 << 20))
    with (
        pytest.raises(FlashladderError, match=r"x\.whl: a\.so: a member of the archive is too large: expected at most"),
        images(path),
    ):
        pass


def test_kernels_of_a_library_and_what_they_take(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(LIBRARY)
    with images(tmp_path / "x.so") as found:
        kernels = with_facts(kernels_of(found, "SASS"))
        assert [(one.symbol, one.arch, one.kind) for one in kernels] == [
            (KERNEL, "sm_80", "SASS"),
            (KERNEL, "sm_90", "SASS"),
        ]
        for one, name in zip(kernels, ("tiny.sm_80.cubin", "tiny.sm_90.cubin"), strict=True):
            known = read_cubin(DATA / name)
            assert one.facts is not None
            assert (one.facts.registers, one.facts.frame_bytes) == (known.registers, known.frame_bytes)
            assert (one.facts.code_bytes, one.facts.shared_bytes) == (len(known.text), 512)
            assert cubin.code_of(one.image.read(), KERNEL) == known.text
        assert [one.arch for one in kernels_of(found, "PTX")] == ["compute_80"]
        assert [one.arch for one in kernels_of(found, "SASS", "sm_90")] == ["sm_90"]
        assert len(chosen(kernels, "fwd_ker")) == 2
        with pytest.raises(FlashladderError, match="no such kernel in the file: expected a part of one of 1 names"):
            chosen(kernels, "bwd")


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(CUBIN) - 1), value=st.integers(0, 255), end=st.integers(0, len(CUBIN)))
def test_a_damaged_cubin_is_an_error_or_its_kernels(place: int, value: int, end: int) -> None:
    """Cut or changed in one byte: read to the end, or refused in one line; an uncut copy that reads has the code."""
    data = bytearray(CUBIN)
    data[place] = value
    for one in (bytes(data), bytes(data[:end])):
        with suppress(FlashladderError):
            for kernel in cubin.kernels_of(one):
                assert len(cubin.code_of(one, kernel.symbol)) <= len(one)
        with suppress(FlashladderError):
            assert cubin.debug_ptx(one) == ""  # it was made without -lineinfo
