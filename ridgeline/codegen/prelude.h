/* The C prelude of every generated CPU kernel: vectors of W lanes, memory, words, casts and folds.
 *
 * GNU C11 over the vector extensions of GCC 9 or newer and Clang; little-endian; includes <stdint.h> only. Made for
 *   -O2 -march=native -fno-math-errno -fno-trapping-math -fwrapv -ffp-contract=fast -std=gnu11     (never -ffast-math)
 * `#define W 16`, `8` or `4` before the include: 512-, 256- or 128-bit registers; left out, the widest the target has.
 * Every vector has W lanes, whatever its element.
 *
 * Storage types T: f32 f64 bf16 f16 i8 i16 i32 i64 u8 u16 u32 u64 b. e_T is the element in memory (bf16 and f16 as
 * uint16_t bits, b as uint8_t 0 or 1). Compute types CT: the same without bf16 and f16, which are read as f32 and
 * rounded to nearest even when stored. v_CT is W lanes; v_b is int32 lanes, 0 or -1. v_f64, v_i64 and v_u64 are structs
 * of two registers, because GCC turns vectors wider than a register into scalar code: kernels use the functions below
 * and no operators on vectors.
 *
 *   load_T(p) load_n_T(p, n) splat_load_T(p)                            first n lanes, the others 0
 *   load_s_T(p, stride, n) gather_T(p, idx, n) gather_m_T(p, idx, mask, n)        idx: v_i64; masked lanes give 0
 *   store_T(p, v) store_n_T(p, v, n) store_s_T(p, stride, v, n) scatter_T(p, idx, v, n)
 *   scatter_add_T(p, idx, v, n)                                         in lane order; rounds after each addition
 *   stream_T(p, v) stream_fence()                                       non-temporal; p aligned to STREAM_ALIGN(T)
 *   splat_CT(scalar) iota_i64(start, step) select_CT(mask, a, b) bitcast_f32_i32 bitcast_f64_i64 and back
 *   w_<word>_CT(...) cast_A_B(v) round_bf16(v) round_f16(v)
 *   hsum_CT hprod_CT hmin_CT hmax_CT (an e_CT) hany_b hall_b (an int)
 * Memory past lane n is neither read nor written; 0 <= n <= W; p + W need not be valid; p need not be aligned.
 *
 * Words. All numbers: add sub mul neg abs fma min max div_trunc div_floor mod fmod eq ne lt le gt ge isnan isinf
 * signbit. Integers: and or xor not shl shr pow. b: and or xor not add mul min max eq ne lt le gt ge.
 * Floats: div recip sqrt rsqrt floor ceil trunc round copysign, and the section MATH.
 *
 * Sections. `#define PRELUDE_SECTIONS`, and of these only what the kernel uses; without it, all of them:
 *   NEED_F64       words, casts, folds, memory of f64
 *   NEED_UNSIGNED  the same for u32 and u64
 *   NEED_SMALL     the same for i8, i16, u8, u16
 *   NEED_HALF      memory of bf16 and f16
 *   NEED_INDEXED   load_s gather gather_m store_s scatter scatter_add
 *   NEED_MATH      exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh
 *                  atanh erf erfc erfinv lgamma digamma pow hypot sigmoid nextafter
 * What is left is always there: f32, i32, i64 and b.
 *
 * Names that start with x_, h_, u_ or g_, and names in capitals, belong to this file. */
#ifndef RIDGELINE_PRELUDE_H
#define RIDGELINE_PRELUDE_H

#include <stdint.h>

#ifndef PRELUDE_SECTIONS
#define NEED_F64
#define NEED_UNSIGNED
#define NEED_SMALL
#define NEED_HALF
#define NEED_INDEXED
#define NEED_MATH
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define HAS_AVX512 1
#else
#define HAS_AVX512 0
#endif
#ifndef W
#if HAS_AVX512
#define W 16
#elif defined(__AVX2__)
#define W 8
#else
#define W 4
#endif
#endif

/* Builtins of GCC: Clang finds the same instructions from the generic code. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#if W == 16 && HAS_AVX512
#define X512
#elif W == 8 && defined(__AVX2__)
#define X256
#elif W == 4 && defined(__SSE4_1__)
#define X128
#endif
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* every function is inlined: no ABI is crossed */
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define HAS_FMA 1
#else
#define HAS_FMA 0
#endif

#ifndef __has_builtin
#define __has_builtin(x) 0
#endif

#define FN static inline __attribute__((always_inline, unused))
#define COLD static __attribute__((noinline, cold, unused))
#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#ifndef INFINITY /* spelt as in <math.h>, which a kernel may include too */
#define INFINITY (__builtin_inff ())
#define NAN (__builtin_nanf (""))
#endif

/* ---- Types ----------------------------------------------------------------------------------------------------- */

typedef float e_f32;
typedef double e_f64;
typedef uint16_t e_bf16;
typedef uint16_t e_f16;
typedef int8_t e_i8;
typedef int16_t e_i16;
typedef int32_t e_i32;
typedef int64_t e_i64;
typedef uint8_t e_u8;
typedef uint16_t e_u16;
typedef uint32_t e_u32;
typedef uint64_t e_u64;
typedef uint8_t e_b;

/* x_T: one register. u_T: the same anywhere in memory. h_T: half a register. */
#define REGISTER(T, bytes)                                   \
    typedef e_##T x_##T __attribute__((vector_size(bytes))); \
    typedef e_##T u_##T __attribute__((vector_size(bytes), aligned(1), may_alias));
REGISTER(f32, W * 4)
REGISTER(f64, W * 4)
REGISTER(i8, W)
REGISTER(i16, W * 2)
REGISTER(i32, W * 4)
REGISTER(i64, W * 4)
REGISTER(u8, W)
REGISTER(u16, W * 2)
REGISTER(u32, W * 4)
REGISTER(u64, W * 4)
typedef float h_f32 __attribute__((vector_size(W * 2)));
typedef int32_t h_i32 __attribute__((vector_size(W * 2)));

typedef x_f32 v_f32;
typedef x_i8 v_i8;
typedef x_i16 v_i16;
typedef x_i32 v_i32;
typedef x_u8 v_u8;
typedef x_u16 v_u16;
typedef x_u32 v_u32;
typedef x_i32 v_b;
typedef struct { x_f64 lo, hi; } v_f64;
typedef struct { x_i64 lo, hi; } v_i64;
typedef struct { x_u64 lo, hi; } v_u64;

/* The types whose words this kernel needs. */
#ifdef NEED_F64
#define EACH_FLOAT(M) M(f32) M(f64)
#else
#define EACH_FLOAT(M) M(f32)
#endif
#ifdef NEED_UNSIGNED
#define EACH_UNSIGNED(M) M(u32) M(u64)
#else
#define EACH_UNSIGNED(M)
#endif
#ifdef NEED_SMALL
#define EACH_SMALL(M) M(i8) M(i16) M(u8) M(u16)
#else
#define EACH_SMALL(M)
#endif
#define EACH_LARGE(M) M(i32) M(i64) EACH_UNSIGNED(M)
#define EACH_INT(M) EACH_LARGE(M) EACH_SMALL(M)
#define EACH_NUMBER(M) EACH_FLOAT(M) EACH_INT(M)

/* How many registers hold W lanes of T, and the integer register whose lanes are the masks of T. */
#define REGS_f32 1
#define REGS_f64 2
#define REGS_i8 1
#define REGS_i16 1
#define REGS_i32 1
#define REGS_i64 2
#define REGS_u8 1
#define REGS_u16 1
#define REGS_u32 1
#define REGS_u64 2
#define REGS_b 1
#define M_f32 x_i32
#define M_f64 x_i64
#define M_i8 x_i8
#define M_i16 x_i16
#define M_i32 x_i32
#define M_i64 x_i64
#define M_u8 x_i8
#define M_u16 x_i16
#define M_u32 x_i32
#define M_u64 x_i64

