"""The reader of cubins, on two small ones (made from tests/data/tiny.cu)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.machine_code.cubin import main, read_cubin, text_sha256

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(("arch", "registers", "size"), [("sm_80", 21, 0x480), ("sm_90", 24, 0x500)])
def test_reads_architecture_registers_and_code(arch: str, registers: int, size: int) -> None:
    cubin = read_cubin(DATA / f"tiny.{arch}.cubin")
    assert (cubin.kernel, cubin.arch, cubin.registers, cubin.frame_bytes) == ("flash_fwd_kernel", arch, registers, 0)
    assert len(cubin.text) == size
    assert cubin.text_sha256 == sha256(cubin.text) == text_sha256(DATA / f"tiny.{arch}.cubin")


def test_only_the_code_counts(tmp_path: Path) -> None:
    raw = bytearray((DATA / "tiny.sm_80.cubin").read_bytes())
    code = read_cubin(DATA / "tiny.sm_80.cubin").text
    start = raw.index(code)
    same, other = tmp_path / "same.cubin", tmp_path / "other.cubin"
    note = raw.index(b"ptxas")  # the compiler's name in a note section
    same.write_bytes(raw[:note] + b"PTXAS" + raw[note + 5 :])
    other.write_bytes(raw[: start + 4] + bytes([raw[start + 4] ^ 1]) + raw[start + 5 :])
    assert text_sha256(same) == sha256(code)
    assert text_sha256(other) != sha256(code)


def test_refuses_another_kernel_by_naming_those_it_found() -> None:
    with pytest.raises(FlashladderError, match=r"expected \.text\.other, found \.text\.flash_fwd_kernel"):
        read_cubin(DATA / "tiny.sm_80.cubin", "other")


def test_refuses_what_is_no_cubin(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="no such cubin"):
        read_cubin(tmp_path / "kernel.cubin")
    for name, content in {"text": b"// PTX", "cut": b"\x7fELF\x02\x01", "empty": b""}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FlashladderError, match="not a cubin"):
            read_cubin(path)


def test_refuses_an_elf_file_for_the_host(tmp_path: Path) -> None:
    raw = bytearray((DATA / "tiny.sm_80.cubin").read_bytes())
    raw[18:20] = (62).to_bytes(2, "little")  # e_machine: x86-64
    (tmp_path / "program").write_bytes(raw)
    with pytest.raises(FlashladderError, match="expected 64-bit ELF for CUDA"):
        read_cubin(tmp_path / "program")


def test_command_answers_bad_input_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "kernel.cubin")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
