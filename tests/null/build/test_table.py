"""The generated table: rows in order, values that match the configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import re

from flashladder.build.library import TableRow, table_source
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import FAMILY
from flashladder.paths import KERNELS

CONFIG = KernelConfig.parse("(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax")
ROW = TableRow(CONFIG, Path("a/kernel.fatbin"), FAMILY, ("sm_90", "sm_80"), 2048)


def test_a_row_holds_the_configuration_in_the_order_of_the_struct() -> None:
    source = table_source("flashladder_16", [ROW])
    row = f'{{"{CONFIG.short_form()}", "fp16", 128, 64, 128, 128, 65536, 80, 2048, flashladder_fatbin_0'
    assert f"{row}, 0, 0, {2**30 - 1}, {{0}}}}," in source
    struct = re.search(r"struct KernelRow \{(.*?)\n\};", (KERNELS / "host" / "launch.h").read_text(), re.DOTALL)
    assert struct is not None
    declared = re.sub(r"//.*", "", struct[1]).replace("*", " ").split(";")
    names = [name.split()[-1] for line in declared if line.strip() for name in line.split(",")]
    expected = "config dtype B_r B_c d_head n_threads smem_bytes capability row_stride fatbin alone any_length"
    expected += " max_row_stride own[4]"
    assert names == expected.split()


def test_the_table_says_its_namespace_its_architectures_and_how_many_rows_it_has() -> None:
    rows = [ROW, replace(ROW, config=CONFIG.with_dtype("bf16"), arches=("sm_80", "sm_100"))]
    source = table_source("flashladder_16", rows)
    assert 'flashladder_namespace[] = "flashladder_16";' in source
    assert 'flashladder_arches[] = "sm_80, sm_90, sm_100";' in source
    assert 'flashladder_ptx[] = "compute_80";' in source
    assert "flashladder_n_kernels = 2;" in source
    assert source.index("(FP16") < source.index("(BF16")
    assert 'flashladder_targets[] = "sm_80, sm_86, sm_89, sm_90";' in source
    assert source.count('.incbin "a/kernel.fatbin"') == 2


def test_a_gpus_row_is_the_one_tuned_for_it_in_each_dtype_or_the_first() -> None:
    short_form = CONFIG.short_form()
    other, unbuilt = (KernelConfig.parse(short_form.replace("128, 64", size)) for size in ("128, 32", "64, 64"))
    rows = [replace(ROW, config=one.with_dtype(dtype)) for dtype in ("fp16", "bf16") for one in (CONFIG, other)]
    tuned = {0: other, 86: CONFIG, 90: unbuilt, 100: other}
    source = table_source("flashladder_16", rows, tuned)
    fp16, bf16 = "{0, 1}, {86, 0}, {90, 0}, {100, 1}", "{0, 3}, {86, 2}, {90, 2}, {100, 3}"
    assert f"flashladder_tuned[] = {{{fp16}, {bf16}}};" in source
    assert "flashladder_tuned[] = {{0, 0}};" in table_source("flashladder_16", rows[:2])
