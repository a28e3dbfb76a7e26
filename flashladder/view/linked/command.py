"""What ``invoke sass N`` and ``invoke ptx N`` do with ``--line`` and ``--opcode``, and ``--page`` of `sass` and `diff`.

Run:
    invoke sass 8 --line exp2_folded.cuh:20-30      # machine code of these CUDA lines
    invoke sass 8 --line kernel.ptx:700-720         # machine code of these lines of PTX
    invoke ptx 8 --opcode LDSM                      # the PTX that became LDSM
    invoke sass 8 --page build/8.html               # all three texts, linked, as one page
    invoke diff 8 9 --page build/8-9.html           # two kernels side by side
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashladder.errors import FlashladderError
from flashladder.files import output_file, relative, write_atomic
from flashladder.view.binary import is_file

if TYPE_CHECKING:  # the readers of iterations and of PTX come when they are asked for
    from flashladder.ladder.config import KernelConfig
    from flashladder.ladder.iteration import Iteration
    from flashladder.view.linked.kernel import Linked

PAGE_TAKES = ("targets", "config", "arch", "page")  # options that go with ``--page``
LINES_TAKE = ("targets", "config", "arch", "line", "opcode", "json")  # and with ``--line`` and ``--opcode``


def kernel_of(description: str, config: str | None, arch: str | None) -> Linked:
    """The kernel that words name: a number or an ablation, a key of one configuration, an architecture.

    Raises:
        FlashladderError: one of them is wrong, or the kernel does not compile.
    """
    if is_file(description):
        raise FlashladderError(
            "a file alone has no CUDA lines to ask for", expected="an iteration, such as 8", found=description
        )
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config
    from flashladder.view.linked.kernel import linked

    iteration = load_description(description)
    return linked(iteration, one_config(iteration, config), arch or iteration.shown_arch)


def show_lines(
    kernel: Linked, line: str | None, opcode: str | None, *, ptx_first: bool = False, as_json: bool = False
) -> None:
    """Prints what a source line and an opcode name in a kernel, by line of PTX or by address.

    Raises:
        FlashladderError: they name nothing.
    """
    from flashladder.view.linked.listing import as_data, by_address, by_ptx
    from flashladder.view.linked.select import select

    chosen = select(kernel, line or None, opcode or None)
    if as_json:
        print(json.dumps(as_data(kernel, chosen), indent=2))
    else:
        print((by_ptx if ptx_first else by_address)(kernel, chosen))


def shown(targets: Sequence[str], given: Mapping[str, Any], *, ptx_first: bool = False) -> bool:
    """Does what ``--line``, ``--opcode`` or ``--page`` ask of iterations; False where none of them was given.

    Args:
        targets: iterations; lines are asked of one, a page shows any number.
        given: every option of the command by its name in Python.
        ptx_first: in order of the PTX, and not of addresses.

    Raises:
        FlashladderError: options that do not go together, or what they name is not there.
    """
    line, opcode, page = (given.get(name) or "" for name in ("line", "opcode", "page"))
    if not (line or opcode or page):
        return False
    _refuse_others(given, PAGE_TAKES if page else LINES_TAKE, "--page" if page else "--line and --opcode")
    if page:
        path = page_path(page)
        write_page([kernel_of(target, given["config"], given["arch"]) for target in targets], path)
        return True
    if len(targets) != 1:
        raise FlashladderError("lines are those of one kernel", expected="one iteration", found=", ".join(targets))
    kernel = kernel_of(targets[0], given["config"], given["arch"])
    show_lines(kernel, line, opcode, ptx_first=ptx_first, as_json=bool(given.get("json")))
    return True


def _refuse_others(given: Mapping[str, Any], taken: Collection[str], options: str) -> None:
    """Raises `FlashladderError` for an option that was given and does not go with others."""
    wrong = [name for name, value in given.items() if value and name not in taken]
    if wrong:
        raise FlashladderError(f"--{wrong[0].replace('_', '-')} does not go with {options}")


def page_path(name: str) -> Path:
    """`name` as the path of a page, before anything is compiled for it.

    Raises:
        FlashladderError: it does not end in ``.html``.
    """
    return output_file(name, ".html", "--page")


def write_page(kernels: Sequence[Linked], path: Path) -> None:
    """Writes the linked view of one kernel, or of two side by side, and says where.

    Raises:
        FlashladderError: there are more kernels, or it cannot be written.
    """
    from flashladder.view.linked.page import page

    print(relative(write_atomic(path, page(kernels))))


def write_diff_page(steps: Sequence[Iteration], configs: Sequence[KernelConfig], name: str) -> None:
    """The same of two iterations, each at its configuration, for the architecture that commands mean by default."""
    from flashladder.view.linked.kernel import linked

    path = page_path(name)
    write_page([linked(step, config, step.shown_arch) for step, config in zip(steps, configs, strict=True)], path)
