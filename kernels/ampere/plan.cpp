// How a kernel of this family is launched: a CTA per row block, head and sample, and FlashFwdArgs.
#include "host/args.cuh"
#include "host/launch.h"

namespace flashladder {
namespace {

// The checks have made sure that the row stride fits 32 bits.
TensorStrides strides_of(const View &view) {
    return {view.batch, view.head, static_cast<std::int32_t>(view.seq)};
}

}  // namespace

Launch plan(const KernelRow &row, const Problem &problem, const Device &) {
    const FlashFwdArgs args{
        problem.q.data,        problem.k.data,          problem.v.data,
        problem.out.data,      strides_of(problem.q),   strides_of(problem.k),
        strides_of(problem.v), strides_of(problem.out), static_cast<int>(problem.seq_len / row.B_c)};
    const Extent ctas{static_cast<unsigned int>(problem.seq_len / row.B_r), static_cast<unsigned int>(problem.n_heads),
                      static_cast<unsigned int>(problem.batch)};
    return Launch(args, ctas);
}

}  // namespace flashladder
