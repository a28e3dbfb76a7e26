"""A kernel of seven PTX instructions for tests of the linked view: a loop, a function inlined twice, odd text."""

from __future__ import annotations

from pathlib import Path

from flashladder.machine_code.sass import parse
from flashladder.view.linked import Linked, ptx_rows

DATA = Path(__file__).parents[2] / "data"
UNIT = (
    "// </script><script>window.hacked = 1</script>",
    "#include \"twice.cuh\"  // <b>bold</b> & 'quoted'",
    "void kernel(float* out) {",
    "    do { a = twice(b, c);",
    "    d = twice(a, c); }",
    "    while (more());",
    "}",
)
TWICE = ("float twice(float x, float y) {", "    return x * y;", "}")
PTX = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry flash_fwd_kernel(
    .param .u64 p0
)
{
    .reg .pred %p<2>;
    .reg .f32 %f<6>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    .loc 1 3 5
    ld.param.u64 %rd1, [p0];
    mov.u32 %r1, 0;
$L__BB0_1:
    .loc 1 4 5
    .loc 2 2 9, function_name $L__info_string0, inlined_at 1 4 5
    mul.f32 %f1, %f2, %f3; // the first
    .loc 1 5 5
    .loc 2 2 9, function_name $L__info_string0, inlined_at 1 5 5
    mul.f32 \t%f4, %f1, %f3;
    .loc 1 6 5
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $L__BB0_1;
    .loc 1 0 5
    ret;
}
    .file 1 "kernel.cu"
    .file 2 "kernels/twice.cuh"
"""
SASS = """\
.section .text.flash_fwd_kernel,"ax",@progbits
        /*0000*/   MOV R1, c[0x0][0x28] ;
        /*0010*/   IMAD.MOV.U32 R2, RZ, RZ, RZ ;
.L_x_0:
        /*0020*/   FMUL.FTZ R4, R2, R3 ;
        /*0030*/   FMUL.FTZ R5, R4, R3 ;
        /*0040*/   MOV R6, R5 ;
        /*0050*/   ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0060*/   @P0 BRA `(.L_x_0) ;
        /*0070*/   EXIT ;
"""
MADE_FROM = (None, 1, 2, 3, 3, 4, 5, 6)


def toy(key: str = "8", unit: tuple[str, ...] = UNIT) -> Linked:
    """The kernel, as if compiled."""
    return Linked(
        key=key,
        config="<i>(FP16)</i>",
        arch="sm_80",
        sources={"kernel.cu": unit, "kernels/twice.cuh": TWICE},
        ptx=ptx_rows(PTX, "toy.ptx"),
        sass=parse(SASS),
        made_from=MADE_FROM,
        digests={"PTX": "ab" * 32, "machine code": "cd" * 32},
    )
