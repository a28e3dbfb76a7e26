// What it is: wgmma without its fences and waits, with wrong descriptors, and without all of its warps.
// Why: the assembler mends some of this and the chip hides the rest; nothing of it may be relied on.
// BROKEN marks the instruction that is reported. FIXED = true is the same kernel done right.
// Run: pytest tests/broken/test_hopper.py

#include "../../../../emulator/tests/hopper_programs/kernels/wgmma.cuh"
#include "../../kernels/pair.cuh"

constexpr int TILE_BYTES = 64 * 64 * 2;
#define TILES __shared__ __align__(1024) unsigned char tile_a[TILE_BYTES], tile_b[TILE_BYTES]

__device__ inline void fill(unsigned char *tile_a, unsigned char *tile_b, const void *a, const void *b) {
    copy_image(tile_a, a, TILE_BYTES);
    copy_image(tile_b, b, TILE_BYTES);
    fence_async();
    __syncthreads();
}

template <bool FIXED>
__global__ void no_fence(float *out, const void *a, const void *b) {
    TILES;
    fill(tile_a, tile_b, a, b);
    float d[32] = {};
    pin(d);
    if (FIXED) {
        fence_registers();
    }
    multiply(d, tile_a, tile_b, true);  // BROKEN no_fence
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}
PAIR(no_fence);

template <bool FIXED>
__global__ void no_wait(float *out, const void *a, const void *b) {
    TILES;
    fill(tile_a, tile_b, a, b);
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tile_a, tile_b, true);
    commit_products();
    if (FIXED) {
        wait_products<0>();
    }
    pin(d);
    write_tile(out, d);  // BROKEN no_wait
    wait_products<0>();
}
PAIR(no_wait);

template <bool FIXED>
__global__ void one_may_be_left(float *out, const void *a, const void *b) {
    TILES;
    fill(tile_a, tile_b, a, b);
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tile_a, tile_b, true);
    commit_products();
    if (FIXED) {
        wait_products<0>();
    } else {
        wait_products<1>();  // and it is this one
    }
    pin(d);
    write_tile(out, d);  // BROKEN one_may_be_left
    wait_products<0>();
}
PAIR(one_may_be_left);

template <bool FIXED>
__global__ void no_commit(float *out, const void *a, const void *b) {
    TILES;
    fill(tile_a, tile_b, a, b);
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tile_a, tile_b, true);
    if (FIXED) {
        commit_products();
    }
    wait_products<0>();
    pin(d);
    write_tile(out, d);  // BROKEN no_commit
    commit_products();
    wait_products<0>();
}
PAIR(no_commit);

template <bool FIXED>
__global__ void operand_overwritten(float *out, const void *b) {
    __shared__ __align__(1024) unsigned char tile[TILE_BYTES];
    copy_image(tile, b, TILE_BYTES);
    fence_async();
    __syncthreads();
    uint32_t pairs[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
    float d[32] = {};
    pin(pairs);
    pin(d);
    fence_registers();
    PRODUCT_A_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0", "+f", d, pairs, along(tile, 0), 0);
    commit_products();
    if (FIXED) {
        wait_products<0>();
    }
    for (int i = 0; i < 4; ++i) {
        asm volatile("mov.b32 %0, 0x40004000;" : "+r"(pairs[i]));  // BROKEN operand_overwritten
    }
    wait_products<0>();
    pin(d);
    fence_registers();
    PRODUCT_A_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0", "+f", d, pairs, along(tile, 1), 1);
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}
PAIR(operand_overwritten);

// The tile that a product reads is filled anew before the wait.
template <bool FIXED>
__global__ void tile_overwritten(float *out, const void *a, const void *b) {
    TILES;
    fill(tile_a, tile_b, a, b);
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tile_a, tile_b, true);
    commit_products();
    if (FIXED) {
        wait_products<0>();
        __syncthreads();
    }
    reinterpret_cast<uint32_t *>(tile_b)[threadIdx.x] = 0;  // BROKEN tile_overwritten
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}
PAIR(tile_overwritten);

template <bool FIXED>
__global__ void tile_without_proxy_fence(float *out, const void *a, const void *b) {
    TILES;
    copy_image(tile_a, a, TILE_BYTES);
    copy_image(tile_b, b, TILE_BYTES);
    if (FIXED) {
        fence_async();
    }
    __syncthreads();
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tile_a, tile_b, true);  // BROKEN tile_without_proxy_fence
    commit_products();
    wait_products<0>();
    pin(d);
    write_tile(out, d);
}
PAIR(tile_without_proxy_fence);

// Descriptors that say something else than how the tiles lie: the numbers are wrong, nothing else shows.
#define DESCRIBED(NAME, WRONG)                                                                         \
    template <bool FIXED>                                                                              \
    __global__ void NAME(float *out, const void *a, const void *b) {                                   \
        TILES;                                                                                         \
        fill(tile_a, tile_b, a, b);                                                                    \
        float d[32] = {};                                                                              \
        pin(d);                                                                                        \
        fence_registers();                                                                             \
        const uint64_t described = FIXED ? along(tile_b, 0) : WRONG;                                   \
        PRODUCT_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0, 0", "+f", d, along(tile_a, 0), described, 0); \
        commit_products();                                                                             \
        wait_products<0>();                                                                            \
        pin(d);                                                                                        \
        write_tile(out, d);                                                                            \
    }                                                                                                  \
    PAIR(NAME)

DESCRIBED(wrong_swizzle, descriptor(shared_address(tile_b), 16, 1024, 2));     // BROKEN wrong_swizzle
DESCRIBED(wrong_stride, descriptor(shared_address(tile_b), 16, 512, 1));       // BROKEN wrong_stride
DESCRIBED(wrong_leading, descriptor(shared_address(tile_b), 128, 1024, 0));    // BROKEN wrong_leading
DESCRIBED(wrong_start, descriptor(shared_address(tile_b) + 32, 16, 1024, 1));  // BROKEN wrong_start
