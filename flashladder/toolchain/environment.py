"""What a compiler's process sees of the caller's environment.

Why: settings of a CUDA install on the machine must not reach a compiler that came with a wheel, and messages that are
read by program must be in English. Nothing to run here.
"""

from __future__ import annotations

import os
from pathlib import Path

FOREIGN_ENV = (
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS"),
)


def clean_environment(scratch: Path) -> dict[str, str]:
    """The caller's environment without foreign CUDA settings, in English, with temporary files in `scratch`."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_ENV}
    return kept | {"LC_ALL": "C", "TMPDIR": str(scratch.resolve())}
