// K order `column_major` (iteration 1): the four matrices of K's ldmatrix.x4 in the order (n0,k0) (n1,k0) (n0,k1)
// (n1,k1).
//
// The B fragment of an n-tile, k 0-7 and k 8-15, is then registers r and r + 2: two that are not neighbours.
#pragma once

namespace flashladder {

struct ColumnMajor {
    // Row of the two n-tiles (0-15) and 16-byte unit of the k-tile (0, 1) whose address a lane gives to ldmatrix.
    static __device__ __forceinline__ int row(int lane) { return lane % 16; }
    static __device__ __forceinline__ int unit(int lane) { return lane / 16; }

    // Registers of the ldmatrix that hold k 0-7 and k 8-15 of n-tile `n`.
    static __device__ constexpr int first(int n) { return n % 2; }
    static __device__ constexpr int second(int n) { return n % 2 + 2; }
};

}  // namespace flashladder
