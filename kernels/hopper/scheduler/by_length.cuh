// Scheduler `by_length` (iteration 33): tiles of packed sequences, those of the longest sequences first.
//
// Only the device knows the lengths. The producer's warp finds its CTA's tiles itself, 32 sequences at a time: a lane
// counts the tiles of one sequence, and a sum over the warp numbers them. Sequences are visited in classes of length,
// from the longest on, four classes to a power of two. Rounds of tiles go over the CTAs forwards and backwards in turn:
// where one CTA got a longer tile, it gets a shorter one next. Under a causal mask a long and a short tile of a head
// are handed out together, as in `paired`. No counter in memory: two runs compute the same tiles in the same CTAs.
#pragma once

#include <cstdint>

#include "hopper/args.cuh"
#include "hopper/tile.cuh"
#include "ptx/math.cuh"
#include "ptx/roles.cuh"

namespace flashladder::hopper {

struct ByLength {
    static constexpr bool several = true;  // tiles of one CTA

    __device__ __forceinline__ explicit ByLength(const HopperArgs &) {}

    // What the producer's warp keeps. All of its lanes call every member.
    template <typename Cta>
    struct Sequences {
        using G = typename Cta::G;
        static constexpr std::uint32_t all_lanes = 0xffffffffu;
        static constexpr int above_all = 1 << 30;  // a class that no sequence is in

        const HopperArgs &args;
        int round = 0;
        int at = static_cast<int>(blockIdx.x);  // number of this CTA's tile, or pair of tiles, among all
        int level = above_all;                  // class that is visited; -1: there is no tile left
        int below = -1;                         // this lane's next lower class, of the sequences seen so far
        int first = 0;                          // of the 32 sequences that are looked at
        int before = 0;                         // tiles or pairs that were numbered before them
        int numbered;                           // of this lane's sequence and of the lanes before it, in the class
        int sequence;                           // that the CTA's tile is of
        int number;                             // of the tile, or pair, within the sequence
        bool second = false;                    // the short tile of a pair
        bool alone = false;                     // the tile has no other one in its pair

        __device__ __forceinline__ explicit Sequences(const HopperArgs &arguments) : args(arguments) {
            look();
            seek();
        }

        __device__ __forceinline__ bool valid() const { return level >= 0; }

        __device__ __forceinline__ SequenceTile tile() {
            const int q_end = args.cu_q[sequence + 1], q_len = q_end - args.cu_q[sequence];
            const int kv_end = args.cu_kv[sequence + 1], kv_len = kv_end - args.cu_kv[sequence];
            const int blocks = of_q(q_len), head = number / per_head(blocks), place = number % per_head(blocks);
            const int other = blocks - 1 - place;
            alone = !Cta::causal || place == other;
            const int block = Cta::causal && !second ? other : place;
            const Tile tile = {kPackedEnd - q_len + block * G::B_r, head, q_end};
            return {tile, block, q_len, kv_len, kv_end};
        }

        // After `tile`.
        __device__ __forceinline__ void next() {
            second = !second && !alone;
            if (!second) {
                const int ctas = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
                ++round;
                at = round * ctas + (round % 2 ? ctas - 1 - own : own);
                seek();
            }
        }

      private:
        static __device__ __forceinline__ int of_q(int rows) { return (rows + G::B_r - 1) / G::B_r; }
        static __device__ __forceinline__ int per_head(int blocks) { return Cta::causal ? (blocks + 1) / 2 : blocks; }

        // The class of sequences with so many blocks of keys, at least 1: a power of two, and the two bits after it.
        static __device__ __forceinline__ int class_of(int blocks) {
            const int power = 31 - __clz(blocks);
            return 4 * power + (((blocks << 2) >> power) & 3);
        }

        // The lengths of 32 sequences, and numbers for the tiles of those in the class.
        __device__ __forceinline__ void look() {
            const int lane = static_cast<int>(threadIdx.x % kWarp), one = first + lane;
            int q_len = 0, kv_len = 0;
            if (one < args.batch) {
                q_len = args.cu_q[one + 1] - args.cu_q[one];
                kv_len = args.cu_kv[one + 1] - args.cu_kv[one];
            }
            const int own = q_len > 0 ? class_of(max((kv_len + G::B_c - 1) / G::B_c, 1)) : -1;
            below = max(below, own < level ? own : -1);
            numbered = own == level ? per_head(of_q(q_len)) * args.n_heads : 0;
#pragma unroll
            for (int step = 1; step < kWarp; step *= 2) {
                const int others = __shfl_up_sync(all_lanes, numbered, step);
                numbered += lane >= step ? others : 0;
            }
        }

        // Goes on to the 32 sequences, and the class, that the CTA's tile is of.
        __device__ __forceinline__ void seek() {
            while (level >= 0) {
                const int found = __shfl_sync(all_lanes, numbered, kWarp - 1);
                if (at < before + found) {
                    const int lane = __popc(__ballot_sync(all_lanes, numbered <= at - before));
                    const int others = __shfl_sync(all_lanes, numbered, max(lane - 1, 0));
                    sequence = first + lane;
                    number = at - before - (lane > 0 ? others : 0);
                    return;
                }
                before += found;
                first += kWarp;
                if (first >= args.batch) {
                    level = __reduce_max_sync(all_lanes, below);
                    below = -1;
                    first = 0;
                }
                look();
            }
        }
    };
};

}  // namespace flashladder::hopper
