// What it is: one tile product (wgmma) each, with operands of one shape, type and layout in shared memory.
// Why: the host lays the operands out and says where; what is wrong with a descriptor, a swizzle or a major shows.
// Run: pytest tests/nvcc/test_hopper_programs.py -k tiles

#include "wgmma.cuh"

// The two operands as images of shared memory, and how descriptors go through them.
struct Operands {
    const void *a, *b;
    int a_bytes, b_bytes;
    unsigned long long a_bits, b_bits;  // of the descriptors, without the addresses
    int a_steps[4], b_steps[4];         // where the k-steps begin, in bytes
};

// A kernel that multiplies and adds up STEPS k-steps. PRODUCT: PRODUCT_R4 and so on, for REGISTERS registers of T.
#define TILE(NAME, T, BOUND, REGISTERS, PRODUCT, STEPS, TEXT, REST)                                           \
    extern "C" __global__ void __launch_bounds__(128) NAME(T *out, const Operands given, int first_scale) {   \
        __shared__ __align__(1024) unsigned char tile_a[8192], tile_b[32768];                                 \
        copy_image(tile_a, given.a, given.a_bytes);                                                           \
        copy_image(tile_b, given.b, given.b_bytes);                                                           \
        fence_async();                                                                                        \
        __syncthreads();                                                                                      \
        T d[REGISTERS];                                                                                       \
        for (int i = 0; i < REGISTERS; ++i) {                                                                 \
            d[i] = 1;                                                                                         \
        }                                                                                                     \
        pin(d);                                                                                               \
        fence_registers();                                                                                    \
        _Pragma("unroll") for (int k = 0; k < STEPS; ++k) {                                                   \
            const uint64_t a = given.a_bits + descriptor(shared_address(tile_a) + given.a_steps[k], 0, 0, 0); \
            const uint64_t b = given.b_bits + descriptor(shared_address(tile_b) + given.b_steps[k], 0, 0, 0); \
            PRODUCT(TEXT, REST, BOUND, d, a, b, k > 0 || first_scale);                                        \
        }                                                                                                     \
        commit_products();                                                                                    \
        wait_products<0>();                                                                                   \
        pin(d);                                                                                               \
        write_tile(out, d);                                                                                   \
    }

TILE(n8_f16, float, "+f", 4, PRODUCT_R4, 4, "m64n8k16.f32.f16.f16", ", 1, 1, 0, 0")
TILE(n24_bf16, float, "+f", 12, PRODUCT_R12, 4, "m64n24k16.f32.bf16.bf16", ", 1, 1, 0, 0")
TILE(n32_f16, float, "+f", 16, PRODUCT_R16, 4, "m64n32k16.f32.f16.f16", ", 1, 1, 0, 0")
TILE(n64_f16, float, "+f", 32, PRODUCT_R32, 4, "m64n64k16.f32.f16.f16", ", 1, 1, 0, 0")
TILE(n64_f16_tb, float, "+f", 32, PRODUCT_R32, 4, "m64n64k16.f32.f16.f16", ", 1, 1, 0, 1")
TILE(n64_f16_ta, float, "+f", 32, PRODUCT_R32, 4, "m64n64k16.f32.f16.f16", ", 1, 1, 1, 0")
TILE(n64_bf16_tt, float, "+f", 32, PRODUCT_R32, 4, "m64n64k16.f32.bf16.bf16", ", 1, 1, 1, 1")
TILE(n64_minus_a, float, "+f", 32, PRODUCT_R32, 4, "m64n64k16.f32.f16.f16", ", -1, 1, 0, 0")
TILE(n64_minus_b, float, "+f", 32, PRODUCT_R32, 4, "m64n64k16.f32.bf16.bf16", ", 1, -1, 0, 0")
TILE(n128_f16, float, "+f", 64, PRODUCT_R64, 4, "m64n128k16.f32.f16.f16", ", 1, 1, 0, 0")
TILE(n256_bf16, float, "+f", 128, PRODUCT_R128, 2, "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0")
TILE(n64_halves, uint32_t, "+r", 16, PRODUCT_R16, 4, "m64n64k16.f16.f16.f16", ", 1, 1, 0, 0")
TILE(n64_tf32, float, "+f", 32, PRODUCT_R32, 4, "m64n64k8.f32.tf32.tf32", ", 1, 1")
TILE(n64_e4m3, float, "+f", 32, PRODUCT_R32, 4, "m64n64k32.f32.e4m3.e4m3", ", 1, 1")
TILE(n64_s8, int, "+r", 32, PRODUCT_R32, 4, "m64n64k32.s32.s8.s8", "")
