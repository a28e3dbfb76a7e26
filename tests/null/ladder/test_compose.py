"""Composed kernels: every part is used, symbols are constant, texts differ only where kernels do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import shutil

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.family import part_names
from flashladder.ladder.iteration import (
    flattened,
    included_files,
    load_all,
    load_iteration,
    sources,
    translation_unit,
)
from flashladder.ladder.selection import select_configs
from flashladder.paths import KERNELS


def test_every_part_file_is_used_by_some_iteration() -> None:
    used = {
        path
        for iteration in load_all()
        for config in select_configs(iteration, "prog")
        for path in included_files(translation_unit(iteration, config))
    }
    assert used == set(KERNELS.rglob("*.cuh"))


def test_a_byte_that_is_not_utf_8_is_told_with_file_and_offset(tmp_path: Path) -> None:
    kernels = Path(shutil.copytree(KERNELS, tmp_path / "kernels"))
    part = kernels / "ampere" / "layout" / "xor.cuh"
    n_bytes = part.stat().st_size
    with part.open("ab") as stream:
        stream.write(b"// gr\xfcn\n")
    assert "xor" in part_names(part.parent)  # its first line is enough for a list
    iteration = load_iteration(7)
    config = select_configs(iteration, "a100")[0]
    for read in (sources, flattened):
        with pytest.raises(FlashladderError, match=rf"xor\.cuh: not UTF-8 \(byte 0xfc at offset {n_bytes + 5}\)"):
            read(iteration, config, kernels)
    part.write_bytes(b"\xef\xbb\xbf" + (KERNELS / "ampere" / "layout" / "xor.cuh").read_bytes())
    assert "xor" in part_names(part.parent)
    assert sources(iteration, config, kernels) == sources(iteration, config)  # nvcc passes over a mark, too


def test_an_empty_part_is_still_listed_and_named_by_who_reads_it(tmp_path: Path) -> None:
    kernels = Path(shutil.copytree(KERNELS, tmp_path / "kernels"))
    part = kernels / "ampere" / "layout" / "xor.cuh"
    part.write_text("\n")
    assert "xor" in part_names(part.parent)
    iteration = load_iteration(2)
    config = select_configs(iteration, "a100")[0]
    for read in (sources, flattened):
        with pytest.raises(FlashladderError, match=r"layout/xor\.cuh: the file is empty: expected its header line"):
            read(iteration, config, kernels)
    with pytest.raises(FlashladderError, match=r"layout/xor\.cuh: the file is empty"):
        included_files(translation_unit(iteration, config), kernels)


def test_what_editors_leave_is_no_part(tmp_path: Path) -> None:
    (tmp_path / "one.cuh").write_text("// Layout `one` (iteration 2): a part\n")
    (tmp_path / ".#one.cuh").symlink_to("somebody@nowhere.42:1")
    (tmp_path / "._one.cuh").write_bytes(b"\0\5\xff")
    assert part_names(tmp_path) == ("one",)
    (tmp_path / "two.cuh").mkdir()
    with pytest.raises(FlashladderError, match=r"two\.cuh: cannot read the file .*Is a directory"):
        part_names(tmp_path)


def test_a_step_changes_only_what_its_yaml_says() -> None:
    parent, child = load_iteration(11), load_iteration(12)
    config = child.configs["a100"]
    before = translation_unit(parent, config).splitlines()[3:]
    after = translation_unit(child, config).splitlines()[3:]
    changed = {line.strip() for line in set(before) ^ set(after)}
    assert changed == {
        '#include "ampere/gmem/advance.cuh"',
        '#include "ampere/gmem/indexed.cuh"',
        "using Gmem = flashladder::Advance;",
        "using Gmem = flashladder::Indexed;",
        '#include "ampere/normalize/divide.cuh"',
        '#include "ampere/normalize/reciprocal.cuh"',
        "using Normalize = flashladder::Divide;",
        "using Normalize = flashladder::Reciprocal;",
    }


def test_a_configuration_that_the_parts_cannot_express_is_refused() -> None:
    iteration = load_iteration(1)
    with pytest.raises(FlashladderError, match="iteration 1 cannot express this configuration") as caught:
        translation_unit(iteration, replace(iteration.configs["a100"], swizzled=True))
    assert caught.value.exit_code == 2


def test_flattened_starts_with_the_composition_and_holds_every_included_file_once() -> None:
    iteration = load_iteration(8)
    config = iteration.configs["a100"]
    text = flattened(iteration, config)
    titles = [line for line in text.splitlines() if line.startswith("// ==== ")]
    assert titles[:3] == [
        "// ==== the composition ====",
        "// ==== kernels/ampere/schedule/eager.cuh ====",
        "// ==== kernels/ampere/flash_fwd_static_offsets.cuh ====",
    ]
    included = included_files(translation_unit(iteration, config))
    assert sorted(titles[1:]) == sorted(f"// ==== kernels/{p.relative_to(KERNELS).as_posix()} ====" for p in included)
    assert "#include" not in text


def test_a_missing_include_names_the_file_that_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n', encoding="utf-8")
    with pytest.raises(FlashladderError) as caught:
        included_files('#include "a.cuh"\n', tmp_path)
    assert str(caught.value).endswith(f"expected {tmp_path / 'b.cuh'}, found no such file")
    assert "a.cuh: an included file is missing" in str(caught.value)
