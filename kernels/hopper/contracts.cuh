// What a part of each concern must provide: the whole contract between the body and the parts, on one page.
//
// As ampere/contracts.cuh: the body instantiates a part's contract before it uses the part, so that a member that is
// missing, misspelt or takes other arguments is one message that names concern and member; nvcc's next line names the
// part (`Part=`). What roles hand to a main loop as `me`, and what both may call of a CTA, is in roles/together.cuh and
// flash_fwd_tma.cuh: there every member has a reader.
#pragma once

#include <cstdint>

#include "ampere/softmax/rows.cuh"
#include "hopper/args.cuh"
#include "hopper/tile.cuh"

namespace flashladder::hopper::contract {

struct Any;  // stands for what a part may only pass on: a CTA, a consumer

template <typename T>
T &made();  // never called

// has_name<Part>: whether the expression, a use of `Part`, compiles.
#define FLASHLADDER_USE(name, ...)            \
    template <typename Part, typename = void> \
    constexpr bool has_##name = false;        \
    template <typename Part>                  \
    constexpr bool has_##name<Part, decltype(static_cast<void>(__VA_ARGS__))> = true

FLASHLADDER_USE(writes_lse, static_cast<int (*)[Part::writes_lse + 1]>(nullptr));
FLASHLADDER_USE(kv_head, int{Part::kv_head(made<const HopperArgs>(), 0)});
FLASHLADDER_USE(ring, typename Part::template Ring<2, 1024>{std::uint32_t{0}, std::uint32_t{0}});
FLASHLADDER_USE(bytes, static_cast<int (*)[Part::bytes]>(nullptr));
FLASHLADDER_USE(init, made<const Part>().init(1));
FLASHLADDER_USE(claim, std::uint32_t{made<const Part>().claim(made<const typename Part::Place>())});
FLASHLADDER_USE(wait, made<const Part>().wait(made<const typename Part::Place>()));
FLASHLADDER_USE(tile_of_ring, std::uint32_t{made<const Part>().tile(made<const typename Part::Place>())});
FLASHLADDER_USE(release, made<const Part>().release(made<const typename Part::Place>()));
FLASHLADDER_USE(place, Part::of(1).after().next());
FLASHLADDER_USE(n_threads, static_cast<int (*)[Part::n_threads(2)]>(nullptr));
FLASHLADDER_USE(run, Part::run(made<const Any>()));
FLASHLADDER_USE(loop, Part::run(made<const Any>(), made<Any>()));
FLASHLADDER_USE(weights,
                Part::template weights<true>(made<float[1][16][4]>(), made<RowStats<1>>(), 1.0f, made<float[1][2]>()));
FLASHLADDER_USE(rescale, Part::rescale(made<float[1][16][4]>(), made<const float[1][2]>()));
FLASHLADDER_USE(decide, Part::decide(made<float[2]>(), made<const RowStats<1>>(), 128, 512));
FLASHLADDER_USE(weigh, Part::weigh(made<float[1][16][4]>(), made<float[2][2]>(), made<const float[1][16][4]>(),
                                   made<const RowStats<1>>(), 1.0f));
FLASHLADDER_USE(suspicious, bool{Part::suspicious(made<const float[2][2]>(), made<const float[2]>())});
FLASHLADDER_USE(outgrown, bool{Part::outgrown(made<const float[1][16][4]>(), made<const RowStats<1>>(), 1.0f,
                                              made<const float[2]>())});
FLASHLADDER_USE(follow, Part::follow(made<const float[1][16][4]>(), made<RowStats<1>>(), 1.0f, true, made<float[2]>()));
FLASHLADDER_USE(correct,
                Part::rescale(made<RowStats<1>>(), made<const float[2]>(), made<float[2]>(), made<float[2]>()));
FLASHLADDER_USE(several, static_cast<int (*)[Part::several + 1]>(nullptr));
FLASHLADDER_USE(work, Part(made<const HopperArgs>()));
FLASHLADDER_USE(valid, bool{made<const Part>().valid()});
FLASHLADDER_USE(next, made<Part>().next());
FLASHLADDER_USE(tile, Tile{made<const Part>().tile()});
FLASHLADDER_USE(write, Part::write(made<const Any>(), made<const Any>(), made<const Tile>(), std::uint32_t{0},
                                   made<float[1][16][4]>(), made<RowStats<1>>()));
FLASHLADDER_USE(settle, Part::settle());
FLASHLADDER_USE(visits, Visits{Part::visits(made<const HopperArgs>())});
FLASHLADDER_USE(sequences, static_cast<typename Part::template Sequences<Any> *>(nullptr));
FLASHLADDER_USE(merge, Part::merge(made<const Any>(), made<const Any>(), made<const Tile>(),
                                   made<const float[1][16][4]>(), made<RowStats<1>>()));
#undef FLASHLADDER_USE

template <typename Part>
struct Problem {
    static_assert(has_writes_lse<Part>,
                  "Problem must have 'static constexpr bool writes_lse': where args.lse is given");
    static_assert(has_kv_head<Part>, "Problem must have 'static int kv_head(const HopperArgs &, int head)'");
};

// Tiles of shared memory in stages, and who may touch a stage when.
template <typename Part>
struct Ring {
    static_assert(has_bytes<Part>, "Pipeline's Ring must have 'constexpr int bytes': of its barriers");
    static_assert(has_init<Part>, "Pipeline's Ring must have 'void init(int readers) const': one thread, once");
    static_assert(has_claim<Part>, "Pipeline's Ring must have 'uint32_t claim(const Place &) const': the full barrier");
    static_assert(has_wait<Part>, "Pipeline's Ring must have 'void wait(const Place &) const': until a tile is there");
    static_assert(has_tile_of_ring<Part>, "Pipeline's Ring must have 'uint32_t tile(const Place &) const'");
    static_assert(has_release<Part>, "Pipeline's Ring must have 'void release(const Place &) const': by a warp");
};

// A stage of a ring, and the parity of the round.
template <typename Part>
struct Place {
    static_assert(has_place<Part>, "Pipeline's Place must have 'of(int)', 'next()' and 'after()'");
};

template <typename Part>
struct Pipeline {
    static_assert(has_ring<Part>, "Pipeline must have 'Ring<stages, tile_bytes>{tiles, barriers}'");
    using Rings = typename Part::template Ring<2, 1024>;
    static_assert(sizeof(Ring<Rings>) > 0 && sizeof(Place<typename Rings::Place>) > 0);
};

template <typename Part>
struct Roles {
    static_assert(has_n_threads<Part>, "Roles must have 'static constexpr int n_threads(int n_consumers)'");
    static_assert(has_run<Part>, "Roles must have 'static void run(const Cta &)': everything a thread does");
};

template <typename Part>
struct Mainloop {
    static_assert(has_loop<Part>, "Mainloop must have 'static void run(const Cta &, Consumer &me)': a consumer's work");
};

// Either all at once, or, where O is not always corrected, in steps: what weights may be, weights and their sums,
// whether these tell that one may be too large, whether one is, and what is done then.
template <typename Part>
struct Softmax {
    static constexpr bool lazy = has_weigh<Part>;
    static_assert(lazy || has_weights<Part>,
                  "Softmax must have 'static void weights<first_block>(s, stats, scale, factor)'");
    static_assert(lazy || has_rescale<Part>, "Softmax must have 'static void rescale(o, factor)'");
    static_assert(!lazy || has_decide<Part>, "Softmax must have 'static void decide(limit, stats, seen, seq_len)'");
    static_assert(!lazy || has_suspicious<Part>,
                  "Softmax must have 'static bool suspicious(sums, limit)': the same in all lanes");
    static_assert(!lazy || has_outgrown<Part>,
                  "Softmax must have 'static bool outgrown(s, stats, scale, limit)': the same in all lanes");
    static_assert(!lazy || has_follow<Part>, "Softmax must have 'static void follow(s, stats, scale, opens, grown)'");
    static_assert(!lazy || has_correct<Part>, "Softmax must have 'static void rescale(stats, grown, limit, factor)'");
};

// Where it has `static Visits visits(const HopperArgs &)`, several CTAs share a tile's blocks. Where it has
// `Sequences`, only the producer's warp knows the tiles: of packed sequences.
template <typename Part>
struct Scheduler {
    static constexpr bool splits = has_visits<Part>;
    static constexpr bool packed = has_sequences<Part>;
    static_assert(has_several<Part>, "Scheduler must have 'constexpr bool several': tiles of one CTA");
    static_assert(has_work<Part>, "Scheduler must have 'Scheduler(const HopperArgs &)'");
    static_assert(packed || has_valid<Part>, "Scheduler must have 'bool valid() const': whether there is a tile");
    static_assert(packed || has_next<Part>, "Scheduler must have 'void next()'");
    static_assert(packed || has_tile<Part>, "Scheduler must have 'Tile tile() const'");
};

// Where it has `static void merge(const Cta &, me, tile, o, stats)`, it puts together what several CTAs have computed.
template <typename Part>
struct Epilogue {
    static constexpr bool merges = has_merge<Part>;
    static_assert(has_write<Part>, "Epilogue must have 'static void write(const Cta &, me, tile, smem, o, stats)'");
    static_assert(has_settle<Part>, "Epilogue must have 'static void settle()': a thread's stores are read");
};

// Whether `Part` keeps a contract: true, or one of the messages above.
template <template <typename> class Contract, typename Part>
constexpr bool kept = sizeof(Contract<Part>) > 0;

}  // namespace flashladder::hopper::contract
