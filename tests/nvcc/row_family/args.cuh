// What the host hands to a kernel of the family: lengths first, then strides in bytes, then pointers.
#pragma once

#include <cstdint>

namespace rows {

struct Args {
    int seq_len;
    int n_heads;
    std::int64_t strides[4][3];  // of q, k, v, o: sample, position, head
    const void *q, *k, *v;
    void *o;
};

}  // namespace rows
