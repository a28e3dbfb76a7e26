// A stand-in for the CUDA runtime (libcudart.so.13) and driver (libcuda.so.1): one library under both names.
//
// A program that is linked with the shared CUDA runtime loads it where there is no GPU. It keeps no device: each call
// that needs one is a message to `ptxemu run`, which allocates memory, reads PTX and runs kernels (server.py). Device
// memory is one file in memory that both processes share, so that copies are reads and writes of it. Everything happens
// at once and in the order of the calls: streams and events have nothing to wait for.
//
// Device addresses are not mapped in this process: a program that dereferences one ends as on a GPU. Memory that the
// host may use, too (managed, page-locked), is mapped at its device address.
//
// Source: CUDA Runtime API 13.0 (declarations, error numbers, structures), CUDA Driver API 13.0, 6.30.
// Written for the System V ABI of x86-64 and AArch64.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define API extern "C" __attribute__((visibility("default")))

namespace {

using Word = std::uint64_t;

enum Error : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_FUNCTION = 98,
    INVALID_SYMBOL = 13,
    NOT_FOUND = 500,
    OUT_OF_RESOURCES = 701,
    NOT_SUPPORTED = 801,
};

// What a message asks for; the same numbers are in server.py.
enum class Ask : std::uint32_t {
    ALLOCATE = 1,
    FREE,
    MODULE,
    FUNCTION,
    GLOBAL,
    LAUNCH,
    TENSOR_MAP,
    ATTRIBUTE,
    PROPERTIES,
    OCCUPANCY,
    MISSING,
    REFUSED,
    LIMIT,
};

struct Size3 {
    unsigned x, y, z;
};

struct Block {
    Word bytes;
    off_t place;  // in the file of device memory
    bool shared;  // the host may use it
};

struct Module;

struct Function {
    Module *module;
    std::string name;
    bool known = false;
    Word id = 0;
    std::vector<std::pair<Word, Word>> parameters;  // offset and bytes of each
    Word parameter_bytes = 0;
    Word shared = 0, threads = 0, local = 0, capability = 0, most_shared = 0, registers = 0;
};

struct Variable {
    Module *module;
    std::string name;
    void **managed;  // where the program keeps its address; null if it is not managed
};

struct Module {
    const unsigned char *image = nullptr;
    Word bytes = 0;
    bool loaded = false;
    Word id = 0;
    int error = SUCCESS;
    std::vector<std::unique_ptr<Function>> functions;  // of the module interface
    std::vector<std::unique_ptr<Variable>> variables;  // that are managed
};

struct Reply {
    int error;
    std::vector<Word> words;
    std::string bytes;
};

struct Configuration {
    Size3 grid, block;
    std::size_t shared;
    void *stream;
};

struct Stamp {
    std::chrono::steady_clock::time_point time;
};

// Ends the program; what it has printed so far is not lost.
[[noreturn]] void stop() {
    std::fflush(nullptr);
    std::_Exit(2);
}

[[noreturn]] void lost(const char *what) {
    std::fprintf(stderr, "ptxemu: %s (%s); this program has to be started by `ptxemu run`\n", what,
                 std::strerror(errno));
    stop();
}

// The connection to `ptxemu run`, and what this process knows of its device.
struct Device {
    std::recursive_mutex mutex;
    int socket = -1, memory = -1;
    pid_t process = 0;
    std::map<Word, Block> blocks;                                 // by address
    std::map<const void *, std::unique_ptr<Function>> functions;  // by the host's function
    std::set<const Function *> handles;
    std::map<const void *, std::unique_ptr<Variable>> variables;  // by the host's variable
    int broken = SUCCESS;  // the error of a kernel: every later call gives it, as on a GPU

    void connect() {
        if (socket >= 0 && process == getpid())
            return;
        if (socket >= 0) {
            std::fputs(
                "ptxemu: a process that was forked after the first CUDA call cannot use the device; fork before\n",
                stderr);
            stop();
        }
        const char *path = std::getenv("PTXEMU_SOCKET");
        if (!path)
            lost("there is no $PTXEMU_SOCKET");
        process = getpid();
        socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        if (std::strlen(path) >= sizeof address.sun_path)
            lost("$PTXEMU_SOCKET is too long");
        std::strcpy(address.sun_path, path);
        if (::connect(socket, reinterpret_cast<sockaddr *>(&address), sizeof address))
            lost("no connection");
        char byte;
        iovec part{&byte, 1};
        alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))];
        msghdr message{};
        message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = room,
        message.msg_controllen = sizeof room;
        cmsghdr *head = nullptr;
        if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || !(head = CMSG_FIRSTHDR(&message)))
            lost("no device memory");
        std::memcpy(&memory, CMSG_DATA(head), sizeof memory);
    }

    void send(const void *data, std::size_t bytes) {
        for (auto at = static_cast<const char *>(data); bytes;) {
            const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
            if (sent <= 0 && errno != EINTR)
                lost("the connection broke");
            if (sent > 0)
                at += sent, bytes -= static_cast<std::size_t>(sent);
        }
    }

    void receive(void *data, std::size_t bytes) {
        for (auto at = static_cast<char *>(data); bytes;) {
            const ssize_t got = recv(socket, at, bytes, 0);
            if (got == 0)
                stop();  // `ptxemu run` has ended, and has said why
            if (got < 0 && errno != EINTR)
                lost("the connection broke");
            if (got > 0)
                at += got, bytes -= static_cast<std::size_t>(got);
        }
    }

    Reply ask(Ask what, std::vector<Word> words = {}, const void *data = nullptr, std::size_t bytes = 0) {
        connect();
        const Word head[3] = {static_cast<Word>(what), words.size(), bytes};
        send(head, sizeof head);
        send(words.data(), words.size() * sizeof(Word));
        send(data, bytes);
        Word answer[3];
        receive(answer, sizeof answer);
        Reply reply{static_cast<int>(answer[0]), std::vector<Word>(answer[1]), std::string(answer[2], '\0')};
        receive(reply.words.data(), reply.words.size() * sizeof(Word));
        receive(&reply.bytes[0], reply.bytes.size());
        return reply;
    }

    // One line about a call that cannot be done as it was made.
    int refuse(int error, const std::string &why) {
        ask(Ask::REFUSED, {static_cast<Word>(error)}, why.data(), why.size());
        return error;
    }

    // The block that holds an address; null: it is none of the device's.
    std::pair<Word, const Block *> block_of(const void *pointer) {
        const Word address = reinterpret_cast<Word>(pointer);
        auto found = blocks.upper_bound(address);
        if (found == blocks.begin())
            return {0, nullptr};
        --found;
        const bool inside = address - found->first < std::max<Word>(found->second.bytes, 1);
        return {found->first, inside ? &found->second : nullptr};
    }

    int add(Word address, Word bytes, off_t place, bool shared) {
        if (shared) {
            const Word page = static_cast<Word>(sysconf(_SC_PAGESIZE)), size = (bytes + page - 1) / page * page;
            const int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
            void *wanted = reinterpret_cast<void *>(address);
            if (mmap(wanted, size, PROT_READ | PROT_WRITE, flags, memory, place) != wanted)
                return OUT_OF_MEMORY;
        }
        blocks[address] = {bytes, place, shared};
        return SUCCESS;
    }

    int allocate(void **pointer, std::size_t bytes, bool shared) {
        if (!pointer)
            return INVALID_VALUE;
        *pointer = nullptr;
        if (!bytes)
            return SUCCESS;
        const Reply reply = ask(Ask::ALLOCATE, {bytes, shared});
        if (reply.error)
            return reply.error;
        const int error = add(reply.words[0], bytes, static_cast<off_t>(reply.words[1]), shared);
        if (!error)
            *pointer = reinterpret_cast<void *>(reply.words[0]);
        return error;
    }

    int release(void *pointer, const char *call) {
        if (!pointer)
            return SUCCESS;
        const auto found = blocks.find(reinterpret_cast<Word>(pointer));
        if (found == blocks.end())
            return refuse(INVALID_VALUE, std::string(call) + ": the address begins no allocation");
        if (found->second.shared)
            munmap(pointer, found->second.bytes);
        blocks.erase(found);
        return ask(Ask::FREE, {reinterpret_cast<Word>(pointer)}).error;
    }

    // Copies between any two places. `bytes` of the device have to lie in one allocation.
    int copy(void *to, const void *from, std::size_t bytes, const char *call) {
        if (!bytes)
            return SUCCESS;
        const auto [to_base, target] = block_of(to);
        const auto [from_base, source] = block_of(from);
        for (const auto &[base, block, pointer] :
             {std::tuple{to_base, target, static_cast<const void *>(to)}, std::tuple{from_base, source, from}}) {
            const Word offset = reinterpret_cast<Word>(pointer) - base;
            if (block && offset + bytes > block->bytes) {
                char text[200];
                std::snprintf(text, sizeof text, "%s: %zu bytes from byte %zu of an allocation of %zu bytes", call,
                              bytes, static_cast<std::size_t>(offset), static_cast<std::size_t>(block->bytes));
                return refuse(INVALID_VALUE, text);
            }
            if (!block && !pointer)
                return refuse(INVALID_VALUE, std::string(call) + ": a null pointer");
            if (!block && in_device_range(pointer)) {
                return refuse(INVALID_VALUE, std::string(call) + ": a device address without an allocation");
            }
        }
        const off_t to_place = target ? target->place + static_cast<off_t>(reinterpret_cast<Word>(to) - to_base) : 0;
        const off_t from_place =
            source ? source->place + static_cast<off_t>(reinterpret_cast<Word>(from) - from_base) : 0;
        if (!target && !source)
            return std::memmove(to, from, bytes), SUCCESS;
        if (!source)
            return transfer(true, const_cast<void *>(from), bytes, to_place);
        if (!target)
            return transfer(false, to, bytes, from_place);
        std::vector<char> room(bytes);  // whole, as the two may overlap
        const int error = transfer(false, room.data(), bytes, from_place);
        return error ? error : transfer(true, room.data(), bytes, to_place);
    }

    int fill(void *to, const std::string &pattern, std::size_t count, const char *call) {
        if (count && !block_of(to).second)
            return refuse(INVALID_VALUE, std::string(call) + ": no device address");
        std::string data;
        for (std::size_t done = 0; done < count; done += data.size() / pattern.size()) {
            const std::size_t now = std::min<std::size_t>(count - done, (1 << 20) / pattern.size());
            if (data.size() != now * pattern.size()) {
                data.clear();
                for (std::size_t one = 0; one < now; ++one)
                    data += pattern;
            }
            const int error = copy(static_cast<char *>(to) + done * pattern.size(), data.data(), data.size(), call);
            if (error)
                return error;
        }
        return SUCCESS;
    }

    static bool in_device_range(const void *pointer) {  // as device.py lays it out
        const Word address = reinterpret_cast<Word>(pointer);
        return address >= (Word{1} << 45) && address < (Word{1} << 46);
    }

    int transfer(bool writes, void *data, std::size_t bytes, off_t place) {
        for (auto at = static_cast<char *>(data); bytes;) {
            const ssize_t done = writes ? pwrite(memory, at, bytes, place) : pread(memory, at, bytes, place);
            if (done < 0 && errno == EFAULT)
                return refuse(INVALID_VALUE, "a copy with a host address that the program may not access");
            if (done <= 0 && errno != EINTR)
                lost("device memory cannot be reached");
            if (done > 0)
                at += done, place += done, bytes -= static_cast<std::size_t>(done);
        }
        return SUCCESS;
    }

    int load(Module &module) {
        if (module.loaded)
            return module.error;
        module.loaded = true;
        const Reply reply = ask(Ask::MODULE, {}, module.image, module.bytes);
        module.error = reply.error;
        if (!reply.error)
            module.id = reply.words[0];
        return reply.error;
    }

    int prepare(Function &function) {
        if (function.known)
            return SUCCESS;
        if (const int error = load(*function.module))
            return error;
        std::string names = function.name + '\0';  // and as C++ has it
        int status = 0;
        if (char *plain = abi::__cxa_demangle(function.name.c_str(), nullptr, nullptr, &status)) {
            names += plain;
            std::free(plain);
        }
        const Reply reply = ask(Ask::FUNCTION, {function.module->id}, names.data(), names.size());
        if (reply.error)
            return reply.error;
        auto word = reply.words.begin();
        for (Word *field : {&function.id, &function.parameter_bytes, &function.shared, &function.threads,
                            &function.local, &function.capability, &function.most_shared, &function.registers}) {
            *field = *word++;
        }
        while (word != reply.words.end()) {
            const Word offset = *word++;
            function.parameters.emplace_back(offset, *word++);
        }
        function.known = true;
        return SUCCESS;
    }

    // A kernel by the host's function, or by its handle; null: neither.
    Function *function(const void *pointer) {
        const auto found = functions.find(pointer);
        if (found != functions.end())
            return found->second.get();
        const auto handle = static_cast<const Function *>(pointer);
        return handles.count(handle) ? const_cast<Function *>(handle) : nullptr;
    }

    // The same, ready to be asked about.
    int find(const void *pointer, Function **kernel) {
        *kernel = function(pointer);
        return *kernel ? prepare(**kernel) : static_cast<int>(INVALID_FUNCTION);
    }

    int global(Variable &variable, Word *address, Word *bytes) {
        if (const int error = load(*variable.module))
            return error;
        const bool shared = variable.managed != nullptr;
        const Reply reply = ask(Ask::GLOBAL, {variable.module->id}, variable.name.data(), variable.name.size());
        if (reply.error)
            return reply.error;
        if (!blocks.count(reply.words[0])) {
            const int error = add(reply.words[0], reply.words[1], static_cast<off_t>(reply.words[2]), shared);
            if (error)
                return error;
        }
        if (address)
            *address = reply.words[0];
        if (bytes)
            *bytes = reply.words[1];
        return SUCCESS;
    }

    int launch(const void *kernel, Size3 grid, Size3 block, Size3 cluster, std::size_t shared, void **arguments,
               const std::string *packed = nullptr) {
        if (broken)
            return broken;
        Function *function = nullptr;
        if (const int error = find(kernel, &function)) {
            if (error == NOT_SUPPORTED)
                broken = error;  // what comes after would compute with what this launch did not
            return error;
        }
        std::string data(function->parameter_bytes, '\0');
        if (packed) {
            if (packed->size() != data.size())
                return OUT_OF_RESOURCES;  // as an H200 did
            data = *packed;
        } else {
            if (!function->parameters.empty() && !arguments)
                return INVALID_VALUE;
            for (std::size_t index = 0; index < function->parameters.size(); ++index) {
                const auto [offset, bytes] = function->parameters[index];
                std::memcpy(&data[offset], arguments[index], bytes);
            }
        }
        std::vector<Word> words{function->id, grid.x, grid.y, grid.z, block.x, block.y, block.z};
        words.insert(words.end(), {cluster.x, cluster.y, cluster.z, shared});
        const Reply reply = ask(Ask::LAUNCH, words, data.data(), data.size());
        broken = reply.error == NOT_SUPPORTED ? reply.error : static_cast<int>(reply.words[0]);
        return reply.error;
    }
};

