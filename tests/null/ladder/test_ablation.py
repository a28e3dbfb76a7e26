"""Ablations: what a description means, what hangs on a change, and the names that follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description, nameable, parse_subject
from flashladder.ladder.iteration import load_iteration


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("28 - flattened", ", without flattened, and so without split and merged store"),
        ("16 - static_swizzle", ", without static swizzle, and so without row major and encoded"),
        ("19 - indexed_gmem", ", without indexed gmem, and so without rings and serpentine and row stride"),
        ("16 + stale_maximum", "GMEM stride, with stale maximum"),
        ("28 - split", "over a cluster, without split"),
    ],
)
def test_the_title_says_what_goes_back_too(text: str, said: str) -> None:
    assert load_description(text).title.endswith(said)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("16 - no_allocate", {"store_policy": "write_back"}),
        ("16 - row_major", {"k_order": "column_major"}),
        ("16 - reciprocal", {"normalize": "divide"}),
        ("16 - static_stride", {"gmem": "indexed", "row_stride": 0}),
        ("16 - tile_d_head", {"layout": "xor_static"}),
        ("16 - backward", {"schedule": "peeled"}),
        ("16 - peeled", {"schedule": "eager", "softmax": "exp2_folded"}),
        ("16 - eager", {"schedule": "lazy", "softmax": "exp2_folded"}),
        ("16 - indexed", {"schedule": "peeled", "gmem": "advance", "row_stride": 0}),
        ("9 - xor_static", {"layout": "xor", "k_order": "column_major"}),
        ("8 + row_major", {"k_order": "row_major"}),
        ("8 + exp2_peeled", {"schedule": "peeled", "softmax": "exp2_peeled"}),
        ("12 + static stride", {"gmem": "static_stride", "row_stride": 2048}),
        ("1+swizzle", {"layout": "xor"}),
        ("16 - Static-GMEM-stride", {"gmem": "indexed", "row_stride": 0}),
    ],
)
def test_one_change_and_what_hangs_on_it(text: str, change: dict[str, object]) -> None:
    assert dict(load_description(text).change) == change


def test_configurations_follow_the_parts_of_an_ablation() -> None:
    base = load_iteration(16).configs["a100"]
    whole = load_description("16 - tiled").configs["a100"]
    assert (whole.load_tiles, whole.mma_double_buffer_loads) == ((0, 0, 0), False)
    single = load_description("16 - double_buffer").configs["a100"]
    assert (single.load_tiles, single.mma_double_buffer_loads) == (base.load_tiles, False)
    buffered = load_description("3 + double_buffer").configs["a100"]
    assert (buffered.load_tiles, buffered.mma_double_buffer_loads) == ((2, 2, 2), True)


def test_tuning_can_be_taken_back_and_added() -> None:
    untuned = load_description("9 - tuned")
    assert dict(untuned.change) == {}
    assert untuned.configs["a100"].short_form() == (
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer"
    )
    tuned = load_description("6 + tuned")
    assert dict(tuned.configs) == dict(load_iteration(7).configs)


@pytest.mark.parametrize("number", range(1, 17))
def test_every_name_that_can_be_taken_back_gives_a_legal_iteration(number: int) -> None:
    names, _ = nameable(number)
    assert len(names) >= number - 1
    for name in names:
        if (number, name) == (7, "tuned"):
            continue  # that is iteration 6
        ablation = load_description(f"{number} - {name}")
        assert not list(ablation.family.contradictions(ablation.parts))
        assert ablation.parts != load_iteration(number).parts or ablation.configs != load_iteration(number).configs
        for config in ablation.configs.values():
            assert ablation.family.conflicts(ablation.parts, config) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sixteen",
            (
                "not a description of an iteration: expected a number, or one change to one, such as '16 - swizzle' "
                "or '7 + xor_static', found 'sixteen'"
            ),
        ),
        ("16 - swizzle - eager", "nothing named 'swizzle_eager' can be taken back from iteration 16"),
        ("16 -", "nothing named '' can be taken back from iteration 16"),
        ("16 * swizzle", "not a description of an iteration"),
        ("29 - swizzle", "no such iteration: expected a number from 1 to 28, found 29"),
        ("0", "no such iteration: expected a number from 1 to 28, found 0"),
        (
            "3 - backward",
            (
                "nothing named 'backward' can be taken back from iteration 3: expected one of swizzle, eager_loads, "
                "xor, eager, found '3 - backward'"
            ),
        ),
        ("1 - swizzle", "iteration 1 has no change to take back: found '1 - swizzle'"),
        (
            "28 + swizzle",
            "iteration 28 has every change of the family hopper: there is none to add: found '28 + swizzle'",
        ),
        ("19 + xor", "iteration 19 has every change of the family ampere: there is none to add: found '19 + xor'"),
        (
            "15 + eager",
            (
                "nothing named 'eager' can be added to iteration 15: expected one of static_gmem_stride, "
                "stale_maximum, rings, serpentine, static_stride, exp2_stale, "
                "found '15 + eager'"
            ),
        ),
        ("16 - swizle", "did you mean 'swizzle'?"),
        (
            "7 + backward",
            (
                "'7 + backward' is not a possible iteration: expected parts that go together, found schedule "
                "backward with gmem advance (an advancing pointer only walks forwards)"
            ),
        ),
    ],
)
def test_bad_descriptions(text: str, message: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        load_description(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_ladder_with_gaps_lists_its_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 4):
        (tmp_path / f"{number:02d}_step.yaml").touch()
    with pytest.raises(FlashladderError, match=r"no such iteration: expected one of 1, 2, 4, found 3"):
        load_description("3", tmp_path)


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
