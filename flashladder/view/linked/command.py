"""What ``invoke sass N`` and ``invoke ptx N`` do with ``--line`` and ``--opcode``, and ``--page`` of `sass` and `diff`.

Run:
    invoke sass 8 --line exp2_folded.cuh:20-30      # machine code of these CUDA lines
    invoke sass 8 --line kernel.ptx:700-720         # machine code of these lines of PTX
    invoke ptx 8 --opcode LDSM                      # the PTX that became LDSM
    invoke sass 8 --page build/8.html               # all three texts, linked, as one page
    invoke diff 8 9 --page build/8-9.html           # two kernels side by side
"""

from __future__ import annotations

from collections.abc import Sequence
import json
from pathlib import Path

from flashladder.errors import FlashladderError
from flashladder.files import relative, write_atomic
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.ladder.selection import one_config
from flashladder.names import DEFAULT_ARCH
from flashladder.view.linked.kernel import Linked, linked
from flashladder.view.linked.listing import as_data, by_address, by_ptx
from flashladder.view.linked.select import select


def kernel_of(description: str, config: str | None, arch: str | None) -> Linked:
    """The kernel that words name: a number or an ablation, a key of one configuration, an architecture.

    Raises:
        FlashladderError: one of them is wrong, or the kernel does not compile.
    """
    if description.endswith(".cubin"):
        raise FlashladderError(
            "a cubin alone has no CUDA lines to ask for", expected="an iteration, such as 8", found=description
        )
    iteration = load_description(description)
    return linked(iteration, one_config(iteration, config), arch or DEFAULT_ARCH)


def show_lines(
    kernel: Linked, line: str | None, opcode: str | None, *, ptx_first: bool = False, as_json: bool = False
) -> None:
    """Prints what a source line and an opcode name in a kernel, by line of PTX or by address.

    Raises:
        FlashladderError: they name nothing.
    """
    chosen = select(kernel, line or None, opcode or None)
    if as_json:
        print(json.dumps(as_data(kernel, chosen), indent=2))
    else:
        print((by_ptx if ptx_first else by_address)(kernel, chosen))


def show_sass(
    targets: Sequence[str],
    config: str | None,
    arch: str | None,
    *,
    line: str,
    opcode: str,
    page: str,
    counts: bool,
    as_json: bool,
) -> None:
    """``invoke sass N`` with one of the options below: a page of `targets`, or lines of the only one.

    Raises:
        FlashladderError: options that do not go together, or what these name is not there.
    """
    if page:
        _refuse("--page", **{"--line": line, "--opcode": opcode, "--counts": counts, "--json": as_json})
        path = page_path(page)
        write_page([kernel_of(target, config, arch) for target in targets], path)
        return
    _refuse("--line and --opcode", **{"--counts": counts})
    _require_lines(line, opcode)
    if len(targets) != 1:
        raise FlashladderError("lines are those of one kernel", expected="one iteration", found=", ".join(targets))
    show_lines(kernel_of(targets[0], config, arch), line, opcode, as_json=as_json)


def show_ptx(
    description: str,
    config: str | None,
    *,
    counts: bool,
    normalised: bool,
    line: str,
    opcode: str,
    arch: str,
    json: bool,
) -> None:
    """``invoke ptx N``: all of it (`flashladder.view.code`), or what a source line or an opcode names.

    Raises:
        FlashladderError: options that do not go together, or what these name is not there.
    """
    if line or opcode or json:
        _refuse("--line and --opcode", **{"--counts": counts, "--normalised": normalised})
        _require_lines(line, opcode)
        show_lines(kernel_of(description, config, arch), line, opcode, ptx_first=True, as_json=json)
        return
    from flashladder.view import code

    code.show_ptx(description, config, counts=counts, normalised=normalised)


def _refuse(given: str, **others: object) -> None:
    """Raises `FlashladderError` for an option that does not go with those that were given."""
    if wrong := [name for name, value in others.items() if value]:
        raise FlashladderError(f"{wrong[0]} does not go with {given}")


def _require_lines(line: str, opcode: str) -> None:
    """Raises `FlashladderError` where JSON is asked for of everything."""
    if not (line or opcode):
        raise FlashladderError("--json is for a part of the kernel", expected="--line or --opcode beside it")


def page_path(name: str) -> Path:
    """`name` as the path of a page, before anything is compiled for it.

    Raises:
        FlashladderError: it does not end in ``.html``.
    """
    if not name.endswith(".html"):
        raise FlashladderError("not the name of a page", expected="a file that ends in .html", found=repr(name))
    return Path(name)


def write_page(kernels: Sequence[Linked], path: Path) -> None:
    """Writes the linked view of one kernel, or of two side by side, and says where.

    Raises:
        FlashladderError: there are more kernels, or it cannot be written.
    """
    from flashladder.view.linked.page import page

    print(relative(write_atomic(path, page(kernels))))


def write_diff_page(steps: Sequence[Iteration], configs: Sequence[KernelConfig], name: str) -> None:
    """The same of two iterations, each at its configuration, for the architecture that commands mean by default."""
    path = page_path(name)
    write_page([linked(step, config, DEFAULT_ARCH) for step, config in zip(steps, configs, strict=True)], path)