#define SPLAT(T, s) ((e_##T)(s) - (x_##T){0}) /* minus keeps -0.0 */
/* Lanes of a where the mask is -1, else of b: GCC and Clang make a blend, minimum or maximum of it. */
#define SEL(T, m, a, b) ((x_##T)(((M_##T)(a) & (m)) | (~(m) & (M_##T)(b))))
#define ABS_f32(a) ((x_f32)((x_i32)(a) & 0x7fffffff))
#define ABS_f64(a) ((x_f64)((x_i64)(a) & 0x7fffffffffffffff))
#define SIGN_f32(a) ((x_i32)(a) & INT32_MIN)
#define SIGN_f64(a) ((x_i64)(a) & INT64_MIN)

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(T, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(T, a, b, ...) __builtin_shuffle(a, b, (M_##T){__VA_ARGS__})
#endif

/* Lane numbers: exchanged at distance 1, 2, 4, 8; even lanes of two registers; two registers mixed; in order. */
#define SWAP_1_2 1, 0
#define SWAP_1_4 1, 0, 3, 2
#define SWAP_2_4 2, 3, 0, 1
#define SWAP_1_8 1, 0, 3, 2, 5, 4, 7, 6
#define SWAP_2_8 2, 3, 0, 1, 6, 7, 4, 5
#define SWAP_4_8 4, 5, 6, 7, 0, 1, 2, 3
#define SWAP_1_16 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define SWAP_2_16 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define SWAP_4_16 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define SWAP_8_16 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#if W == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define MIX_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define MIX_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define LANES_LO 0, 1, 2, 3, 4, 5, 6, 7
#define LANES_HI 8, 9, 10, 11, 12, 13, 14, 15
#define HALF_W 8
#elif W == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define MIX_LO 0, 8, 1, 9, 2, 10, 3, 11
#define MIX_HI 4, 12, 5, 13, 6, 14, 7, 15
#define LANES_LO 0, 1, 2, 3
#define LANES_HI 4, 5, 6, 7
#define HALF_W 4
#elif W == 4
#define EVEN 0, 2, 4, 6
#define MIX_LO 0, 4, 1, 5
#define MIX_HI 2, 6, 3, 7
#define LANES_LO 0, 1
#define LANES_HI 2, 3
#define HALF_W 2
#else
#error "W must be 16, 8 or 4"
#endif
#define LANES LANES_LO, LANES_HI

/* ---- What the machine has: minimum, rounding, root ------------------------------------------------------------- */
/* MIN_T and MAX_T are x86's: the second operand when either is NaN or both are zero. */

#if defined(X512)
#define MIN_f32(a, b) __builtin_ia32_minps512_mask(a, b, (x_f32){0}, (uint16_t)-1, 4)
#define MAX_f32(a, b) __builtin_ia32_maxps512_mask(a, b, (x_f32){0}, (uint16_t)-1, 4)
#define MIN_f64(a, b) __builtin_ia32_minpd512_mask(a, b, (x_f64){0}, (uint8_t)-1, 4)
#define MAX_f64(a, b) __builtin_ia32_maxpd512_mask(a, b, (x_f64){0}, (uint8_t)-1, 4)
#define ROUNDING_f32(a, how) __builtin_ia32_rndscaleps_mask(a, how, (x_f32){0}, (uint16_t)-1, 4)
#define ROUNDING_f64(a, how) __builtin_ia32_rndscalepd_mask(a, how, (x_f64){0}, (uint8_t)-1, 4)
#define SQRT_f32(a) __builtin_ia32_sqrtps512_mask(a, (x_f32){0}, (uint16_t)-1, 4)
#define SQRT_f64(a) __builtin_ia32_sqrtpd512_mask(a, (x_f64){0}, (uint8_t)-1, 4)
#elif defined(X256)
#define MIN_f32 __builtin_ia32_minps256
#define MAX_f32 __builtin_ia32_maxps256
#define MIN_f64 __builtin_ia32_minpd256
#define MAX_f64 __builtin_ia32_maxpd256
#define ROUNDING_f32 __builtin_ia32_roundps256
#define ROUNDING_f64 __builtin_ia32_roundpd256
#define SQRT_f32 __builtin_ia32_sqrtps256
#define SQRT_f64 __builtin_ia32_sqrtpd256
#elif defined(X128)
#define MIN_f32 __builtin_ia32_minps
#define MAX_f32 __builtin_ia32_maxps
#define MIN_f64 __builtin_ia32_minpd
#define MAX_f64 __builtin_ia32_maxpd
#define ROUNDING_f32 __builtin_ia32_roundps
#define ROUNDING_f64 __builtin_ia32_roundpd
#define SQRT_f32 __builtin_ia32_sqrtps
#define SQRT_f64 __builtin_ia32_sqrtpd
#else
#define MIN_f32(a, b) SEL(f32, (a) < (b), a, b)
#define MAX_f32(a, b) SEL(f32, (a) > (b), a, b)
#define MIN_f64(a, b) SEL(f64, (a) < (b), a, b)
#define MAX_f64(a, b) SEL(f64, (a) > (b), a, b)
#endif

#if defined(SQRT_f32)
#define ROUND_TO(T)                                               \
    FN x_##T x_round_##T(x_##T a) { return ROUNDING_##T(a, 8); }  \
    FN x_##T x_floor_##T(x_##T a) { return ROUNDING_##T(a, 9); }  \
    FN x_##T x_ceil_##T(x_##T a) { return ROUNDING_##T(a, 10); }  \
    FN x_##T x_trunc_##T(x_##T a) { return ROUNDING_##T(a, 11); } \
    FN x_##T x_sqrt_##T(x_##T a) { return SQRT_##T(a); }
#elif defined(__clang__) && __has_builtin(__builtin_elementwise_sqrt) && __has_builtin(__builtin_elementwise_roundeven)
#define ROUND_TO(T)                                                              \
    FN x_##T x_round_##T(x_##T a) { return __builtin_elementwise_roundeven(a); } \
    FN x_##T x_floor_##T(x_##T a) { return __builtin_elementwise_floor(a); }     \
    FN x_##T x_ceil_##T(x_##T a) { return __builtin_elementwise_ceil(a); }       \
    FN x_##T x_trunc_##T(x_##T a) { return __builtin_elementwise_trunc(a); }     \
    FN x_##T x_sqrt_##T(x_##T a) { return __builtin_elementwise_sqrt(a); }
#else
/* Adding 2^mantissa and taking it off again rounds to an integer; larger numbers and NaN are left as they are. */
#define BIG_f32 0x1p23f
#define BIG_f64 0x1p52
#define ROOT_f32 __builtin_sqrtf
#define ROOT_f64 __builtin_sqrt
#define ROUND_TO(T)                                                                  \
    FN x_##T x_round_##T(x_##T a) {                                                  \
        x_##T s = ABS_##T(a), r = (s + BIG_##T) - BIG_##T;                           \
        return (x_##T)((M_##T)SEL(T, s < BIG_##T, r, s) | SIGN_##T(a));              \
    }                                                                                \
    FN x_##T x_trunc_##T(x_##T a) {                                                  \
        x_##T s = ABS_##T(a), r = (s + BIG_##T) - BIG_##T;                           \
        r -= SEL(T, r > s, SPLAT(T, 1), SPLAT(T, 0));                                \
        return (x_##T)((M_##T)SEL(T, s < BIG_##T, r, s) | SIGN_##T(a));              \
    }                                                                                \
    FN x_##T x_floor_##T(x_##T a) {                                                  \
        x_##T r = x_trunc_##T(a);                                                    \
        return r - SEL(T, r > a, SPLAT(T, 1), SPLAT(T, 0));                          \
    }                                                                                \
    FN x_##T x_ceil_##T(x_##T a) {                                                   \
        x_##T r = x_trunc_##T(a);                                                    \
        return r - SEL(T, r < a, SPLAT(T, -1), SPLAT(T, 0));                         \
    }                                                                                \
    FN x_##T x_sqrt_##T(x_##T a) {                                                   \
        for (unsigned i = 0; i < sizeof a / sizeof a[0]; i++) a[i] = ROOT_##T(a[i]); \
        return a;                                                                    \
    }
#endif
EACH_FLOAT(ROUND_TO)

/* ---- Halves of a register -------------------------------------------------------------------------------------- */

#if defined(X512)
typedef long long g_8di __attribute__((vector_size(64)));
typedef long long g_4di __attribute__((vector_size(32)));
typedef char g_16qi __attribute__((vector_size(16)));
FN h_i32 x_lo(x_i32 a) { return (h_i32)__builtin_ia32_extracti64x4_mask((g_8di)a, 0, (g_4di){0}, (uint8_t)-1); }
FN h_i32 x_hi(x_i32 a) { return (h_i32)__builtin_ia32_extracti64x4_mask((g_8di)a, 1, (g_4di){0}, (uint8_t)-1); }
FN x_i32 x_join(h_i32 lo, h_i32 hi) {
    g_8di a = (g_8di)__builtin_ia32_si512_256si(lo);
    return (x_i32)__builtin_ia32_inserti64x4_mask(a, (g_4di)hi, 1, a, (uint8_t)-1);
}
#elif defined(X256)
typedef long long g_4di __attribute__((vector_size(32)));
typedef long long g_2di __attribute__((vector_size(16)));
typedef short g_8hi __attribute__((vector_size(16)));
typedef char g_16qi __attribute__((vector_size(16)));
FN h_i32 x_lo(x_i32 a) { return __builtin_ia32_vextractf128_si256(a, 0); }
FN h_i32 x_hi(x_i32 a) { return __builtin_ia32_vextractf128_si256(a, 1); }
FN x_i32 x_join(h_i32 lo, h_i32 hi) { return __builtin_ia32_vinsertf128_si256(__builtin_ia32_si256_si(lo), hi, 1); }
#elif defined(__clang__) || __GNUC__ >= 12
FN h_i32 x_lo(x_i32 a) { return __builtin_shufflevector(a, a, LANES_LO); }
FN h_i32 x_hi(x_i32 a) { return __builtin_shufflevector(a, a, LANES_HI); }
FN x_i32 x_join(h_i32 lo, h_i32 hi) { return __builtin_shufflevector(lo, hi, LANES); }
#else
typedef union { x_i32 whole; h_i32 half[2]; } x_halves;
FN h_i32 x_lo(x_i32 a) { return (x_halves){a}.half[0]; }
FN h_i32 x_hi(x_i32 a) { return (x_halves){a}.half[1]; }
FN x_i32 x_join(h_i32 lo, h_i32 hi) { return (x_halves){.half = {lo, hi}}.whole; }
#endif

/* ---- Conversions between registers ----------------------------------------------------------------------------- */

#define CONVERT __builtin_convertvector
#if defined(X512)
#define I32_I64(h) ((x_i64)__builtin_ia32_pmovsxdq512_mask(h, (g_8di){0}, (uint8_t)-1))
#define U32_I64(h) ((x_i64)__builtin_ia32_pmovzxdq512_mask(h, (g_8di){0}, (uint8_t)-1))
#define F32_F64(h) __builtin_ia32_cvtps2pd512_mask(h, (x_f64){0}, (uint8_t)-1, 4)
#define F64_F32(x) __builtin_ia32_cvtpd2ps512_mask(x, (h_f32){0}, (uint8_t)-1, 4)
#define I32_F64(h) __builtin_ia32_cvtdq2pd512_mask(h, (x_f64){0}, (uint8_t)-1)
#define F64_I32(x) __builtin_ia32_cvttpd2dq512_mask(x, (h_i32){0}, (uint8_t)-1, 4)
#define I64_F32(x) __builtin_ia32_cvtqq2ps512_mask((g_8di)(x), (h_f32){0}, (uint8_t)-1, 4)
#define U64_F32(x) __builtin_ia32_cvtuqq2ps512_mask((g_8di)(x), (h_f32){0}, (uint8_t)-1, 4)
#define F32_I64(h) ((x_i64)__builtin_ia32_cvttps2qq512_mask(h, (g_8di){0}, (uint8_t)-1, 4))
#define I8_I32(x) __builtin_ia32_pmovsxbd512_mask((g_16qi)(x), (x_i32){0}, (uint16_t)-1)
#define U8_I32(x) __builtin_ia32_pmovzxbd512_mask((g_16qi)(x), (x_i32){0}, (uint16_t)-1)
#define I16_I32(x) __builtin_ia32_pmovsxwd512_mask((x_i16)(x), (x_i32){0}, (uint16_t)-1)
#define U16_I32(x) __builtin_ia32_pmovzxwd512_mask((x_i16)(x), (x_i32){0}, (uint16_t)-1)
#define I32_I8(x) ((x_i8)__builtin_ia32_pmovdb512_mask(x, (g_16qi){0}, (uint16_t)-1))
#define I32_I16(x) __builtin_ia32_pmovdw512_mask(x, (x_i16){0}, (uint16_t)-1)
#elif defined(X256)
#define I32_I64(h) ((x_i64)__builtin_ia32_pmovsxdq256(h))
#define U32_I64(h) ((x_i64)__builtin_ia32_pmovzxdq256(h))
#define F32_F64(h) __builtin_ia32_cvtps2pd256(h)
#define F64_F32(x) __builtin_ia32_cvtpd2ps256(x)
#define I32_F64(h) __builtin_ia32_cvtdq2pd256(h)
#define F64_I32(x) __builtin_ia32_cvttpd2dq256(x)
#define I8_I32(x) __builtin_ia32_pmovsxbd256((g_16qi)(g_2di){(long long)(x), 0})
#define U8_I32(x) __builtin_ia32_pmovzxbd256((g_16qi)(g_2di){(long long)(x), 0})
#define I16_I32(x) __builtin_ia32_pmovsxwd256((g_8hi)(x))
#define U16_I32(x) __builtin_ia32_pmovzxwd256((g_8hi)(x))
#endif
#ifndef F32_F64
#define F32_F64(h) CONVERT(h, x_f64)
#define F64_F32(x) CONVERT(x, h_f32)
#define I32_F64(h) CONVERT(h, x_f64)
#define F64_I32(x) CONVERT(x, h_i32)
#endif
#ifndef I64_F32
#define I64_F32(x) CONVERT(x, h_f32)
#define U64_F32(x) CONVERT(x, h_f32)
#define F32_I64(h) CONVERT(h, x_i64)
#endif
#ifndef I8_I32
#define I8_I32(x) CONVERT(CONVERT(x, x_i16), x_i32)
#define U8_I32(x) CONVERT(CONVERT(x, x_u16), x_i32)
#define I16_I32(x) CONVERT((x_i16)(x), x_i32)
#define U16_I32(x) CONVERT((x_u16)(x), x_i32)
#endif
#ifndef I32_I8
#define I32_I16(x) CONVERT(x, x_i16)
#define I32_I8(x) CONVERT(CONVERT(x, x_i16), x_i8)
#endif

/* W lanes of another width. UP: register to pair; DOWN: pair to register; SAME: other lanes of the same width. */
#define LO_f32(a) ((h_f32)x_lo((x_i32)(a)))
#define HI_f32(a) ((h_f32)x_hi((x_i32)(a)))
#define LO_i32(a) x_lo((x_i32)(a))
#define HI_i32(a) x_hi((x_i32)(a))
#define JOIN(lo, hi) x_join((h_i32)(lo), (h_i32)(hi))
#define UP(A, B, how, a) ((v_##B){how(LO_##A(a)), how(HI_##A(a))})
#define DOWN(how, a) JOIN(how((a).lo), how((a).hi))
#define SAME(B, a) ((v_##B){(x_##B)(a).lo, (x_##B)(a).hi})
#define PACK(lo, hi) SHUFFLE(i32, (x_i32)(lo), (x_i32)(hi), EVEN)

