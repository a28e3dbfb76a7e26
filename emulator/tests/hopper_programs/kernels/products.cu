// What it is: chains and groups of tile products: operands in registers, groups in flight, two warpgroups.
// Why: a wgmma goes on behind the program's back, and only fences, commits and waits say how far it is.
// Run: pytest tests/nvcc/test_hopper_programs.py -k products

#include "wgmma.cuh"

constexpr int TILE_BYTES = 64 * 64 * 2;

// Four k-steps of A from registers. The host gives A row by row, B as an image.
extern "C" __global__ void __launch_bounds__(128) a_in_registers(float *out, const uint32_t *a, const void *b) {
    __shared__ __align__(1024) unsigned char tile[TILE_BYTES];
    copy_image(tile, b, TILE_BYTES);
    fence_async();
    __syncthreads();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4;
    uint32_t fragment[4][4];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        fragment[i / 4][i % 4] = a[(row + i % 2 * 8) * 32 + 8 * (i / 4) + i / 2 % 2 * 4 + column];
        asm volatile("" : "+r"(fragment[i / 4][i % 4])::"memory");
    }
    float d[32] = {};
    pin(d);
    fence_registers();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        PRODUCT_A_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0", "+f", d, fragment[k], along(tile, k), k > 0);
    }
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}

// The fragment of A changes between two groups: not before the wait of the first.
extern "C" __global__ void __launch_bounds__(128) registers_again(float *out, const void *b) {
    __shared__ __align__(1024) unsigned char tile[TILE_BYTES];
    copy_image(tile, b, TILE_BYTES);
    fence_async();
    __syncthreads();
    uint32_t pairs[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};  // 1, 1
    float d[32] = {};
    pin(pairs);
    pin(d);
    fence_registers();
    PRODUCT_A_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0", "+f", d, pairs, along(tile, 0), 0);
    commit_products();
    wait_products<0>();
    pin(pairs);
    for (int i = 0; i < 4; ++i) {
        pairs[i] += threadIdx.x % 2 ? 0x04000400 : 0;  // 2, 2 in odd threads
    }
    pin(pairs);
    pin(d);
    fence_registers();
    PRODUCT_A_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0", "+f", d, pairs, along(tile, 1), 1);
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}

// Two groups on two tiles of registers; the first is used while the second may still run.
extern "C" __global__ void __launch_bounds__(128) two_in_flight(float *out, const void *a, const void *b) {
    __shared__ __align__(1024) unsigned char tile_a[TILE_BYTES], tile_b[2 * TILE_BYTES];
    copy_image(tile_a, a, TILE_BYTES);
    copy_image(tile_b, b, 2 * TILE_BYTES);
    fence_async();
    __syncthreads();
    float first[32] = {}, second[32] = {};
    pin(first);
    pin(second);
    fence_registers();
    multiply(first, tile_a, tile_b, false);
    commit_products();
    multiply(second, tile_a, tile_b + TILE_BYTES, false);
    commit_products();
    wait_products<1>();
    pin(first);
    write_tile(out, first);
    wait_products<0>();
    pin(second);
    write_tile(out + 64 * 64, second);
}

// Each warpgroup multiplies its own 64 rows of A with the B that both share.
extern "C" __global__ void __launch_bounds__(256) two_warpgroups(float *out, const void *a, const void *b) {
    extern __shared__ __align__(1024) unsigned char tiles[];
    copy_image(tiles, a, 2 * TILE_BYTES);
    copy_image(tiles + 2 * TILE_BYTES, b, TILE_BYTES);
    fence_async();
    __syncthreads();
    const int group = threadIdx.x / 128;
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tiles + group * TILE_BYTES, tiles + 2 * TILE_BYTES, false);
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out + group * 64 * 64, d);
}

// B is overwritten by the next one, between a wait and a fence of the proxies.
extern "C" __global__ void __launch_bounds__(128) operand_again(float *out, const void *a, const void *b, int rounds) {
    __shared__ __align__(1024) unsigned char tile_a[TILE_BYTES], tile_b[TILE_BYTES];
    copy_image(tile_a, a, TILE_BYTES);
    float d[32] = {};
    for (int round = 0; round < rounds; ++round) {
        copy_image(tile_b, static_cast<const char *>(b) + round * TILE_BYTES, TILE_BYTES);
        fence_async();
        __syncthreads();
        pin(d);
        fence_registers();
        multiply(d, tile_a, tile_b, true);
        commit_products();
        wait_products<0>();
        pin(d);
        __syncthreads();
    }
    write_tile(out, d);
}

// Two chained products, as in attention: S = A B^T, then S B with S rounded to halves as the A of the second. B is read
// once along its rows and once across them.
extern "C" __global__ void __launch_bounds__(128) chained(float *out, const void *a, const void *b) {
    __shared__ __align__(1024) unsigned char tile_a[TILE_BYTES], tile_b[TILE_BYTES];
    copy_image(tile_a, a, TILE_BYTES);
    copy_image(tile_b, b, TILE_BYTES);
    fence_async();
    __syncthreads();
    float s[32] = {}, d[32] = {};
    pin(s);
    fence_registers();
    multiply(s, tile_a, tile_b, false);
    commit_products();
    wait_products<0>();
    pin(s);
    uint32_t p[4][4];
    as_operand(p, s);
    for (int k = 0; k < 4; ++k) {
        pin(p[k]);
    }
    pin(d);
    fence_registers();
    multiply_across(d, p, tile_b, false);
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}
