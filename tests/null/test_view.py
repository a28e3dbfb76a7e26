"""What ``invoke list``, ``invoke show`` and ``invoke diff`` print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashladder import lock, view
from flashladder.config import KernelConfig
from flashladder.errors import FlashladderError
from flashladder.files import ITERATIONS
from flashladder.iteration import load_all, load_description, load_iteration

SIXTEEN = load_iteration(16)


def test_list_is_an_aligned_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert view.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head, *rows = lines[:17]
    assert [row[:2] for row in rows] == [f"{n:2d}" for n in range(1, 17)]
    starts = [head.index(word) for word in ("title", "changes", "a100", "rtx3090", "h200")]
    for row, step in zip(rows, load_all(), strict=True):
        for start in starts:
            assert row[start - 2 : start] == "  "
            assert row[start] != " "
        assert row[starts[0] :].startswith(step.title)
        assert row[starts[3] :].startswith(view.knobs(step.configs["rtx3090"]))
    assert "layout: xor_static" in rows[7]
    assert "configurations only" in rows[6]
    assert not any(line.endswith(" ") for line in lines)


def test_list_as_json_holds_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    view.main(["list", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert [item["iteration"] for item in data] == list(range(1, 17))
    assert data[7]["change"] == {"layout": "xor_static"}
    assert data[7]["parent"] == 7
    assert data[7]["file"] == f"iterations/{load_iteration(8).path.name}"
    assert "LOP3 falls by at least 25.3 %" in data[7]["expect"]["sass"]
    for item in data:
        for config in item["configs"].values():
            assert KernelConfig.parse(config).short_form() == config


def test_knobs() -> None:
    assert view.knobs(SIXTEEN.configs["rtx3090"]) == "128,32,4 2_2_0+buffer+opt"
    assert view.knobs(load_iteration(1).configs["a100"]) == "64,64,4 0_0_0"


def test_show_tells_why_then_what_then_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    view.main(["show", "8"])
    page = capsys.readouterr().out
    order = [
        "Iteration 8: Reducing IADD3, LOP3 and SHF instructions (from iteration 7)",
        "The swizzled address of every ldmatrix",
        "changes:\n  layout  xor_static",
        "parts:",
        "configurations:\n  a100     (FP16, 128, 128, 64, 4)",
        "expected:\n  1  IADD3 falls by at least 10.3 %",
        "// (FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
        "flash_fwd_kernel",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert "  layout        xor_static  *\n" in page
    assert "  schedule      eager\n" in page


def test_show_as_json_has_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    text = load_iteration(7).configs["rtx3090"].with_dtype("bf16").short_form()
    view.main(["show", "7", "--json", f"--config={text}"])
    data = json.loads(capsys.readouterr().out)
    assert data["config"] == text
    assert "flash_fwd_kernel" in data["kernel"]
    assert data["why"] == load_iteration(7).why


def test_show_an_ablation(capsys: pytest.CaptureFixture[str]) -> None:
    view.main(["show", "16 - store_policy"])
    page = capsys.readouterr().out
    assert page.startswith("Iteration 16 - store_policy: Static GMEM stride, without store policy (from iteration 16)")
    assert "expected:" not in page


def test_lines_of_prose_are_short() -> None:
    for step in load_all():
        prose = view.header(step).split("\n\n")[1]
        assert " ".join(prose.split()) == step.why
        assert max(map(len, prose.splitlines())) <= view.WIDTH


def test_show_refuses_a_configuration_that_the_iteration_lacks() -> None:
    with pytest.raises(FlashladderError) as caught:
        view.main(["show", "1", f"--config={SIXTEEN.configs['a100'].short_form()}"])
    assert str(caught.value) == (
        f"iteration 1 cannot express {SIXTEEN.configs['a100'].short_form()}: expected a legal combination, "
        "found eager_load_blocks must be False: schedule lazy decides it"
    )
    assert caught.value.exit_code == 2


def test_diff_is_at_equal_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    view.main(["diff", "7", "8"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- iteration 7", "+++ iteration 8"]
    assert "-  layout        xor" in lines
    assert "+  layout        xor_static" in lines
    assert "-configuration: (FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax" in lines
    assert "+configuration: (FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles" in lines
    assert any(line.startswith("opcode counts") for line in lines)


def test_diff_of_a_switch_is_small() -> None:
    before, after = load_iteration(13), load_iteration(14)
    text = view.diff_iterations(before, after, view.equal_configs(before, after))
    changed = [line for line in text.splitlines()[2:] if line[0] in "+-"]
    assert "+  store_policy  no_allocate" in changed
    assert 2 <= len(changed) <= 12


def test_diff_of_equal_kernels_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    view.main(["diff", "9", "9"])
    assert capsys.readouterr().out.startswith("the kernels are the same\n")


def test_diff_of_a_step_that_only_tunes_shows_its_configurations() -> None:
    before, after = load_iteration(6), load_iteration(7)
    configs = view.equal_configs(before, after)
    assert configs == (before.configs["a100"], after.configs["a100"])


def test_diff_of_steps_that_cannot_share_a_configuration_falls_back() -> None:
    before, after = load_iteration(4), load_iteration(3)
    assert view.equal_configs(before, after) == (before.configs["a100"], after.configs["a100"])


def test_diff_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    view.main(["diff", "16", "16 - store_policy", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["before"]["description"] == "16"
    assert data["after"]["opcode_counts"] is None
    assert "+  store_policy  write_back" in data["diff"]


def test_counts_table() -> None:
    table = view.count_changes(
        {"LOP3": 140, "MOV": 5, "HMMA": 128, "total": 273}, {"LOP3": 81, "HMMA": 128, "SHF": 5, "total": 214}
    )
    assert table.splitlines() == [
        "total  273  214   -21.6 %",
        "LOP3   140   81   -42.1 %",
        "MOV      5    0  -100.0 %",
        "SHF      0    5       new",
    ]
    assert view.count_changes({"A": 1}, {"A": 1}) == "no opcode class changes its count"


def test_counts_come_from_the_lock_first_at_equal_tiles_then_at_the_own_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counts(number: int, config: KernelConfig) -> dict[str, int] | None:
        asked.append((number, config))
        return {"LOP3": 10 * number} if config == load_iteration(number).configs["a100"] else None

    monkeypatch.setattr(lock, "opcode_counts", counts)
    before, after = load_iteration(7), load_iteration(8)
    text = view.diff_counts(before, after, view.equal_configs(before, after))
    assert "LOP3" in text
    assert "+14.3 %" in text
    assert f"{before.configs['a100']} -> {after.configs['a100']}" in text
    assert len(asked) == 4
    ablation = load_description("16 - store_policy")
    nothing = view.diff_counts(SIXTEEN, ablation, view.equal_configs(SIXTEEN, ablation))
    assert nothing == "opcode counts: not in results/locks/sm_80.json for these two"


def test_unknown_iteration_is_one_line() -> None:
    with pytest.raises(FlashladderError, match=r"no such iteration: expected one of 1, 2, .*, found 99"):
        view.main(["show", "99"])


def test_usage_errors_leave_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        view.main(["diff", "7"])
    assert caught.value.code == 2
    assert "required: after" in capsys.readouterr().err


def test_another_folder(tmp_path: Path) -> None:
    for path in sorted(ITERATIONS.glob("0[1-3]_*.yaml")):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert len(view.list_iterations(tmp_path).splitlines()) == 1 + 3 + 2
