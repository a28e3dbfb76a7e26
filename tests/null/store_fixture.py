"""A checkout in miniature whose compilers are shell scripts, for the tests of the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flashladder.build.store import CubinEntry, PtxEntry, Tools, cubin_entry, fill, prepare, ptx_entry
from flashladder.errors import FlashladderError

TEXT = '#include "sub/part.cuh"\nint unit;\n'
# The last argument is the output. The fake nvcc writes .file lines as the real one does: absolute, through "..".
NVCC = """for out; do :; done
echo x >> "$(dirname "$0")/nvcc.runs"
echo 'kernel.cu(3): warning #177-D: unused'
cat kernel.cu > "$out"
echo ".file 1 \\"$PWD/kernel.cu\\"" >> "$out"
echo ".file 2 \\"$PWD/../../kernels/sub/part.cuh\\"" >> "$out"
"""
PTXAS = """for out; do :; done
for arg; do case "$arg" in *.ptx) cat "$arg" > "$out";; esac; done
cat <<END
ptxas info    : Compiling entry function 'flash_fwd_kernel' for '${1#-arch=}'
ptxas info    : Function properties for flash_fwd_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 1.715 ms
END
"""


class Lab:
    """A checkout in miniature: kernels, a store, and tools that are shell scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kernels = root / "kernels"
        self.part = self.kernels / "sub" / "part.cuh"
        self.part.parent.mkdir(parents=True)
        self.part.write_text("// part\n")
        self.store = root / "store"
        self.tools = Tools(
            root=root / "cu13",
            nvcc=self.script("nvcc", NVCC),
            ptxas=self.script("ptxas", PTXAS),
            host_compiler=Path("/usr/bin/g++"),
            nvcc_flags=("-arch=compute_80", "-lineinfo"),
            ptxas_flags=("-v", "-lineinfo"),
            ptx_versions={"nvidia-cuda-nvcc": "13.0.88", "host compiler": "g++ 12"},
            ptxas_version="13.0.88",
        )

    def script(self, name: str, text: str) -> Path:
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def ptx(self, text: str = TEXT, **changes: object) -> PtxEntry:
        tools = dataclasses.replace(self.tools, **changes)  # type: ignore[arg-type]  # any field, by name
        return ptx_entry(text, self.kernels, [self.part], tools, self.store)

    def cubin(self, arch: str = "sm_80", **changes: object) -> CubinEntry:
        tools = dataclasses.replace(self.tools, **changes)  # type: ignore[arg-type]  # any field, by name
        return cubin_entry(self.ptx(), arch, tools, self.store)

    def build(self, entry: PtxEntry | CubinEntry) -> None:
        prepare(entry)
        fill(entry.folder)

    def nvcc_fails(self, text: str) -> FlashladderError:
        self.script("nvcc", text)
        with pytest.raises(FlashladderError) as caught:
            self.build(self.ptx())
        assert not self.ptx().is_complete
        assert not list(self.ptx().folder.glob("tmp-*"))
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2
        return caught.value

    def runs(self) -> int:
        return len((self.root / "bin" / "nvcc.runs").read_text().splitlines())
