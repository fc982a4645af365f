/* Reductions of device memory: one source for NVRTC and, with TOPOD_HOST, for a host's C++ compiler, which checks the
 * arithmetic where there is no GPU.
 *
 *   target[i] = (sources[0][i] op sources[1][i]) op sources[2][i] ..., in this order, so that every rank has the same bits
 *
 * Elements of 16 bits are combined in float and rounded after each operation, to nearest and ties to even, as the host's loops do:
 * one result for a plan wherever it runs. A thread handles 16 bytes at a time where every place is so aligned, then the tail.
 */

#ifdef TOPOD_HOST
#include <string.h>
#define DEVICE inline
struct Place { unsigned int x; };
static thread_local Place threadIdx, blockIdx, blockDim, gridDim;
#else
#define DEVICE __device__ __forceinline__
#endif

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef long long i64;
typedef unsigned long long u64;

/* Most places one launch reads; more are folded in turns, the target being the first source of the next. */
enum { SOURCES = 16 };

struct Sources {
    const void *at[SOURCES];
};

/* 16 bytes, the widest load. */
struct alignas(16) Wide {
    u32 words[4];
};

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

DEVICE u32 bits_of(float value) {
#ifdef TOPOD_HOST
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
#else
    return __float_as_uint(value);
#endif
}

DEVICE float float_of(u32 bits) {
#ifdef TOPOD_HOST
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
#else
    return __uint_as_float(bits);
#endif
}

DEVICE float widen(bf16 value) { return float_of((u32)value.bits << 16); }

DEVICE bf16 narrow_bf16(float value) {
    u32 bits = bits_of(value);
    bf16 result;
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        /* A NaN stays one, and quiet. */
        result.bits = (u16)(bits >> 16 | 0x40u);
    } else {
        result.bits = (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    return result;
}

DEVICE float widen(f16 value) {
#ifdef TOPOD_HOST
    u32 sign = (u32)(value.bits & 0x8000u) << 16, exponent = value.bits >> 10 & 0x1fu, fraction = value.bits & 0x3ffu;
    if (exponent == 0x1fu) {
        return float_of(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0u));
    }
    if (exponent == 0) {
        /* A multiple of 2^-24, exactly. */
        float magnitude = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 112u) << 23 | fraction << 13);
#else
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#endif
}

