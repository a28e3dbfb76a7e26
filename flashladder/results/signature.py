"""A person's signature under the seal of a results folder, by ssh-keygen: who stands for these bytes.

Why: a seal says that files are those that were sealed, not by whom; anybody can write another one. A signature over
``SHA256SUMS`` binds it to a key, and ``results/allowed_signers`` to a name. It is made by the key that a person has for
git already, needs no service, and is checked where it is present (``ssh-keygen -Y verify``).

Run:
    python -m flashladder.results --sign ~/.ssh/id_ed25519 results/h200
    invoke verify results/h200        # says: signed by NAME, or unsigned
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import shutil
import subprocess
from typing import NamedTuple

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import relative
from flashladder.results.files import SEAL, SIGNATURE, seal_problems

PROGRAM = "ssh-keygen"
NAMESPACE = "flashladder-results"  # so that a signature made for another purpose is none here
SIGNERS = "allowed_signers"  # beside the machines' folders: lines of "NAME namespaces=\"flashladder-results\" KEY"
SECONDS = 60.0


class Signed(NamedTuple):
    """What is known of a folder's signature, in words for a summary, and what is wrong with it."""

    told: str
    problems: tuple[str, ...] = ()


def sign(folder: Path, key: Path) -> Path:
    """Signs the seal of `folder` and returns the signature's file; where ssh-keygen fails, none is left.

    Raises:
        FlashladderError: ssh-keygen or the key is missing, or ssh-keygen could not sign.
        CheckFailed: the folder is not as sealed, so that nothing may be signed.
    """
    seal, path = folder / SEAL, folder / SIGNATURE
    if broken := seal_problems(folder):
        raise CheckFailed(f"not signed, as the seal does not hold: {broken[0]}", where=relative(folder))
    if not key.is_file():
        raise FlashladderError("no such key", where=key, hint="name a key of OpenSSH, or a public one in the agent")
    path.unlink(missing_ok=True)
    done = _run(["sign", "-f", str(key), "-n", NAMESPACE, str(seal)])
    if done.returncode or not path.is_file():
        path.unlink(missing_ok=True)
        raise FlashladderError("ssh-keygen could not sign", where=relative(seal), found=_last(done))
    return path


def check(folder: Path) -> Signed:
    """Who signed the seal of `folder`; ``unsigned`` where nobody did.

    Raises:
        FlashladderError: there is a signature, and ssh-keygen is not installed.
    """
    path, signers = folder / SIGNATURE, folder.parent / SIGNERS
    if not path.is_file():
        return Signed("unsigned")
    where = relative(path)
    data = (folder / SEAL).read_bytes() if (folder / SEAL).is_file() else b""
    done = _run(["check-novalidate", "-n", NAMESPACE, "-s", str(path)], data)
    if done.returncode:
        hint = "sign again, if the seal was renewed on purpose"
        return Signed("badly signed", (f"{where}: not a signature of this {SEAL}: {_last(done)}; {hint}",))
    if not signers.is_file():
        told = f"{relative(signers)} is missing, so that nobody's signature is known"
        return Signed("signed by an unknown key", (f"{where}: {told}",))
    done = _run(["find-principals", "-s", str(path), "-f", str(signers)])
    name = next(iter(done.stdout.decode(errors="replace").split()), "")
    if done.returncode or not name:
        told = f"signed by a key that {relative(signers)} does not name"
        return Signed("signed by an unknown key", (f"{where}: {told}",))
    done = _run(["verify", "-f", str(signers), "-I", name, "-n", NAMESPACE, "-s", str(path)], data)
    if done.returncode:
        return Signed("badly signed", (f"{where}: not valid for {name}: {_last(done)}",))
    return Signed(f"signed by {name}")


def _run(arguments: Sequence[str], data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which(PROGRAM)
    if program is None:
        raise FlashladderError(
            f"{PROGRAM} is not installed, so that signatures are neither made nor checked",
            hint="it comes with OpenSSH 8.2 or newer: apt-get install openssh-client",
        )
    command = [program, "-Y", *arguments]
    try:
        return subprocess.run(command, input=data, capture_output=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise FlashladderError(f"{PROGRAM} did not end", expected=f"at most {SECONDS:g} s") from error


def _last(done: subprocess.CompletedProcess[bytes]) -> str:
    """What ssh-keygen said last, on one line."""
    lines = done.stderr.decode(errors="replace").split("\n")
    return " ".join(next((line for line in reversed(lines) if line.strip()), f"exit code {done.returncode}").split())
