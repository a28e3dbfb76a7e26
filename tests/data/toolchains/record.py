"""Records what the tools of two CUDA versions print, for the tests of their readers.

Compilers are those of configs/toolchain.yaml. 13.0 has no wheel of nvdisasm and cuobjdump, so the pinned 13.2.86 reads
its cubins; a folder with wheels of nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump 13.3.73 reads 13.3's:

    python -m tests.data.toolchains.record 13.0 && python -m tests.data.toolchains.record 13.3 --readers readers
"""

from __future__ import annotations

import argparse
from pathlib import Path
import tempfile
import zipfile

from flashladder.build.wheel import toolchain_of
from flashladder.tool_runs import run_tool
from flashladder.toolchain import find_toolchain, host_compiler, load_pins

HERE = Path(__file__).parent
SOURCES = {"tiny": HERE.parent / "tiny.cu", "variety": HERE / "variety.cu"}
MODES = {"release": ["-lineinfo"], "spills": ["-maxrregcount=32"], "debug": ["-g", "-O0"]}
READERS = (
    ("sass", "nvdisasm", ("-c", "-g", "-ndf")),
    ("hex", "nvdisasm", ("-c", "-hex")),
    ("usage", "cuobjdump", ("-res-usage",)),
)
LISTED = ("sm_80", "sm_90")  # of which listings are kept


def record(cuda: str, readers: Path) -> None:
    """Writes what the tools of one CUDA version print to its archive."""
    pins = load_pins()
    tools = toolchain_of(pins.axis(cuda))
    kept: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)

        def run(*command: object) -> str:
            code, text = run_tool([str(word) for word in command], scratch, scratch)
            assert code == 0, text
            return text

        for stem, source in SOURCES.items():
            (scratch / f"{stem}.cu").write_bytes(source.read_bytes())
            flags = ["-ptx", "-arch=compute_80", "-lineinfo", "-std=c++17", "-ccbin", host_compiler()]
            run(tools.nvcc, *flags, f"-I{tools.root}/include", f"{stem}.cu")
            ptx = scratch / f"{stem}.ptx"
            text = ptx.read_text().replace(str(scratch) + "/", "").replace(str(tools.root), "cuda")
            ptx.write_text(text)
            kept[f"{stem}.ptx"] = text.encode()
            for mode, own in MODES.items():
                for arch in pins.arches:
                    made = f"{stem}.{arch}.cubin"
                    log = run(tools.ptxas, f"-arch={arch}", "-v", *own, f"{stem}.ptx", "-o", made)
                    kept[f"{stem}.{arch}.{mode}.log"] = log.encode()
                    if mode == "release" and arch in LISTED:
                        kept[made] = (scratch / made).read_bytes()
                        for ending, tool, options in READERS:
                            kept[f"{stem}.{arch}.{ending}"] = run(readers / tool, *options, made).encode()
    with zipfile.ZipFile(HERE / f"{cuda}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(kept):
            archive.writestr(zipfile.ZipInfo(name), kept[name], zipfile.ZIP_DEFLATED)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cuda", help="CUDA version of the compiler, 13.0 or 13.3")
    parser.add_argument("--readers", type=Path, help="where nvdisasm and cuobjdump are (default: the pinned)")
    options = parser.parse_args()
    installed = options.readers / "nvidia" / "cu13" if options.readers else find_toolchain().root
    record(options.cuda, installed.resolve() / "bin")


if __name__ == "__main__":
    main()
