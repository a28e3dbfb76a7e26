// Prints, for each compute capability and dtype, the default configuration. The test appends a table of kernels.
#include <cstdio>
#include <cstdlib>
#include "host/checks.h"

int main(int argc, char **argv) {
    for (int at = 1; at + 1 < argc; at += 2) {
        flashladder::TensorFacts q{};
        q.dtype = argv[at + 1];
        try {
            std::puts(flashladder::select_row("", q, std::atoi(argv[at])).config);
        } catch (const std::exception &error) {
            std::puts(error.what());
        }
    }
}
