// What a scheduler hands out: B_r rows of O, of one head of one sample; where it splits them, some of their blocks.
#pragma once

#include "hopper/args.cuh"

namespace flashladder::hopper {

struct Tile {
    int q_block;  // of a packed sequence: the row of the map at which the tile begins
    int head;
    int batch;  // of a packed sequence: the row after its last one
};

// A tile of a packed sequence (hopper/args.cuh).
struct SequenceTile {
    Tile tile;
    int q_block;  // within the sequence
    int q_len;    // of the sequence
    int kv_len;
    int kv_end;  // the row of K and V after its last key
};

// What the producer tells consumers of a tile where tiles differ in more than their place: 32 bytes beside Q's stage.
struct WorkTile {
    Tile tile;
    int blocks;   // of K and V that its rows see, at least 1; 0: no tile, this CTA has none at all
    int reach;    // keys that its first row sees: below 1 where it sees none, beyond the last key where it sees all
    int is_last;  // 1: this CTA computes no other tile after it
    int valid;    // without a mask: keys of the block that is visited first
    int unused;
};
static_assert(sizeof(WorkTile) == 32, "two vectors of 16 bytes");

// Blocks of K and V by the order in which a tile's are visited: from `first` to the one before `end`.
struct Visits {
    int from;
    int to;

    __device__ __forceinline__ int first() const { return from; }
    __device__ __forceinline__ int end() const { return to; }
};

// All of a tile's; how many that is needs no register, as the launch's arguments tell it wherever it is asked for.
struct AllVisits {
    const HopperArgs &args;

    static __device__ __forceinline__ int first() { return 0; }
    __device__ __forceinline__ int end() const { return args.n_kv_blocks; }
};

// Those of a CTA: all of a tile, or its part where the scheduler splits tiles.
template <typename Scheduler, bool splits>
__device__ __forceinline__ auto visits_of(const HopperArgs &args) {
    if constexpr (splits) {
        return Scheduler::visits(args);
    } else {
        return AllVisits{args};
    }
}

// Rows of the block that it visits first: of all, or those of a CTA whose part of the tile may begin with a whole one.
template <bool splits, typename Cta>
__device__ __forceinline__ int opening_rows(const Cta &cta) {
    if constexpr (splits) {
        return min(cta.args.seq_len - cta.first_row(cta.visits().first()), Cta::G::B_c);
    } else {
        return cta.last_rows();
    }
}

}  // namespace flashladder::hopper
