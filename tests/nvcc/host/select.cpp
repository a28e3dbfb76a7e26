// Prints, for each compute capability, dtype and mask, the default configuration. The test appends a table of kernels.
#include <cstdio>
#include <cstdlib>
#include "host/checks.h"

int main(int argc, char **argv) {
    for (int at = 1; at + 2 < argc; at += 3) {
        flashladder::TensorFacts q{};
        q.dtype = argv[at + 1];
        try {
            std::puts(flashladder::select_row("", q, std::atoi(argv[at]), std::atoi(argv[at + 2]) != 0).config);
        } catch (const std::exception &error) {
            std::puts(error.what());
        }
    }
}