Device &device() {
    static Device *one = new Device;  // never destroyed: the program's own destructors may still call
    return *one;
}

thread_local int last_error = SUCCESS;
thread_local std::vector<Configuration> configurations;

// What a call of the runtime returns: the error of an earlier kernel, or its own, which is remembered.
int returned(int error) {
    if (!error)
        error = device().broken;
    if (error)
        last_error = error;
    return error;
}

#define LOCKED const std::lock_guard<std::recursive_mutex> lock(device().mutex)

struct Name {
    int error;
    const char *name, *text;
};

constexpr Name NAMES[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {INVALID_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {INVALID_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {OUT_OF_RESOURCES, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
};

const Name &name_of(int error) {
    static constexpr Name UNKNOWN = {-1, "cudaErrorUnknown", "unknown error"};
    for (const Name &one : NAMES) {
        if (one.error == error)
            return one;
    }
    return UNKNOWN;
}

// The bytes of a fatbin: its header names their number. An image may also be PTX text or a cubin.
Word image_bytes(const unsigned char *image) {
    std::uint32_t magic;
    std::memcpy(&magic, image, 4);
    if (magic == 0xBA55ED50u) {
        std::uint16_t size;
        Word files;
        std::memcpy(&size, image + 6, 2);
        std::memcpy(&files, image + 8, 8);
        return size + files;
    }
    return std::strlen(reinterpret_cast<const char *>(image));
}

struct Wrapper {  // what nvcc puts around the fatbin of a source file
    std::uint32_t magic, version;
    const unsigned char *data;
    void *other;
};

[[noreturn]] void missing(const char *name) {
    {
        LOCKED;
        device().ask(Ask::MISSING, {}, name, std::strlen(name));
    }
    stop();
}

constexpr Size3 NO_CLUSTER = {0, 0, 0};

}  // namespace

// What nvcc's code calls before main.

API void **__cudaRegisterFatBinary(void *wrapper) {
    auto *module = new Module;
    module->image = static_cast<const Wrapper *>(wrapper)->data;
    module->bytes = image_bytes(module->image);
    return reinterpret_cast<void **>(module);
}

API void __cudaRegisterFunction(void **module, const char *host, char *, const char *name, int, void *, void *, void *,
                                void *, int *) {
    LOCKED;
    auto function = std::make_unique<Function>();
    function->module = reinterpret_cast<Module *>(module), function->name = name;
    device().handles.insert(function.get());
    device().functions[host] = std::move(function);
}

API void __cudaRegisterVar(void **module, char *host, char *, const char *name, int, std::size_t, int, int) {
    LOCKED;
    device().variables[host].reset(new Variable{reinterpret_cast<Module *>(module), name, nullptr});
}

API void __cudaRegisterManagedVar(void **module, void **host, char *, const char *name, int, std::size_t, int, int) {
    LOCKED;
    auto *owner = reinterpret_cast<Module *>(module);
    owner->variables.emplace_back(new Variable{owner, name, host});
    device().variables[host].reset(new Variable{owner, name, host});
}

API void __cudaRegisterFatBinaryEnd(void **) {}
API void __cudaUnregisterFatBinary(void **) {}

API char __cudaInitModule(void **module) {
    LOCKED;
    for (auto &variable : reinterpret_cast<Module *>(module)->variables) {
        Word address = 0;
        if (!device().global(*variable, &address, nullptr))
            *variable->managed = reinterpret_cast<void *>(address);
    }
    return 1;
}

// Launches.

API unsigned __cudaPushCallConfiguration(Size3 grid, Size3 block, std::size_t shared, void *stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

API int __cudaPopCallConfiguration(Size3 *grid, Size3 *block, std::size_t *shared, void **stream) {
    if (configurations.empty())
        return returned(INVALID_VALUE);
    const Configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid, *block = last.block, *shared = last.shared, *stream = last.stream;
    return SUCCESS;
}

API int __cudaGetKernel(void **kernel, const void *host) {
    LOCKED;
    *kernel = device().function(host);
    return *kernel ? SUCCESS : returned(INVALID_FUNCTION);
}

API int cudaGetKernel(void **kernel, const void *host) {
    return __cudaGetKernel(kernel, host);
}

API int cudaGetFuncBySymbol(void **kernel, const void *host) {
    return __cudaGetKernel(kernel, host);
}

API int cudaLaunchKernel(const void *function, Size3 grid, Size3 block, void **arguments, std::size_t shared, void *) {
    LOCKED;
    return returned(device().launch(function, grid, block, NO_CLUSTER, shared, arguments));
}

API int __cudaLaunchKernel(void *kernel, Size3 grid, Size3 block, void **arguments, std::size_t shared, void *stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

API int cudaLaunchCooperativeKernel(const void *function, Size3 grid, Size3 block, void **arguments, std::size_t shared,
                                    void *stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

struct LaunchAttribute {
    int id;
    char padding[4];
    union {
        Size3 sizes;
        char room[64];
    };
};

enum { CLUSTER = 4 };  // id of an attribute; the others change nothing here

struct LaunchConfig {
    Size3 grid, block;
    std::size_t shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned count;
};

static Size3 cluster_of(const LaunchAttribute *attributes, unsigned count) {
    Size3 cluster = NO_CLUSTER;
    for (unsigned index = 0; index < count; ++index) {
        if (attributes[index].id == CLUSTER)
            cluster = attributes[index].sizes;
    }
    return cluster;
}

API int cudaLaunchKernelExC(const LaunchConfig *config, const void *function, void **arguments) {
    LOCKED;
    const Size3 cluster = cluster_of(config->attributes, config->count);
    return returned(device().launch(function, config->grid, config->block, cluster, config->shared, arguments));
}

struct FuncAttributes {
    std::size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, most_shared, carveout, cluster_must, cluster[3], policy, nonportable;
    int reserved[16];
};

API int cudaFuncGetAttributes(FuncAttributes *attributes, const void *function) {
    LOCKED;
    Function *kernel = nullptr;
    if (const int error = device().find(function, &kernel))
        return returned(error);
    *attributes = {};
    attributes->shared = kernel->shared, attributes->local = kernel->local;
    attributes->threads = static_cast<int>(kernel->threads),
    attributes->registers = static_cast<int>(kernel->registers);
    attributes->ptx = attributes->binary = static_cast<int>(kernel->capability);
    attributes->most_shared = static_cast<int>(kernel->most_shared);
    return returned(SUCCESS);
}

API int cudaFuncSetAttribute(const void *function, int attribute, int value) {
    LOCKED;
    Function *kernel = nullptr;
    if (const int error = device().find(function, &kernel))
        return returned(error);
    return returned(
        device().ask(Ask::LIMIT, {kernel->id, static_cast<Word>(attribute), static_cast<Word>(value)}).error);
}

API int cudaFuncSetCacheConfig(const void *, int) {
    return returned(SUCCESS);
}

API int cudaFuncGetName(const char **name, const void *function) {
    LOCKED;
    Function *kernel = device().function(function);
    if (!kernel)
        return returned(INVALID_FUNCTION);
    *name = kernel->name.c_str();
    return returned(SUCCESS);
}

static int occupancy(const void *function, Word threads, Word shared, Word cluster, int *blocks) {
    LOCKED;
    Function *kernel = nullptr;
    if (const int error = device().find(function, &kernel))
        return returned(error);
    const Reply reply = device().ask(Ask::OCCUPANCY, {kernel->id, threads, shared, cluster});
    if (!reply.error)
        *blocks = static_cast<int>(reply.words[0]);
    return returned(reply.error);
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                               std::size_t shared, unsigned) {
    return occupancy(function, static_cast<Word>(threads), shared, 0, blocks);
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                      std::size_t shared) {
    return occupancy(function, static_cast<Word>(threads), shared, 0, blocks);
}

API int cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const LaunchConfig *config) {
    const Size3 size = cluster_of(config->attributes, config->count);
    const Word blocks = std::max<Word>(1, Word{size.x} * size.y * size.z);
    return occupancy(function, Word{config->block.x} * config->block.y * config->block.z, config->shared, blocks,
                     clusters);
}

// Devices.

API int cudaGetDeviceCount(int *count) {
    *count = 1;
    return returned(SUCCESS);
}

API int cudaGetDevice(int *ordinal) {
    *ordinal = 0;
    return returned(SUCCESS);
}

API int cudaSetDevice(int ordinal) {
    return returned(ordinal == 0 ? SUCCESS : INVALID_DEVICE);
}

API int cudaInitDevice(int ordinal, unsigned, unsigned) {
    return cudaSetDevice(ordinal);
}

API int cudaSetDeviceFlags(unsigned) {
    return returned(SUCCESS);
}

API int cudaGetDeviceFlags(unsigned *flags) {
    *flags = 0;
    return returned(SUCCESS);
}

API int cudaDeviceSynchronize() {
    return returned(SUCCESS);
}

API int cudaDeviceReset() {
    return returned(SUCCESS);
}

API int cudaDeviceSetLimit(int, std::size_t) {
    return returned(SUCCESS);
}

API int cudaDeviceSetCacheConfig(int) {
    return returned(SUCCESS);
}

API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return returned(SUCCESS);
}

API int cudaDeviceGetAttribute(int *value, int attribute, int ordinal) {
    LOCKED;
    if (ordinal)
        return returned(INVALID_DEVICE);
    const Reply reply = device().ask(Ask::ATTRIBUTE, {static_cast<Word>(attribute)});
    if (!reply.error)
        *value = static_cast<int>(reply.words[0]);
    return returned(reply.error);
}

API int cudaGetDeviceProperties(void *properties, int ordinal) {
    LOCKED;
    if (ordinal)
        return returned(INVALID_DEVICE);
    const Reply reply = device().ask(Ask::PROPERTIES);
    std::memcpy(properties, reply.bytes.data(), reply.bytes.size());
    return returned(reply.error);
}

API int cudaDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

API int cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

API int cudaProfilerStart() {
    return SUCCESS;
}

API int cudaProfilerStop() {
    return SUCCESS;
}

// Errors.

API int cudaGetLastError() {
    LOCKED;
    const int error = device().broken ? device().broken : last_error;
    last_error = SUCCESS;
    return error;
}

API int cudaPeekAtLastError() {
    LOCKED;
    return device().broken ? device().broken : last_error;
}

API const char *cudaGetErrorName(int error) {
    return name_of(error).name;
}

API const char *cudaGetErrorString(int error) {
    return name_of(error).text;
}

// Memory.

API int cudaMalloc(void **pointer, std::size_t bytes) {
    LOCKED;
    return returned(device().allocate(pointer, bytes, false));
}

API int cudaMallocAsync(void **pointer, std::size_t bytes, void *) {
    return cudaMalloc(pointer, bytes);
}

API int cudaMallocManaged(void **pointer, std::size_t bytes, unsigned) {
    LOCKED;
    return returned(device().allocate(pointer, bytes, true));
}

API int cudaHostAlloc(void **pointer, std::size_t bytes, unsigned) {
    return cudaMallocManaged(pointer, bytes, 0);
}

API int cudaMallocHost(void **pointer, std::size_t bytes) {
    return cudaMallocManaged(pointer, bytes, 0);
}

API int cudaHostGetDevicePointer(void **pointer, void *host, unsigned) {
    LOCKED;
    const auto [base, block] = device().block_of(host);
    *pointer = host;
    return returned(block ? SUCCESS : INVALID_VALUE);
}

API int cudaMallocPitch(void **pointer, std::size_t *pitch, std::size_t width, std::size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}

API int cudaFree(void *pointer) {
    LOCKED;
    return returned(device().release(pointer, "cudaFree"));
}

API int cudaFreeAsync(void *pointer, void *) {
    return cudaFree(pointer);
}

API int cudaFreeHost(void *pointer) {
    LOCKED;
    return returned(device().release(pointer, "cudaFreeHost"));
}

API int cudaMemGetInfo(std::size_t *available, std::size_t *total) {
    *available = *total = std::size_t{64} << 30;
    return returned(SUCCESS);
}

struct PointerAttributes {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};

enum { UNREGISTERED = 0, DEVICE = 2, MANAGED = 3 };  // types of memory

API int cudaPointerGetAttributes(PointerAttributes *attributes, const void *pointer) {
    LOCKED;
    const auto [base, block] = device().block_of(pointer);
    auto *same = const_cast<void *>(pointer);
    *attributes = {};
    attributes->type = !block ? UNREGISTERED : block->shared ? MANAGED : DEVICE;
    attributes->device = block ? 0 : -2;
    attributes->device_pointer = block ? same : nullptr;
    attributes->host_pointer = !block || block->shared ? same : nullptr;
    return returned(SUCCESS);
}

API int cudaMemcpy(void *to, const void *from, std::size_t bytes, int) {
    LOCKED;
    if (device().broken)
        return returned(SUCCESS);
    return returned(device().copy(to, from, bytes, "cudaMemcpy"));
}

API int cudaMemcpyAsync(void *to, const void *from, std::size_t bytes, int kind, void *) {
    return cudaMemcpy(to, from, bytes, kind);
}

API int cudaMemcpy2D(void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch, std::size_t width,
                     std::size_t height, int) {
    LOCKED;
    int error = SUCCESS;
    for (std::size_t row = 0; row < height && !error; ++row) {
        auto *target = static_cast<char *>(to) + row * to_pitch;
        error = device().copy(target, static_cast<const char *>(from) + row * from_pitch, width, "cudaMemcpy2D");
    }
    return returned(error);
}

API int cudaMemcpy2DAsync(void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch, std::size_t width,
                          std::size_t height, int kind, void *) {
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

API int cudaMemset(void *to, int value, std::size_t bytes) {
    LOCKED;
    return returned(device().fill(to, std::string(1, static_cast<char>(value)), bytes, "cudaMemset"));
}

API int cudaMemsetAsync(void *to, int value, std::size_t bytes, void *) {
    return cudaMemset(to, value, bytes);
}

API int cudaMemset2D(void *to, std::size_t pitch, int value, std::size_t width, std::size_t height) {
    int error = SUCCESS;
    for (std::size_t row = 0; row < height && !error; ++row) {
        error = cudaMemset(static_cast<char *>(to) + row * pitch, value, width);
    }
    return error;
}

API int cudaMemAdvise(const void *, std::size_t, int, std::uint64_t, int) {
    return returned(SUCCESS);
}

API int cudaMemPrefetchAsync(const void *, std::size_t, std::uint64_t, unsigned, void *) {
    return returned(SUCCESS);
}

static int symbol(const void *host, Word *address, Word *bytes) {
    const auto found = device().variables.find(host);
    return found == device().variables.end() ? INVALID_SYMBOL : device().global(*found->second, address, bytes);
}

API int cudaGetSymbolAddress(void **pointer, const void *host) {
    LOCKED;
    Word address = 0;
    const int error = symbol(host, &address, nullptr);
    *pointer = reinterpret_cast<void *>(address);
    return returned(error);
}

API int cudaGetSymbolSize(std::size_t *bytes, const void *host) {
    LOCKED;
    Word size = 0;
    const int error = symbol(host, nullptr, &size);
    *bytes = size;
    return returned(error);
}

API int cudaMemcpyToSymbol(const void *host, const void *from, std::size_t bytes, std::size_t offset, int) {
    LOCKED;
    Word address = 0;
    if (const int error = symbol(host, &address, nullptr))
        return returned(error);
    return returned(device().copy(reinterpret_cast<void *>(address + offset), from, bytes, "cudaMemcpyToSymbol"));
}

API int cudaMemcpyToSymbolAsync(const void *host, const void *from, std::size_t bytes, std::size_t offset, int kind,
                                void *) {
    return cudaMemcpyToSymbol(host, from, bytes, offset, kind);
}

API int cudaMemcpyFromSymbol(void *to, const void *host, std::size_t bytes, std::size_t offset, int) {
    LOCKED;
    Word address = 0;
    if (const int error = symbol(host, &address, nullptr))
        return returned(error);
    return returned(device().copy(to, reinterpret_cast<void *>(address + offset), bytes, "cudaMemcpyFromSymbol"));
}

API int cudaMemcpyFromSymbolAsync(void *to, const void *host, std::size_t bytes, std::size_t offset, int kind, void *) {
    return cudaMemcpyFromSymbol(to, host, bytes, offset, kind);
}

// Streams and events: all work is done when a call returns.

API int cudaStreamCreateWithPriority(void **stream, unsigned, int) {
    *stream = new char;
    return returned(SUCCESS);
}

API int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

API int cudaStreamCreate(void **stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

API int cudaStreamDestroy(void *stream) {
    delete static_cast<char *>(stream);
    return returned(SUCCESS);
}

API int cudaStreamSynchronize(void *) {
    return returned(SUCCESS);
}

API int cudaStreamQuery(void *) {
    return returned(SUCCESS);
}

API int cudaStreamWaitEvent(void *, void *, unsigned) {
    return returned(SUCCESS);
}

API int cudaStreamGetFlags(void *, unsigned *flags) {
    *flags = 0;
    return returned(SUCCESS);
}

API int cudaStreamGetPriority(void *, int *priority) {
    *priority = 0;
    return returned(SUCCESS);
}

API int cudaStreamIsCapturing(void *, int *status) {
    *status = 0;
    return returned(SUCCESS);
}

API int cudaLaunchHostFunc(void *, void (*function)(void *), void *data) {
    function(data);
    return returned(SUCCESS);
}

API int cudaEventCreateWithFlags(void **event, unsigned) {
    *event = new Stamp{std::chrono::steady_clock::now()};
    return returned(SUCCESS);
}

API int cudaEventCreate(void **event) {
    return cudaEventCreateWithFlags(event, 0);
}

API int cudaEventRecord(void *event, void *) {
    static_cast<Stamp *>(event)->time = std::chrono::steady_clock::now();
    return returned(SUCCESS);
}

API int cudaEventRecordWithFlags(void *event, void *stream, unsigned) {
    return cudaEventRecord(event, stream);
}

API int cudaEventSynchronize(void *) {
    return returned(SUCCESS);
}

API int cudaEventQuery(void *) {
    return returned(SUCCESS);
}

API int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    const auto passed = static_cast<Stamp *>(end)->time - static_cast<Stamp *>(start)->time;
    *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
    return returned(SUCCESS);
}

API int cudaEventDestroy(void *event) {
    delete static_cast<Stamp *>(event);
    return returned(SUCCESS);
}

// The driver: tensor maps, modules, and what programs ask it beside them.

API int cuInit(unsigned) {
    return SUCCESS;
}

API int cuDriverGetVersion(int *version) {
    return cudaDriverGetVersion(version);
}

API int cuDeviceGet(int *handle, int ordinal) {
    *handle = 0;
    return ordinal ? INVALID_DEVICE : SUCCESS;
}

API int cuDeviceGetCount(int *count) {
    return cudaGetDeviceCount(count);
}

API int cuDeviceGetAttribute(int *value, int attribute, int handle) {
    return cudaDeviceGetAttribute(value, attribute, handle);
}

API int cuDeviceGetName(char *name, int bytes, int) {
    LOCKED;
    const Reply reply = device().ask(Ask::PROPERTIES);
    std::snprintf(name, static_cast<std::size_t>(bytes), "%s", reply.bytes.c_str());  // the first field
    return SUCCESS;
}

API int cuDeviceTotalMem_v2(std::size_t *bytes, int) {
    *bytes = std::size_t{64} << 30;
    return SUCCESS;
}

static char the_context;  // there is one, whose address is its handle

API int cuCtxCreate_v4(void **context, void *, unsigned, int) {
    *context = &the_context;
    return SUCCESS;
}

API int cuCtxCreate_v2(void **context, unsigned, int) {
    *context = &the_context;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRetain(void **context, int) {
    *context = &the_context;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int) {
    return SUCCESS;
}

API int cuCtxGetCurrent(void **context) {
    *context = &the_context;
    return SUCCESS;
}

API int cuCtxPopCurrent_v2(void **context) {
    if (context)
        *context = &the_context;
    return SUCCESS;
}

API int cuCtxGetDevice(int *handle) {
    *handle = 0;
    return SUCCESS;
}

API int cuCtxSetCurrent(void *) {
    return SUCCESS;
}

API int cuCtxPushCurrent_v2(void *) {
    return SUCCESS;
}

API int cuCtxDestroy_v2(void *) {
    return SUCCESS;
}

API int cuCtxSynchronize() {
    return cudaDeviceSynchronize();
}

API int cuGetErrorString(int error, const char **text) {
    *text = name_of(error).text;
    return SUCCESS;
}

API int cuGetErrorName(int error, const char **name) {
    *name = name_of(error).name;
    return SUCCESS;
}

API int cuModuleLoadDataEx(void **handle, const void *image, unsigned, void *, void *) {
    LOCKED;
    auto module = std::make_unique<Module>();
    module->image = static_cast<const unsigned char *>(image);
    module->bytes = image_bytes(module->image);
    const int error = device().load(*module);
    *handle = error ? nullptr : module.release();
    return error;
}

API int cuModuleLoadData(void **handle, const void *image) {
    return cuModuleLoadDataEx(handle, image, 0, nullptr, nullptr);
}

API int cuModuleLoad(void **handle, const char *path) {
    std::FILE *file = std::fopen(path, "rb");
    if (!file)
        return 301;                // CUDA_ERROR_FILE_NOT_FOUND
    auto *data = new std::string;  // the module keeps its image
    char part[65536];
    for (std::size_t got; (got = std::fread(part, 1, sizeof part, file)) > 0;)
        data->append(part, got);
    std::fclose(file);
    return cuModuleLoadDataEx(handle, data->c_str(), 0, nullptr, nullptr);
}

API int cuModuleUnload(void *) {
    return SUCCESS;
}

API int cuModuleGetFunction(void **handle, void *module, const char *name) {
    LOCKED;
    auto *owner = static_cast<Module *>(module);
    auto function = std::make_unique<Function>();
    function->module = owner, function->name = name;
    const int error = device().prepare(*function);
    *handle = error ? nullptr : function.get();
    if (error)
        return error == INVALID_FUNCTION ? static_cast<int>(NOT_FOUND) : error;
    device().handles.insert(function.get());
    owner->functions.push_back(std::move(function));
    return SUCCESS;
}

API int cuModuleGetGlobal_v2(Word *address, std::size_t *bytes, void *module, const char *name) {
    LOCKED;
    Variable variable{static_cast<Module *>(module), name, nullptr};
    Word size = 0, place = 0;
    const int error = device().global(variable, &place, &size);
    if (address)
        *address = place;
    if (bytes)
        *bytes = size;
    return error == INVALID_SYMBOL ? static_cast<int>(NOT_FOUND) : error;
}

API int cuFuncSetAttribute(void *function, int attribute, int value) {
    return cudaFuncSetAttribute(function, attribute, value);
}

API int cuMemAlloc_v2(Word *address, std::size_t bytes) {
    void *pointer = nullptr;
    const int error = bytes ? cudaMalloc(&pointer, bytes) : static_cast<int>(INVALID_VALUE);
    *address = reinterpret_cast<Word>(pointer);
    return error;
}

API int cuMemFree_v2(Word address) {
    return cudaFree(reinterpret_cast<void *>(address));
}

API int cuMemcpyHtoD_v2(Word to, const void *from, std::size_t bytes) {
    return cudaMemcpy(reinterpret_cast<void *>(to), from, bytes, 1);
}

API int cuMemcpyDtoH_v2(void *to, Word from, std::size_t bytes) {
    return cudaMemcpy(to, reinterpret_cast<void *>(from), bytes, 2);
}

API int cuMemcpyDtoD_v2(Word to, Word from, std::size_t bytes) {
    return cudaMemcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes, 3);
}

API int cuMemsetD8_v2(Word to, unsigned char value, std::size_t count) {
    return cudaMemset(reinterpret_cast<void *>(to), value, count);
}

API int cuMemsetD32_v2(Word to, unsigned value, std::size_t count) {
    LOCKED;
    const std::string pattern(reinterpret_cast<const char *>(&value), 4);
    return returned(device().fill(reinterpret_cast<void *>(to), pattern, count, "cuMemsetD32"));
}

// The parameters as one buffer, which `extra` holds: CU_LAUNCH_PARAM_BUFFER_POINTER 1, _SIZE 2, _END 0.
static bool packed_parameters(void **extra, std::string *data) {
    void *pointer = nullptr;
    std::size_t bytes = 0;
    for (; extra && *extra; extra += 2) {
        if (*extra == reinterpret_cast<void *>(1))
            pointer = extra[1];
        if (*extra == reinterpret_cast<void *>(2))
            bytes = *static_cast<std::size_t *>(extra[1]);
    }
    if (pointer)
        data->assign(static_cast<char *>(pointer), bytes);
    return pointer != nullptr;
}

API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void *, void **arguments, void **extra) {
    LOCKED;
    std::string data;
    const bool packed = packed_parameters(extra, &data);
    return returned(
        device().launch(function, {gx, gy, gz}, {bx, by, bz}, NO_CLUSTER, shared, arguments, packed ? &data : nullptr));
}

struct DriverConfig {
    Size3 grid, block;
    unsigned shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned count;
};

API int cuLaunchKernelEx(const DriverConfig *config, void *function, void **arguments, void **extra) {
    LOCKED;
    const Size3 cluster = cluster_of(config->attributes, config->count);
    std::string data;
    const bool packed = packed_parameters(extra, &data);
    return returned(device().launch(function, config->grid, config->block, cluster, config->shared, arguments,
                                    packed ? &data : nullptr));
}

API int cuTensorMapEncodeTiled(void *map, int type, std::uint32_t rank, void *address, const Word *dims,
                               const Word *strides, const std::uint32_t *box, const std::uint32_t *steps,
                               int interleave, int swizzle, int promotion, int fill) {
    LOCKED;
    if (rank < 1 || rank > 5)
        return device().refuse(INVALID_VALUE, "cuTensorMapEncodeTiled: a rank of 1 to 5");
    std::vector<Word> words{static_cast<Word>(type),    static_cast<Word>(interleave),
                            static_cast<Word>(swizzle), static_cast<Word>(promotion),
                            static_cast<Word>(fill),    reinterpret_cast<Word>(address)};
    words.insert(words.end(), dims, dims + rank);
    words.insert(words.end(), strides, strides + rank - 1);
    words.insert(words.end(), box, box + rank);
    words.insert(words.end(), steps, steps + rank);
    const Reply reply = device().ask(Ask::TENSOR_MAP, words);
    if (!reply.error)
        std::memcpy(map, reply.bytes.data(), reply.bytes.size());
    return reply.error;
}

API int cuGetExportTable(const void **, const void *) {  // the runtime inside a program asks for it
    missing("cuGetExportTable");
}

API int cuGetProcAddress_v2(const char *name, void **function, int, Word, int *status) {
    for (const char *suffix : {"", "_v2", "_v4"}) {
        *function = dlsym(RTLD_DEFAULT, (std::string(name) + suffix).c_str());
        if (*function)
            break;
    }
    if (status)
        *status = *function ? 0 : 1;  // found, or not found
    return *function ? SUCCESS : NOT_FOUND;
}

API int cuGetProcAddress(const char *name, void **function, int version, Word flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

API int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long, int *status) {
    return returned(cuGetProcAddress_v2(name, function, 0, 0, status));
}

API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long, int *status) {
    return returned(cuGetProcAddress_v2(name, function, 0, 0, status));
}

// The rest of the interface: a program that calls one of these ends with one line that names it.
#define MISSING(name)   \
    API void name() {   \
        missing(#name); \
    }
MISSING(__cudaGetProcAddress)
MISSING(__cudaRegisterHostVar)
MISSING(__cudaRegisterUnifiedTable)
MISSING(cuArray3DCreate_v2)
MISSING(cuArray3DGetDescriptor_v2)
MISSING(cuArrayCreate_v2)
MISSING(cuArrayDestroy)
MISSING(cuArrayGetDescriptor_v2)
MISSING(cuArrayGetMemoryRequirements)
MISSING(cuArrayGetPlane)
MISSING(cuArrayGetSparseProperties)
MISSING(cuCheckpointProcessCheckpoint)
MISSING(cuCheckpointProcessGetRestoreThreadId)
MISSING(cuCheckpointProcessGetState)
MISSING(cuCheckpointProcessLock)
MISSING(cuCheckpointProcessRestore)
MISSING(cuCheckpointProcessUnlock)
MISSING(cuCoredumpGetAttribute)
MISSING(cuCoredumpGetAttributeGlobal)
MISSING(cuCoredumpSetAttribute)
MISSING(cuCoredumpSetAttributeGlobal)
MISSING(cuCtxDisablePeerAccess)
MISSING(cuCtxEnablePeerAccess)
MISSING(cuCtxFromGreenCtx)
MISSING(cuCtxGetApiVersion)
MISSING(cuCtxGetCacheConfig)
MISSING(cuCtxGetDevResource)
MISSING(cuCtxGetDevice_v2)
MISSING(cuCtxGetExecAffinity)
MISSING(cuCtxGetFlags)
MISSING(cuCtxGetId)
MISSING(cuCtxGetLimit)
MISSING(cuCtxGetStreamPriorityRange)
MISSING(cuCtxRecordEvent)
MISSING(cuCtxResetPersistingL2Cache)
MISSING(cuCtxSetCacheConfig)
MISSING(cuCtxSetFlags)
MISSING(cuCtxSetLimit)
MISSING(cuCtxSynchronize_v2)
MISSING(cuCtxWaitEvent)
MISSING(cuDestroyExternalMemory)
MISSING(cuDestroyExternalSemaphore)
MISSING(cuDevResourceGenerateDesc)
MISSING(cuDevSmResourceSplitByCount)
MISSING(cuDeviceCanAccessPeer)
MISSING(cuDeviceGetByPCIBusId)
MISSING(cuDeviceGetDefaultMemPool)
MISSING(cuDeviceGetDevResource)
MISSING(cuDeviceGetExecAffinitySupport)
MISSING(cuDeviceGetGraphMemAttribute)
MISSING(cuDeviceGetHostAtomicCapabilities)
MISSING(cuDeviceGetLuid)
MISSING(cuDeviceGetMemPool)
MISSING(cuDeviceGetNvSciSyncAttributes)
MISSING(cuDeviceGetP2PAtomicCapabilities)
MISSING(cuDeviceGetP2PAttribute)
MISSING(cuDeviceGetPCIBusId)
MISSING(cuDeviceGetTexture1DLinearMaxWidth)
MISSING(cuDeviceGetUuid_v2)
MISSING(cuDeviceGraphMemTrim)
MISSING(cuDevicePrimaryCtxGetState)
MISSING(cuDevicePrimaryCtxReset_v2)
MISSING(cuDevicePrimaryCtxSetFlags_v2)
MISSING(cuDeviceRegisterAsyncNotification)
MISSING(cuDeviceSetGraphMemAttribute)
MISSING(cuDeviceSetMemPool)
MISSING(cuDeviceUnregisterAsyncNotification)
MISSING(cuEventCreate)
MISSING(cuEventDestroy_v2)
MISSING(cuEventElapsedTime_v2)
MISSING(cuEventQuery)
MISSING(cuEventRecord)
MISSING(cuEventRecordWithFlags)
MISSING(cuEventSynchronize)
MISSING(cuExternalMemoryGetMappedBuffer)
MISSING(cuExternalMemoryGetMappedMipmappedArray)
MISSING(cuFlushGPUDirectRDMAWrites)
MISSING(cuFuncGetAttribute)
MISSING(cuFuncGetModule)
MISSING(cuFuncGetName)
MISSING(cuFuncGetParamInfo)
MISSING(cuFuncIsLoaded)
MISSING(cuFuncLoad)
MISSING(cuFuncSetCacheConfig)
MISSING(cuGraphAddBatchMemOpNode)
MISSING(cuGraphAddChildGraphNode)
MISSING(cuGraphAddDependencies_v2)
MISSING(cuGraphAddEmptyNode)
MISSING(cuGraphAddEventRecordNode)
MISSING(cuGraphAddEventWaitNode)
MISSING(cuGraphAddExternalSemaphoresSignalNode)
MISSING(cuGraphAddExternalSemaphoresWaitNode)
MISSING(cuGraphAddHostNode)
MISSING(cuGraphAddKernelNode_v2)
MISSING(cuGraphAddMemAllocNode)
MISSING(cuGraphAddMemFreeNode)
MISSING(cuGraphAddMemcpyNode)
MISSING(cuGraphAddMemsetNode)
MISSING(cuGraphAddNode_v2)
MISSING(cuGraphBatchMemOpNodeGetParams)
MISSING(cuGraphBatchMemOpNodeSetParams)
MISSING(cuGraphChildGraphNodeGetGraph)
MISSING(cuGraphClone)
MISSING(cuGraphConditionalHandleCreate)
MISSING(cuGraphCreate)
MISSING(cuGraphDebugDotPrint)
MISSING(cuGraphDestroy)
MISSING(cuGraphDestroyNode)
MISSING(cuGraphEventRecordNodeGetEvent)
MISSING(cuGraphEventRecordNodeSetEvent)
MISSING(cuGraphEventWaitNodeGetEvent)
MISSING(cuGraphEventWaitNodeSetEvent)
MISSING(cuGraphExecBatchMemOpNodeSetParams)
MISSING(cuGraphExecChildGraphNodeSetParams)
MISSING(cuGraphExecDestroy)
MISSING(cuGraphExecEventRecordNodeSetEvent)
MISSING(cuGraphExecEventWaitNodeSetEvent)
MISSING(cuGraphExecExternalSemaphoresSignalNodeSetParams)
MISSING(cuGraphExecExternalSemaphoresWaitNodeSetParams)
MISSING(cuGraphExecGetFlags)
MISSING(cuGraphExecHostNodeSetParams)
MISSING(cuGraphExecKernelNodeSetParams_v2)
MISSING(cuGraphExecMemcpyNodeSetParams)
MISSING(cuGraphExecMemsetNodeSetParams)
MISSING(cuGraphExecNodeSetParams)
MISSING(cuGraphExecUpdate_v2)
MISSING(cuGraphExternalSemaphoresSignalNodeGetParams)
MISSING(cuGraphExternalSemaphoresSignalNodeSetParams)
MISSING(cuGraphExternalSemaphoresWaitNodeGetParams)
MISSING(cuGraphExternalSemaphoresWaitNodeSetParams)
MISSING(cuGraphGetEdges_v2)
MISSING(cuGraphGetNodes)
MISSING(cuGraphGetRootNodes)
MISSING(cuGraphHostNodeGetParams)
MISSING(cuGraphHostNodeSetParams)
MISSING(cuGraphInstantiateWithFlags)
MISSING(cuGraphInstantiateWithParams)
MISSING(cuGraphKernelNodeCopyAttributes)
MISSING(cuGraphKernelNodeGetAttribute)
MISSING(cuGraphKernelNodeGetParams_v2)
MISSING(cuGraphKernelNodeSetAttribute)
MISSING(cuGraphKernelNodeSetParams_v2)
MISSING(cuGraphLaunch)
MISSING(cuGraphMemAllocNodeGetParams)
MISSING(cuGraphMemFreeNodeGetParams)
MISSING(cuGraphMemcpyNodeGetParams)
MISSING(cuGraphMemcpyNodeSetParams)
MISSING(cuGraphMemsetNodeGetParams)
MISSING(cuGraphMemsetNodeSetParams)
MISSING(cuGraphNodeFindInClone)
MISSING(cuGraphNodeGetDependencies_v2)
MISSING(cuGraphNodeGetDependentNodes_v2)
MISSING(cuGraphNodeGetEnabled)
MISSING(cuGraphNodeGetType)
MISSING(cuGraphNodeSetEnabled)
MISSING(cuGraphNodeSetParams)
MISSING(cuGraphReleaseUserObject)
MISSING(cuGraphRemoveDependencies_v2)
MISSING(cuGraphRetainUserObject)
MISSING(cuGraphUpload)
MISSING(cuGraphicsMapResources)
MISSING(cuGraphicsResourceGetMappedMipmappedArray)
MISSING(cuGraphicsResourceGetMappedPointer_v2)
MISSING(cuGraphicsResourceSetMapFlags_v2)
MISSING(cuGraphicsSubResourceGetMappedArray)
MISSING(cuGraphicsUnmapResources)
MISSING(cuGraphicsUnregisterResource)
MISSING(cuGreenCtxCreate)
MISSING(cuGreenCtxDestroy)
MISSING(cuGreenCtxGetDevResource)
MISSING(cuGreenCtxGetId)
MISSING(cuGreenCtxRecordEvent)
MISSING(cuGreenCtxStreamCreate)
MISSING(cuGreenCtxWaitEvent)
MISSING(cuImportExternalMemory)
MISSING(cuImportExternalSemaphore)
MISSING(cuIpcCloseMemHandle)
MISSING(cuIpcGetEventHandle)
MISSING(cuIpcGetMemHandle)
MISSING(cuIpcOpenEventHandle)
MISSING(cuIpcOpenMemHandle_v2)
MISSING(cuKernelGetAttribute)
MISSING(cuKernelGetFunction)
MISSING(cuKernelGetLibrary)
MISSING(cuKernelGetName)
MISSING(cuKernelGetParamInfo)
MISSING(cuKernelSetAttribute)
MISSING(cuKernelSetCacheConfig)
MISSING(cuLaunchCooperativeKernel)
MISSING(cuLaunchHostFunc)
MISSING(cuLibraryEnumerateKernels)
MISSING(cuLibraryGetGlobal)
MISSING(cuLibraryGetKernel)
MISSING(cuLibraryGetKernelCount)
MISSING(cuLibraryGetManaged)
MISSING(cuLibraryGetModule)
MISSING(cuLibraryGetUnifiedFunction)
MISSING(cuLibraryLoadData)
MISSING(cuLibraryLoadFromFile)
MISSING(cuLibraryUnload)
MISSING(cuLogsCurrent)
MISSING(cuLogsDumpToFile)
MISSING(cuLogsDumpToMemory)
MISSING(cuLogsRegisterCallback)
MISSING(cuLogsUnregisterCallback)
MISSING(cuMemAddressFree)
MISSING(cuMemAddressReserve)
MISSING(cuMemAdvise_v2)
MISSING(cuMemAllocAsync)
MISSING(cuMemAllocFromPoolAsync)
MISSING(cuMemAllocHost_v2)
MISSING(cuMemAllocManaged)
MISSING(cuMemAllocPitch_v2)
MISSING(cuMemBatchDecompressAsync)
MISSING(cuMemCreate)
MISSING(cuMemDiscardAndPrefetchBatchAsync)
MISSING(cuMemDiscardBatchAsync)
MISSING(cuMemExportToShareableHandle)
MISSING(cuMemFreeAsync)
MISSING(cuMemFreeHost)
MISSING(cuMemGetAccess)
MISSING(cuMemGetAddressRange_v2)
MISSING(cuMemGetAllocationGranularity)
MISSING(cuMemGetAllocationPropertiesFromHandle)
MISSING(cuMemGetDefaultMemPool)
MISSING(cuMemGetHandleForAddressRange)
MISSING(cuMemGetInfo_v2)
MISSING(cuMemGetMemPool)
MISSING(cuMemHostAlloc)
MISSING(cuMemHostGetDevicePointer_v2)
MISSING(cuMemHostGetFlags)
MISSING(cuMemHostRegister_v2)
MISSING(cuMemHostUnregister)
MISSING(cuMemImportFromShareableHandle)
MISSING(cuMemMap)
MISSING(cuMemMapArrayAsync)
MISSING(cuMemPoolCreate)
MISSING(cuMemPoolDestroy)
MISSING(cuMemPoolExportPointer)
MISSING(cuMemPoolExportToShareableHandle)
MISSING(cuMemPoolGetAccess)
MISSING(cuMemPoolGetAttribute)
MISSING(cuMemPoolImportFromShareableHandle)
MISSING(cuMemPoolImportPointer)
MISSING(cuMemPoolSetAccess)
MISSING(cuMemPoolSetAttribute)
MISSING(cuMemPoolTrimTo)
MISSING(cuMemPrefetchAsync_v2)
MISSING(cuMemPrefetchBatchAsync)
MISSING(cuMemRangeGetAttribute)
MISSING(cuMemRangeGetAttributes)
MISSING(cuMemRelease)
MISSING(cuMemRetainAllocationHandle)
MISSING(cuMemSetAccess)
MISSING(cuMemSetMemPool)
MISSING(cuMemUnmap)
MISSING(cuMemcpy)
MISSING(cuMemcpy2DAsync_v2)
MISSING(cuMemcpy2DUnaligned_v2)
MISSING(cuMemcpy2D_v2)
MISSING(cuMemcpy3DAsync_v2)
MISSING(cuMemcpy3DBatchAsync_v2)
MISSING(cuMemcpy3DPeer)
MISSING(cuMemcpy3DPeerAsync)
MISSING(cuMemcpy3D_v2)
MISSING(cuMemcpyAsync)
MISSING(cuMemcpyAtoA_v2)
MISSING(cuMemcpyAtoD_v2)
MISSING(cuMemcpyAtoHAsync_v2)
MISSING(cuMemcpyAtoH_v2)
MISSING(cuMemcpyBatchAsync_v2)
MISSING(cuMemcpyDtoA_v2)
MISSING(cuMemcpyDtoDAsync_v2)
MISSING(cuMemcpyDtoHAsync_v2)
MISSING(cuMemcpyHtoAAsync_v2)
MISSING(cuMemcpyHtoA_v2)
MISSING(cuMemcpyHtoDAsync_v2)
MISSING(cuMemcpyPeer)
MISSING(cuMemcpyPeerAsync)
MISSING(cuMemsetD16Async)
MISSING(cuMemsetD16_v2)
MISSING(cuMemsetD2D16Async)
MISSING(cuMemsetD2D16_v2)
MISSING(cuMemsetD2D32Async)
MISSING(cuMemsetD2D32_v2)
MISSING(cuMemsetD2D8Async)
MISSING(cuMemsetD2D8_v2)
MISSING(cuMemsetD32Async)
MISSING(cuMemsetD8Async)
MISSING(cuMipmappedArrayCreate)
MISSING(cuMipmappedArrayDestroy)
MISSING(cuMipmappedArrayGetLevel)
MISSING(cuMipmappedArrayGetMemoryRequirements)
MISSING(cuMipmappedArrayGetSparseProperties)
MISSING(cuModuleEnumerateFunctions)
MISSING(cuModuleGetFunctionCount)
MISSING(cuModuleGetLoadingMode)
MISSING(cuModuleLoadFatBinary)
MISSING(cuMulticastAddDevice)
MISSING(cuMulticastBindAddr)
MISSING(cuMulticastBindMem)
MISSING(cuMulticastCreate)
MISSING(cuMulticastGetGranularity)
MISSING(cuMulticastUnbind)
MISSING(cuOccupancyAvailableDynamicSMemPerBlock)
MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
MISSING(cuOccupancyMaxActiveClusters)
MISSING(cuOccupancyMaxPotentialBlockSize)
MISSING(cuOccupancyMaxPotentialBlockSizeWithFlags)
MISSING(cuOccupancyMaxPotentialClusterSize)
MISSING(cuPointerGetAttribute)
MISSING(cuPointerGetAttributes)
MISSING(cuPointerSetAttribute)
MISSING(cuSignalExternalSemaphoresAsync)
MISSING(cuStreamAddCallback)
MISSING(cuStreamAttachMemAsync)
MISSING(cuStreamBatchMemOp_v2)
MISSING(cuStreamBeginCaptureToGraph)
MISSING(cuStreamBeginCapture_v2)
MISSING(cuStreamCopyAttributes)
MISSING(cuStreamCreate)
MISSING(cuStreamCreateWithPriority)
MISSING(cuStreamDestroy_v2)
MISSING(cuStreamEndCapture)
MISSING(cuStreamGetAttribute)
MISSING(cuStreamGetCaptureInfo_v3)
MISSING(cuStreamGetCtx)
MISSING(cuStreamGetCtx_v2)
MISSING(cuStreamGetDevice)
MISSING(cuStreamGetFlags)
MISSING(cuStreamGetGreenCtx)
MISSING(cuStreamGetId)
MISSING(cuStreamGetPriority)
MISSING(cuStreamIsCapturing)
MISSING(cuStreamQuery)
MISSING(cuStreamSetAttribute)
MISSING(cuStreamSynchronize)
MISSING(cuStreamUpdateCaptureDependencies_v2)
MISSING(cuStreamWaitEvent)
MISSING(cuStreamWaitValue32_v2)
MISSING(cuStreamWaitValue64_v2)
MISSING(cuStreamWriteValue32_v2)
MISSING(cuStreamWriteValue64_v2)
MISSING(cuSurfObjectCreate)
MISSING(cuSurfObjectDestroy)
MISSING(cuSurfObjectGetResourceDesc)
MISSING(cuTensorMapEncodeIm2col)
MISSING(cuTensorMapEncodeIm2colWide)
MISSING(cuTensorMapReplaceAddress)
MISSING(cuTexObjectCreate)
MISSING(cuTexObjectDestroy)
MISSING(cuTexObjectGetResourceDesc)
MISSING(cuTexObjectGetResourceViewDesc)
MISSING(cuTexObjectGetTextureDesc)
MISSING(cuThreadExchangeStreamCaptureMode)
MISSING(cuUserObjectCreate)
MISSING(cuUserObjectRelease)
MISSING(cuUserObjectRetain)
MISSING(cuWaitExternalSemaphoresAsync)
MISSING(cudaArrayGetInfo)
MISSING(cudaArrayGetMemoryRequirements)
MISSING(cudaArrayGetPlane)
MISSING(cudaArrayGetSparseProperties)
MISSING(cudaChooseDevice)
MISSING(cudaCreateChannelDesc)
MISSING(cudaCreateSurfaceObject)
MISSING(cudaCreateTextureObject)
MISSING(cudaCtxResetPersistingL2Cache)
MISSING(cudaDestroyExternalMemory)
MISSING(cudaDestroyExternalSemaphore)
MISSING(cudaDestroySurfaceObject)
MISSING(cudaDestroyTextureObject)
MISSING(cudaDeviceCanAccessPeer)
MISSING(cudaDeviceDisablePeerAccess)
MISSING(cudaDeviceEnablePeerAccess)
MISSING(cudaDeviceFlushGPUDirectRDMAWrites)
MISSING(cudaDeviceGetByPCIBusId)
MISSING(cudaDeviceGetCacheConfig)
MISSING(cudaDeviceGetDefaultMemPool)
MISSING(cudaDeviceGetGraphMemAttribute)
MISSING(cudaDeviceGetHostAtomicCapabilities)
MISSING(cudaDeviceGetLimit)
MISSING(cudaDeviceGetMemPool)
MISSING(cudaDeviceGetNvSciSyncAttributes)
MISSING(cudaDeviceGetP2PAtomicCapabilities)
MISSING(cudaDeviceGetP2PAttribute)
MISSING(cudaDeviceGetPCIBusId)
MISSING(cudaDeviceGetSharedMemConfig)
MISSING(cudaDeviceGetTexture1DLinearMaxWidth)
MISSING(cudaDeviceGraphMemTrim)
MISSING(cudaDeviceRegisterAsyncNotification)
MISSING(cudaDeviceSetGraphMemAttribute)
MISSING(cudaDeviceSetMemPool)
MISSING(cudaDeviceSetSharedMemConfig)
MISSING(cudaDeviceUnregisterAsyncNotification)
MISSING(cudaEGLStreamConsumerAcquireFrame)
MISSING(cudaEGLStreamConsumerConnect)
MISSING(cudaEGLStreamConsumerConnectWithFlags)
MISSING(cudaEGLStreamConsumerDisconnect)
MISSING(cudaEGLStreamConsumerReleaseFrame)
MISSING(cudaEGLStreamProducerConnect)
MISSING(cudaEGLStreamProducerDisconnect)
MISSING(cudaEGLStreamProducerPresentFrame)
MISSING(cudaEGLStreamProducerReturnFrame)
MISSING(cudaEventCreateFromEGLSync)
MISSING(cudaExternalMemoryGetMappedBuffer)
MISSING(cudaExternalMemoryGetMappedMipmappedArray)
MISSING(cudaFreeArray)
MISSING(cudaFreeMipmappedArray)
MISSING(cudaFuncGetParamInfo)
MISSING(cudaFuncSetSharedMemConfig)
MISSING(cudaGLGetDevices)
MISSING(cudaGLMapBufferObject)
MISSING(cudaGLMapBufferObjectAsync)
MISSING(cudaGLRegisterBufferObject)
MISSING(cudaGLSetBufferObjectMapFlags)
MISSING(cudaGLSetGLDevice)
MISSING(cudaGLUnmapBufferObject)
MISSING(cudaGLUnmapBufferObjectAsync)
MISSING(cudaGLUnregisterBufferObject)
MISSING(cudaGetChannelDesc)
MISSING(cudaGetExportTable)
MISSING(cudaGetMipmappedArrayLevel)
MISSING(cudaGetSurfaceObjectResourceDesc)
MISSING(cudaGetTextureObjectResourceDesc)
MISSING(cudaGetTextureObjectResourceViewDesc)
MISSING(cudaGetTextureObjectTextureDesc)
MISSING(cudaGraphAddChildGraphNode)
MISSING(cudaGraphAddDependencies)
MISSING(cudaGraphAddEmptyNode)
MISSING(cudaGraphAddEventRecordNode)
MISSING(cudaGraphAddEventWaitNode)
MISSING(cudaGraphAddExternalSemaphoresSignalNode)
MISSING(cudaGraphAddExternalSemaphoresWaitNode)
MISSING(cudaGraphAddHostNode)
MISSING(cudaGraphAddKernelNode)
MISSING(cudaGraphAddMemAllocNode)
MISSING(cudaGraphAddMemFreeNode)
MISSING(cudaGraphAddMemcpyNode)
MISSING(cudaGraphAddMemcpyNode1D)
MISSING(cudaGraphAddMemcpyNodeFromSymbol)
MISSING(cudaGraphAddMemcpyNodeToSymbol)
MISSING(cudaGraphAddMemsetNode)
MISSING(cudaGraphAddNode)
MISSING(cudaGraphChildGraphNodeGetGraph)
MISSING(cudaGraphClone)
MISSING(cudaGraphConditionalHandleCreate)
MISSING(cudaGraphCreate)
MISSING(cudaGraphDebugDotPrint)
MISSING(cudaGraphDestroy)
MISSING(cudaGraphDestroyNode)
MISSING(cudaGraphEventRecordNodeGetEvent)
MISSING(cudaGraphEventRecordNodeSetEvent)
MISSING(cudaGraphEventWaitNodeGetEvent)
MISSING(cudaGraphEventWaitNodeSetEvent)
MISSING(cudaGraphExecChildGraphNodeSetParams)
MISSING(cudaGraphExecDestroy)
MISSING(cudaGraphExecEventRecordNodeSetEvent)
MISSING(cudaGraphExecEventWaitNodeSetEvent)
MISSING(cudaGraphExecExternalSemaphoresSignalNodeSetParams)
MISSING(cudaGraphExecExternalSemaphoresWaitNodeSetParams)
MISSING(cudaGraphExecGetFlags)
MISSING(cudaGraphExecHostNodeSetParams)
MISSING(cudaGraphExecKernelNodeSetParams)
MISSING(cudaGraphExecMemcpyNodeSetParams)
MISSING(cudaGraphExecMemcpyNodeSetParams1D)
MISSING(cudaGraphExecMemcpyNodeSetParamsFromSymbol)
MISSING(cudaGraphExecMemcpyNodeSetParamsToSymbol)
MISSING(cudaGraphExecMemsetNodeSetParams)
MISSING(cudaGraphExecNodeSetParams)
MISSING(cudaGraphExecUpdate)
MISSING(cudaGraphExternalSemaphoresSignalNodeGetParams)
MISSING(cudaGraphExternalSemaphoresSignalNodeSetParams)
MISSING(cudaGraphExternalSemaphoresWaitNodeGetParams)
MISSING(cudaGraphExternalSemaphoresWaitNodeSetParams)
MISSING(cudaGraphGetEdges)
MISSING(cudaGraphGetNodes)
MISSING(cudaGraphGetRootNodes)
MISSING(cudaGraphHostNodeGetParams)
MISSING(cudaGraphHostNodeSetParams)
MISSING(cudaGraphInstantiate)
MISSING(cudaGraphInstantiateWithFlags)
MISSING(cudaGraphInstantiateWithParams)
MISSING(cudaGraphKernelNodeCopyAttributes)
MISSING(cudaGraphKernelNodeGetAttribute)
MISSING(cudaGraphKernelNodeGetParams)
MISSING(cudaGraphKernelNodeSetAttribute)
MISSING(cudaGraphKernelNodeSetParams)
MISSING(cudaGraphLaunch)
MISSING(cudaGraphMemAllocNodeGetParams)
MISSING(cudaGraphMemFreeNodeGetParams)
MISSING(cudaGraphMemcpyNodeGetParams)
MISSING(cudaGraphMemcpyNodeSetParams)
MISSING(cudaGraphMemcpyNodeSetParams1D)
MISSING(cudaGraphMemcpyNodeSetParamsFromSymbol)
MISSING(cudaGraphMemcpyNodeSetParamsToSymbol)
MISSING(cudaGraphMemsetNodeGetParams)
MISSING(cudaGraphMemsetNodeSetParams)
MISSING(cudaGraphNodeFindInClone)
MISSING(cudaGraphNodeGetDependencies)
MISSING(cudaGraphNodeGetDependentNodes)
MISSING(cudaGraphNodeGetEnabled)
MISSING(cudaGraphNodeGetType)
MISSING(cudaGraphNodeSetEnabled)
MISSING(cudaGraphNodeSetParams)
MISSING(cudaGraphReleaseUserObject)
MISSING(cudaGraphRemoveDependencies)
MISSING(cudaGraphRetainUserObject)
MISSING(cudaGraphUpload)
MISSING(cudaGraphicsEGLRegisterImage)
MISSING(cudaGraphicsGLRegisterBuffer)
MISSING(cudaGraphicsGLRegisterImage)
MISSING(cudaGraphicsMapResources)
MISSING(cudaGraphicsResourceGetMappedEglFrame)
MISSING(cudaGraphicsResourceGetMappedMipmappedArray)
MISSING(cudaGraphicsResourceGetMappedPointer)
MISSING(cudaGraphicsResourceSetMapFlags)
MISSING(cudaGraphicsSubResourceGetMappedArray)
MISSING(cudaGraphicsUnmapResources)
MISSING(cudaGraphicsUnregisterResource)
MISSING(cudaGraphicsVDPAURegisterOutputSurface)
MISSING(cudaGraphicsVDPAURegisterVideoSurface)
MISSING(cudaHostGetFlags)
MISSING(cudaHostRegister)
MISSING(cudaHostUnregister)
MISSING(cudaImportExternalMemory)
MISSING(cudaImportExternalSemaphore)
MISSING(cudaIpcCloseMemHandle)
MISSING(cudaIpcGetEventHandle)
MISSING(cudaIpcGetMemHandle)
MISSING(cudaIpcOpenEventHandle)
MISSING(cudaIpcOpenMemHandle)
MISSING(cudaKernelSetAttributeForDevice)
MISSING(cudaLibraryEnumerateKernels)
MISSING(cudaLibraryGetGlobal)
MISSING(cudaLibraryGetKernel)
MISSING(cudaLibraryGetKernelCount)
MISSING(cudaLibraryGetManaged)
MISSING(cudaLibraryGetUnifiedFunction)
MISSING(cudaLibraryLoadData)
MISSING(cudaLibraryLoadFromFile)
MISSING(cudaLibraryUnload)
MISSING(cudaLogsCurrent)
MISSING(cudaLogsDumpToFile)
MISSING(cudaLogsDumpToMemory)
MISSING(cudaLogsRegisterCallback)
MISSING(cudaLogsUnregisterCallback)
MISSING(cudaMalloc3D)
MISSING(cudaMalloc3DArray)
MISSING(cudaMallocArray)
MISSING(cudaMallocFromPoolAsync)
MISSING(cudaMallocMipmappedArray)
MISSING(cudaMemDiscardAndPrefetchBatchAsync)
MISSING(cudaMemDiscardBatchAsync)
MISSING(cudaMemGetDefaultMemPool)
MISSING(cudaMemGetMemPool)
MISSING(cudaMemPoolCreate)
MISSING(cudaMemPoolDestroy)
MISSING(cudaMemPoolExportPointer)
MISSING(cudaMemPoolExportToShareableHandle)
MISSING(cudaMemPoolGetAccess)
MISSING(cudaMemPoolGetAttribute)
MISSING(cudaMemPoolImportFromShareableHandle)
MISSING(cudaMemPoolImportPointer)
MISSING(cudaMemPoolSetAccess)
MISSING(cudaMemPoolSetAttribute)
MISSING(cudaMemPoolTrimTo)
MISSING(cudaMemPrefetchBatchAsync)
MISSING(cudaMemRangeGetAttribute)
MISSING(cudaMemRangeGetAttributes)
MISSING(cudaMemSetMemPool)
MISSING(cudaMemcpy2DArrayToArray)
MISSING(cudaMemcpy2DFromArray)
MISSING(cudaMemcpy2DFromArrayAsync)
MISSING(cudaMemcpy2DToArray)
MISSING(cudaMemcpy2DToArrayAsync)
MISSING(cudaMemcpy3D)
MISSING(cudaMemcpy3DAsync)
MISSING(cudaMemcpy3DBatchAsync)
MISSING(cudaMemcpy3DPeer)
MISSING(cudaMemcpy3DPeerAsync)
MISSING(cudaMemcpyArrayToArray)
MISSING(cudaMemcpyBatchAsync)
MISSING(cudaMemcpyFromArray)
MISSING(cudaMemcpyFromArrayAsync)
MISSING(cudaMemcpyPeer)
MISSING(cudaMemcpyPeerAsync)
MISSING(cudaMemcpyToArray)
MISSING(cudaMemcpyToArrayAsync)
MISSING(cudaMemset2DAsync)
MISSING(cudaMemset3D)
MISSING(cudaMemset3DAsync)
MISSING(cudaMipmappedArrayGetMemoryRequirements)
MISSING(cudaMipmappedArrayGetSparseProperties)
MISSING(cudaOccupancyAvailableDynamicSMemPerBlock)
MISSING(cudaOccupancyMaxPotentialClusterSize)
MISSING(cudaSetValidDevices)
MISSING(cudaSignalExternalSemaphoresAsync)
MISSING(cudaStreamAddCallback)
MISSING(cudaStreamAttachMemAsync)
MISSING(cudaStreamBeginCapture)
MISSING(cudaStreamBeginCaptureToGraph)
MISSING(cudaStreamCopyAttributes)
MISSING(cudaStreamEndCapture)
MISSING(cudaStreamGetAttribute)
MISSING(cudaStreamGetCaptureInfo)
MISSING(cudaStreamGetDevice)
MISSING(cudaStreamGetId)
MISSING(cudaStreamSetAttribute)
MISSING(cudaStreamUpdateCaptureDependencies)
MISSING(cudaThreadExchangeStreamCaptureMode)
MISSING(cudaUserObjectCreate)
MISSING(cudaUserObjectRelease)
MISSING(cudaUserObjectRetain)
MISSING(cudaVDPAUGetDevice)
MISSING(cudaVDPAUSetVDPAUDevice)
MISSING(cudaWaitExternalSemaphoresAsync)
