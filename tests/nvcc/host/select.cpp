// Prints, for each compute capability, dtype, mask and packing, the default configuration. The test appends a table of
// kernels.
#include <cstdio>
#include <cstdlib>
#include "host/checks.h"

int main(int argc, char **argv) {
    for (int at = 1; at + 3 < argc; at += 4) {
        flashladder::TensorFacts q{};
        q.dtype = argv[at + 1];
        flashladder::Extras extras{};
        extras.causal = std::atoi(argv[at + 2]) != 0;
        if (std::atoi(argv[at + 3]))
            extras.bounds = {q, q};
        try {
            std::puts(flashladder::select_row("", q, std::atoi(argv[at]), extras).config);
        } catch (const std::exception &error) {
            std::puts(error.what());
        }
    }
}
