// What CUDA C++ means on a processor: a block's threads are fibers, which take turns where they wait for each other.
#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <vector>
using namespace std;
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __shared__ static
#define __popc(x) __builtin_popcount(x)
#define __popcll(x) __builtin_popcountll(x)
struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t scheduler;
static vector<ucontext_t> fibers;
static vector<char> ended;
static unsigned running;

// Waits until all threads of a group that have not ended have come: of the block, or of 32 of it.
struct Barrier {
    unsigned arrived = 0, generation = 0;
    void wait(unsigned first, unsigned last) {
        const unsigned mine = generation;
        ++arrived;
        for (;;) {
            unsigned expected = 0;
            for (unsigned t = first; t < last && t < ended.size(); ++t) expected += !ended[t];
            if (mine == generation && arrived >= expected) { arrived = 0; ++generation; }
            if (mine != generation) return;
            swapcontext(&fibers[running], &scheduler);
        }
    }
};
static Barrier whole;
static Barrier warps[32];
static double exchanged[1024];
static inline void __syncthreads() { whole.wait(0, ended.size()); }
static inline void __syncwarp(unsigned = 0xffffffff) {
    const unsigned warp = running / 32;
    warps[warp].wait(32 * warp, 32 * warp + 32);
}
template <typename T>
static T from_lane(T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(double));
    memcpy(&exchanged[running], &value, sizeof(T));
    __syncwarp();
    T found = value;
    if (lane < 32) memcpy(&found, &exchanged[running / 32 * 32 + lane], sizeof(T));
    __syncwarp();
    return found;
}
template <typename T>
static T __shfl_xor_sync(unsigned, T value, int mask, int = 32) { return from_lane(value, (running % 32) ^ mask); }
template <typename T>
static T __shfl_down_sync(unsigned, T value, unsigned by, int = 32) { return from_lane(value, running % 32 + by); }
template <typename T>
static T __shfl_up_sync(unsigned, T value, unsigned by, int = 32) {
    return from_lane(value, running % 32 < by ? 32 : running % 32 - by);
}

template <typename Function>
struct Block {
    static Function* kernel;
    static void enter() { (*kernel)(); ended[running] = 1; }
    static void run(Function& function, unsigned threads) {
        constexpr size_t stack = 1 << 15;
        static vector<char> stacks;
        stacks.resize(threads * stack);
        kernel = &function;
        fibers.assign(threads, ucontext_t());
        ended.assign(threads, 0);
        whole = Barrier();
        for (auto& warp : warps) warp = Barrier();
        for (unsigned t = 0; t < threads; ++t) {
            getcontext(&fibers[t]);
            fibers[t].uc_stack.ss_sp = stacks.data() + t * stack;
            fibers[t].uc_stack.ss_size = stack;
            fibers[t].uc_link = &scheduler;
            makecontext(&fibers[t], enter, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (running = 0; running < threads; ++running) {
                if (ended[running]) continue;
                threadIdx.x = running;
                swapcontext(&scheduler, &fibers[running]);
                left = left || !ended[running];
            }
        }
    }
};
template <typename F> F* Block<F>::kernel;

template <typename Function>
static void launch(Function function, const unsigned* grid, unsigned threads, bool waiting) {
    // Threads that never wait go over all elements one after the other, as a grid of one thread does.
    gridDim = {waiting ? grid[0] : 1, grid[1], grid[2]};
    blockDim = {waiting ? threads : 1, 1, 1};
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                threadIdx = {0, 0, 0};
                if (waiting) Block<Function>::run(function, threads);
                else function();
            }
}
