"""README, docs and the site of all pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import importlib.util
from pathlib import Path
import re
from typing import Any

import pytest

from analysis import docs_site
from analysis.docs_site import LISTED, fetched, links, pages, stage
from flashladder import toolchain
from flashladder.__main__ import main
from flashladder.build import wheel
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.gpu import doctor
from flashladder.located import read_yaml
from flashladder.paths import PACKAGE, ROOT
from flashladder.report import command as report
from flashladder.tool_runs import diagnose

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_session_exists() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for name in re.findall(r"nox -s ([a-z-]+)", TEXT + CONTRIBUTING):
        assert f"\ndef {name}(session" in noxfile or name == "build-iteration-", name


PROGRAM = re.compile(r"""-m"?,?\s"?(flashladder(?:\.[a-z_0-9]+)*)""")


def texts() -> Iterator[Path]:
    """The files that name programs: sources, scripts and pages."""
    folders = [PACKAGE, *(ROOT / name for name in ("tests", "analysis", "docs", "configs", "iterations", "results"))]
    yield from (path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md", ".yaml"))
    yield from (ROOT / name for name in ("noxfile.py", "tasks.py", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"))


def is_program(name: str) -> bool:
    """Whether ``python -m name`` does something: a package with a ``__main__``, or a module that runs itself."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return False
    if spec.submodule_search_locations:
        return Path(spec.origin).with_name("__main__.py").is_file()
    return '\nif __name__ == "__main__":\n' in Path(spec.origin).read_text(encoding="utf-8")


def test_every_program_that_is_named_exists() -> None:
    named = {match[1]: path for path in texts() for match in PROGRAM.finditer(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert {name: path for name, path in named.items() if not is_program(name)} == {}


def test_every_page_is_listed_once() -> None:
    listed = [page for below in pages().values() for page in below]
    assert len(listed) == len(set(listed))
    for pattern in ("*.md", "docs/**/*.md", "results/report/*.md", "results/*/README.md", "iterations/notes/*.md"):
        assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)} <= set(listed)
    assert list(pages()) == [heading for heading, _ in LISTED if heading in pages()]


def test_the_site_is_laid_out_with_what_its_pages_lead_to(tmp_path: Path) -> None:
    n_pages, n_files = stage(tmp_path)
    laid = {
        path.relative_to(tmp_path / "pages").as_posix() for path in (tmp_path / "pages").rglob("*") if path.is_file()
    }
    assert len(laid) == n_pages + n_files
    assert {"README.md", "api.md", "results/report/progression.svg", "docs/assets/iframe-worker.js"} <= laid
    settings: Any = read_yaml(tmp_path / "mkdocs.yml")
    assert [next(iter(one)) for one in settings["nav"]] == list(pages())
    general: Any = read_yaml(ROOT / "mkdocs.yml")
    assert general["theme"]["font"] is False


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "[a](nosuch.md) `[b](b.md)` [c](https://x.y) [d](#d)\n```\n[e](e.md)\n```\n[f](../README.md#x) [g](/etc/passwd)"
    )
    assert list(links("docs/x.md", text)) == [ROOT / "docs" / "nosuch.md", ROOT / "README.md", Path("/etc/passwd")]
    monkeypatch.setattr(docs_site, "links", lambda *_: [ROOT / "nosuch.md", Path("/etc/passwd")])
    with pytest.raises(CheckFailed, match=r"\.md: 2 links lead nowhere: found nosuch\.md"):
        stage(tmp_path)


def test_what_a_site_would_fetch_is_named(tmp_path: Path) -> None:
    page = tmp_path / "a" / "index.html"
    page.parent.mkdir()
    page.write_text(
        '<link rel="canonical" href="https://x.y/"><a href="https://x.y">x</a><script src="own.js"></script>'
    )
    assert fetched(tmp_path) == []
    page.write_text('<script async src="https://x.y/z.js"></script><img src=//x.y/z.png>')
    assert [one.partition(": ")[0] for one in fetched(tmp_path)] == ["a/index.html"] * 2


HEADINGS = re.findall(r"^### (.+)$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
Patch = pytest.MonkeyPatch


def asked(*words: str) -> Callable[[Patch, Path], object]:
    return lambda *_: main(words)


def patched(name: str, value: object, call: Callable[[], object]) -> Callable[[Patch, Path], object]:
    """Calls with another value of one name."""

    def run(patch: Patch, folder: Path) -> None:
        patch.setattr(name, value)
        call()

    return run


def failed(returncode: int, text: str) -> Callable[[Patch, Path], None]:
    def run(patch: Patch, folder: Path) -> None:
        raise diagnose("nvcc", returncode, text, folder / "nvcc.log", folder)

    return run


def without_compiler(patch: Patch, folder: Path) -> None:
    patch.delenv("CXX", raising=False)
    patch.setenv("PATH", str(folder))
    toolchain.host_compiler()


def another_root(patch: Patch, folder: Path) -> None:
    patch.setenv("FLASHLADDER_ROOT", str(folder))
    patch.setattr("flashladder.errors.ROOT", folder)
    with one_line_errors():
        pass


def another_table(patch: Patch, folder: Path) -> None:
    (line,) = report.stale({folder / "table.md": b"text"})
    raise CheckFailed(f"stale: {line}")


MESSAGES: dict[str, Callable[[Patch, Path], object]] = {
    "no C++ compiler found": without_compiler,
    "not one that nvcc supports": failed(
        1, "#error -- unsupported GNU version! gcc versions later than 15 are not supported!"
    ),
    "not the pinned one": patched("flashladder.toolchain._installed", lambda _: "1.0", toolchain.find_toolchain),
    "FLASHLADDER_ROOT": another_root,
    "no such task": asked("nosuch"),
    "the disk is full": failed(1, "fatal error: No space left on device"),
    "nvcc was killed": failed(-9, ""),
    "unknown GPU architecture": asked("ptxas", "7", "--arch", "sm_12"),
    "is of the family hopper": asked("build", "24", "--arch", "sm_80"),
    "no GPU here": patched("flashladder.gpu.doctor.n_gpus", lambda: 0, doctor.require_gpu),
    "iteration 7 is not installed": patched(
        "flashladder.build.wheel.package_folder", lambda _: None, lambda: wheel.load_installed(7)
    ),
    "seq_len does not fit": asked("emulate", "1", "--seq-len", "100"),
    "explain follows one warp": asked("explain", "24"),
    "stale": another_table,
}
"""A part of each heading, and the call that provokes the message."""


def test_every_message_has_its_heading_and_no_other_is_left() -> None:
    assert len(HEADINGS) == len(set(HEADINGS))
    for part in MESSAGES:
        assert sum(part in heading for heading in HEADINGS) == 1, part
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    others = [heading for heading in HEADINGS if not any(part in heading for part in MESSAGES)]
    assert [one for one in others if one.partition(":")[0] not in source] == []


@pytest.mark.parametrize("part", MESSAGES)
def test_a_heading_is_what_is_said(
    part: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    (heading,) = (one for one in HEADINGS if part in one)
    with pytest.raises((FlashladderError, SystemExit)) as caught:
        MESSAGES[part](monkeypatch, tmp_path)
    said = str(caught.value) if isinstance(caught.value, FlashladderError) else capsys.readouterr().err
    assert heading in said
    assert "\n" not in said.strip()
