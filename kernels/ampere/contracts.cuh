// What a part of each concern must provide: the whole contract between the bodies and the parts, on one page.
//
// A body instantiates a part's contract before it uses the part, so that a member that is missing, misspelt or takes
// other arguments is one message that names concern and member; nvcc's next line names the part (`Part=`), and
// `invoke build` joins the two. C++17 without <type_traits>: nvcc's time for a kernel stays what it was
// (docs/decisions/015-kernels.md). Rows, units and bytes are int, shared addresses and offsets std::uint32_t.
#pragma once

#include <cstdint>

#include "ampere/softmax/rows.cuh"
#include "host/args.cuh"

namespace flashladder::contract {

struct Any;  // stands for what a part may only pass on: a CTA, a source of fragments

template <typename T>
T &made();  // never called

// has_name<Part>: whether the expression, a use of `Part`, compiles.
#define FLASHLADDER_USE(name, ...)            \
    template <typename Part, typename = void> \
    constexpr bool has_##name = false;        \
    template <typename Part>                  \
    constexpr bool has_##name<Part, decltype(static_cast<void>(__VA_ARGS__))> = true

FLASHLADDER_USE(offset, std::uint32_t{Part::template offset<64>(0, 0)});
FLASHLADDER_USE(row_bytes, static_cast<int (*)[Part::row_bytes]>(nullptr));
FLASHLADDER_USE(threads_per_row, static_cast<int (*)[Part::threads_per_row]>(nullptr));
FLASHLADDER_USE(half_bytes, static_cast<int (*)[Part::half_bytes(64)]>(nullptr));
FLASHLADDER_USE(place, Part(made<const char *const>(), 0, 0, 0));
FLASHLADDER_USE(at, static_cast<const char *>(made<const Part>().at(0)));
FLASHLADDER_USE(seek, made<Part>().template seek<64>(0));
FLASHLADDER_USE(next, made<Part>().template next<64>());
FLASHLADDER_USE(row, int{Part::row(0)});
FLASHLADDER_USE(unit, int{Part::unit(0)});
FLASHLADDER_USE(first, static_cast<int (*)[Part::first(0) + 1]>(nullptr));
FLASHLADDER_USE(second, static_cast<int (*)[Part::second(0) + 1]>(nullptr));
FLASHLADDER_USE(resident, static_cast<int (*)[Part::resident + 1]>(nullptr));
FLASHLADDER_USE(begin, made<Part>().begin(made<const Any>()));
FLASHLADDER_USE(step, made<Part>().step(made<const Any>(), 0));
FLASHLADDER_USE(tile, static_cast<const std::uint32_t *>(made<const Part>().tile(0)[0]));
FLASHLADDER_USE(update, Part::template update<true>(made<float[1][2][4]>(), made<float[1][16][4]>(),
                                                    made<RowStats<1>>(), 0, 1));
FLASHLADDER_USE(row_of_o, Part::row(made<float[16][4]>(), 0, 1.0f));
FLASHLADDER_USE(store, Part::store(made<void *const>(), made<const uint4>()));
FLASHLADDER_USE(run, Part::run(made<Any>(), 1));
FLASHLADDER_USE(write,
                Part::write(made<const Any>(), made<const FlashFwdArgs>(), made<const std::uint32_t[1][16][2]>()));
#undef FLASHLADDER_USE

// Where 16-byte unit `unit` (0-15) of row `row` lies in a tile of `rows` rows of shared memory. Every body asks this.
template <typename Part>
struct Layout {
    static_assert(has_offset<Part>, "Layout must have 'static uint32_t offset<rows>(int row, int unit)'");
};

// What the body of static offsets asks besides, to make everything but one XOR an immediate offset. A layout whose
// addresses are computed at run time has no such constants to offer, so they are a contract of their own.
template <typename Part>
struct StaticLayout : Layout<Part> {
    static_assert(has_row_bytes<Part>, "Layout must have 'constexpr int row_bytes': from one row to the next");
    static_assert(has_threads_per_row<Part>, "Layout must have 'constexpr int threads_per_row': that copy a row");
    static_assert(has_half_bytes<Part>, "Layout must have 'static constexpr int half_bytes(int rows)'");
};

// A thread's place in Q, K, V or O: what it copies first, and how it gets to another row and another tile.
template <typename Part>
struct Gmem {
    static_assert(has_place<Part>, "Gmem must have 'Gmem(const char *base, int stride, int row, int byte)'");
    static_assert(has_at<Part>, "Gmem must have 'const char *at(int row) const'");
    static_assert(has_seek<Part>, "Gmem must have 'void seek<rows>(int block)': before a tile is copied");
    static_assert(has_next<Part>, "Gmem must have 'void next<rows>()': after a tile was copied");
};

// The order of the four matrices of K's ldmatrix.x4.
template <typename Part>
struct KOrder {
    static_assert(has_row<Part>, "KOrder must have 'static int row(int lane)'");
    static_assert(has_unit<Part>, "KOrder must have 'static int unit(int lane)'");
    static_assert(has_first<Part>, "KOrder must have 'static constexpr int first(int n)'");
    static_assert(has_second<Part>, "KOrder must have 'static constexpr int second(int n)'");
};

// The fragments of Q, K or V in registers; `source.load(registers, t)` reads those of k-tile t from shared memory.
template <typename Part>
struct Operand {
    static_assert(has_resident<Part>, "Operand must have 'constexpr bool resident': loaded once, by begin");
    static_assert(has_begin<Part>, "Operand must have 'void begin(const Source &)': before the first k-tile");
    static_assert(has_step<Part>, "Operand must have 'void step(const Source &, int t)': before k-tile t");
    static_assert(has_tile<Part>, "Operand must have 'const uint32_t (&tile(int t) const)[x4s][4]'");
};

template <typename Part>
struct Softmax {
    static_assert(has_update<Part>,
                  "Softmax must have 'static void update<first_block>(s, o, RowStats &, int done, int n_kv_blocks)'");
};

template <typename Part>
struct Normalize {
    static_assert(has_row_of_o<Part>,
                  "Normalize must have 'static void row(float (&o)[n_tiles][4], int half, float l)'");
};

template <typename Part>
struct StorePolicy {
    static_assert(has_store<Part>, "StorePolicy must have 'static void store(void *pointer, uint4 value)'");
};

// The main loop; what it may call is what schedule/lazy.cuh and schedule/peeled.cuh call.
template <typename Part>
struct Schedule {
    static_assert(has_run<Part>, "Schedule must have 'static void run(Cta &, int n_kv_blocks)'");
};

template <typename Part>
struct Epilogue {
    static_assert(has_write<Part>, "Epilogue must have 'static void write(const Cta &, const FlashFwdArgs &, o)'");
};

// Whether `Part` keeps a contract: true, or one of the messages above.
template <template <typename> class Contract, typename Part>
constexpr bool kept = sizeof(Contract<Part>) > 0;

}  // namespace flashladder::contract
