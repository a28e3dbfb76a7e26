"""The command line of the compiler; compiling itself is tested in tests/nvcc/test_compile.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashladder.build import compile as compiling
from flashladder.errors import FlashladderError
from flashladder.ladder.families.ampere import Ampere
from flashladder.ladder.family import Targets
from flashladder.ladder.iteration import load_iteration


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        compiling.main(["--iteration", "7", "--arch", "sm_80,sm_12"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: unknown GPU architecture: expected one of sm_80")


def test_the_default_arch_is_the_gpus_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, chosen in (("sm_90", "sm_90"), ("sm_120", "sm_80"), (None, "sm_80")):
        monkeypatch.setattr(compiling, "gpu_arch", lambda found=found: found)
        assert compiling.default_arch() == chosen


def test_a_family_has_a_default_among_its_own_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newest(Ampere):
        """As Ampere, made for one GPU."""

        targets = Targets("compute_90", ("sm_90",))

    step = replace(load_iteration(16), family=Newest())
    for found in ("sm_80", None):
        monkeypatch.setattr(compiling, "gpu_arch", lambda found=found: found)
        assert compiling.default_arch(Newest()) == "sm_90"
        assert compiling.arches_of(step, None) == ("sm_90",)
    assert compiling.arches_of(load_iteration(16), "sm_90, sm_80,sm_90") == ("sm_90", "sm_80")
    with pytest.raises(
        FlashladderError, match="family ampere, which has no code for this: expected sm_90, found sm_80"
    ):
        compiling.arches_of(step, "sm_80")
