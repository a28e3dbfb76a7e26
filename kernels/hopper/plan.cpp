// How a kernel of this family is launched: a CTA per block of rows, head and sample, and four tensor maps.
//
// A map is 128 bytes that only the driver can write (CUDA Driver API 13.0, 6.30). Its function is asked for through the
// runtime, so that the library links no driver and loads on a machine without one. Encoding touches no GPU: it is
// allowed while a graph is captured, and a map holds for as long as the tensor lies where it lay.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include "hopper/args.cuh"
#include "host/launch.h"

namespace flashladder {
namespace {

constexpr int axes = 5;              // 64 elements, positions, halves of d_head, heads, samples
constexpr std::uint32_t chunk = 64;  // elements of a row of a box: the 128 bytes within which it is swizzled
constexpr std::uint64_t chunk_bytes = 128;
constexpr std::size_t most_kept = 1024;       // maps, a few hundred bytes each
constexpr std::int64_t most_tiles = 1 << 30;  // a CTA counts them, and one round beyond, in 32 bits
constexpr int most_parts = 8;                 // CTAs of a cluster, the most that every GPU with clusters takes
constexpr int least_blocks = 2;               // KV blocks of a part
constexpr int least_saved = 4;                // KV blocks that no part has of a tile's

[[noreturn]] void fail(const std::string &message) {
    throw std::runtime_error(std::string(flashladder_namespace) + ": " + message);
}

// All that a map is encoded from: two tensors with equal ones share it.
struct MapKey {
    std::uint64_t address;
    std::array<std::uint64_t, axes> sizes;
    std::array<std::uint64_t, axes - 1> strides;  // bytes, of all axes but the first
    std::uint32_t rows;                           // of a box
    CUtensorMapDataType type;

