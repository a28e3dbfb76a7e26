"""A name leads to its configuration from all four forms, and --kernel takes every spelling that --list prints."""

from __future__ import annotations

import shutil
from typing import Any, cast

import pytest

from flashladder.binaries.kernels import Kernel, chosen, configuration, demangled, shortened
from flashladder.errors import FlashladderError
from flashladder.ladder.config import EXAMPLE
from flashladder.names import KERNEL

FORWARD = (
    (
        "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128ELi128ELi64ELi4ELb0ELb0EN7cutlass6half_tE"
        "19Flash_kernel_traitsILi128ELi128ELi64ELi4ES3_EELb0ELb1ELb0ELb0ELb1ELb1ELb0ELb0EEEvNS_16Flash_fwd_paramsE"
    ),
    (
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::half_t, "
        "Flash_kernel_traits<128, 128, 64, 4, cutlass::half_t> >, false, true, false, false, true, true, false, false>"
        "(pytorch_flash::Flash_fwd_params)"
    ),
    (
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, "
        "cutlass::half_t, Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::half_t>>, (bool)0, "
        "(bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0, (bool)0>(flash::Flash_fwd_params)"
    ),
    "flash_fwd_kernel (FP16, 128, 128, 64, 4): causal+even_MN+even_K",
)
BACKWARD = (
    (
        "_ZN5flash44flash_bwd_dq_dk_dv_loop_seqk_parallel_kernelI23Flash_bwd_kernel_traitsILi96ELi64ELi128ELi8ELi2ELi4ELi4E"
        "Lb1ELb0EN7cutlass10bfloat16_tE19Flash_kernel_traitsILi96ELi64ELi128ELi8ES3_EELb1ELb0ELb0ELb0ELb0ELb1ELb0EEEvNS_16"
        "Flash_bwd_paramsE"
    ),
    (
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<96, 64, 128, 8, 2, 4, 4, "
        "true, false, cutlass::bfloat16_t, Flash_kernel_traits<96, 64, 128, 8, cutlass::bfloat16_t> >, true, false, "
        "false, false, false, true, false>(flash::Flash_bwd_params)"
    ),
    (
        "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel (BF16, 96, 64, 128, 8): "
        "layout_MSdP=2+layout_NdKV=4+layout_MdQ=4+V_in_regs+dropout+even_K"
    ),
)
BEFORE_ITS_TRAITS = (
    (
        "_ZN5flash25flash_bwd_dot_do_o_kernelILb1E23Flash_bwd_kernel_traitsILi128ELi64ELi128ELi8ELi2ELi4ELi2ELb0ELb0EN7"
        "cutlass10bfloat16_tE19Flash_kernel_traitsILi128ELi64ELi128ELi8ES3_EEEEvNS_16Flash_bwd_paramsE"
    ),
    "flash_bwd_dot_do_o_kernel (BF16, 128, 64, 128, 8): layout_MSdP=2+layout_NdKV=4+layout_MdQ=2+clear_dQaccum",
)


@pytest.mark.parametrize("forms", [FORWARD, BACKWARD, BEFORE_ITS_TRAITS], ids=["forward", "backward", "before"])
def test_every_form_gives_the_same_configuration(forms: tuple[str, ...]) -> None:
    found = [configuration(form) for form in forms]
    assert found[0] is not None
    assert found == [found[0]] * len(forms)
    assert found[0].short_form() == forms[-1]


def test_a_short_form_of_ours_is_one_of_our_symbol() -> None:
    found = configuration(EXAMPLE)
    assert found is not None
    assert (found.kernel, found.dtype, found.d_head, found.B_r, found.B_c, found.n_warps) == (
        KERNEL, "fp16", 128, 64, 64, 4,
    )  # fmt: skip
    assert found.short_form() == f"{KERNEL} {EXAMPLE}"
    assert configuration(found.short_form()) == found


@pytest.mark.parametrize(
    "name",
    [
        "",
        KERNEL,
        "_Z3fooILi128EEvv",
        FORWARD[0].replace("ELb0ELb0EEEvNS", "ELb0EEEvNS"),  # seven switches: an older version
        FORWARD[0].replace("16flash_fwd_kernel", "18flash_fwd_x_kernel"),
        FORWARD[0].replace("half_t", "float_8"),
        FORWARD[1].replace("128, 128, 64, 4, false, false", "128, 128, 64, false, false"),
        "flash_fwd_kernel (FP16, 128, 128, 64)",
        "flash_fwd_kernel (FP8, 128, 128, 64, 4)",
        "flash_fwd_kernel (FP16, ١28, 128, 64, 4)",
    ],
)
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    assert configuration(name) is None


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="binutils are not here")
def test_names_are_demangled_in_one_run_and_others_stay() -> None:
    names = demangled([FORWARD[0], KERNEL, "_Zno", "_Z1a\nb"])
    assert names == {FORWARD[0]: FORWARD[1], KERNEL: KERNEL, "_Zno": "_Zno", "_Z1a\nb": "_Z1a\nb"}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (FORWARD[1], FORWARD[-1]),
        (KERNEL, KERNEL),
        ("void at::native::(anonymous namespace)::adaptive_average_pool_nhwc<int, float>(float const*, int)",
         "adaptive_average_pool_nhwc<int, float>"),
        ("void a::b<c::d<(int)4> >(e::f)", "b<d<(int)4> >"),
        ("f" * 100, "f" * 69 + "..."),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert shortened(name) == short


IMAGE = cast("Any", None)  # nothing of it is read
CONFIGS = ("(FP16, 128, 64, 64, 4): async+eager", "(FP16, 128, 128, 64, 4): async", "(BF16, 128, 128, 64, 4): async")
OURS = [Kernel("flash_fwd_kernel", "flash_fwd_kernel", config, "sm_80", "SASS", IMAGE) for config in CONFIGS]
LONG = f"void library::detail::attention<{'int, ' * 30}float>(float*, int)"
THEIRS = Kernel("_ZN7library6detail", LONG, "", "sm_80", "SASS", IMAGE)


@pytest.mark.parametrize("one", [*OURS, THEIRS], ids=lambda one: one.title[:30])
def test_what_the_list_prints_names_the_kernel(one: Kernel) -> None:
    assert chosen([*OURS, THEIRS], one.title) == [one]
    assert chosen([*OURS, THEIRS], one.title.replace(", ", ",")) == [one]


def test_a_kernel_of_ours_may_be_called_as_a_librarys() -> None:
    assert chosen(OURS, f"flash_fwd_kernel {CONFIGS[0]}") == OURS[:1]
    assert chosen(OURS, "flash_fwd_kernel (FP16, 128, 64, 64, 4)") == OURS[:1]


def test_a_name_of_none_says_where_they_are_listed() -> None:
    with pytest.raises(FlashladderError, match="--list"):
        chosen(OURS, "flash_bwd_kernel (FP16, 128, 64, 64, 4)")
