// Prints the launch that a family's `plan.cpp` makes of the tensors on the command line.
#include <cuda_runtime_api.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include "host/launch.h"

using namespace flashladder;

extern "C" const char flashladder_namespace[] = "flashladder_20";

// A driver that encodes a map as the emulator does (emulator/src/ptxemu/machine/tensor_map.py), without its checksum.
static int encoded = 0;
static bool used = !std::getenv("FRESH_THREAD");  // whether this thread has a context of the driver

static int encode(void *map, unsigned type, unsigned rank, void *address, const std::uint64_t *dims,
                  const std::uint64_t *strides, const std::uint32_t *box, const std::uint32_t *every,
                  unsigned interleave, unsigned swizzle, unsigned promotion, unsigned fill) {
    if (!used)
        return 201;
    ++encoded;
    if (strides[0] % 16)
        return 1;
    unsigned char *place = static_cast<unsigned char *>(std::memset(map, 0, 128)) + 8;
    const auto put = [&](std::uint64_t value, int size) {
        std::memcpy(place, &value, size);
        place += size;
    };
    put(reinterpret_cast<std::uint64_t>(address), 8);
    for (unsigned choice : {rank, type, swizzle, interleave, fill, promotion, 0u, 0u})
        put(choice, 1);
    for (unsigned i = 0; i < 5; ++i)
        put(dims[i] - 1, 4);
    place += 4;
    for (unsigned i = 0; i < 4; ++i)
        put(strides[i], 8);
    for (unsigned i = 0; i < 5; ++i)
        put(box[i], 2);
    for (unsigned i = 0; i < 5; ++i)
        put(every[i], 1);
    return 0;
}

extern "C" {
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult *state) {
    const bool known = !std::strcmp(name, "cuTensorMapEncodeTiled") && version >= 12000 && !std::getenv("OLD_DRIVER");
    *found = known ? reinterpret_cast<void *>(encode) : nullptr;
    *state = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
    used = true;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
const char *cudaGetErrorName(cudaError_t) {
    return "cudaSuccess";
}
}

// A problem is `numbers` numbers: a tile, four tensors, the shapes of Q and K, what a row says, and a device, which is
// multiprocessors and clusters of 2 to 8 CTAs at once. Then where the log-sum-exp goes, and of packed sequences whether
// a row takes them, where each begins in Q and K, and how many there are.
// Each is planned twice; a line of JSON shows the launch.
int main(int argc, char **argv) {
    constexpr int numbers = 42;
    for (int at = 1; at + numbers <= argc; at += numbers) {
        long long n[numbers];
        for (int i = 0; i < numbers; ++i)
            n[i] = std::atoll(argv[at + i]);
        const auto view = [&](int i) { return View{reinterpret_cast<void *>(n[i]), n[i + 1], n[i + 2], n[i + 3]}; };
        const auto own = [&](int i) { return static_cast<int>(n[25 + i]); };
        const KernelRow row{"",
                            n[23] ? "bf16" : "fp16",
                            static_cast<int>(n[0]),
                            static_cast<int>(n[1]),
                            128,
                            128,
                            0,
                            80,
                            0,
                            nullptr,
                            0,
                            0,
                            0,
                            0,
                            static_cast<int>(n[24]),
                            static_cast<int>(n[38]),
                            0,
                            {own(0), own(1), own(2), own(3)}};
        const Device device{static_cast<int>(n[29]), [&](int ctas) { return static_cast<int>(n[28 + ctas]); }};
        const Problem problem{view(2),
                              view(6),
                              view(10),
                              view(14),
                              n[18],
                              n[19],
                              n[20],
                              n[21],
                              n[22],
                              1 / std::sqrt(128.0),
                              reinterpret_cast<float *>(n[37]),
                              reinterpret_cast<const std::int32_t *>(n[39]),
                              reinterpret_cast<const std::int32_t *>(n[40]),
                              n[41]};
        const int before = encoded;
        try {
            plan(row, problem, device);
        } catch (const std::exception &error) {
            std::printf("%s\n", error.what());
            return 3;
        }
        const int made = encoded - before;
        const Launch found = plan(row, problem, device);
        if (encoded != before + made)
            return 4;  // the second plan must reuse its maps
        std::printf("{\"encoded\": %d, \"grid\": [%u, %u, %u], \"cluster\": [%u, %u, %u], ", made, found.grid.x,
                    found.grid.y, found.grid.z, found.cluster.x, found.cluster.y, found.cluster.z);
        std::printf("\"resident\": %s, \"bytes\": \"", found.resident ? "true" : "false");
        for (const unsigned char byte : found.arguments)
            std::printf("%02x", byte);
        std::printf("\"}\n");
    }
}
