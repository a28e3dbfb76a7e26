// Mathematical functions, whose bodies come from libdevice: what -use_fast_math leaves of them, and all of them in
// full. One kernel per idiom; functions.py holds the launches and the NumPy references.
#include <cmath>

// Softmax of each row (n columns), one block per row, reductions by shuffles and shared memory.
extern "C" __global__ void softmax(const float *in, float *out, int n) {
    __shared__ float shared[32];
    const float *row = in + blockIdx.x * n;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float best = -INFINITY;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        best = fmaxf(best, row[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        best = fmaxf(best, __shfl_xor_sync(~0u, best, offset));
    }
    if (lane == 0) {
        shared[warp] = best;
    }
    __syncthreads();
    for (int i = 0; i < warps; ++i) {
        best = fmaxf(best, shared[i]);
    }
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += expf(row[i] - best);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(~0u, sum, offset);
    }
    if (lane == 0) {
        shared[warp] = sum;
    }
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < warps; ++i) {
        sum += shared[i];
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        out[blockIdx.x * n + i] = expf(row[i] - best) / sum;
    }
}

// Layer normalisation of rows of 128, one warp per row, four values per lane.
extern "C" __global__ void layernorm(const float4 *in, const float4 *scale, float4 *out, float epsilon) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    float4 x = in[row * 32 + lane], s = __ldg(&scale[lane]);
    float sum = x.x + x.y + x.z + x.w;
    float squares = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(~0u, sum, offset);
        squares += __shfl_xor_sync(~0u, squares, offset);
    }
    float mean = sum / 128.0f, inverse = rsqrtf(squares / 128.0f - mean * mean + epsilon);
    auto one = [&](float value, float by) { return (value - mean) * inverse * by; };
    out[row * 32 + lane] = make_float4(one(x.x, s.x), one(x.y, s.y), one(x.z, s.z), one(x.w, s.w));
}

// Single precision, one function per row of out: [functions][n].
extern "C" __global__ void functions_f32(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = in[i], a = fabsf(x) + 0.125f;
    int row = 0;
    auto put = [&](float value) { out[row++ * n + i] = value; };
    put(expf(x));
    put(exp2f(x));
    put(logf(a));
    put(log2f(a));
    put(log1pf(a));
    put(sinf(x));
    put(cosf(x));
    put(tanf(x));
    put(tanhf(x));
    put(erff(x));
    put(atan2f(x, a));
    put(asinf(x / 8.0f));
    put(powf(a, x));
    put(sqrtf(a));
    put(rsqrtf(a));
    put(cbrtf(x));
    put(1.0f / a);
    put(x / a);
    put(fmodf(x, 0.75f));
    put(floorf(x) + ceilf(x) - truncf(x) + rintf(x) + roundf(x));
    put(fmaf(x, a, 1.0f) + copysignf(a, x) + fminf(x, a));
    put(ldexpf(x, 3) + scalbnf(a, -2));
    put(hypotf(x, a));
    put(lgammaf(a));
}

// Double precision, likewise.
extern "C" __global__ void functions_f64(const double *in, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    double x = in[i], a = fabs(x) + 0.125;
    int row = 0;
    auto put = [&](double value) { out[row++ * n + i] = value; };
    put(exp(x));
    put(log(a));
    put(sin(x));
    put(cos(x));
    put(tanh(x));
    put(erf(x));
    put(pow(a, x));
    put(sqrt(a));
    put(rsqrt(a));
    put(1.0 / a);
    put(x / a);
    put(fmod(x, 0.75));
    put(floor(x) + ceil(x) - trunc(x) + rint(x) + round(x));
    put((double)(float)x + (double)(int)x + (double)(long long)(x * 1e9));
}

// Large arguments: the slow path of sinf reduces them with a table in global memory and a local array.
extern "C" __global__ void large_angles(const float *in, float *out) {
    float sine, cosine;
    sincosf(in[threadIdx.x], &sine, &cosine);
    out[2 * threadIdx.x] = sine;
    out[2 * threadIdx.x + 1] = cosine;
}

// Iterations until a point escapes: loops of different lengths in every lane. Every operation names its rounding: one
// that does not may be fused by ptxas, and a point on the rim would then leave earlier or later than here.
extern "C" __global__ void mandelbrot(unsigned short *out, int width, int height, int most) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    float cr = __fadd_rn(-2.0f, __fdiv_rn(__fmul_rn(3.0f, x), width)), zr = 0.0f;
    float ci = __fadd_rn(-1.5f, __fdiv_rn(__fmul_rn(3.0f, y), height)), zi = 0.0f;
    int count = 0;
    while (__fadd_rn(__fmul_rn(zr, zr), __fmul_rn(zi, zi)) < 4.0f && count < most) {
        float next = __fadd_rn(__fsub_rn(__fmul_rn(zr, zr), __fmul_rn(zi, zi)), cr);
        zi = __fadd_rn(__fmul_rn(__fmul_rn(2.0f, zr), zi), ci);
        zr = next;
        ++count;
    }
    out[y * width + x] = (unsigned short)count;
}

// Accelerations of n bodies (x, y, z, mass), tiles of bodies in shared memory.
extern "C" __global__ void nbody(const float4 *bodies, float3 *out, int n) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 me = bodies[i];
    float3 sum = make_float3(0.0f, 0.0f, 0.0f);
    for (int start = 0; start < n; start += 64) {
        tile[threadIdx.x] = bodies[start + threadIdx.x];
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < 64; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float force = tile[j].w * inverse * inverse * inverse;
            sum.x += dx * force;
            sum.y += dy * force;
            sum.z += dz * force;
        }
        __syncthreads();
    }
    out[i] = sum;
}
