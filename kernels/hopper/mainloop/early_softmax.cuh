// Main loop `early_softmax` (iteration 30): a tile's first P is computed before O of the tile before is stored.
//
// In the slot that opens a tile, P V of the tile before is still in flight. Its end was waited for as soon as the row
// maxima were found, and the exponentials of the new tile's first block came after the store: nothing hid them. Now
// they come first, and that product runs meanwhile. The two orders differ in nothing else.
#pragma once

#include "hopper/mainloop/flattened.cuh"

namespace flashladder::hopper {

struct EarlySoftmax : OneLoop<true> {};

}  // namespace flashladder::hopper
