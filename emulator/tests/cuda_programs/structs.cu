// Types and address spaces: structures by value, constant tables, global variables, vectors, unions, half precision.
// One kernel per idiom; structs.py holds the launches and the NumPy references.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Members of every size, with padding between them; passed by value.
struct Parameters {
    char tag;
    short offset;
    float *out;
    unsigned char steps;
    double scale;
    int weights[5];
    float3 bias;
};

extern "C" __global__ void structure(Parameters p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float value = (float)(p.scale * (i + p.offset)) + p.weights[i % 5];
    for (int step = 0; step < p.steps; ++step) {
        value += step % 2 ? p.bias.x : step % 3 ? p.bias.y : p.bias.z;
    }
    p.out[i] = value + (float)p.tag;
}

__constant__ float coefficients[4] = {1.0f, -0.5f, 0.25f, 3.0f};
__constant__ short table[2][3] = {{1, 2, 3}, {-4, 5}};
__device__ int offsets[4] = {10, 20, 30, 40};
__device__ unsigned launches = 7;
__device__ const char letters[] = "ptx";
__device__ const int *chosen = offsets + 1;

// A polynomial from constant memory, global variables with initialisers, a pointer to one of them.
extern "C" __global__ void globals(const float *in, float *out, unsigned *seen) {
    int i = threadIdx.x;
    float value = 0.0f;
    for (int power = 3; power >= 0; --power) {
        value = value * in[i] + coefficients[power];
    }
    value += table[i & 1][i % 3] + offsets[i & 3] + letters[i % 3] + *chosen;
    out[i] = value;
    __syncthreads();
    if (i == 0) {
        launches += 1;
        *seen = launches;
    }
}

// Vector loads and stores of every width, with cache hints.
extern "C" __global__ void vectors(const char4 *a, const short2 *b, const float4 *c, const double2 *d, float4 *out) {
    int i = threadIdx.x;
    char4 bytes = a[i];
    short2 pair = __ldcs(&b[i]);
    float4 four = __ldg(&c[i]);
    double2 two = __ldcg(&d[i]);
    float4 sum;
    sum.x = bytes.x + pair.x + four.x + (float)two.x;
    sum.y = bytes.y * four.y + (float)two.y;
    sum.z = bytes.z - pair.y + four.z;
    sum.w = (float)(unsigned char)bytes.w + four.w;
    __stcs(&out[i], sum);
}

union Bits {
    double number;
    unsigned long long whole;
    unsigned short parts[4];
    struct {
        unsigned low;
        int high;
    };
};

// Type punning through a union in local memory, indexed at run time, and bit fields.
extern "C" __global__ void punning(const double *in, unsigned *out) {
    struct Fields {
        unsigned sign : 1, exponent : 8, fraction : 23;
    } fields;
    Bits bits;
    int i = threadIdx.x;
    bits.number = in[i];
    bits.parts[i % 4] ^= 0x8001;
    fields.sign = bits.high < 0;
    fields.exponent = __float_as_uint((float)in[i]) >> 23;
    fields.fraction = (unsigned)bits.whole;
    out[2 * i] = bits.low ^ bits.high;
    out[2 * i + 1] = fields.sign + fields.exponent * 3 + fields.fraction;
}

// Half precision, scalar and in pairs.
extern "C" __global__ void half_arithmetic(const half *a, const half2 *b, half2 *out) {
    int i = threadIdx.x;
    half2 x = b[i], y = __half2half2(a[i]);
    half2 z = __hfma2(x, y, __floats2half2_rn(0.5f, -2.0f));
    z = __hmax2(z, -x);
    z = __hfma2_relu(z, y, x);
    if (__hgt(__low2half(z), __high2half(z))) {
        z = __lowhigh2highlow(z);
    }
    z = __hadd2(z, __floats2half2_rn(__half2float(__hmul(a[i], a[i])), (float)__half2int_rn(a[i])));
    out[i] = z;
}

// bfloat16, likewise; with double-width accumulation and comparison masks.
extern "C" __global__ void bfloat_arithmetic(const __nv_bfloat162 *a, const __nv_bfloat162 *b, __nv_bfloat162 *out) {
    int i = threadIdx.x;
    __nv_bfloat162 z = __hfma2(a[i], b[i], a[i]);
    z = __hmin2(z, __hadd2(a[i], b[i]));
    z = __hmul2(z, __hsub2(b[i], a[i]));
    float2 wide = __bfloat1622float2(z);
    z = __floats2bfloat162_rn(wide.x * 0.3f, wide.y - wide.x);
    out[i] = __hbgt2(a[i], b[i]) ? z : __hneg2(z);
}

// Functions that the compiler may not inline, with results and parameters of several kinds.
struct Pair {
    double first;
    short second;
};

__device__ __noinline__ Pair swapped(Pair pair, float by) {
    if (pair.second < 0) {
        return {by, 0};
    }
    return {pair.second * (double)by, (short)pair.first};
}

__device__ __noinline__ void accumulate(float *sum, int rounds) {
    __shared__ float shared;
    if (threadIdx.x == 0) {
        shared = 0.5f;
    }
    __syncthreads();
    for (int i = 0; i < rounds; ++i) {
        Pair pair = swapped({*sum, (short)(i - 1)}, 1.5f);
        *sum += (float)pair.first + pair.second + shared;
    }
    __syncthreads();
}

extern "C" __global__ void calls(const float *in, float *out) {
    float sum = in[threadIdx.x];
    accumulate(&sum, 2);
    accumulate(&sum, (int)in[threadIdx.x] & 3);
    out[threadIdx.x] = sum;
}

// An assertion that holds is no call.
#undef NDEBUG
#include <cassert>
extern "C" __global__ void asserted(const int *in, int *out) {
    assert(in[threadIdx.x] >= 0);
    out[threadIdx.x] = in[threadIdx.x] * 2;
}

// Calls through pointers: a table of functions, and virtual functions of objects in local memory.
__device__ __noinline__ int twice(int n) {
    return 2 * n;
}
__device__ __noinline__ int square(int n) {
    return n * n;
}
__device__ int (*const operations[])(int) = {twice, square};

struct Shape {
    int size;
    __device__ explicit Shape(int size) : size(size) {}
    __device__ virtual int area() const { return size; }
};
struct Square : Shape {
    using Shape::Shape;
    __device__ int area() const override { return size * size; }
};

extern "C" __global__ void pointers(int *out) {
    Shape line(threadIdx.x);
    Square square(threadIdx.x);
    const Shape *shape = threadIdx.x % 3 ? &line : &square;
    out[2 * threadIdx.x] = operations[threadIdx.x & 1](threadIdx.x);
    out[2 * threadIdx.x + 1] = shape->area();
}

// A constant structure whose address is taken, and a pause.
struct Four {
    int values[4];
};

extern "C" __global__ void grid_constant(const __grid_constant__ Four four, int *out) {
    const int *values = four.values;
    __nanosleep(20);
    out[threadIdx.x] = values[threadIdx.x & 3];
}
