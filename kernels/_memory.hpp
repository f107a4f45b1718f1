// What the source of every GPU kernel begins with: element types, words of memory, and the place of a thread.
// It includes nothing, so that NVRTC, HIPRTC and clang compile it as it stands.
// Defined before it: THREADS, of a block, a power of two.

typedef long long int64;

#if defined(__HIP__)

#if !defined(__global__) // clang alone; HIPRTC has them
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define BOUNDS __attribute__((amdgpu_flat_work_group_size(THREADS, THREADS)))

typedef unsigned word8 __attribute__((ext_vector_type(2)));
typedef unsigned word16 __attribute__((ext_vector_type(4)));

__device__ inline int thread() { return __builtin_amdgcn_workitem_id_x(); }
__device__ inline int64 block() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ inline int64 blocks() { return __builtin_amdgcn_grid_size_x() / THREADS; }
// As HIP's __syncthreads(): what a thread wrote before is there for all after. The barrier alone orders no memory.
__device__ inline void together() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// What is accessed before it and what after it is not joined into one access; costs no instruction.
__device__ inline void apart() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "singlethread"); }
// Loads before it are issued before anything behind it: the compiler would put some off for want of registers.
__device__ inline void issued() { __builtin_amdgcn_sched_barrier(0); }
// All bits of a word are wanted, even where some are overwritten: a compiler would load fewer. It waits for the word.
template <typename W> __device__ inline void keep(W &word) { asm volatile("" : "+v"(word)); }
__device__ inline int64 nanoseconds() { return 10 * (int64)__builtin_amdgcn_s_memrealtime(); } // counts at 100 MHz

// STREAMING: what the caches give up first (non-temporal).
template <bool STREAMING, typename W> __device__ inline W load(const W *at) {
    return STREAMING ? __builtin_nontemporal_load(at) : *at;
}
template <bool STREAMING, typename W> __device__ inline void store(W *at, W word) {
    if (STREAMING)
        __builtin_nontemporal_store(word, at);
    else
        *at = word;
}

__device__ inline float half_to_float(unsigned short bits) { return __builtin_bit_cast(_Float16, bits); }
__device__ inline unsigned short float_to_half(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
__device__ inline unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
__device__ inline float from_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
__device__ inline float root(float x) { return __builtin_sqrtf(x); }
__device__ inline double root(double x) { return __builtin_sqrt(x); }

#elif defined(__CUDACC__)

// One block a multiprocessor will do: else ptxas saves registers, and puts off loads for it.
#define BOUNDS __launch_bounds__(THREADS, 1)

typedef uint2 word8;
typedef uint4 word16;

__device__ inline int thread() { return threadIdx.x; }
__device__ inline int64 block() { return blockIdx.x; }
__device__ inline int64 blocks() { return gridDim.x; }
__device__ inline void together() { __syncthreads(); }
__device__ inline void apart() { asm volatile("" ::: "memory"); }
__device__ inline void issued() {} // see BOUNDS
__device__ inline void keep(unsigned short &word) { asm volatile("" : "+h"(word)); }
__device__ inline void keep(unsigned &word) { asm volatile("" : "+r"(word)); }
__device__ inline void keep(uint2 &word) { keep(word.x), keep(word.y); }
__device__ inline void keep(uint4 &word) { keep(word.x), keep(word.y), keep(word.z), keep(word.w); }
__device__ inline int64 nanoseconds() {
    int64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// STREAMING: what the caches give up first (ld.cs and st.cs, evict-first).
template <bool STREAMING, typename W> __device__ inline W load(const W *at) { return STREAMING ? __ldcs(at) : *at; }
template <bool STREAMING, typename W> __device__ inline void store(W *at, W word) {
    if (STREAMING)
        __stcs(at, word);
    else
        *at = word;
}

__device__ inline float half_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ inline unsigned short float_to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ inline float from_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }

#endif

// Element types, as they lie in memory. Arithmetic is in float, or in double where there are doubles.

struct float16 {
    unsigned short bits;
};
struct bfloat16 { // the upper half of a float
    unsigned short bits;
};
typedef float float32;
typedef double float64;

__device__ inline float widen(float16 x) { return half_to_float(x.bits); }
__device__ inline float widen(bfloat16 x) { return from_bits((unsigned)x.bits << 16); }
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }

// Rounds to the nearest, ties to even.
__device__ inline void narrow(float x, float16 &to) { to.bits = float_to_half(x); }
__device__ inline void narrow(float x, bfloat16 &to) {
    const unsigned bits = bits_of(x);
    // Half of the last place that stays, less one where that place is even; a NaN must not become an infinity.
    to.bits = (x == x) ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
}
__device__ inline void narrow(float x, float &to) { to = x; }
__device__ inline void narrow(double x, double &to) { to = x; }

// Words that one instruction moves.

template <int BYTES> struct Word;
template <> struct Word<2> {
    typedef unsigned short type;
};
template <> struct Word<4> {
    typedef unsigned type;
};
template <> struct Word<8> {
    typedef word8 type;
};
template <> struct Word<16> {
    typedef word16 type;
};

// A value of type T, moved by words of BYTES each.
template <typename T, int BYTES, bool STREAMING> union Moved {
    typedef typename Word<BYTES>::type word_type;
    word_type word[sizeof(T) / BYTES];
    T value;

    __device__ void load_from(const char *at) {
#pragma unroll
        for (int k = 0; k < int(sizeof(T) / BYTES); k++) {
            word[k] = load<STREAMING>((const word_type *)at + k);
            apart();
        }
    }
    // Behind the loads of all words, which are under way together until then.
    __device__ void keep_all() {
#pragma unroll
        for (int k = 0; k < int(sizeof(T) / BYTES); k++)
            keep(word[k]);
    }
    __device__ void store_to(char *at) const {
#pragma unroll
        for (int k = 0; k < int(sizeof(T) / BYTES); k++) {
            store<STREAMING>((word_type *)at + k, word[k]);
            apart();
        }
    }
};

// N neighbouring elements, moved by as few words as can be.
template <typename T, int N> struct Row {
    T element[N];
};
template <typename T, int N, bool STREAMING>
using Run = Moved<Row<T, N>, (sizeof(T) * N < 16 ? sizeof(T) * N : 16), STREAMING>;

// Holds the stream for so long, so that all that is timed has been enqueued before it begins.
extern "C" __global__ void gate(int64 duration) {
    const int64 begin = nanoseconds();
    while (nanoseconds() - begin < duration) {
    }
}

// The sum over a block, in its first thread. Every thread must come.
template <typename T> __device__ inline T over_block(T mine) {
    __shared__ T part[THREADS];
    part[thread()] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        together();
        if (thread() < half)
            part[thread()] += part[thread() + half];
    }
    return part[0];
}

// The sum of what the blocks left; one block.
extern "C" __global__ BOUNDS void total(const double *partial, int64 count, double *sum) {
    double mine = 0;
    for (int64 i = thread(); i < count; i += THREADS)
        mine += partial[i];
    mine = over_block(mine);
    if (thread() == 0)
        *sum = mine;
}
