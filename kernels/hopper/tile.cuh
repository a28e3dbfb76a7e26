// What a scheduler hands out: B_r rows of O, of one head of one sample; where it splits them, some of their blocks.
#pragma once

namespace flashladder::hopper {

struct Tile {
    int q_block;
    int head;
    int batch;
};

// Blocks of K and V by the order in which a tile's are visited: from `first` to the one before `end`.
struct Visits {
    int first;
    int end;
};

}  // namespace flashladder::hopper
