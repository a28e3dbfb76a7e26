"""``invoke cfg N``: the control flow of an iteration's machine code, as an outline, counts, DOT, SVG or JSON.

Why: what a step changed shows in the loop over KV blocks, and the loop is a part of a graph. How often each block runs
follows from the launch (`flashladder.emulate.executions`), so that counts are of what a warp executes.

Run: ``python -m flashladder.view.flow 16`` with ``--arch sm_90``, ``--seq-len 512``, ``--counts``, ``--dot``,
``--svg``, ``--json``; a kernel of a file in place of the iteration is drawn without counts of runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
import json
from pathlib import Path

from flashladder.arguments import parser_of, whole
from flashladder.columns import terminal_width
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative
from flashladder.machine_code.flow.regions import UNREACHED, regions_of
from flashladder.view.binary import is_file, refuse_config, refuse_of_files, sass_of
from flashladder.view.flow.dot import dot
from flashladder.view.flow.outline import outline
from flashladder.view.flow.per_block import per_block
from flashladder.view.flow.picture import Picture, name_of, per_kv_block, picture_of
from flashladder.view.flow.svg import svg

FORMS = ("counts", "dot", "svg", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the control flow in one of its forms; returns the exit code 0."""
    parser = parser_of(COMMANDS["cfg"], "view.flow", "16 --svg", seq_len={"type": whole})
    options = parser.parse_args(argv)
    with one_line_errors():
        forms = [name for name in FORMS if getattr(options, name)]
        if len(forms) > 1:
            expected = f"one of {', '.join(f'--{name}' for name in FORMS)}"
            raise FlashladderError("one form at a time", expected=expected, found=" and ".join(forms))
        picture = drawn(options)
        if options.json:
            print(json.dumps(as_data(picture), indent=2))
        elif options.dot or options.svg:
            print(dot(picture) if options.dot else svg(picture))
        elif options.counts:
            print(per_block(picture, terminal_width()))
        else:
            print(outline(picture, terminal_width()))
    return 0


def drawn(options: argparse.Namespace) -> Picture:
    """The picture that the options ask for.

    Raises:
        FlashladderError: no such iteration, configuration or file, or a length that the tiles do not divide.
    """
    if is_file(options.iteration):
        refuse_config(options.config, Path(options.iteration))
        path = Path(options.iteration)
        title, sass = sass_of(path, options.kernel, options.arch)
        return picture_of(f"{relative(path)}: {title}", regions_of(sass))
    refuse_of_files(options.iteration, vars(options))
    from flashladder.build.compile import cubin_for
    from flashladder.emulate.executions import executed
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config
    from flashladder.machine_code.sass import disassemble
    from flashladder.results.schema import Shape

    if options.seq_len < 1:
        raise FlashladderError("sequence length", expected="1 or more", found=options.seq_len)
    iteration = load_description(options.iteration)
    config = one_config(iteration, options.config)
    shape = Shape(batch=1, seq_len=options.seq_len, n_heads=1, d_head=config.d_head)
    arch = options.arch or iteration.shown_arch
    if not iteration.family.warps_alike:
        title = f"iteration {iteration.description}, {arch}: {config.short_form()}; warps have roles: runs not counted"
        return picture_of(title, regions_of(disassemble(cubin_for(iteration, config, arch).cubin, lines=False)))
    found = executed(iteration, config, arch, shape)
    title = f"iteration {iteration.description}, {arch}, S = {shape.seq_len}: {config.short_form()}"
    return picture_of(title, found.regions, found.warp)


def as_data(picture: Picture) -> dict[str, object]:
    """All of a picture as JSON can hold it; counts are of one warp, by opcode and region, and for a round by class."""
    flow, warp = picture.regions.flow, picture.warp
    return {
        "title": picture.title,
        "blocks": [{"name": node.name, **_without_zeros(asdict(node))} for node in picture.nodes],
        "loops": [
            {
                "header": name_of(loop.header),
                "blocks": [name_of(block) for block in sorted(loop.nodes)],
                "latches": [name_of(block) for block in loop.latches],
                "parent": None if loop.parent is None else name_of(loop.parent),
                "depth": loop.depth,
                "trips": None if warp is None else float(warp.trips(loop)),
            }
            for loop in picture.loops
        ],
        "reducible": flow.is_reducible,
        "rounds": picture.rounds or None,
        "votes": [f"{flow.sass.instructions[place].address:x}" for place in sorted(warp.votes)] if warp else None,
        "opcodes": {name: picture.region_opcodes(name) for name in picture.regions.present if name != UNREACHED},
        "per_kv_block": per_kv_block(picture),
    }


def _without_zeros(node: dict[str, object]) -> dict[str, object]:
    kinds = node["kinds"]
    assert isinstance(kinds, Mapping)  # it is Node.kinds
    return {**node, "kinds": {kind: int(count) for kind, count in kinds.items() if count}}
