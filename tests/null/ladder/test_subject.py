"""The name of what is built: every file, wheel and key that follows from it, and what is no name."""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description, parse_subject


@pytest.mark.parametrize(
    ("subject", "cuda", "text", "variant", "package", "options"),
    [
        (7, "", "7", "", "flashladder_07", "7"),
        ("16", "13.0", "16", "", "flashladder_16", "16"),
        ("16 - swizzle", "", "16 - swizzle", " - swizzle", "flashladder_16_minus_swizzle", '"16 - swizzle"'),
        (
            "1+Eager loads",
            "",
            "1 + eager_loads",
            " + eager_loads",
            "flashladder_01_plus_eager_loads",
            '"1 + eager_loads"',
        ),
        (1, "13.1", "1", " cuda 13.1", "flashladder_01_cuda_13_1", "1 --toolchain 13.1"),
        (
            "16 - swizzle",
            "13.2",
            "16 - swizzle",
            " - swizzle cuda 13.2",
            "flashladder_16_minus_swizzle_cuda_13_2",
            '"16 - swizzle" --toolchain 13.2',
        ),
    ],
)
def test_every_name_follows(subject: int | str, cuda: str, text: str, variant: str, package: str, options: str) -> None:
    found = parse_subject(subject, cuda)
    assert (found.text, found.variant, found.package, found.options) == (text, variant, package, options)
    assert load_description(found.text).description == text
    assert found.package == f"flashladder_{found.tag}"
    assert found.package.isidentifier()


def test_the_session_builds_in_the_iterations_own_environment() -> None:
    assert parse_subject("7").session == "nox -s build-iteration-7"
    assert parse_subject("16 - swizzle", "13.1").session == "nox -s build-iteration-16 -- - swizzle --toolchain 13.1"
    assert parse_subject("16", "13.1").session == "nox -s build-iteration-16 -- --toolchain 13.1"


@pytest.mark.parametrize("text", ["", "swizzle", "16 - ", "16 * swizzle", "16 - a - b!", "cudnn", "1" * 10])
def test_what_is_no_name(text: str) -> None:
    if text == "16 - ":  # a form without a name: the ladder says what can be taken back
        with pytest.raises(FlashladderError, match="nothing named ''"):
            load_description(text)
        return
    with pytest.raises(FlashladderError, match="not a description of an iteration: expected a number, or one change"):
        parse_subject(text)


def test_a_toolchain_that_is_not_pinned() -> None:
    with pytest.raises(FlashladderError, match=r"\.yaml: no toolchain .* expected one of 13\.0, 13\.1, .*12\.8"):
        parse_subject(16, "12.8")
