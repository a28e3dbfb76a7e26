"""Fatbins are found wherever they lie, unpacked in every form, and what cannot be true is an error, not a guess."""

from __future__ import annotations

from contextlib import suppress

import pytest

from flashladder.binaries import images as unpack
from flashladder.binaries.images import MOST_UNPACKED, entries, unpacked
from flashladder.errors import FlashladderError
from tests.null.binaries.fatbin_fixture import CUBIN, PTX, container, entry

FORMS = ("plain", "lz4", "zstd")


@pytest.mark.parametrize("form", FORMS)
def test_an_entry_is_read_back_whole_and_in_part(form: str) -> None:
    data = b"\x7fELF" * 3 + container(entry(CUBIN, form=form), entry(PTX, kind=1, number=90, form=form)) + b"tail"
    cubin, ptx = entries(data)
    assert (cubin.kind, cubin.arch, cubin.size, cubin.container) == ("cubin", "sm_80", len(CUBIN), 12)
    assert (ptx.kind, ptx.arch) == ("ptx", "compute_90")
    assert unpacked(data, cubin) == CUBIN
    assert unpacked(data, cubin, 100) == CUBIN[:100]
    assert unpacked(data, ptx)[: len(PTX)] == PTX


def test_several_fatbins_of_a_file_and_places_that_only_look_like_one() -> None:
    fake = container()[:4] + b"\1\0\x10\0" + (1 << 40).to_bytes(8, "little")
    broken = container(entry(PTX)[:64])
    data = fake + container(entry(CUBIN)) + broken + b"\x50\xed\x55\xba" + container(entry(CUBIN, number=90), b"")
    assert [one.number for one in entries(data)] == [80, 90]


@pytest.mark.parametrize("size", [MOST_UNPACKED + 1, 1 << 62])
def test_a_size_that_cannot_be_true_is_refused_before_anything_is_unpacked(size: int) -> None:
    data = container(entry(CUBIN, form="zstd", size=size))
    (found,) = entries(data)
    with pytest.raises(FlashladderError, match="the fatbin is damaged: expected a size that can be true, found"):
        unpacked(data, found)


@pytest.mark.parametrize("form", ["lz4", "zstd"])
@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_another_size_than_what_is_packed_is_damage(form: str, change: int) -> None:
    data = container(entry(CUBIN, form=form, size=len(CUBIN) + change))
    (found,) = entries(data)
    if change < 0:  # the beginning of it is there
        assert unpacked(data, found) == CUBIN[:change]
        return
    with pytest.raises(FlashladderError, match=r"entry at byte 16: the fatbin is damaged: expected \d+ bytes of"):
        unpacked(data, found)


@pytest.mark.parametrize("form", ["lz4", "zstd"])
def test_a_changed_byte_is_damage_or_other_bytes_never_a_crash(form: str) -> None:
    whole = bytearray(container(entry(CUBIN, form=form)))
    for place in range(80, len(whole), 97):
        data = bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        for found in entries(data):
            with suppress(FlashladderError):
                assert len(unpacked(data, found)) == found.size


def test_without_the_systems_library_cuobjdump_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "library", lambda _: None)
    monkeypatch.setattr(unpack, "by_cuobjdump", lambda data, entry: b"asked")
    data = container(entry(CUBIN, form="zstd"))
    monkeypatch.setattr(unpack, "by_cuobjdump", lambda _, one: CUBIN[: one.size])
    assert unpacked(data, next(iter(entries(data))), 10) == CUBIN[:10]
