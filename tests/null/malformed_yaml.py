"""Iteration files that are no YAML, or YAML that nobody should have to guess at: the line and what is said.

Each of the values at the end is read as something else by one YAML program or another: ``0200`` is 128 in YAML 1.1.
"""

from __future__ import annotations

from tests.null.malformed_templates import STEP, step

DIFFERENT = "a value that programs read differently: expected "
WHOLE = f"{DIFFERENT}a whole number in decimals, or text in quotes, found "
NUMBER = f"{DIFFERENT}a number such as 2000 or 0.25, or text in quotes, found "
TRUTH = f"{DIFFERENT}true, false, or text in quotes, found "
DEEP = "not valid YAML, it nests deeper than 24 levels"

# id: (content of 02_step.yaml, line, "what" with expected, found and hint as the message renders them)
YAML: dict[str, tuple[str, int, str]] = {
    "empty": ("", 1, "wrong content: expected a mapping of keys to values, found an empty file"),
    "only_a_comment": ("# nothing\n", 1, "wrong content: expected a mapping of keys to values, found an empty file"),
    "a_list": ("- 1\n- 2\n", 1, "wrong content: expected a mapping of keys to values, found list [1, 2]"),
    "a_word": ("\nswizzle\n", 2, "wrong content: expected a mapping of keys to values, found 'swizzle'"),
    "tab": (
        step("  layout: xor", "\tlayout: xor"),
        6,
        "not valid YAML, found character '\\t' that cannot start any token; indent with spaces, one key per line",
    ),
    "unclosed_brace": (step("{B_r: 128}", "{B_r: 128"), 9, "not valid YAML, expected ',' or '}', but got ':'"),
    "bad_indent": (step("title: Sw", " title: Sw"), 2, "not valid YAML, mapping values are not allowed here"),
    "two_documents": (STEP + "---\na: 1\n", 11, "not valid YAML, but found another document"),
    "alias": (step("rises}", "&r rises, SHF: *r}"), 10, "not valid YAML, an alias (*name) is not allowed"),
    "tag": (
        step("title: Swizzling", "title: !!python/object:os.system x"),
        2,
        "not valid YAML, could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'",
    ),
    "duplicate_key": (
        STEP + "title: Again\n",
        11,
        "duplicate key 'title': expected each key once, found it already on line 2",
    ),
    "duplicate_nested": (
        step("  layout: xor\n", "  layout: xor\n  layout: linear\n"),
        7,
        "duplicate key 'layout': expected each key once, found it already on line 6",
    ),
    "number_as_key": (step("change:\n", "3: 4\nchange:\n"), 5, "bad key: expected text, found 3"),
    "truth_value_as_key": (step("change:\n", "yes: 4\nchange:\n"), 5, "bad key: expected text, found yes"),
    "merge_key": (
        step("  a100:", "  <<: 1\n  a100:"),
        8,
        "bad key: expected text, found <<",
    ),
    "nested_500_deep": (step("layout: xor", "layout: " + "[" * 500 + "]" * 500), 6, DEEP),
    "nested_5000_deep_and_open": (step("layout: xor", "layout: " + "[" * 5000), 6, DEEP),
    "mappings_500_deep": (step("layout: xor", "layout: " + "{a: " * 500 + "1" + "}" * 500), 6, DEEP),
    "nested_by_indentation": (STEP + "x:\n" + "".join(f"{' ' * d}- \n" for d in range(1, 40)), 35, DEEP),
    "octal": (step("{B_r: 128}", "{B_r: 0200}"), 8, f"{WHOLE}0200"),
    "octal_of_yaml_1_2": (step("{B_r: 128}", "{B_r: 0o200}"), 8, f"{NUMBER}0o200"),
    "leading_zero": (step("{B_r: 128}", "{B_r: 0128}"), 8, f"{NUMBER}0128"),
    "sexagesimal": (step("{B_r: 128}", "{B_r: 2:08}"), 8, f"{WHOLE}2:08"),
    "sexagesimal_in_a_list": (step("{B_r: 128}", "{load_tiles: [2, 1:02, 2]}"), 8, f"{WHOLE}1:02"),
    "hexadecimal": (step("{B_r: 128}", "{B_r: 0x80}"), 8, f"{WHOLE}0x80"),
    "binary": (step("{B_r: 128}", "{B_r: 0b10000000}"), 8, f"{WHOLE}0b10000000"),
    "underscores": (step("layout: xor", "layout: xor\n  row_stride: 2_048"), 7, f"{WHOLE}2_048"),
    "exponent": (step("layout: xor", "layout: xor\n  row_stride: 2e3"), 7, f"{NUMBER}2e3"),
    "sexagesimal_fraction": (
        step("LOP3: rises", "LOP3: {falls: 0:0.5}"),
        10,
        f"{DIFFERENT}a number such as 0.25, or text in quotes, found 0:0.5",
    ),
    "date_as_title": (step("Swizzling", "2026-11-22"), 2, f"{DIFFERENT}text in quotes, found 2026-11-22"),
    "on_as_title": (step("Swizzling", "on"), 2, f"{TRUTH}on"),
    "number_as_truth_value": (step("parent: 1", "parent: yes"), 3, f"{TRUTH}yes"),
    "off_as_truth_value": (step("{B_r: 128}", "{double_buffer: off}"), 8, f"{TRUTH}off"),
    "True_as_truth_value": (step("{B_r: 128}", "{double_buffer: True}"), 8, f"{TRUTH}True"),
    "true_as_a_number": (
        step("parent: 1", "parent: true"),
        3,
        "bad value for 'parent': expected an integer, found true",
    ),
    "octal_in_quotes": (
        step("{B_r: 128}", '{B_r: "0200"}'),
        8,
        "bad value for 'configs.a100.B_r': expected an integer, found '0200'",
    ),
    "unicode_digits": (
        step("{B_r: 128}", "{B_r: １２８}"),
        8,
        "bad value for 'configs.a100.B_r': expected an integer, found '１２８'",
    ),
    "control_character": (
        step("Swizzling", "Swiz\x00zling"),
        1,
        (
            "not valid YAML, unacceptable character #x0000: special characters are not allowed in "
            '"<unicode string>", position 24'
        ),
    ),
    "escape_sequence_by_an_escape": (
        step("Swizzling", '"Swiz\\e[31mzling"'),
        2,
        "a character that cannot be shown: expected text, found U+001B",
    ),
    "direction_of_writing_by_an_escape": (
        step("Swizzling", '"Swiz\\u202Ezling"'),
        2,
        "a character that cannot be shown: expected text, found U+202E",
    ),
    "escape_in_a_key": (
        step("change:", '"chan\\x07ge":'),
        5,
        "a character that cannot be shown: expected text, found U+0007",
    ),
    "surrogate": (
        step("Swizzling", '"Swiz\\uD800zling"'),
        2,
        "a character that cannot be shown: expected text, found U+D800",
    ),
    "byte_order_mark_within": (
        step("Swizzling", "Swiz\ufeffzling"),
        2,
        "a character that cannot be shown: expected text, found U+FEFF",
    ),
}
