// The softmax `stale` by itself, a warp of it: what its parts answer, given what a consumer's lanes hold.
//
// Arrays are (lanes, ...) as the lanes hold them: rows are a lane's two, sums of a row two.
#include "hopper/softmax/stale.cuh"

using flashladder::RowStats;
using flashladder::hopper::Stale;

constexpr int n_tiles = 4;
constexpr int n_scores = n_tiles * 4;

__device__ void load(float (&values)[2], const float *from) {
    values[0] = from[threadIdx.x * 2];
    values[1] = from[threadIdx.x * 2 + 1];
}

__device__ void load(float (&s)[1][n_tiles][4], const float *from) {
#pragma unroll
    for (int i = 0; i < n_scores; ++i) {
        s[0][i / 4][i % 4] = from[threadIdx.x * n_scores + i];
    }
}

__device__ void store(float *to, const float (&values)[2]) {
    to[threadIdx.x * 2] = values[0];
    to[threadIdx.x * 2 + 1] = values[1];
}

extern "C" __global__ void decide(float *limits, const float *l, int seen, int seq_len) {
    RowStats<1> stats;
    stats.clear();
    load(stats.l[0], l);
    float limit[2];
    Stale::decide(limit, stats, seen, seq_len);
    store(limits, limit);
}

extern "C" __global__ void suspicious(int *answers, const float *sums, const float *limits) {
    float limit[2], of[2][2];
    load(limit, limits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        of[i / 2][i % 2] = sums[threadIdx.x * 4 + i];
    }
    answers[threadIdx.x] = Stale::suspicious(of, limit);
}

extern "C" __global__ void outgrown(int *answers, const float *scores, const float *m, const float *limits,
                                    float scale) {
    RowStats<1> stats;
    stats.clear();
    load(stats.m[0], m);
    float limit[2], s[1][n_tiles][4];
    load(limit, limits);
    load(s, scores);
    answers[threadIdx.x] = Stale::outgrown(s, stats, scale, limit);
}

extern "C" __global__ void rescale(float *factors, float *limits, float *l, const float *grown) {
    RowStats<1> stats;
    stats.clear();
    load(stats.l[0], l);
    float limit[2], factor[2], by[2];
    load(limit, limits);
    load(by, grown);
    Stale::rescale(stats, by, limit, factor);
    store(limits, limit);
    store(l, stats.l[0]);
    store(factors, factor);
}