    bool operator<(const MapKey &other) const {
        return std::tie(address, sizes, strides, rows, type) <
               std::tie(other.address, other.sizes, other.strides, other.rows, other.type);
    }
};

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state);
    if (error != cudaSuccess || state != cudaDriverEntryPointSuccess || found == nullptr) {
        cudaGetLastError();
        fail("the driver does not make tensor maps: expected cuTensorMapEncodeTiled of CUDA 12.0 or later, found " +
             std::string(cudaGetErrorName(error)) + "; update the driver");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
}

TensorMap encoded(const char *name, const MapKey &key) {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();  // tried again where it threw
    const bool halves = key.sizes[0] == chunk;                          // are an axis, and in one box
    const std::uint32_t box[axes] = {chunk, key.rows, halves ? static_cast<std::uint32_t>(key.sizes[2]) : 1, 1, 1};
    const std::uint32_t every[axes] = {1, 1, 1, 1, 1};
    alignas(128) CUtensorMap map;
    static_assert(sizeof(map) == sizeof(TensorMap), "what args.cuh has in its place");
    const auto attempt = [&] {
        return encode(&map, key.type, axes, reinterpret_cast<void *>(key.address), key.sizes.data(), key.strides.data(),
                      box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    CUresult error = attempt();
    if (error == CUDA_ERROR_INVALID_CONTEXT) {  // a thread that has not used the GPU yet
        int device = 0;
        if (cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess)
            error = attempt();
    }
    if (error != CUDA_SUCCESS) {
        std::string strides;
        for (const std::uint64_t stride : key.strides)
            strides += (strides.empty() ? "" : ", ") + std::to_string(stride);
        fail(std::string(name) + ": expected strides that a tensor map takes, found " + strides +
             " bytes, which the driver refuses (error " + std::to_string(error) + "); call .contiguous()");
    }
    TensorMap found;
    std::memcpy(&found, &map, sizeof(found));
    return found;
}

// The map of a tensor, from the cache where it was encoded before. Safe from several threads. Packed
// sequences have other axes (args.cuh).
TensorMap map_of(const char *name, const KernelRow &row, const View &view, std::int64_t length, std::int64_t heads,
                 std::int64_t batch, int rows) {
    static std::mutex mutex;
    static std::map<MapKey, TensorMap> kept;
    const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
    const std::array<std::uint64_t, axes> sizes{chunk, size(length), size(row.d_head) / chunk, size(heads),
                                                size(batch)};
    MapKey key{reinterpret_cast<std::uintptr_t>(view.data),
               sizes,
               {size(view.seq), chunk_bytes, size(view.head), size(view.batch)},
               static_cast<std::uint32_t>(rows),
               row.dtype == std::string("fp16") ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16};
    for (int axis = 1; axis < axes; ++axis) {
        if (sizes[axis] == 1)  // a stride that nobody takes may be anything in torch, and not in a map
            key.strides[axis - 1] = chunk_bytes;
    }
    if (row.packed) {
        const std::uint64_t rows_on = key.strides[0], head = key.strides[2], end = kPackedEnd;
        key.sizes = {size(row.d_head), end, size(heads), end + 1, size(length) + 1};
        key.strides = {rows_on, head, (std::uint64_t{1} << 34) - rows_on, rows_on};
    }
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = kept.find(key);
    if (found != kept.end())
        return found->second;
    const TensorMap made = encoded(name, key);
    if (kept.size() >= most_kept)
        kept.clear();
    return kept.emplace(key, made).first->second;
}

std::int32_t blocks(std::int64_t length, int size) {
    return static_cast<std::int32_t>((length + size - 1) / size);
}

// CTAs that share a tile's KV blocks: the least number with the shortest parts. What they do besides costs about as
// much as three blocks, and all clusters have to run at once.
int parts_of(std::int64_t tiles, std::int32_t kv_blocks, const Device &device) {
    int best = 1;
    for (int parts = 2; parts <= most_parts && tiles * parts <= device.multiprocessors; ++parts) {
        const std::int32_t longest = blocks(kv_blocks, parts);
        const bool pays = kv_blocks >= least_blocks * parts && kv_blocks - longest >= least_saved;
        if (pays && longest < blocks(kv_blocks, best) && tiles <= device.clusters_at_once(parts))
            best = parts;
    }
    return best;
}

}  // namespace

// own: rows of a box of Q, rows of a box of O, whether a CTA computes several tiles, whether several CTAs share a tile.
Launch plan(const KernelRow &row, const Problem &problem, const Device &device) {
    const auto of_queries = [&](const char *name, const View &view, int rows) {
        return map_of(name, row, view, problem.seq_len, problem.n_heads, problem.batch, rows);
    };
    const auto of_keys = [&](const char *name, const View &view) {
        return map_of(name, row, view, problem.kv_len, problem.n_kv_heads, problem.batch, row.B_c);
    };
    const HopperArgs args{of_queries("q", problem.q, row.own[0]),
                          of_keys("k", problem.k),
                          of_keys("v", problem.v),
                          of_queries("out", problem.out, row.own[1]),
                          scale_log2(problem.scale),
                          static_cast<std::int32_t>(problem.kv_len),
                          blocks(problem.kv_len, row.B_c),
                          blocks(problem.seq_len, row.B_r),
                          static_cast<std::int32_t>(problem.n_heads),
                          static_cast<std::int32_t>(row.packed ? problem.sequences : problem.batch),
                          static_cast<std::int32_t>(problem.seq_len),
                          static_cast<std::int32_t>(problem.n_heads / problem.n_kv_heads),
                          problem.lse,
                          problem.cu_q,
                          problem.cu_kv};
    const auto size = [](std::int64_t value) { return static_cast<unsigned int>(value); };
    if (row.own[2]) {
        const int at_once = row.causal ? 2 : 1;  // tiles that a CTA takes together: a long one and a short one
        const std::int64_t of_head = blocks(args.n_q_blocks, at_once) + problem.sequences;  // of packed ones at most
        const std::int64_t tiles = problem.batch * problem.n_heads * of_head;
        if (tiles > most_tiles)
            fail("q: expected at most " + std::to_string(most_tiles) + " blocks of " +
                 std::to_string(at_once * row.B_r) + " rows of all heads and samples, found " + std::to_string(tiles));
        const std::int64_t slots =
            (tiles + device.multiprocessors - 1) / device.multiprocessors * at_once * args.n_kv_blocks;
        if (slots > std::numeric_limits<std::int32_t>::max())
            fail("q: expected at most " + std::to_string(std::numeric_limits<std::int32_t>::max()) +
                 " blocks of K for one multiprocessor, found " + std::to_string(slots) + "; give it fewer positions");
        const int parts = row.own[3] ? parts_of(tiles, args.n_kv_blocks, device) : 1;
        return Launch(args, {size(tiles * parts), 1, 1}, {size(parts), 1, 1}, parts == 1);
    }
    return Launch(args, {size(args.n_q_blocks), size(problem.n_heads), size(problem.batch)});
}

}  // namespace flashladder
