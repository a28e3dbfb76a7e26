// How a kernel of the family is launched: every row of every head and sample in one dimension.
#include "host/launch.h"
#include "rows/args.cuh"

namespace flashladder {

Launch plan(const KernelRow &row, const Problem &problem, const Device &) {
    rows::Args args{static_cast<int>(problem.seq_len),
                    static_cast<int>(problem.n_heads),
                    {},
                    problem.q.data,
                    problem.k.data,
                    problem.v.data,
                    problem.out.data};
    const View *views[] = {&problem.q, &problem.k, &problem.v, &problem.out};
    for (int i = 0; i < 4; ++i) {
        args.strides[i][0] = views[i]->batch;
        args.strides[i][1] = views[i]->seq;
        args.strides[i][2] = views[i]->head;
    }
    const auto ctas = problem.batch * problem.n_heads * problem.seq_len / row.B_r;
    return Launch(args, {static_cast<unsigned int>(ctas), 1, 1});
}

}  // namespace flashladder