#define CAST1(A, B, e) FN v_##B cast_##A##_##B(v_##A a) { return (v_##B)(e); }
#define CAST2(A, B, e) FN v_##B cast_##A##_##B(v_##A a) { return e; }
#if defined(I32_I64)
CAST2(i32, i64, UP(i32, i64, I32_I64, a))
CAST2(u32, i64, UP(i32, i64, U32_I64, a))
#else /* lanes mixed with their upper halves */
#define MIX(a, upper) ((v_i64){(x_i64)SHUFFLE(i32, a, upper, MIX_LO), (x_i64)SHUFFLE(i32, a, upper, MIX_HI)})
CAST2(i32, i64, MIX(a, a >> 31))
CAST2(u32, i64, MIX((x_i32)a, (x_i32){0}))
#endif
CAST1(i64, i32, PACK(a.lo, a.hi))
CAST1(f32, i32, CONVERT(a, x_i32))
CAST1(i32, f32, CONVERT(a, x_f32))
CAST1(i64, f32, DOWN(I64_F32, a))
CAST2(f32, i64, UP(f32, i64, F32_I64, a))
CAST2(i32, f64, UP(i32, f64, I32_F64, a))
CAST1(f64, i32, DOWN(F64_I32, a))
CAST2(f32, f64, UP(f32, f64, F32_F64, a))
CAST1(f64, f32, DOWN(F64_F32, a))

/* Lanes of T widened with their sign to 32 bits (masks, for one), and 32-bit lanes cut down to T's width. */
#define WIDEN_f32(m) (m)
#define WIDEN_i32(m) (m)
#define WIDEN_u32(m) (m)
#define WIDEN_i16(m) I16_I32(m)
#define WIDEN_u16(m) I16_I32(m)
#define WIDEN_i8(m) I8_I32(m)
#define WIDEN_u8(m) I8_I32(m)
#define NARROW_f32(m) (m)
#define NARROW_i32(m) (m)
#define NARROW_u32(m) (m)
#define NARROW_i16(m) I32_I16(m)
#define NARROW_u16(m) I32_I16(m)
#define NARROW_i8(m) I32_I8(m)
#define NARROW_u8(m) I32_I8(m)

/* bf16 and f16 as bits in 16-bit lanes: read as f32, and f32 rounded to nearest even. NaN stays NaN. */
FN v_f32 x_read_bf16(x_u16 a) { return (v_f32)(U16_I32(a) << 16); }
FN x_i32 x_bits_bf16(v_f32 a) {
    x_u32 u = (x_u32)a;
    u = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (x_i32)SEL(u32, a == a, u, SPLAT(u32, 0x7fc0));
}
FN x_u16 x_write_bf16(v_f32 a) { return (x_u16)I32_I16(x_bits_bf16(a)); }
FN v_f32 round_bf16(v_f32 a) { return (v_f32)(x_bits_bf16(a) << 16); }

#if defined(X512)
FN v_f32 x_read_f16(x_u16 a) { return __builtin_ia32_vcvtph2ps512_mask((x_i16)a, (x_f32){0}, (uint16_t)-1, 4); }
FN x_u16 x_write_f16(v_f32 a) { return (x_u16)__builtin_ia32_vcvtps2ph512_mask(a, 0, (x_i16){0}, (uint16_t)-1); }
#elif defined(X256) && defined(__F16C__)
FN v_f32 x_read_f16(x_u16 a) { return __builtin_ia32_vcvtph2ps256((g_8hi)a); }
FN x_u16 x_write_f16(v_f32 a) { return (x_u16)__builtin_ia32_vcvtps2ph256(a, 0); }
#elif defined(__FLT16_MANT_DIG__) && (defined(__aarch64__) || (defined(__clang__) && defined(__F16C__)))
typedef _Float16 x_half __attribute__((vector_size(W * 2)));
FN v_f32 x_read_f16(x_u16 a) { return CONVERT((x_half)a, x_f32); }
FN x_u16 x_write_f16(v_f32 a) { return (x_u16)CONVERT(a, x_half); }
#else
FN v_f32 x_read_f16(x_u16 a) {
    x_i32 u = U16_I32(a), m = (u & 0x7fff) << 13;
    x_f32 r = (x_f32)m * 0x1p112f; /* from one bias of the exponent to the other; makes subnormals normal */
    return (v_f32)(SEL(i32, m >= 0x0f800000, m | 0x7f800000, (x_i32)r) | (u & 0x8000) << 16);
}
FN x_u16 x_write_f16(v_f32 a) {
    x_i32 u = (x_i32)a & 0x7fffffff, s = ((x_i32)a >> 16) & 0x8000;
    x_i32 normal = (u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13;
    x_i32 small = (x_i32)((x_f32)u + 0.5f) - 0x3f000000; /* floats near 0.5 have the spacing of f16's subnormals */
    x_i32 r = SEL(i32, u < 0x38800000, small, normal);
    r = SEL(i32, u >= 0x477ff000, SPLAT(i32, 0x7c00), r); /* 65520 and more */
    return (x_u16)I32_I16(SEL(i32, u > 0x7f800000, SPLAT(i32, 0x7e00), r) | s);
}
#endif
FN v_f32 round_f16(v_f32 a) { return x_read_f16(x_write_f16(a)); }
FN v_b x_read_b(x_u8 a) { return U8_I32(a) != 0; }
FN x_u8 x_write_b(v_b a) { return (x_u8)I32_I8(a & 1); }

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

#if defined(X512)
#define FIRST(n) ((uint16_t)((1u << (n)) - 1))
#define LOAD_N_4(T)                                                                           \
    FN v_##T load_n_##T(const e_##T *p, int n) {                                              \
        return (v_##T)__builtin_ia32_loaddqusi512_mask((const int *)p, (x_i32){0}, FIRST(n)); \
    }                                                                                         \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {                                           \
        __builtin_ia32_storedqusi512_mask((int *)p, (x_i32)v, FIRST(n));                      \
    }
#define LOAD_N_8(T)                                                                                        \
    FN v_##T load_n_##T(const e_##T *p, int n) {                                                           \
        return (v_##T){                                                                                    \
            (x_##T)__builtin_ia32_loaddqudi512_mask((const long long *)p, (g_8di){0}, (uint8_t)FIRST(n)),  \
            (x_##T)__builtin_ia32_loaddqudi512_mask((const long long *)p + 8, (g_8di){0}, FIRST(n) >> 8)}; \
    }                                                                                                      \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {                                                        \
        __builtin_ia32_storedqudi512_mask((long long *)p, (g_8di)v.lo, (uint8_t)FIRST(n));                 \
        __builtin_ia32_storedqudi512_mask((long long *)p + 8, (g_8di)v.hi, FIRST(n) >> 8);                 \
    }
#define LOAD_N_2(T)                                                                             \
    FN v_##T load_n_##T(const e_##T *p, int n) {                                                \
        return (v_##T)__builtin_ia32_loaddquhi256_mask((const short *)p, (x_i16){0}, FIRST(n)); \
    }                                                                                           \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {                                             \
        __builtin_ia32_storedquhi256_mask((short *)p, (x_i16)v, FIRST(n));                      \
    }
#define LOAD_N_1(T)                                                                             \
    FN v_##T load_n_##T(const e_##T *p, int n) {                                                \
        return (v_##T)__builtin_ia32_loaddquqi128_mask((const char *)p, (g_16qi){0}, FIRST(n)); \
    }                                                                                           \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {                                             \
        __builtin_ia32_storedquqi128_mask((char *)p, (g_16qi)v, FIRST(n));                      \
    }
#elif defined(X256)
#define LOAD_N_4(T)                                                                      \
    FN v_##T load_n_##T(const e_##T *p, int n) {                                         \
        return (v_##T)__builtin_ia32_maskloadd256((const x_i32 *)p, (x_i32){LANES} < n); \
    }                                                                                    \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {                                      \
        __builtin_ia32_maskstored256((x_i32 *)p, (x_i32){LANES} < n, (x_i32)v);          \
    }
#define LOAD_N_8(T)                                                                                      \
    FN v_##T load_n_##T(const e_##T *p, int n) {                                                         \
        return (v_##T){(x_##T)__builtin_ia32_maskloadq256((const g_4di *)p, (g_4di){LANES_LO} < n),      \
                       (x_##T)__builtin_ia32_maskloadq256((const g_4di *)p + 1, (g_4di){LANES_HI} < n)}; \
    }                                                                                                    \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {                                                      \
        __builtin_ia32_maskstoreq256((g_4di *)p, (g_4di){LANES_LO} < n, (g_4di)v.lo);                    \
        __builtin_ia32_maskstoreq256((g_4di *)p + 1, (g_4di){LANES_HI} < n, (g_4di)v.hi);                \
    }
#endif
#define LOAD_N(T)                                        \
    FN v_##T load_n_##T(const e_##T *p, int n) {         \
        e_##T t[W] = {0};                                \
        __builtin_memcpy(t, p, (uint64_t)n * sizeof *p); \
        return load_##T(t);                              \
    }                                                    \
    FN void store_n_##T(e_##T *p, v_##T v, int n) {      \
        e_##T t[W];                                      \
        store_##T(t, v);                                 \
        __builtin_memcpy(p, t, (uint64_t)n * sizeof *p); \
    }
#ifndef LOAD_N_4
#define LOAD_N_4(T) LOAD_N(T)
#define LOAD_N_8(T) LOAD_N(T)
#endif
#ifndef LOAD_N_2
#define LOAD_N_2(T) LOAD_N(T)
#define LOAD_N_1(T) LOAD_N(T)
#endif

#define LOAD_1(T)                                                   \
    FN v_##T load_##T(const e_##T *p) { return *(const u_##T *)p; } \
    FN void store_##T(e_##T *p, v_##T v) { *(u_##T *)p = v; }       \
    FN v_##T splat_##T(e_##T s) { return SPLAT(T, s); }
#define LOAD_2(T)                                                                                         \
    FN v_##T load_##T(const e_##T *p) { return (v_##T){*(const u_##T *)p, *(const u_##T *)(p + W / 2)}; } \
    FN void store_##T(e_##T *p, v_##T v) { *(u_##T *)p = v.lo, *(u_##T *)(p + W / 2) = v.hi; }            \
    FN v_##T splat_##T(e_##T s) { return (v_##T){SPLAT(T, s), SPLAT(T, s)}; }

/* Strided and indexed memory, lane by lane; whole vectors unrolled, which GCC builds in registers. */
#define READ_LANES(T, at)                                                   \
    {                                                                       \
        e_##T t[W] = {0};                                                   \
        if (n == W) {                                                       \
            _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) t[i] = at; \
        } else {                                                            \
            for (int i = 0; i < n; i++) t[i] = at;                          \
        }                                                                   \
        return load_##T(t);                                                 \
    }
#define WRITE_LANES(T, at, how)                  \
    {                                            \
        e_##T t[W];                              \
        store_##T(t, v);                         \
        for (int i = 0; i < n; i++) at how t[i]; \
    }
#define LANE_LOADS(T)                                                   \
    FN v_##T load_s_##T(const e_##T *p, int64_t stride, int n)          \
    READ_LANES(T, p[i * stride])                                        \
    FN v_##T gather_##T(const e_##T *p, v_i64 idx, int n) {             \
        int64_t k[W];                                                   \
        store_i64(k, idx);                                              \
        READ_LANES(T, p[k[i]])                                          \
    }                                                                   \
    FN v_##T gather_m_##T(const e_##T *p, v_i64 idx, v_b mask, int n) { \
        int64_t k[W];                                                   \
        int32_t m[W];                                                   \
        store_i64(k, idx), store_i32(m, mask);                          \
        READ_LANES(T, m[i] ? p[k[i]] : 0)                               \
    }
