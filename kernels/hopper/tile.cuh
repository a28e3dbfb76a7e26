// What a scheduler hands out: B_r rows of O, of one head of one sample.
#pragma once

namespace flashladder::hopper {

struct Tile {
    int q_block;
    int head;
    int batch;
};

}  // namespace flashladder::hopper
