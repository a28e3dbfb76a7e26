// Integers and bytes: wide division, bit tricks, sorting, searching, text. All results are exact.
// One kernel per idiom; integers.py holds the launches and the NumPy references.

// Quotients and remainders of 64-bit numbers, signed and unsigned, and the upper halves of products.
extern "C" __global__ void wide_division(const long long *a, const long long *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    unsigned long long ua = a[i], ub = b[i];
    out[i] = a[i] / b[i];
    out[n + i] = a[i] % b[i];
    out[2 * n + i] = ua / ub;
    out[3 * n + i] = ua % ub;
    out[4 * n + i] = __umul64hi(ua, ub);
    out[5 * n + i] = __mul64hi(a[i], b[i]);
    unsigned __int128 whole = (unsigned __int128)ua * ub + ua;
    out[6 * n + i] = (long long)(whole >> 40);
    out[7 * n + i] = (long long)((int)a[i] / 7) + (unsigned)a[i] % 10u + (int)a[i] / (int)(b[i] | 1);
}

// What single instructions do with bits, one per row of out: [rows][n].
extern "C" __global__ void bit_tricks(const unsigned *a, const unsigned *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    unsigned x = a[i], y = b[i];
    unsigned long long both = (unsigned long long)x << 32 | y;
    int row = 0;
    auto put = [&](unsigned value) { out[row++ * n + i] = value; };
    put(__popc(x) + 100 * __popcll(both));
    put(__clz(x) + 100 * __clzll(both));
    put(__ffs(x) + 100 * __ffsll(both));
    put(__brev(x) ^ (unsigned)__brevll(both));
    put(__byte_perm(x, y, 0x5140));
    put(__byte_perm(x, y, y));
    put(__funnelshift_l(x, y, 13));
    put(__funnelshift_r(x, y, y));
    put(__funnelshift_lc(x, y, y));
    put(__umulhi(x, y));
    put(__mulhi((int)x, (int)y));
    put(__mul24(x, y));
    put(__sad((int)x, (int)y, 5));
    put(__uhadd(x, y));
    put(__rhadd((int)x, (int)y));
    put(__dp4a((int)x, (int)y, 9));
    put(__vadd4(x, y));
    put(__vabsdiffu4(x, y));
    put(__vmaxs2(x, y));
    put(__usad(x, y, 1));
    put((x >> (y & 31)) | (unsigned)((int)x >> (y & 15)));
    put(x << (y % 32) | (x & 0xff) * (signed char)y);
}

// Sorts each block's 128 keys with a bitonic network in shared memory, values along with them.
extern "C" __global__ void bitonic_sort(int *keys, unsigned char *values) {
    __shared__ int key[128];
    __shared__ unsigned char value[128];
    int t = threadIdx.x, at = blockIdx.x * 128 + t;
    key[t] = keys[at];
    value[t] = values[at];
    __syncthreads();
    for (int size = 2; size <= 128; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            int other = t ^ stride;
            if (other > t && (key[t] > key[other]) == ((t & size) == 0)) {
                int kept = key[t];
                key[t] = key[other];
                key[other] = kept;
                unsigned char moved = value[t];
                value[t] = value[other];
                value[other] = moved;
            }
            __syncthreads();
        }
    }
    keys[at] = key[t];
    values[at] = value[t];
}

// First place in a sorted array that is not less than the wanted number; every lane has its own number of steps.
extern "C" __global__ void binary_search(const int *sorted, const int *ends, const int *wanted, int *place, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    int low = 0, high = ends[i];
    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle] < wanted[i]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    place[i] = low;
}

// Steps of the Collatz sequence, with breaks and continues in a nested loop.
extern "C" __global__ void collatz(const unsigned *in, int *steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long n = in[i];
    int count = 0;
    for (;; ++count) {
        if (n <= 1) {
            break;
        }
        if (n % 2 == 0) {
            n /= 2;
            continue;
        }
        do {
            n = 3 * n + 1;
        } while (n & 1);
    }
    steps[i] = count;
}

// Upper case, word starts and FNV hashes of fixed-width records of bytes; every record ends where its zero is.
extern "C" __global__ void text(const char *in, char *out, unsigned *hashes, short *lengths, int records, int width) {
    int record = blockIdx.x * blockDim.x + threadIdx.x;
    if (record >= records) {
        return;
    }
    const char *from = in + record * width;
    char *to = out + record * width;
    unsigned hash = 2166136261u;
    short length = 0;
    bool start = true;
    for (; length < width && from[length] != '\0'; ++length) {
        char c = from[length];
        if (start && c >= 'a' && c <= 'z') {
            c -= 'a' - 'A';
        }
        start = c == ' ' || c < 0;
        to[length] = c;
        hash = (hash ^ (unsigned char)c) * 16777619u;
    }
    hashes[record] = hash;
    lengths[record] = length;
}

// A small stack machine: a dense switch in a loop, registers in a local array with computed indices.
extern "C" __global__ void stack_machine(const unsigned char *program, int length, const int *in, int *out) {
    int stack[16];
    int top = 0, i = blockIdx.x * blockDim.x + threadIdx.x;
    stack[top++] = in[i];
    for (int pc = 0; pc < length; ++pc) {
        int a = stack[top - 1], b = top > 1 ? stack[top - 2] : 0;
        switch (program[pc]) {
            case 0:
                stack[top++] = i;
                break;
            case 1:
                stack[top++] = a;
                break;
            case 2:
                stack[--top - 1] = a + b;
                break;
            case 3:
                stack[--top - 1] = a - b;
                break;
            case 4:
                stack[--top - 1] = a * b;
                break;
            case 5:
                stack[--top - 1] = a ^ b;
                break;
            case 6:
                stack[--top - 1] = b ? a / b : -1;
                break;
            case 7:
                stack[top - 1] = -a;
                break;
            case 8:
                stack[top - 1] = __popc(a);
                break;
            case 9:
                stack[top - 1] = a >> 3;
                break;
            case 10:
                stack[top - 1] = b, stack[top - 2] = a;
                break;
            case 11:
                pc += a & 1;
                break;
            default:
                stack[top - 1] = program[pc];
                break;
        }
    }
    out[i] = stack[top - 1];
}