#define LANE_STORES(T)                                             \
    FN void store_s_##T(e_##T *p, int64_t stride, v_##T v, int n)  \
    WRITE_LANES(T, p[i * stride], =)                               \
    FN void scatter_##T(e_##T *p, v_i64 idx, v_##T v, int n) {     \
        int64_t k[W];                                              \
        store_i64(k, idx);                                         \
        WRITE_LANES(T, p[k[i]], =)                                 \
    }                                                              \
    FN void scatter_add_##T(e_##T *p, v_i64 idx, v_##T v, int n) { \
        int64_t k[W];                                              \
        store_i64(k, idx);                                         \
        WRITE_LANES(T, p[k[i]], +=)                                \
    }
#if defined(X512) /* 3.7 G elements/s, against 1.6 lane by lane (Sapphire Rapids, 2026-11-30) */
#define GATHER_4(p, i, k) __builtin_ia32_gatherdiv16si((h_i32){0}, p, (g_8di)(i), k, 4)
#define GATHER_8(p, i, k) __builtin_ia32_gatherdiv8di((g_8di){0}, p, (g_8di)(i), k, 8)
#define GATHERS(T, gathered)                                                                         \
    FN v_##T x_gather_##T(const e_##T *p, v_i64 idx, uint16_t k) { return gathered; }                \
    FN v_##T load_s_##T(const e_##T *p, int64_t stride, int n) {                                     \
        return x_gather_##T(p, iota_i64(0, stride), FIRST(n));                                       \
    }                                                                                                \
    FN v_##T gather_##T(const e_##T *p, v_i64 idx, int n) { return x_gather_##T(p, idx, FIRST(n)); } \
    FN v_##T gather_m_##T(const e_##T *p, v_i64 idx, v_b mask, int n) {                              \
        return x_gather_##T(p, idx, FIRST(n) & __builtin_ia32_ptestmd512(mask, mask, (uint16_t)-1)); \
    }
#define LANE_LOADS_4(T) GATHERS(T, (v_##T)JOIN(GATHER_4(p, idx.lo, (uint8_t)k), GATHER_4(p, idx.hi, k >> 8)))
#define LANE_LOADS_8(T) \
    GATHERS(T, ((v_##T){(x_##T)GATHER_8(p, idx.lo, (uint8_t)k), (x_##T)GATHER_8(p, idx.hi, k >> 8)}))
#else
#define LANE_LOADS_4(T) LANE_LOADS(T)
#define LANE_LOADS_8(T) LANE_LOADS(T)
#endif
#ifdef NEED_INDEXED
#define INDEXED(T, bytes) CAT(LANE_LOADS_, bytes)(T) LANE_STORES(T)
#define LANE_LOADS_1(T) LANE_LOADS(T)
#define LANE_LOADS_2(T) LANE_LOADS(T)
#else
#define INDEXED(T, bytes)
#endif

/* Stores that pass by the caches. */
#define STREAM_ALIGN(T) (sizeof(e_##T) * W < 64 ? sizeof(e_##T) * W : 64)
#if defined(__clang__)
#define STREAM(T) \
    FN void x_stream_##T(e_##T *p, x_##T v) { __builtin_nontemporal_store(v, (x_##T *)p); }
#elif defined(__x86_64__)
typedef int g_4b __attribute__((may_alias));
typedef long long g_8b __attribute__((may_alias));
typedef long long g_16b __attribute__((vector_size(16), may_alias));
typedef long long g_32b __attribute__((vector_size(32), may_alias));
typedef long long g_64b __attribute__((vector_size(64), may_alias));
FN void x_stream(char *p, const char *v, int bytes) {
#if defined(__AVX512F__)
    if (bytes == 64) return __builtin_ia32_movntdq512((g_64b *)p, *(const g_64b *)v);
#endif
#if defined(__AVX__)
    if (bytes == 32) return __builtin_ia32_movntdq256((g_32b *)p, *(const g_32b *)v);
#endif
    if (bytes == 4) return __builtin_ia32_movnti((int *)p, *(const g_4b *)v);
    if (bytes == 8) return __builtin_ia32_movnti64((long long *)p, *(const g_8b *)v);
    for (int i = 0; i < bytes; i += 16) __builtin_ia32_movntdq((g_16b *)(p + i), *(const g_16b *)(v + i));
}
#define STREAM(T) \
    FN void x_stream_##T(e_##T *p, x_##T v) { x_stream((char *)p, (const char *)&v, sizeof v); }
#else
#define STREAM(T) \
    FN void x_stream_##T(e_##T *p, x_##T v) { *(u_##T *)p = v; }
#endif
FN void stream_fence(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}
#define STREAM_1(T) STREAM(T) FN void stream_##T(e_##T *p, v_##T v) { x_stream_##T(p, v); }
#define STREAM_2(T) \
    STREAM(T) FN void stream_##T(e_##T *p, v_##T v) { x_stream_##T(p, v.lo), x_stream_##T(p + W / 2, v.hi); }

#define MEMORY(T, bytes, regs)                           \
    LOAD_N_##bytes(T) STREAM_##regs(T) INDEXED(T, bytes) \
    FN v_##T splat_load_##T(const e_##T *p) { return splat_##T(*p); }
LOAD_2(i64)
LOAD_1(i32)
FN v_i64 iota_i64(int64_t start, int64_t step) {
    return (v_i64){(x_i64){LANES_LO} * step + start, (x_i64){LANES_HI} * step + start};
}
LOAD_1(f32)
LOAD_2(f64)
LOAD_1(u8)
MEMORY(i64, 8, 2)
MEMORY(i32, 4, 1)
MEMORY(f32, 4, 1)
MEMORY(u8, 1, 1)
#ifdef NEED_F64
MEMORY(f64, 8, 2)
#endif
#ifdef NEED_UNSIGNED
LOAD_1(u32)
LOAD_2(u64)
MEMORY(u32, 4, 1)
MEMORY(u64, 8, 2)
#endif
#ifdef NEED_SMALL
LOAD_1(i8)
LOAD_1(i16)
MEMORY(i8, 1, 1)
MEMORY(i16, 2, 1)
#endif
#if defined(NEED_SMALL) || defined(NEED_HALF)
LOAD_1(u16)
MEMORY(u16, 2, 1)
#endif

/* Types kept in memory as another: through raw elements R. */
#ifdef NEED_INDEXED
#define INDEXED_AS(T, R, CT)                                                                                      \
    FN v_##CT load_s_##T(const e_##T *p, int64_t stride, int n) { return x_read_##T(load_s_##R(p, stride, n)); }  \
    FN v_##CT gather_##T(const e_##T *p, v_i64 idx, int n) { return x_read_##T(gather_##R(p, idx, n)); }          \
    FN v_##CT gather_m_##T(const e_##T *p, v_i64 idx, v_b mask, int n) {                                          \
        return x_read_##T(gather_m_##R(p, idx, mask, n));                                                         \
    }                                                                                                             \
    FN void store_s_##T(e_##T *p, int64_t stride, v_##CT v, int n) { store_s_##R(p, stride, x_write_##T(v), n); } \
    FN void scatter_##T(e_##T *p, v_i64 idx, v_##CT v, int n) { scatter_##R(p, idx, x_write_##T(v), n); }
#define SCATTER_ADD_HALF(T)                                                                    \
    FN void scatter_add_##T(e_##T *p, v_i64 idx, v_f32 v, int n) {                             \
        float t[W];                                                                            \
        int64_t k[W];                                                                          \
        store_f32(t, v), store_i64(k, idx);                                                    \
        for (int i = 0; i < n; i++) store_n_##T(p + k[i], splat_load_##T(p + k[i]) + t[i], 1); \
    }
#else
#define INDEXED_AS(T, R, CT)
#define SCATTER_ADD_HALF(T)
#endif
#define MEMORY_AS(T, R, CT)                                                               \
    FN v_##CT load_##T(const e_##T *p) { return x_read_##T(load_##R(p)); }                \
    FN v_##CT load_n_##T(const e_##T *p, int n) { return x_read_##T(load_n_##R(p, n)); }  \
    FN v_##CT splat_load_##T(const e_##T *p) { return x_read_##T(splat_load_##R(p)); }    \
    FN void store_##T(e_##T *p, v_##CT v) { store_##R(p, x_write_##T(v)); }               \
    FN void store_n_##T(e_##T *p, v_##CT v, int n) { store_n_##R(p, x_write_##T(v), n); } \
    FN void stream_##T(e_##T *p, v_##CT v) { stream_##R(p, x_write_##T(v)); }             \
    INDEXED_AS(T, R, CT)
MEMORY_AS(b, u8, b)
#ifdef NEED_INDEXED
FN void scatter_add_b(e_b *p, v_i64 idx, v_b v, int n) { /* true + true is true */
    int64_t k[W];
    int32_t t[W];
    store_i64(k, idx), store_i32(t, v);
    for (int i = 0; i < n; i++) p[k[i]] |= (e_b)(t[i] & 1);
}
#endif
FN v_b splat_b(int s) { return SPLAT(i32, s ? -1 : 0); }
#ifdef NEED_HALF
MEMORY_AS(bf16, u16, f32)
MEMORY_AS(f16, u16, f32)
SCATTER_ADD_HALF(bf16)
SCATTER_ADD_HALF(f16)
#endif

/* ---- How words are defined: an expression over registers a, b, c, for one register or for two ------------------ */

#define HALF1(T, e, half) ({ x_##T a = p.half; (x_##T)(e); })
#define HALF2(T, e, half) ({ x_##T a = p.half, b = q.half; (x_##T)(e); })
#define WORD1_1(w, T, e) FN v_##T w_##w##_##T(v_##T a) { return (v_##T)(e); }
#define WORD1_2(w, T, e) FN v_##T w_##w##_##T(v_##T p) { return (v_##T){HALF1(T, e, lo), HALF1(T, e, hi)}; }
#define WORD2_1(w, T, e) FN v_##T w_##w##_##T(v_##T a, v_##T b) { return (v_##T)(e); }
#define WORD2_2(w, T, e) FN v_##T w_##w##_##T(v_##T p, v_##T q) { return (v_##T){HALF2(T, e, lo), HALF2(T, e, hi)}; }
#define TEST1_1(w, T, e) FN v_b w_##w##_##T(v_##T a) { return WIDEN_##T(e); }
#define TEST1_2(w, T, e) FN v_b w_##w##_##T(v_##T p) { return PACK(HALF1(T, e, lo), HALF1(T, e, hi)); }
#define TEST2_1(w, T, e) FN v_b w_##w##_##T(v_##T a, v_##T b) { return WIDEN_##T(e); }
#define TEST2_2(w, T, e) FN v_b w_##w##_##T(v_##T p, v_##T q) { return PACK(HALF2(T, e, lo), HALF2(T, e, hi)); }
#define WORD1(w, T, e) CAT(WORD1_, REGS_##T)(w, T, e)
#define WORD2(w, T, e) CAT(WORD2_, REGS_##T)(w, T, e)
#define TEST1(w, T, e) CAT(TEST1_, REGS_##T)(w, T, e)
#define TEST2(w, T, e) CAT(TEST2_, REGS_##T)(w, T, e)

/* Rare words: lane by lane through a scalar function. */
#define LANES1(w, T, f)                             \
    FN v_##T w_##w##_##T(v_##T a) {                 \
        e_##T t[W];                                 \
        store_##T(t, a);                            \
        for (int i = 0; i < W; i++) t[i] = f(t[i]); \
        return load_##T(t);                         \
    }
#define LANES2(w, T, f)                                   \
    FN v_##T w_##w##_##T(v_##T a, v_##T b) {              \
        e_##T t[W], s[W];                                 \
        store_##T(t, a), store_##T(s, b);                 \
        for (int i = 0; i < W; i++) t[i] = f(t[i], s[i]); \
        return load_##T(t);                               \
    }

/* ---- Words of numbers ------------------------------------------------------------------------------------------ */

#define SELECT_1(T) \
    FN v_##T select_##T(v_b m, v_##T a, v_##T b) { return SEL(T, NARROW_##T(m), a, b); }
