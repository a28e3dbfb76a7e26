"""Iteration files whose configurations cannot be: the line that is named and what is said of it."""

from __future__ import annotations

from tests.null.malformed_templates import step

LARGE = "the configuration is too large for "
ILLEGAL = "illegal configuration for a100: expected a legal combination, found "

# id: (content of 02_step.yaml, line, "what" with expected, found and hint as the message renders them)
CONFIGS: dict[str, tuple[str, int, str]] = {
    "loads_with_whole_operands": (
        step("{B_r: 128}", "{load_tiles: [2, 2, 2]}"),
        8,
        (
            "the parts contradict 'load_tiles' on a100: expected load_tiles must be 0, 0, 0: operands whole "
            "load everything "
            "before the first mma, found 2"
        ),
    ),
    "buffer_with_whole_operands": (
        step("{B_r: 128}", "{double_buffer: true}"),
        8,
        (
            "the parts contradict 'double_buffer' on a100: expected mma_double_buffer_loads must be False: "
            "operands whole "
            "have no second buffer, found True"
        ),
    ),
    "softmax_decided_by_parts": (
        step("{B_r: 128}", "{optimized_softmax: true}"),
        8,
        (
            "the parts contradict 'optimized_softmax' on a100: expected optimized_softmax must be False: "
            "softmax exp in era "
            "runtime_offsets decides it, found True"
        ),
    ),
    "tiled_without_a_load_size": (
        step("layout: xor", "operands: tiled"),
        8,
        (f"{ILLEGAL}load_tiles must not all be 0: operands tiled load at least one operand by k-tile"),
    ),
    "q_and_k_apart": (
        step("layout: xor", "operands: tiled").replace("a100: {B_r: 128}", "any: {load_tiles: [2, 0, 0]}"),
        8,
        (f"{ILLEGAL}load size 2 of Q: must be 0 or K's, 0, since both walk along d_head together"),
    ),
    "load_size_of_three": (
        step("layout: xor", "operands: tiled").replace("a100: {B_r: 128}", "any: {load_tiles: [3, 3, 2]}"),
        8,
        f"{ILLEGAL}load size 3 of Q: must be 0 or 2",
    ),
    "two_load_sizes": (
        step("{B_r: 128}", "{load_tiles: [0, 0]}"),
        8,
        "missing key 'configs.a100.load_tiles.2': expected a value for 'configs.a100.load_tiles.2', found none",
    ),
    "load_sizes_as_text": (
        step("{B_r: 128}", '{load_tiles: "222"}'),
        8,
        "bad value for 'configs.a100.load_tiles': expected a list, found '222'",
    ),
    "rows_per_warp": (
        step("{B_r: 128}", "{B_r: 96}"),
        8,
        (f"{ILLEGAL}B_r 96 with 4 warps: each warp needs a multiple of 16 query rows"),
    ),
    "three_warps": (
        step("{B_r: 128}", "{n_warps: 3}"),
        8,
        f"{ILLEGAL}n_warps 3: a CTA has 1, 2, 4, 8 or 16 warps",
    ),
    "shared_memory": (
        step("{B_r: 128}", "{B_r: 256, B_c: 512}"),
        8,
        f"{LARGE}a100: expected at most 166912 bytes of shared memory per CTA, as A100 has, found 327680",
    ),
    "shared_memory_of_an_a100": (
        step("{B_r: 128}", "{B_r: 256, B_c: 256, n_warps: 8}"),
        8,
        f"{LARGE}a100: expected at most 166912 bytes of shared memory per CTA, as A100 has, found 196608",
    ),
    "shared_memory_of_an_rtx_3090": (
        step("a100: {B_r: 128}", "rtx3090: {B_r: 256, B_c: 128, n_warps: 8}"),
        8,
        f"{LARGE}rtx3090: expected at most 101376 bytes of shared memory per CTA, as RTX 3090 has, found 131072",
    ),
    "any_is_every_gpu": (
        step("a100: {B_r: 128}", "any: {B_r: 256, B_c: 128, n_warps: 8}"),
        8,
        f"{LARGE}rtx3090: expected at most 101376 bytes of shared memory per CTA, as RTX 3090 has, found 131072",
    ),
    "registers_of_an_h200": (
        step("a100: {B_r: 128}", "h200: {B_r: 256, B_c: 256, n_warps: 8}"),
        8,
        f"{LARGE}h200: expected at most 65536 registers per CTA for O and S, as H200 has, found 98304",
    ),
    "negative_tile": (
        step("{B_r: 128}", "{B_r: -64}"),
        8,
        "bad value for 'configs.a100.B_r': expected greater than 0, found -64",
    ),
    "buffer_as_number": (
        step("{B_r: 128}", "{double_buffer: 1}"),
        8,
        "bad value for 'configs.a100.double_buffer': expected true or false, found 1",
    ),
}
