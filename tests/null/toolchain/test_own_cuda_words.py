"""``invoke nvcc`` without a compiler: what it refuses, and what it says to type next."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.toolchain import own_cuda


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("add.ptx").write_text(".version 8.0\n.target sm_80\n.visible .entry add() { ret; }\n")


@pytest.mark.parametrize(("name", "word"), [("-a.ptx", "./-a.ptx"), ("a b.ptx", "'a b.ptx'"), ("a.ptx", "a.ptx")])
def test_a_path_in_a_hint_can_be_typed(name: str, word: str) -> None:
    assert own_cuda.as_word(Path(name)) == word


def test_a_cuda_file_without_a_kernel_has_nothing_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("none.ptx").write_text(".version 9.0\n.target sm_80\n")
    for made, says in (("none.ptx", "no kernel is in it"), ("add.ptx", "run it with `ptxemu add.ptx --grid")):
        monkeypatch.setattr(own_cuda, "compile_file", lambda *_, made=made: Path(made))
        own_cuda.compile_and_tell("own.cu", "sm_80")
        assert says in capsys.readouterr().out


@pytest.mark.parametrize("exists", [True, False])
def test_ptx_is_not_compiled(exists: bool) -> None:
    name = "add.ptx" if exists else "none.ptx"
    with pytest.raises(FlashladderError, match=rf"^{name}: PTX is compiled already.*`ptxemu {name}`") as caught:
        own_cuda.compile_file(Path(name))
    assert "--out" not in str(caught.value)
