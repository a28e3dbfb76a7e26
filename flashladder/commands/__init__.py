"""What a person can ask for: every command with its options, their help, choices and defaults, each here alone.

``invoke`` shows them; `rows` holds them, `on_cpu` those that run PTX on this CPU.
"""

from flashladder.commands.rows import (
    A_RESULT_FILE,
    BACKENDS,
    COMMANDS,
    DTYPE,
    KEYS,
    ONE_NUMBER,
    OUT,
    PUBLISHED_KEYS,
    SEVERAL_DTYPES,
    SEVERAL_KEYS,
    STATIONS,
)

__all__ = [
    "A_RESULT_FILE",
    "BACKENDS",
    "COMMANDS",
    "DTYPE",
    "KEYS",
    "ONE_NUMBER",
    "OUT",
    "PUBLISHED_KEYS",
    "SEVERAL_DTYPES",
    "SEVERAL_KEYS",
    "STATIONS",
]
