"""Signatures under a seal: made and checked by ssh-keygen with a throw-away key; all that may be wrong with one."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gate import checks as gate_checks
from flashladder.gate import verify
from flashladder.results import machine, signature
from flashladder.results.__main__ import main
from flashladder.results.files import SEAL, SIGNATURE, seal
from flashladder.results.signature import NAMESPACE, SIGNERS, check, sign
from tests.null import verify_fixture as made

KEYGEN = shutil.which("ssh-keygen")
needs_keygen = pytest.mark.skipif(KEYGEN is None, reason="no ssh-keygen")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder of made-up results."""
    return made.make(tmp_path / "results").parent


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key")


def new_key(path: Path) -> Path:
    assert KEYGEN
    subprocess.run([KEYGEN, "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


def allow(folder: Path, key: Path, name: str = "ada@example.org", options: str = f'namespaces="{NAMESPACE}"') -> None:
    public = key.with_suffix(".pub").read_text(encoding="utf-8")
    (folder.parent / SIGNERS).write_text(f"{name} {options} {public}", encoding="utf-8")


def test_a_folder_without_a_signature_says_so_and_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder) == ("unsigned", ())
    assert verify.main([str(folder)]) == 0
    assert f"{SEAL} (unsigned)" in capsys.readouterr().out


@needs_keygen
def test_a_signature_names_its_signer(folder: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allow(folder, key)
    assert main(["--sign", str(key), str(folder)]) == 0
    assert capsys.readouterr().out == f"signed: {folder / SIGNATURE}\n"
    assert check(folder) == ("signed by ada@example.org", ())
    assert verify.main([str(folder)]) == 0
    assert f"{SEAL} (signed by ada@example.org)" in capsys.readouterr().out
    assert gate_checks.results_sealed(folder.parent).status == "ok"
    before = (folder / SEAL).read_bytes()
    seal(folder)
    assert (folder / SEAL).read_bytes() == before, "the seal does not hold its own signature"
    assert main(["--sign", str(key), str(folder)]) == 0, "signing again replaces it"


@needs_keygen
def test_a_seal_that_was_renewed_is_not_what_was_signed(
    folder: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(folder, key)
    sign(folder, key)
    (folder / "notes.log").write_text("another\n", encoding="utf-8")
    machine.write(folder)
    assert check(folder).told == "badly signed"
    assert verify.main([str(folder)]) == 1
    out = capsys.readouterr().out
    assert f"{SIGNATURE}: not a signature of this {SEAL}: " in out
    (line,) = gate_checks.results_sealed(folder.parent).details
    assert line.endswith("sign again, if the seal was renewed on purpose")


BAD, UNKNOWN = "badly signed", "signed by an unknown key"


@needs_keygen
@pytest.mark.parametrize(
    ("spoil", "summary", "told"),
    [
        (lambda folder, _: (folder / SIGNATURE).write_text("nothing\n"), BAD, "not a signature of this SHA256SUMS: "),
        (lambda folder, _: (folder / SEAL).unlink(), BAD, "not a signature of this SHA256SUMS: "),
        (lambda folder, _: (folder.parent / SIGNERS).unlink(), UNKNOWN, "allowed_signers is missing, so that nobody's"),
        (lambda folder, key: allow(folder, new_key(key.with_name("other"))), UNKNOWN, "signed by a key that "),
        (lambda folder, key: allow(folder, key, options='namespaces="git"'), BAD, "not valid for ada@example.org: "),
        (lambda folder, key: allow(folder, key, options='valid-before="20200101"'), UNKNOWN, "signed by a key that "),
    ],
)
def test_a_signature_that_does_not_hold_is_one_line(
    folder: Path, key: Path, spoil: object, summary: str, told: str
) -> None:
    allow(folder, key)
    sign(folder, key)
    spoil(folder, key)  # type: ignore[operator]  # a lambda of the table
    found = check(folder)
    assert found.told == summary
    (line,) = found.problems
    assert told in line
    assert "\n" not in line


def answers(monkeypatch: pytest.MonkeyPatch, **by_action: tuple[int, bytes]) -> None:
    """A stand-in for ssh-keygen: exit code and output of each action; others succeed and say nothing."""

    def run(arguments: list[str], data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        code, said = by_action.get(arguments[0].replace("-", "_"), (0, b""))
        return subprocess.CompletedProcess(arguments, code, said, said)

    monkeypatch.setattr(signature, "_run", run)


@pytest.mark.parametrize(
    ("code", "writes", "told"),
    [(0, False, "exit code 0"), (255, True, "agent refused"), (255, False, "agent refused"), (0, True, None)],
)
def test_signed_is_only_what_ssh_keygen_says_it_signed_and_wrote(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, writes: bool, told: str | None
) -> None:
    def run(_: list[str], __: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        if writes:
            (folder / SIGNATURE).write_text("x", encoding="utf-8")
        return subprocess.CompletedProcess([], code, b"", b"agent refused\n\n" if code else b"")

    monkeypatch.setattr(signature, "_run", run)
    key = folder / SEAL  # any file
    if told is None:
        assert sign(folder, key) == folder / SIGNATURE
        return
    with pytest.raises(FlashladderError) as caught:
        sign(folder, key)
    assert str(caught.value) == f"{folder / SEAL}: ssh-keygen could not sign: found {told}"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((0, b"ada@example.org eve@example.org\n"), "signed by ada@example.org"),
        ((0, b"\xffda\n"), "signed by \N{REPLACEMENT CHARACTER}da"),
        ((0, b"\n"), UNKNOWN),
        ((255, b"ada@example.org\n"), UNKNOWN),
    ],
)
def test_the_name_is_the_first_that_ssh_keygen_finds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[int, bytes], told: str
) -> None:
    (folder.parent / SIGNERS).write_text("", encoding="utf-8")
    (folder / SIGNATURE).write_text("x", encoding="utf-8")
    answers(monkeypatch, find_principals=found)
    assert check(folder).told == told


def test_a_program_that_does_not_end_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> None:
        assert options["timeout"] == signature.SECONDS
        raise subprocess.TimeoutExpired(command, signature.SECONDS)

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(FlashladderError) as caught:
        sign(folder, folder / SEAL)
    assert str(caught.value) == "ssh-keygen did not end: expected at most 60 s"


@needs_keygen
def test_a_signature_for_another_purpose_is_none(folder: Path, key: Path) -> None:
    allow(folder, key, options="")
    assert KEYGEN
    subprocess.run([KEYGEN, "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(folder / SEAL)], check=True)
    assert check(folder).told == "badly signed"


def test_without_ssh_keygen_signing_and_a_signed_folder_are_one_clear_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signature, "PROGRAM", "no-such-keygen")
    (tmp_path / "key").write_text("", encoding="utf-8")
    assert check(folder).told == "unsigned", "which needs no program"
    with pytest.raises(FlashladderError, match="no-such-keygen is not installed, so that") as caught:
        sign(folder, tmp_path / "key")
    assert caught.value.exit_code == 2
    (folder / SIGNATURE).write_text("x", encoding="utf-8")
    (one,) = [one for one in verify.verify(folder) if one.path.endswith(f"/{SEAL}")]
    assert (one.status, len(one.details)) == ("failed", 1)
    assert "is not installed" in one.details[0]


def test_nothing_is_signed_that_does_not_hold(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="no such key"):
        sign(folder, tmp_path / "none")
    (folder / "notes.log").write_text("another\n", encoding="utf-8")
    with pytest.raises(CheckFailed, match=r"not signed, as the seal does not hold: .*notes\.log: edited"):
        sign(folder, tmp_path / "none")


@needs_keygen
def test_a_file_that_is_no_key_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key\n", encoding="utf-8")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(FlashladderError, match="ssh-keygen could not sign: found "):
        sign(folder, tmp_path / "key")
    assert not (folder / SIGNATURE).exists()


@needs_keygen
def test_signing_again_that_fails_is_told_and_leaves_no_older_signature(folder: Path, key: Path) -> None:
    allow(folder, key)
    sign(folder, key)
    with pytest.raises(FlashladderError, match="no such key") as caught:
        main(["--sign", str(key.with_name("none")), str(folder)])
    assert caught.value.exit_code == 2
    assert check(folder).told == "signed by ada@example.org", "a slip of the pen costs nothing"
    key.write_text("no key\n", encoding="utf-8")
    with pytest.raises(FlashladderError, match="ssh-keygen could not sign") as caught:
        main(["--sign", str(key), str(folder)])
    assert caught.value.exit_code == 2
    assert check(folder) == ("unsigned", ())


@needs_keygen
def test_an_edited_folder_is_not_signed_again_and_its_old_signature_fails_once_sealed(folder: Path, key: Path) -> None:
    sign(folder, key)
    (folder / "notes.log").write_text("another\n", encoding="utf-8")
    with pytest.raises(CheckFailed) as caught:
        main(["--sign", str(key), str(folder)])
    assert caught.value.exit_code == 1
    machine.write(folder)
    assert check(folder).told == "badly signed"


@pytest.mark.parametrize("script", ['printf x >"$7.sig"; echo refused >&2; exit 1', "exit 0"])
def test_a_program_that_fails_or_writes_nothing_is_no_signature(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    program = tmp_path / "keygen"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(signature, "PROGRAM", str(program))
    (tmp_path / "key").write_text("", encoding="utf-8")
    with pytest.raises(FlashladderError, match="ssh-keygen could not sign: found ") as caught:
        sign(folder, tmp_path / "key")
    assert caught.value.exit_code == 2
    assert not (folder / SIGNATURE).exists()