#define SELECT_2(T)                                                         \
    FN v_##T select_##T(v_b m, v_##T a, v_##T b) {                          \
        v_i64 n = cast_i32_i64(m);                                          \
        return (v_##T){SEL(T, n.lo, a.lo, b.lo), SEL(T, n.hi, a.hi, b.hi)}; \
    }
#define NUMBER(T)                                                                      \
    WORD2(add, T, a + b) WORD2(sub, T, a - b) WORD2(mul, T, a * b) WORD1(neg, T, -a)   \
    TEST2(eq, T, a == b) TEST2(ne, T, a != b) TEST2(lt, T, a < b) TEST2(le, T, a <= b) \
    TEST2(gt, T, a > b) TEST2(ge, T, a >= b) CAT(SELECT_, REGS_##T)(T)                 \
    FN v_##T w_fma_##T(v_##T a, v_##T b, v_##T c) { return w_add_##T(w_mul_##T(a, b), c); } /* contracted */
EACH_NUMBER(NUMBER)

#define BITS(T) ((int)sizeof(e_##T) * 8)
#define ABS_SIGNED(T) WORD1(abs, T, (a ^ (a >> (BITS(T) - 1))) - (a >> (BITS(T) - 1))) TEST1(signbit, T, a < 0)
#define ABS_UNSIGNED(T) WORD1(abs, T, a) TEST1(signbit, T, (M_##T)(a & 0))
#define ABS_i8 ABS_SIGNED
#define ABS_i16 ABS_SIGNED
#define ABS_i32 ABS_SIGNED
#define ABS_i64 ABS_SIGNED
#define ABS_u8 ABS_UNSIGNED
#define ABS_u16 ABS_UNSIGNED
#define ABS_u32 ABS_UNSIGNED
#define ABS_u64 ABS_UNSIGNED
#define INTEGER(T)                                                                   \
    WORD2(and, T, a & b) WORD2(or, T, a | b) WORD2(xor, T, a ^ b) WORD1(not, T, ~a)  \
    WORD2(min, T, SEL(T, a < b, a, b)) WORD2(max, T, SEL(T, a > b, a, b)) ABS_##T(T) \
    TEST1(isnan, T, (M_##T)(a & 0)) TEST1(isinf, T, (M_##T)(a & 0))
EACH_INT(INTEGER)

/* ATen: a shift by a negative number, or by the width or more, leaves 0, or the sign for a signed right shift. */
#define IN_WIDTH(T, b) (((M_##T)(b) >= 0) & ((M_##T)(b) < BITS(T)))
#define SHIFT(T)                                                      \
    WORD2(shl, T, (M_##T)(a << (b & (BITS(T) - 1))) & IN_WIDTH(T, b)) \
    WORD2(shr, T, SEL(T, IN_WIDTH(T, b), a >> (b & (BITS(T) - 1)), a >> (BITS(T) - 1) >> ((e_##T)-1 > 0)))
EACH_LARGE(SHIFT)
#define SHIFT_SMALL(T) /* in 32 bits */                                                     \
    FN v_##T w_shl_##T(v_##T a, v_##T b) {                                                  \
        x_i32 x = cast_##T##_i32(a), n = cast_##T##_i32(b);                                 \
        return (v_##T)NARROW_##T((x << (n & (BITS(T) - 1))) & (n >= 0) & (n < BITS(T)));    \
    }                                                                                       \
    FN v_##T w_shr_##T(v_##T a, v_##T b) {                                                  \
        x_i32 x = cast_##T##_i32(a), n = cast_##T##_i32(b), out = (n < 0) | (n >= BITS(T)); \
        n = (n & ~out) | (out & (BITS(T) - ((e_##T)-1 < 0)));                               \
        return (v_##T)NARROW_##T(x >> n);                                                   \
    }

/* ---- Words of bool --------------------------------------------------------------------------------------------- */

WORD2(and, b, a & b)
WORD2(or, b, a | b)
WORD2(xor, b, a ^ b)
WORD1(not, b, ~a)
WORD2(add, b, a | b)
WORD2(mul, b, a & b)
WORD2(min, b, a & b)
WORD2(max, b, a | b)
WORD2(eq, b, ~(a ^ b))
WORD2(ne, b, a ^ b)
WORD2(lt, b, ~a & b)
WORD2(le, b, ~a | b)
WORD2(gt, b, a & ~b)
WORD2(ge, b, a | ~b)
FN v_b select_b(v_b m, v_b a, v_b b) { return (a & m) | (b & ~m); }

/* ---- Words of floats ------------------------------------------------------------------------------------------- */

#define COPYSIGN(T, a, b) ((x_##T)((M_##T)ABS_##T(a) | SIGN_##T(b)))
#define SMALLER(T) SEL(T, a != a, a, MIN_##T(a, b)) /* NaN wins */
#define LARGER(T) SEL(T, a != a, a, MAX_##T(a, b))
/* mod: as ATen's CPU kernel, where a zero keeps the sign of a. div_floor: div_floor_floating in
 * c10/util/generic_math.h. r = fmod(a, b). */
#define FLOAT_MOD(T)                                                             \
    FN x_##T x_mod_##T(x_##T r, x_##T b) {                                       \
        return SEL(T, (r != 0) & ((b < 0) != (r < 0)), r + b, r);                \
    }                                                                            \
    FN x_##T x_div_floor_##T(x_##T a, x_##T b, x_##T r) {                        \
        x_##T q = a / b, one = SPLAT(T, 1), zero = SPLAT(T, 0), d = (a - r) / b; \
        d -= SEL(T, (r != 0) & ((b < 0) != (r < 0)), one, zero);                 \
        x_##T f = x_floor_##T(d);                                                \
        f += SEL(T, d - f > (e_##T)0.5, one, zero);                              \
        return SEL(T, b == 0, q, SEL(T, d == 0, COPYSIGN(T, zero, q), f));       \
    }
#define FLOAT(T)                                                                  \
    WORD1(abs, T, ABS_##T(a)) WORD2(div, T, a / b) WORD1(recip, T, 1 / a)         \
    WORD1(sqrt, T, x_sqrt_##T(a)) WORD1(rsqrt, T, 1 / x_sqrt_##T(a))              \
    WORD1(floor, T, x_floor_##T(a)) WORD1(ceil, T, x_ceil_##T(a))                 \
    WORD1(trunc, T, x_trunc_##T(a)) WORD1(round, T, x_round_##T(a))               \
    WORD2(div_trunc, T, x_trunc_##T(a / b)) WORD2(copysign, T, COPYSIGN(T, a, b)) \
    WORD2(min, T, SMALLER(T)) WORD2(max, T, LARGER(T))                            \
    TEST1(isnan, T, a != a) TEST1(isinf, T, ABS_##T(a) == (e_##T)INFINITY)        \
    TEST1(signbit, T, (M_##T)a < 0) FLOAT_MOD(T)
EACH_FLOAT(FLOAT)
LANES2(fmod, f32, __builtin_fmodf)
FN v_f32 w_mod_f32(v_f32 a, v_f32 b) { return x_mod_f32(w_fmod_f32(a, b), b); }
FN v_f32 w_div_floor_f32(v_f32 a, v_f32 b) { return x_div_floor_f32(a, b, w_fmod_f32(a, b)); }
#ifdef NEED_F64
LANES2(fmod, f64, __builtin_fmod)
FN v_f64 w_mod_f64(v_f64 a, v_f64 b) {
    v_f64 r = w_fmod_f64(a, b);
    return (v_f64){x_mod_f64(r.lo, b.lo), x_mod_f64(r.hi, b.hi)};
}
FN v_f64 w_div_floor_f64(v_f64 a, v_f64 b) {
    v_f64 r = w_fmod_f64(a, b);
    return (v_f64){x_div_floor_f64(a.lo, b.lo, r.lo), x_div_floor_f64(a.hi, b.hi, r.hi)};
}
#endif

/* ---- Casts, as static_cast does on x86 ------------------------------------------------------------------------- */
/* Floats are truncated. What does not fit, and NaN, gives the least number for i32 and i64; u32 and u64 convert the top
 * half of their range less its start and put the top bit back; i8, i16 and u16 are the low bits of i32, u8 of i64. */

#ifdef NEED_F64
FN v_i64 cast_f64_i64(v_f64 a) { return (v_i64){CONVERT(a.lo, x_i64), CONVERT(a.hi, x_i64)}; }
FN v_f64 cast_i64_f64(v_i64 a) { return (v_f64){CONVERT(a.lo, x_f64), CONVERT(a.hi, x_f64)}; }
FN v_i64 bitcast_f64_i64(v_f64 a) { return SAME(i64, a); }
FN v_f64 bitcast_i64_f64(v_i64 a) { return SAME(f64, a); }
#endif
FN v_i32 bitcast_f32_i32(v_f32 a) { return (v_i32)a; }
FN v_f32 bitcast_i32_f32(v_i32 a) { return (v_f32)a; }

#ifdef NEED_UNSIGNED
FN v_u64 cast_i64_u64(v_i64 a) { return SAME(u64, a); }
FN v_i64 cast_u64_i64(v_u64 a) { return SAME(i64, a); }
CAST1(i32, u32, a)
CAST1(u32, i32, a)
CAST2(u32, u64, cast_i64_u64(cast_u32_i64(a)))
CAST2(i32, u64, cast_i64_u64(cast_i32_i64(a)))
CAST1(i64, u32, PACK(a.lo, a.hi))
CAST1(u64, i32, PACK(a.lo, a.hi))
CAST1(u64, u32, PACK(a.lo, a.hi))
CAST1(u32, f32, CONVERT(a, x_f32))
CAST1(u64, f32, DOWN(U64_F32, a))
FN v_u32 cast_f32_u32(v_f32 a) {
    x_i32 top = a >= 0x1p31f;
    return (v_u32)(CONVERT(a - SEL(f32, top, SPLAT(f32, 0x1p31f), SPLAT(f32, 0)), x_i32) ^ (top & INT32_MIN));
}
FN x_u64 x_f64_u64(x_f64 a) {
    x_i64 top = a >= 0x1p63;
    return (x_u64)(CONVERT(a - SEL(f64, top, SPLAT(f64, 0x1p63), SPLAT(f64, 0)), x_i64) ^ (top & INT64_MIN));
}
FN v_u64 cast_f32_u64(v_f32 a) { return (v_u64){x_f64_u64(F32_F64(LO_f32(a))), x_f64_u64(F32_F64(HI_f32(a)))}; }
/* Through f64, which holds every u32: the division of u32 needs them too. */
FN v_f64 cast_u32_f64(v_u32 a) {
    v_f64 r = cast_i32_f64((v_i32)(a ^ 0x80000000));
    return (v_f64){r.lo + 0x1p31, r.hi + 0x1p31};
}
FN v_u32 cast_f64_u32(v_f64 a) {
    x_i64 l = a.lo >= 0x1p31, h = a.hi >= 0x1p31;
    a.lo -= SEL(f64, l, SPLAT(f64, 0x1p31), SPLAT(f64, 0));
    a.hi -= SEL(f64, h, SPLAT(f64, 0x1p31), SPLAT(f64, 0));
    return (v_u32)(cast_f64_i32(a) ^ (PACK(l, h) & INT32_MIN));
}
#ifdef NEED_F64
FN v_u64 cast_f64_u64(v_f64 a) { return (v_u64){x_f64_u64(a.lo), x_f64_u64(a.hi)}; }
FN v_f64 cast_u64_f64(v_u64 a) { return (v_f64){CONVERT(a.lo, x_f64), CONVERT(a.hi, x_f64)}; }
#endif
#endif

#ifdef NEED_SMALL
#define SMALL(T)                                                                              \
    CAST1(i32, T, NARROW_##T(a)) CAST1(i64, T, NARROW_##T(cast_i64_i32(a)))                   \
    CAST1(f32, T, NARROW_##T(cast_f32_i32(a))) CAST2(T, i64, cast_i32_i64(cast_##T##_i32(a))) \
    CAST1(T, f32, cast_i32_f32(cast_##T##_i32(a)))
#define SMALL_F64(T) CAST2(T, f64, cast_i32_f64(cast_##T##_i32(a)))
#define SMALL_UNSIGNED(T)                                                          \
    CAST1(u32, T, NARROW_##T((x_i32)a)) CAST1(u64, T, NARROW_##T(cast_u64_i32(a))) \
    CAST1(T, u32, cast_##T##_i32(a)) CAST2(T, u64, cast_i32_u64(cast_##T##_i32(a)))
CAST1(i8, i32, I8_I32(a))
CAST1(u8, i32, U8_I32(a))
CAST1(i16, i32, I16_I32(a))
CAST1(u16, i32, U16_I32(a))
EACH_SMALL(SMALL)
#ifdef NEED_F64
EACH_SMALL(SMALL_F64)
CAST1(f64, i8, NARROW_i8(cast_f64_i32(a)))
CAST1(f64, i16, NARROW_i16(cast_f64_i32(a)))
CAST1(f64, u16, NARROW_i16(cast_f64_i32(a)))
CAST1(f64, u8, NARROW_i8(cast_i64_i32(cast_f64_i64(a))))
#endif
#ifdef NEED_UNSIGNED
EACH_SMALL(SMALL_UNSIGNED)
#endif
CAST1(i8, u8, a)
CAST1(u8, i8, a)
CAST1(i16, u16, a)
CAST1(u16, i16, a)
CAST1(i8, i16, NARROW_i16(I8_I32(a)))
CAST1(i8, u16, NARROW_i16(I8_I32(a)))
CAST1(u8, i16, NARROW_i16(U8_I32(a)))
CAST1(u8, u16, NARROW_i16(U8_I32(a)))
CAST1(i16, i8, NARROW_i8(I16_I32(a)))
CAST1(i16, u8, NARROW_i8(I16_I32(a)))
CAST1(u16, i8, NARROW_i8(U16_I32(a)))
CAST1(u16, u8, NARROW_i8(U16_I32(a)))
EACH_SMALL(SHIFT_SMALL)
#endif

/* b: what is not 0 is true, NaN too; true is 1. */
FN v_b cast_i32_b(v_i32 a) { return a != 0; }
FN v_i32 cast_b_i32(v_b a) { return a & 1; }
#define BOOL(T)                                                        \
    FN v_b cast_##T##_b(v_##T a) { return w_ne_##T(a, splat_##T(0)); } \
    FN v_##T cast_b_##T(v_b a) { return cast_i32_##T(a & 1); }
EACH_FLOAT(BOOL)
EACH_SMALL(BOOL)
EACH_UNSIGNED(BOOL)
BOOL(i64)

/* ---- Division and power of integers ---------------------------------------------------------------------------- */
/* Never traps: division by zero gives 0 (ATen raises, which is a guard elsewhere), the least number over -1 wraps.
 * A quotient of integers of n bits is exact, once truncated, in a float type of more than n bits of fraction. */

#define FLOORED(T)                                        \
    FN v_##T w_mod_##T(v_##T a, v_##T b) {                \
        v_##T r = w_fmod_##T(a, b);                       \
        return r + (b & (r != 0) & ((r ^ b) < 0));        \
    }                                                     \
    FN v_##T w_div_floor_##T(v_##T a, v_##T b) {          \
        v_##T q = w_div_trunc_##T(a, b), r = a - q * b;   \
        return q + ((b != 0) & (r != 0) & ((r ^ b) < 0)); \
    }
#define FLOORED_UNSIGNED(T)                                           \
    FN v_##T w_mod_##T(v_##T a, v_##T b) { return w_fmod_##T(a, b); } \
    FN v_##T w_div_floor_##T(v_##T a, v_##T b) { return w_div_trunc_##T(a, b); }
#define FLOORED_i8 FLOORED
#define FLOORED_i16 FLOORED
#define FLOORED_u8 FLOORED_UNSIGNED
#define FLOORED_u16 FLOORED_UNSIGNED
#define FMOD(T) \
    FN v_##T w_fmod_##T(v_##T a, v_##T b) { return SEL(T, b != 0, a - w_div_trunc_##T(a, b) * b, b); }
#define DIVIDE_32(T)                                                                     \
    FN v_##T w_div_trunc_##T(v_##T a, v_##T b) {                                         \
        v_f64 x = cast_##T##_f64(a), y = cast_##T##_f64(SEL(T, b == 0, SPLAT(T, 1), b)); \
        return SEL(T, b != 0, cast_f64_##T((v_f64){x.lo / y.lo, x.hi / y.hi}), b);       \
    }                                                                                    \
    FMOD(T)
#define DIVIDE_SMALL(T)                                                \
    FN v_##T w_div_trunc_##T(v_##T a, v_##T b) {                       \
        v_f32 y = cast_##T##_f32(SEL(T, b == 0, SPLAT(T, 1), b));      \
        return SEL(T, b != 0, cast_f32_##T(cast_##T##_f32(a) / y), b); \
    }                                                                  \
    FMOD(T) FLOORED_##T(T)
EACH_SMALL(DIVIDE_SMALL)
DIVIDE_32(i32)
FLOORED(i32)
FN int64_t x_trunc_i64(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
FN int64_t x_fmod_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
FN int64_t x_below_i64(int64_t r, int64_t b) { return r != 0 && (r ^ b) < 0; }
FN int64_t x_mod_i64(int64_t a, int64_t b) {
    int64_t r = x_fmod_i64(a, b);
    return x_below_i64(r, b) ? r + b : r;
}
FN int64_t x_floor_i64(int64_t a, int64_t b) { return x_trunc_i64(a, b) - x_below_i64(x_fmod_i64(a, b), b); }
LANES2(div_trunc, i64, x_trunc_i64)
LANES2(div_floor, i64, x_floor_i64)
LANES2(mod, i64, x_mod_i64)
LANES2(fmod, i64, x_fmod_i64)
#ifdef NEED_UNSIGNED
DIVIDE_32(u32)
FLOORED_UNSIGNED(u32)
FN uint64_t x_trunc_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }
FN uint64_t x_fmod_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }
LANES2(div_trunc, u64, x_trunc_u64)
LANES2(fmod, u64, x_fmod_u64)
FLOORED_UNSIGNED(u64)
#endif

/* ATen/native/Pow.h: wraps; a negative exponent truncates the reciprocal. */
COLD uint64_t x_power(uint64_t a, uint64_t b, int negative) {
    if (negative) return a == 1 ? 1 : a == UINT64_MAX ? 1 - 2 * (b & 1) : 0;
    uint64_t r = 1;
    for (; b; b >>= 1, a *= a)
        if (b & 1) r *= a;
    return r;
}
#define X_POWER(a, b) x_power((uint64_t)(a), (uint64_t)(b), (b) != 0 && !((b) > 0))
#define POWER(T) LANES2(pow, T, X_POWER)
EACH_INT(POWER)

/* ---- Folds over lanes: a tree, so that sums of floats are pairwise --------------------------------------------- */

FN int hany_b(v_b m) {
#if defined(X512)
    return __builtin_ia32_ptestmd512(m, m, (uint16_t)-1) != 0;
#elif defined(X256)
    return __builtin_ia32_movmskps256((v_f32)m) != 0;
#elif W == 4 && defined(__SSE__) && !defined(__clang__)
    return __builtin_ia32_movmskps((v_f32)m) != 0;
#else
    int any = 0;
    for (int i = 0; i < W; i++) any |= m[i];
    return any != 0;
#endif
}
FN int hall_b(v_b m) { return !hany_b(~m); }

/* b is a with lanes exchanged at a distance; e combines them; in the end every lane holds the fold. */
#define FOLD_STEP(T, s, n, e) b = SHUFFLE(T, a, a, SWAP_##s##_##n), a = (e);
#define FOLD_2(T, e) FOLD_STEP(T, 1, 2, e)
#define FOLD_4(T, e) FOLD_STEP(T, 2, 4, e) FOLD_STEP(T, 1, 4, e)
#define FOLD_8(T, e) FOLD_STEP(T, 4, 8, e) FOLD_STEP(T, 2, 8, e) FOLD_STEP(T, 1, 8, e)
#define FOLD_16(T, e) FOLD_STEP(T, 8, 16, e) FOLD_STEP(T, 4, 16, e) FOLD_STEP(T, 2, 16, e) FOLD_STEP(T, 1, 16, e)
#define FOLD_OF_1(name, T, e)      \
    FN e_##T name##_##T(v_##T v) { \
        x_##T a = v, b;            \
        CAT(FOLD_, W)(T, e)        \
        return a[0];               \
    }
#define FOLD_OF_2(name, T, e)      \
    FN e_##T name##_##T(v_##T v) { \
        x_##T a = v.lo, b = v.hi;  \
        a = (e);                   \
        CAT(FOLD_, HALF_W)(T, e)   \
        return a[0];               \
    }
#define FOLD(name, T, e) CAT(FOLD_OF_, REGS_##T)(name, T, e)
#define FLOAT_FOLDS(T) \
    FOLD(hsum, T, a + b) FOLD(hprod, T, a * b) FOLD(hmin, T, SMALLER(T)) FOLD(hmax, T, LARGER(T))
#define INT_FOLDS(T) \
    FOLD(hsum, T, a + b) FOLD(hprod, T, a * b) FOLD(hmin, T, SEL(T, a < b, a, b)) FOLD(hmax, T, SEL(T, a > b, a, b))
EACH_FLOAT(FLOAT_FOLDS)
EACH_INT(INT_FOLDS)

#ifdef NEED_MATH
/* ---- Exponentials and logarithms, f32: at most 2 ulp, branch-free ---------------------------------------------- */
/* Polynomials are minimax fits of relative error 2^-27 or less, made for this file; tests/test_prelude_exhaustive.py
 * measures every float. MAGIC_T + t rounds t to an integer and leaves that integer in the low bits. */

#define MAGIC_f32 0x1.8p23f
#define MAGIC_f64 0x1.8p52
#define LN2_HI 0x1.63p-1f /* few bits: an exponent times it is exact */
#define LN2_LO (-0x1.bd0106p-13f)
/* 2^n p, n integral in [-300, 300]: one rounding, so subnormal results are right. t holds n in its low bits. */
#if defined(X512)
#define SCALE_f32(p, n, t) __builtin_ia32_scalefps512_mask(p, n, (x_f32){0}, (uint16_t)-1, 4)
#else
FN x_f32 x_scale_f32(x_f32 p, x_i32 k) {
    x_i32 half = k >> 1;
    return p * (x_f32)((half + 127) << 23) * (x_f32)((k - half + 127) << 23);
}
#define SCALE_f32(p, n, t) x_scale_f32(p, (x_i32)(t) - (x_i32)SPLAT(f32, MAGIC_f32))
#endif

/* exp of x in [-104, 89]: x = n ln2 + r. */
#define EXP_REDUCE(x)                                            \
    x_f32 t = x * 0x1.715476p+0f + MAGIC_f32, n = t - MAGIC_f32; \
    x_f32 r = (x - n * LN2_HI) - n * LN2_LO;
FN x_f32 x_exp_poly(x_f32 r) {
    x_f32 p = r * 0x1.6a3fbcp-10f + 0x1.1239e0p-7f;
    p = p * r + 0x1.5558bep-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r + 1.0f;
    return p * r + 1.0f;
}
FN v_f32 w_exp_f32(v_f32 x) {
    x = MIN_f32(SPLAT(f32, 89.0f), MAX_f32(SPLAT(f32, -104.0f), x)); /* NaN stays: second operand */
    EXP_REDUCE(x)
    return SCALE_f32(x_exp_poly(r), n, t);
}
/* exp of x in [-87, 88], where one shift makes the scale. */
FN x_f32 x_exp_small(x_f32 x) {
    EXP_REDUCE(x)
    return (x_f32)((x_i32)x_exp_poly(r) + ((x_i32)t << 23));
}
FN v_f32 w_exp2_f32(v_f32 x) {
    x = MIN_f32(SPLAT(f32, 129.0f), MAX_f32(SPLAT(f32, -151.0f), x));
    x_f32 t = x + MAGIC_f32, n = t - MAGIC_f32, r = x - n;
    x_f32 p = r * 0x1.416d1cp-13f + 0x1.5f09a4p-10f;
    p = p * r + 0x1.3b2de0p-7f;
    p = p * r + 0x1.c6af7ap-5f;
    p = p * r + 0x1.ebfbdcp-3f;
    p = p * r + 0x1.62e430p-1f;
    p = p * r + 1.0f;
    return SCALE_f32(p, n, t);
}
FN v_f32 w_expm1_f32(v_f32 a) {
    x_f32 x = MIN_f32(SPLAT(f32, 89.0f), MAX_f32(SPLAT(f32, -20.0f), a));
    EXP_REDUCE(x)
    x_f32 p = r * 0x1.9e7d3ep-13f + 0x1.6d3a9ep-10f;
    p = p * r + 0x1.1112d4p-7f;
    p = p * r + 0x1.5554f8p-5f;
    p = p * r + 0x1.555554p-3f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    x_f32 half = (x_f32)(((x_i32)t << 23) + (126 << 23)); /* 2^(n-1), so that n = 128 fits */
    p = half * p + (half - 0.5f);
    return SEL(f32, ABS_f32(a) < 0x1p-25f, a, p + p);
}
/* From e = e^-|a|, which does not overflow, and q = e / (1 + e): 1 / (1 + e) = 1 - q and q = e - e q. */
FN v_f32 w_sigmoid_f32(v_f32 a) {
    x_f32 e = w_exp_f32((x_f32)((x_i32)a | INT32_MIN)), q = e / (1.0f + e), top = SEL(f32, a < 0, e, SPLAT(f32, 1));
    return top - top * q;
}
FN v_f32 w_tanh_f32(v_f32 a) {
    x_f32 x = MIN_f32(SPLAT(f32, 10.0f), ABS_f32(a)), s = a * a;
    x_f32 big = 1.0f - 2.0f / (x_exp_small(x + x) + 1.0f);
    x_f32 p = s * -0x1.9921a2p-8f + 0x1.58e518p-6f;
    p = p * s - 0x1.b91e7ep-5f;
    p = p * s + 0x1.110ceep-3f;
    p = p * s - 0x1.55554ap-2f;
    p = p * (s * x) + x;
    return (x_f32)((x_i32)SEL(f32, x > 0.55f, big, p) | SIGN_f32(a));
}
FN v_f32 w_erf_f32(v_f32 a) {
    x_f32 x = MIN_f32(SPLAT(f32, 3.95f), ABS_f32(a)), s = x * x;
    x_f32 p = s * -0x1.4cd860p-11f + 0x1.4b7620p-8f;
    p = p * s - 0x1.b735eap-6f;
    p = p * s + 0x1.ce256ap-4f;
    p = p * s - 0x1.812726p-2f;
    p = p * s + 0x1.06eba8p-3f;
    p = p * x + x;
    x_f32 q = x * 0x1.038c08p-17f - 0x1.2e82bep-12f; /* erf x = 1 - e^-(x + x q) */
    q = q * x + 0x1.cb86f2p-9f;
    q = q * x - 0x1.80b17cp-6f;
    q = q * x + 0x1.b1d62ap-4f;
    q = q * x + 0x1.454b3ep-1f;
    q = q * x + 0x1.076134p-3f;
    q = q * x + x;
    return (x_f32)((x_i32)SEL(f32, x > 0.85f, 1.0f - x_exp_small(-q), p) | SIGN_f32(a));
}

/* x = 2^e (1 + f), f in [-1/4, 1/2). */
#if defined(X512) /* zero, infinity, NaN and negative numbers come out as they must: e is -inf or inf, or f is NaN */
#define SPLIT_f32(x, e, f)                                                          \
    x_f32 f = __builtin_ia32_getmantps512_mask(x, 11, (x_f32){0}, (uint16_t)-1, 4); \
    x_f32 e = __builtin_ia32_getexpps512_mask(x, (x_f32){0}, (uint16_t)-1, 4);      \
    e += SEL(f32, f < 1, SPLAT(f32, 1), SPLAT(f32, 0));                             \
    f -= 1;
#define LOG_ENDS_f32(x, r) (r)
#else
#define SPLIT_f32(x, e, f)                                                                                 \
    x_i32 tiny = (x) < 0x1p-126f, i = (x_i32)SEL(f32, tiny, (x) * 0x1p23f, x), k = (i - 0x3f400000) >> 23; \
    x_f32 f = (x_f32)(i - (k << 23)) - 1;                                                                  \
    x_f32 e = CONVERT(k - (tiny & 23), x_f32);
#define LOG_ENDS_f32(x, r)                    \
    SEL(f32, ((x) > 0) & ((x) < INFINITY), r, \
        SEL(f32, (x) == 0, SPLAT(f32, -INFINITY), SEL(f32, (x) < 0, SPLAT(f32, NAN), x)))
#endif
FN x_f32 x_log_poly(x_f32 e, x_f32 f) {
    x_f32 p = f * -0x1.71e34cp-5f + 0x1.acf4b8p-4f;
    p = p * f - 0x1.0d98f2p-3f;
    p = p * f + 0x1.28807ap-3f;
    p = p * f - 0x1.54ed96p-3f;
    p = p * f + 0x1.99699ep-3f;
    p = p * f - 0x1.00004ap-2f;
    p = p * f + 0x1.5555a4p-2f;
    p = p * f - 0.5f;
    p = p * (f * f) + e * 0x1.c85fe0p-10f;
    return e * 0x1.62p-1f + (p + f); /* ln2 in two parts, both positive: infinity stays */
}
FN v_f32 w_log_f32(v_f32 x) {
    SPLIT_f32(x, e, f)
    return LOG_ENDS_f32(x, x_log_poly(e, f));
}
FN v_f32 w_log2_f32(v_f32 x) {
    SPLIT_f32(x, e, f)
    x_f32 p = f * -0x1.10f8d6p-4f + 0x1.35a630p-3f;
    p = p * f - 0x1.8219d8p-3f;
    p = p * f + 0x1.aa9dcap-3f;
    p = p * f - 0x1.ec0fb0p-3f;
    p = p * f + 0x1.276438p-2f;
    p = p * f - 0x1.71548ep-2f;
    p = p * f + 0x1.ec7092p-2f;
    p = p * f - 0x1.715476p-1f;
    p = p * f + 0x1.c551dap-2f; /* log2(e) - 1: f itself is added to e, which is exact where that matters */
    return LOG_ENDS_f32(x, p * f + (e + f));
}
FN v_f32 w_log10_f32(v_f32 x) {
    SPLIT_f32(x, e, f)
    x_f32 p = f * -0x1.3f32acp-6f + 0x1.7365f6p-5f;
    p = p * f - 0x1.d41e24p-5f;
    p = p * f + 0x1.019f6ap-4f;
    p = p * f - 0x1.28273ap-4f;
    p = p * f + 0x1.639b90p-4f;
    p = p * f - 0x1.bcb7d2p-4f;
    p = p * f + 0x1.287abcp-3f;
    p = p * f - 0x1.bcb7b2p-3f;
    p = p * f - 0x1.5b235ep-27f;
    p = f * 0x1.bcb7b2p-2f + (p * f + e * 0x1.3509f8p-18f);
    return LOG_ENDS_f32(x, e * 0x1.344p-2f + p);
}
FN v_f32 w_log1p_f32(v_f32 x) {
    x_f32 u = 1.0f + x, b = u - 1.0f, c = (x - b) + (1.0f - (u - b)); /* u + c = 1 + x exactly */
    SPLIT_f32(u, e, f)
#if defined(X512)
    f += SCALE_f32(c, -e, 0);
#else
    f += 0.5f * c * (x_f32)((128 - k) << 23); /* u is 0 or at least 2^-24; k is at most 128 */
#endif
    x_f32 r = LOG_ENDS_f32(u, x_log_poly(e, f));
    r = SEL(f32, x == -1, SPLAT(f32, -INFINITY), r);
    return SEL(f32, (ABS_f32(x) < 0x1p-24f) | (x == INFINITY), x, r);
}

/* ---- Trigonometry, f32 ----------------------------------------------------------------------------------------- */

#define TRIG_LIMIT 0x1p17f /* above it, and for infinity, libm does the lanes concerned */
#if HAS_FMA
#define TRIG_REDUCE(x) ((x - n * 0x1.921fb6p+0f) + n * 0x1.777a5cp-25f) + n * 0x1.ee59dap-50f
#else /* without a fused multiply-add: in f64, with a first part of pi/2 that times n is exact */
FN x_f32 x_trig_reduce(x_f32 x, x_f32 n) {
    v_f64 a = cast_f32_f64(x), m = cast_f32_f64(n);
    a.lo = (a.lo - m.lo * 0x1.921fb544p+0) - m.lo * 0x1.0b4611a626331p-34;
    a.hi = (a.hi - m.hi * 0x1.921fb544p+0) - m.hi * 0x1.0b4611a626331p-34;
    return cast_f64_f32(a);
}
#define TRIG_REDUCE(x) x_trig_reduce(x, n)
#endif
/* sin (quarter 0) or cos (quarter 1) of x = n pi/2 + r. */
FN x_f32 x_sin_cos(x_f32 x, int quarter) {
    x_f32 t = x * 0x1.45f306p-1f + MAGIC_f32, n = t - MAGIC_f32;
    x_f32 r = TRIG_REDUCE(x), s = r * r;
    x_i32 q = (x_i32)t + quarter;
    x_f32 p = s * -0x1.990d74p-13f + 0x1.1106aap-7f;
    p = p * s - 0x1.555544p-3f;
    p = p * (s * r) + r;
    x_f32 c = s * 0x1.99911cp-16f - 0x1.6c0af4p-10f;
    c = c * s + 0x1.555548p-5f;
    c = c * s - 0.5f;
    c = c * s + 1.0f;
    return (x_f32)((x_i32)SEL(f32, (q & 1) != 0, c, p) ^ ((q & 2) << 30));
}
#define TRIG(w, quarter, libm)                                             \
    COLD void x_##w##_large(const float *x, float *r) {                    \
        for (int i = 0; i < W; i++)                                        \
            if (!(__builtin_fabsf(x[i]) <= TRIG_LIMIT)) r[i] = libm(x[i]); \
    }                                                                      \
    FN v_f32 w_##w##_f32(v_f32 x) {                                        \
        x_f32 r = x_sin_cos(x, quarter);                                   \
        if (!quarter) r = SEL(f32, x == 0, x, r); /* -0.0 */               \
        if (__builtin_expect(hany_b(ABS_f32(x) > TRIG_LIMIT), 0)) {        \
            float s[W], t[W];                                              \
            store_f32(s, x), store_f32(t, r);                              \
            x_##w##_large(s, t);                                           \
            r = load_f32(t);                                               \
        }                                                                  \
        return r;                                                          \
    }
TRIG(sin, 0, __builtin_sinf)
TRIG(cos, 1, __builtin_cosf)

/* ---- Exponential and logarithm, f64; power of f32 in f64 ------------------------------------------------------- */

#ifdef NEED_F64
#if defined(X512)
#define SCALE_f64(p, n, t) __builtin_ia32_scalefpd512_mask(p, n, (x_f64){0}, (uint8_t)-1, 4)
#else
FN x_f64 x_scale_f64(x_f64 p, x_f64 n) {
    x_f64 h = n * 0.5 + MAGIC_f64;
    x_f64 rest = (n - (h - MAGIC_f64)) + MAGIC_f64;
    return p * (x_f64)(((x_i64)h + 1023) << 52) * (x_f64)(((x_i64)rest + 1023) << 52);
}
#define SCALE_f64(p, n, t) x_scale_f64(p, n)
#endif
FN x_f64 x_exp_f64(x_f64 x) {
    x = MIN_f64(SPLAT(f64, 710), MAX_f64(SPLAT(f64, -746), x));
    x_f64 t = x * 0x1.71547652b82fep+0 + MAGIC_f64, n = t - MAGIC_f64;
    x_f64 r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    x_f64 p = r * 0x1.ad9beed5134ccp-26 + 0x1.28ad750948904p-22;
    p = p * r + 0x1.71df0f4a42a68p-19;
    p = p * r + 0x1.a01999f8f5af2p-16;
    p = p * r + 0x1.a01a0136d27d7p-13;
    p = p * r + 0x1.6c16c1843e9d4p-10;
    p = p * r + 0x1.1111111124b16p-7;
    p = p * r + 0x1.5555555550790p-5;
    p = p * r + 0x1.555555555550bp-3;
    p = p * r + 0x1.000000000000ap-1;
    p = p * (r * r) + r + 1.0;
    return SCALE_f64(p, n, t);
}
FN x_f64 x_sigmoid_f64(x_f64 a) {
    x_f64 e = x_exp_f64((x_f64)((x_i64)a | INT64_MIN)), q = e / (1.0 + e), top = SEL(f64, a < 0, e, SPLAT(f64, 1));
    return top - top * q;
}
FN x_f64 x_log_f64(x_f64 x) {
#if defined(X512)
    x_f64 f = __builtin_ia32_getmantpd512_mask(x, 11, (x_f64){0}, (uint8_t)-1, 4);
    x_f64 e = __builtin_ia32_getexppd512_mask(x, (x_f64){0}, (uint8_t)-1, 4);
    e += SEL(f64, f < 1, SPLAT(f64, 1), SPLAT(f64, 0));
#else
    x_i64 tiny = x < 0x1p-1022, i = (x_i64)SEL(f64, tiny, x * 0x1p52, x) - 0x3fe8000000000000;
    x_f64 f = (x_f64)((i & 0xfffffffffffff) + 0x3fe8000000000000);
    x_u64 k = ((x_u64)i + 0x8000000000000000) >> 52; /* biased, as 64-bit arithmetic shifts are rare */
    x_f64 e = (x_f64)((x_i64)k | (int64_t)0x4330000000000000) - (0x1p52 + 2048);
    e -= SEL(f64, tiny, SPLAT(f64, 52), SPLAT(f64, 0));
#endif
    f -= 1;
    x_f64 s = f / (2 + f), z = s * s, h = f * f * 0.5;
    x_f64 p = z * 0x1.1b81682fe398bp-3 + 0x1.0dcb9bcdcd0abp-3;
    p = p * z + 0x1.3b35c06ebfcd0p-3;
    p = p * z + 0x1.745c4ade77b43p-3;
    p = p * z + 0x1.c71c748fb4623p-3;
    p = p * z + 0x1.24924921e4562p-2;
    p = p * z + 0x1.999999999c179p-2;
    p = p * z + 0x1.555555555554fp-1;
    x_f64 r = e * 0x1.62e42feep-1 - ((h - (s * (h + p * z) + e * 0x1.a39ef35793c76p-33)) - f);
#if !defined(X512)
    r = SEL(f64, (x > 0) & (x < INFINITY), r,
            SEL(f64, x == 0, SPLAT(f64, -INFINITY), SEL(f64, x < 0, SPLAT(f64, NAN), x)));
#endif
    return r;
}
WORD1(exp, f64, x_exp_f64(a))
WORD1(log, f64, x_log_f64(a))
WORD1(sigmoid, f64, x_sigmoid_f64(a))
#endif

/* 2^(y (e + log2(1 + f))), |result| < 2^300. */
FN x_f64 x_pow_f64(x_f64 e, x_f64 f, x_f64 y) {
    x_f64 p = f * 0x1.373896611f26ep-5 - 0x1.a1f784c02018ap-4;
    p = p * f + 0x1.1c400e763e415p-3;
    p = p * f - 0x1.319403f848a82p-3;
    p = p * f + 0x1.48b5c23bfe29ap-3;
    p = p * f - 0x1.70a5bd2b32bb3p-3;
    p = p * f + 0x1.a601242c31936p-3;
    p = p * f - 0x1.ec7576bb70281p-3;
    p = p * f + 0x1.2777245658a96p-2;
    p = p * f - 0x1.71546f27fb23fp-2;
    p = p * f + 0x1.ec709ccd931aep-2;
    p = p * f - 0x1.715476560bcf2p-1;
    p = p * f + 0x1.71547652d0099p+0;
    x_f64 z = (p * f + e) * y;
    z = MIN_f64(SPLAT(f64, 300), MAX_f64(SPLAT(f64, -300), z));
    x_f64 t = z + MAGIC_f64, r = z - (t - MAGIC_f64);
    x_f64 q = r * 0x1.41fb84fd21312p-13 + 0x1.5f3e7ef5d6e5ep-10;
    q = q * r + 0x1.3b2d4d9f8870cp-7;
    q = q * r + 0x1.c6aee83ad3ecdp-5;
    q = q * r + 0x1.ebfbdc3ae0d13p-3;
    q = q * r + 0x1.62e430af5f981p-1;
    q = q * r + 1.0;
    return (x_f64)((x_i64)q + ((x_i64)t << 52));
}
FN v_f32 w_pow_f32(v_f32 x, v_f32 y) {
    x_f32 ax = ABS_f32(x);
    SPLIT_f32(ax, e, f)
#if !defined(X512)
    x_i32 end = (ax == 0) | (ax == INFINITY);
    e = SEL(f32, end, SEL(f32, ax == 0, SPLAT(f32, -INFINITY), ax), e);
    f = SEL(f32, end, SPLAT(f32, 0), SEL(f32, ax == ax, f, ax));
#endif
    v_f64 e2 = cast_f32_f64(e), f2 = cast_f32_f64(f), y2 = cast_f32_f64(y);
    x_f32 r = cast_f64_f32((v_f64){x_pow_f64(e2.lo, f2.lo, y2.lo), x_pow_f64(e2.hi, f2.hi, y2.hi)});
    x_i32 whole = x_trunc_f32(y) == y, odd = whole & (x_trunc_f32(y * 0.5f) != y * 0.5f);
    r = SEL(f32, (ax == 1) & (y == y), SPLAT(f32, 1), r); /* also to the power of infinity */
    r = (x_f32)((x_i32)r ^ (odd & SIGN_f32(x)));
    r = SEL(f32, (x < 0) & (x > -INFINITY) & ~whole & (y == y), SPLAT(f32, NAN), r);
    return SEL(f32, (x == 1) | (y == 0), SPLAT(f32, 1), r);
}

/* ---- Rare float words, lane by lane ---------------------------------------------------------------------------- */

#ifdef NEED_F64
#define LIBM1(w) LANES1(w, f32, __builtin_##w##f) LANES1(w, f64, __builtin_##w)
#define LIBM2(w) LANES2(w, f32, __builtin_##w##f) LANES2(w, f64, __builtin_##w)
#else
#define LIBM1(w) LANES1(w, f32, __builtin_##w##f)
#define LIBM2(w) LANES2(w, f32, __builtin_##w##f)
#endif
LIBM1(tan)
LIBM1(asin)
LIBM1(acos)
LIBM1(atan)
LIBM1(sinh)
LIBM1(cosh)
LIBM1(asinh)
LIBM1(acosh)
LIBM1(atanh)
LIBM1(erfc)
LIBM2(atan2)
LIBM2(hypot)
LIBM2(nextafter)
#ifdef NEED_F64
#define LIBM_F64(w) LANES1(w, f64, __builtin_##w)
LIBM_F64(exp2)
LIBM_F64(expm1)
LIBM_F64(log2)
LIBM_F64(log10)
LIBM_F64(log1p)
LIBM_F64(sin)
LIBM_F64(cos)
LIBM_F64(tanh)
LIBM_F64(erf)
LANES2(pow, f64, __builtin_pow)
#endif
extern float lgammaf_r(float, int *); /* lgamma writes a global: these do not */
extern double lgamma_r(double, int *);
FN float x_lgamma_f32(float x) { int sign; return lgammaf_r(x, &sign); }
FN double x_lgamma_f64(double x) { int sign; return lgamma_r(x, &sign); }

/* ATen/native/Math.h, calc_erfinv, which follows libgenloc (G. L. Pavlis; Copyright (c) 2014 Indiana University, New
 * BSD License): a rational start, then two steps of Newton. */
#define ERFINV(T, f)                                                                  \
    COLD e_##T x_erfinv_##T(e_##T y) {                                                \
        const e_##T a[] = {0.886226899, -1.645349621, 0.914624893, -0.140543331};     \
        const e_##T b[] = {-2.118377725, 1.442710462, -0.329097515, 0.012229801};     \
        const e_##T c[] = {-1.970840454, -1.624906493, 3.429567803, 1.641345311};     \
        const e_##T d[] = {3.543889200, 1.637067800}, slope = 1.12837916709551257390; \
        e_##T s = __builtin_fabs##f(y), z, x;                                         \
        if (s > 1) return (e_##T)NAN;                                                 \
        if (s == 1) return __builtin_copysign##f((e_##T)INFINITY, y);                 \
        if (s <= (e_##T)0.7) {                                                        \
            z = y * y;                                                                \
            x = y * (((a[3] * z + a[2]) * z + a[1]) * z + a[0]);                      \
            x /= (((b[3] * z + b[2]) * z + b[1]) * z + b[0]) * z + 1;                 \
        } else {                                                                      \
            z = __builtin_sqrt##f(-__builtin_log##f((1 - s) / 2));                    \
            x = __builtin_copysign##f(((c[3] * z + c[2]) * z + c[1]) * z + c[0], y);  \
            x /= (d[1] * z + d[0]) * z + 1;                                           \
        }                                                                             \
        x -= (__builtin_erf##f(x) - y) / (slope * __builtin_exp##f(-x * x));          \
        return x - (__builtin_erf##f(x) - y) / (slope * __builtin_exp##f(-x * x));    \
    }

/* ATen/native/Math.h, calc_digamma, after the Cephes library: reflection, recurrence up to 10, asymptotic series. */
COLD double x_digamma_positive(double x) {
    double r = 0, y = 0;
    for (; x < 10; x += 1) r -= 1 / x;
    if (x == 10) return r + 2.25175258906672110764;
    if (x < 1e17) {
        double z = 1 / (x * x);
        y = 8.33333333333333333333E-2;
        y = y * z - 2.10927960927960927961E-2;
        y = y * z + 7.57575757575757575758E-3;
        y = y * z - 4.16666666666666666667E-3;
        y = y * z + 3.96825396825396825397E-3;
        y = y * z - 8.33333333333333333333E-3;
        y = z * (y * z + 8.33333333333333333333E-2);
    }
    return r + __builtin_log(x) - 0.5 / x - y;
}
COLD double x_digamma(double x) {
    if (x == 0) return __builtin_copysign(INFINITY, -x);
    if (x > 0 || x != x) return x_digamma_positive(x);
    double whole = __builtin_trunc(x), pi = 3.14159265358979323846;
    return x == whole ? NAN : x_digamma_positive(1 - x) - pi / __builtin_tan(pi * (x - whole));
}
ERFINV(f32, f)
LANES1(lgamma, f32, x_lgamma_f32)
LANES1(erfinv, f32, x_erfinv_f32)
LANES1(digamma, f32, (float)x_digamma)
#ifdef NEED_F64
ERFINV(f64, )
LANES1(lgamma, f64, x_lgamma_f64)
LANES1(erfinv, f64, x_erfinv_f64)
LANES1(digamma, f64, x_digamma)
#endif
#endif

#endif