DEVICE f16 narrow_f16(float value) {
    f16 result;
#ifdef TOPOD_HOST
    u32 bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        result.bits = (u16)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    } else if (magnitude >= 0x477ff000u) {
        /* From half a unit above the largest, 65504, on. */
        result.bits = (u16)(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {
        /* Below 2^-14: units of 2^-24; adding 2^-1 leaves them, rounded, in the lowest bits. */
        result.bits = (u16)(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
    } else {
        u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        result.bits = (u16)(sign | (rounded - 0x38000000u) >> 13);
    }
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#endif
    return result;
}

/* What an element is computed in, and the way back. */
template <typename T> struct Computed {
    typedef T type;
    static DEVICE T in(T value) { return value; }
    static DEVICE T out(T value) { return value; }
};
template <> struct Computed<f16> {
    typedef float type;
    static DEVICE float in(f16 value) { return widen(value); }
    static DEVICE f16 out(float value) { return narrow_f16(value); }
};
template <> struct Computed<bf16> {
    typedef float type;
    static DEVICE float in(bf16 value) { return widen(value); }
    static DEVICE bf16 out(float value) { return narrow_bf16(value); }
};

/* Integers wrap: computed without a sign, where that is defined. */
template <typename T> struct Unsigned { typedef T type; };
template <> struct Unsigned<i8> { typedef u8 type; };
template <> struct Unsigned<i32> { typedef u32 type; };
template <> struct Unsigned<i64> { typedef u64 type; };

struct Sum {
    /* An average is a sum that is divided. */
    enum { DIVIDES = 1 };
    template <typename T> static DEVICE T apply(T a, T b) {
        typedef typename Unsigned<T>::type U;
        return (T)(U)((U)a + (U)b);
    }
};
struct Prod {
    enum { DIVIDES = 0 };
    template <typename T> static DEVICE T apply(T a, T b) {
        typedef typename Unsigned<T>::type U;
        return (T)(U)((U)a * (U)b);
    }
};
/* The first operand where it is not a number, else the second where that is none: the second comparison is false then. */
struct Min {
    enum { DIVIDES = 0 };
    template <typename T> static DEVICE T apply(T a, T b) { return a < b || a != a ? a : b; }
};
struct Max {
    enum { DIVIDES = 0 };
    template <typename T> static DEVICE T apply(T a, T b) { return a > b || a != a ? a : b; }
};
struct And {
    enum { DIVIDES = 0 };
    template <typename T> static DEVICE T apply(T a, T b) { return (T)(a & b); }
};
struct Or {
    enum { DIVIDES = 0 };
    template <typename T> static DEVICE T apply(T a, T b) { return (T)(a | b); }
};

/* Integers towards zero, in 32 bits where that holds the value. */
template <typename T> struct Quotient {
    static DEVICE T of(T value, i32 ranks) { return (T)(value / ranks); }
};
template <> struct Quotient<float> {
    static DEVICE float of(float value, i32 ranks) { return value / (float)ranks; }
};
template <> struct Quotient<double> {
    static DEVICE double of(double value, i32 ranks) { return value / (double)ranks; }
};

template <typename T, typename Op> DEVICE T combined(T a, T b) {
    return Computed<T>::out(Op::apply(Computed<T>::in(a), Computed<T>::in(b)));
}

template <typename T> DEVICE T divided(T value, i32 ranks) {
    return Computed<T>::out(Quotient<typename Computed<T>::type>::of(Computed<T>::in(value), ranks));
}

template <typename T> union Elements {
    Wide wide;
    T each[sizeof(Wide) / sizeof(T)];
    DEVICE Elements() {}
};

/* 16 bytes at a time; bits need not be taken apart for that. */
template <typename T, typename Op> struct Together {
    static DEVICE void apply(Elements<T> &result, const Elements<T> &next) {
#pragma unroll
        for (u32 e = 0; e < sizeof(Wide) / sizeof(T); e++) result.each[e] = combined<T, Op>(result.each[e], next.each[e]);
    }
};
template <typename T> struct Together<T, And> {
    static DEVICE void apply(Elements<T> &result, const Elements<T> &next) {
#pragma unroll
        for (u32 w = 0; w < 4; w++) result.wide.words[w] &= next.wide.words[w];
    }
};
template <typename T> struct Together<T, Or> {
    static DEVICE void apply(Elements<T> &result, const Elements<T> &next) {
#pragma unroll
        for (u32 w = 0; w < 4; w++) result.wide.words[w] |= next.wide.words[w];
    }
};

/* `ranks` is 0 where nothing is divided. */
template <typename T, typename Op>
DEVICE void fold(const Sources &sources, u32 count, void *target, u64 elements, i32 ranks) {
    const u32 width = sizeof(Wide) / sizeof(T);
    const u64 threads = (u64)gridDim.x * blockDim.x, thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 places = (u64)target;
    for (u32 s = 0; s < count; s++) places |= (u64)sources.at[s];
    const u64 wide = places % sizeof(Wide) == 0 ? elements / width : 0;
    for (u64 i = thread; i < wide; i += threads) {
        Elements<T> result;
        result.wide = ((const Wide *)sources.at[0])[i];
        for (u32 s = 1; s < count; s++) {
            Elements<T> next;
            next.wide = ((const Wide *)sources.at[s])[i];
            Together<T, Op>::apply(result, next);
        }
        if (Op::DIVIDES && ranks) {
#pragma unroll
            for (u32 e = 0; e < width; e++) result.each[e] = divided<T>(result.each[e], ranks);
        }
        ((Wide *)target)[i] = result.wide;
    }
    for (u64 i = wide * width + thread; i < elements; i += threads) {
        T result = ((const T *)sources.at[0])[i];
        for (u32 s = 1; s < count; s++) result = combined<T, Op>(result, ((const T *)sources.at[s])[i]);
        ((T *)target)[i] = Op::DIVIDES && ranks ? divided<T>(result, ranks) : result;
    }
}

#ifdef TOPOD_HOST
/* Every thread of the grid in turn. */
#define KERNEL(name, type, op)                                                                                                     \
    extern "C" void topod_host_##name(u32 grid, u32 block, const Sources *sources, u32 count, void *target, u64 elements,         \
                                      i32 ranks) {                                                                                \
        gridDim.x = grid;                                                                                                          \
        blockDim.x = block;                                                                                                        \
        for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)                                                                      \
            for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++)                                                              \
                fold<type, op>(*sources, count, target, elements, ranks);                                                          \
    }
#else
#define KERNEL(name, type, op)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(512)                                                                              \
        topod_##name(const __grid_constant__ Sources sources, u32 count, void *target, u64 elements, i32 ranks) {                 \
        fold<type, op>(sources, count, target, elements, ranks);                                                                   \
    }
#endif

#define NUMBERS(name, type)                                                                                                        \
    KERNEL(fold_##name##_sum, type, Sum)                                                                                           \
    KERNEL(fold_##name##_prod, type, Prod)                                                                                         \
    KERNEL(fold_##name##_min, type, Min)                                                                                           \
    KERNEL(fold_##name##_max, type, Max)
#define INTEGERS(name, type)                                                                                                       \
    NUMBERS(name, type)                                                                                                            \
    KERNEL(fold_##name##_and, type, And)                                                                                           \
    KERNEL(fold_##name##_or, type, Or)

NUMBERS(f32, float)
NUMBERS(f64, double)
NUMBERS(f16, f16)
NUMBERS(bf16, bf16)
INTEGERS(i8, i8)
INTEGERS(i32, i32)
INTEGERS(i64, i64)
INTEGERS(u8, u8)
