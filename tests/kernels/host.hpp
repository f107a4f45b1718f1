// What _memory.hpp has of its own for each vendor, for a CPU: threads run one after another, and accesses must be aligned.

#include <cstdint>
#include <cstdlib>

#define __global__
#define __device__
#define __shared__ static
#define BOUNDS

typedef unsigned word8 __attribute__((ext_vector_type(2)));
typedef unsigned word16 __attribute__((ext_vector_type(4)));

static int the_thread;
static long long the_block, the_blocks;

inline int thread() { return the_thread; }
inline long long block() { return the_block; }
inline long long blocks() { return the_blocks; }
inline void together() { // threads that wait for one another cannot take turns
    if (THREADS > 1)
        abort();
}
inline void apart() {}
inline void issued() {}
template <typename W> inline void keep(W &) {}
inline long long nanoseconds() { return 0; }

template <bool STREAMING, typename W> inline W load(const W *at) {
    if ((uintptr_t)at % sizeof(W))
        abort();
    return *at;
}
template <bool STREAMING, typename W> inline void store(W *at, W word) {
    if ((uintptr_t)at % sizeof(W))
        abort();
    *at = word;
}

inline float half_to_float(unsigned short bits) { return __builtin_bit_cast(_Float16, bits); }
inline unsigned short float_to_half(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
inline unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
inline float from_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

// Every thread of every block.
#define EVERY_THREAD(call)                                                                                             \
    for (the_block = 0; the_block < the_blocks; the_block++)                                                           \
        for (the_thread = 0; the_thread < THREADS; the_thread++)                                                       \
            call;
