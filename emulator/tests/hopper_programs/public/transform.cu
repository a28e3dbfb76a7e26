// What it is: CUB's transform kernels as they ship in the wheels' headers: on Hopper they load tiles by bulk copies.
// Why: PTX of Hopper kernels that were not written here has to run on the emulator, too.
// Run: pytest tests/nvcc/test_hopper_public.py

#include <cub/device/device_transform.cuh>

struct Saxpy {
    __device__ float operator()(float x, float y) const { return 3 * x + y; }
};

struct Square {
    __device__ double operator()(double x) const { return x * x; }
};

struct Mix {
    __device__ int operator()(signed char a, short b, int c) const { return a + 2 * b + 3 * c; }
};

// Instantiates the kernel that the host function would launch.
template <typename F, typename Out, typename... Ins>
void use(Out *out, Ins *...ins) {
    cub::DeviceTransform::Transform(::cuda::std::tuple<Ins *...>{ins...}, out, 1, F{});
}

template void use<Saxpy>(float *, float *, float *);
template void use<Square>(double *, double *);
template void use<Mix>(int *, signed char *, short *, int *);
