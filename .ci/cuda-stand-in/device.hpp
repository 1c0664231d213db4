// CUDA C++ as CubeCL writes it, for g++ on the CPU: see driver.cpp. Only what its kernels use.
#pragma once
#include "host.hpp"

typedef __SIZE_TYPE__ size_t;

static Host *cu_host;
extern "C" void cu_bind(Host *host) { cu_host = host; }

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (cu_host->thread)
#define blockIdx (cu_host->cube)
#define blockDim (cu_host->block)
#define gridDim (cu_host->grid)
#define warpSize 32

static inline char *cu_shared() { return cu_host->shared; }

// --- Threads that wait for each other ----------------------------------------------------------------------------------

static inline void __syncthreads() { cu_host->yield(Wait::Block); }
static inline void __syncwarp(unsigned = ~0u) { cu_host->yield(Wait::Warp); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline unsigned __activemask() { return ~0u; }

template <class T> static inline void cu_leave(T value) {
  static_assert(sizeof(T) <= 32, "at most 32 bytes are exchanged");
  __builtin_memcpy(cu_host->values[cu_host->lane][cu_host->turn[cu_host->lane / 32] & 1], &value, sizeof(T));
  cu_host->yield(Wait::Warp);
}
// The value of lane `from`, or one's own where that lane took no part.
template <class T> static inline T cu_take(T own, unsigned from) {
  unsigned warp = cu_host->lane / 32;
  if (from > 31 || !(cu_host->active[warp] >> from & 1)) return own;
  T value;
  __builtin_memcpy(&value, cu_host->values[warp * 32 + from][(cu_host->turn[warp] - 1) & 1], sizeof(T));
  return value;
}
template <class T> static inline T __shfl_sync(unsigned, T value, unsigned lane) {
  cu_leave(value);
  return cu_take(value, lane & 31);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  cu_leave(value);
  return cu_take(value, (cu_host->lane & 31) ^ mask);
}
template <class T> static inline T __shfl_up_sync(unsigned, T value, unsigned delta) {
  cu_leave(value);
  unsigned lane = cu_host->lane & 31;
  return cu_take(value, lane < delta ? lane : lane - delta);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, unsigned delta) {
  cu_leave(value);
  unsigned lane = cu_host->lane & 31;
  return cu_take(value, lane + delta > 31 ? lane : lane + delta);
}
static inline unsigned __ballot_sync(unsigned, bool value) {
  cu_leave<unsigned>(value);
  unsigned out = 0;
  for (unsigned lane = 0; lane < 32; lane++) out |= cu_take<unsigned>(0, lane) << lane;
  return out;
}
static inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
static inline bool __all_sync(unsigned mask, bool value) {
  unsigned yes = __ballot_sync(mask, value);
  return yes == cu_host->active[cu_host->lane / 32];
}

// One thread of those that run together.
static inline void cu_elect_sync(const char *, unsigned &elected) {
  cu_leave(0);
  elected = (cu_host->lane & 31) == (unsigned)__builtin_ctz(cu_host->active[cu_host->lane / 32]);
}

// --- Barriers in shared memory, and copies that end phases of them: see driver.cpp --------------------------------------

namespace std {
template <class T> static inline T &&move(T &value) { return (T &&)value; }
}  // namespace std

namespace cuda {
enum thread_scope { thread_scope_block };
template <thread_scope> struct barrier {
  unsigned long long place;
  struct arrival_token { unsigned long phase; };
  arrival_token arrive() { return {cu_host->arrive(this, 1, 0)}; }
  void wait(arrival_token &&token) { cu_host->await(this, token.phase); }
  void wait_parity(bool parity) {
    unsigned long phase = cu_host->phase(this);
    if ((phase & 1) == parity) cu_host->await(this, phase);
  }
  void arrive_and_wait() { wait(arrive()); }
};
typedef barrier<thread_scope_block> cu_barrier;
static inline void init(cu_barrier *barrier, unsigned arrivals) { cu_host->init(barrier, arrivals); }

namespace device {
static inline cu_barrier *barrier_native_handle(cu_barrier &barrier) { return &barrier; }
static inline cu_barrier::arrival_token barrier_arrive_tx(cu_barrier &barrier, unsigned arrivals, unsigned bytes) {
  return {cu_host->arrive(&barrier, arrivals, bytes)};
}
namespace experimental {
static inline void fence_proxy_async_shared_cta() {}
static inline void cp_async_bulk_tensor_3d_global_to_shared(void *to, const void *map, int x, int y, int z, cu_barrier &barrier) {
  int at[] = {x, y, z};
  cu_host->copy_box(to, map, at, &barrier);
}
static inline void cp_async_bulk_tensor_4d_global_to_shared(void *to, const void *map, int x, int y, int z, int w, cu_barrier &barrier) {
  int at[] = {x, y, z, w};
  cu_host->copy_box(to, map, at, &barrier);
}
}  // namespace experimental
}  // namespace device
}  // namespace cuda

// --- Arithmetic --------------------------------------------------------------------------------------------------------

template <class T, class F> struct cu_same { static constexpr bool value = false; };
template <class T> struct cu_same<T, T> { static constexpr bool value = true; };

#define CU_FLOAT(name)                                                        \
  static inline float name(float x) { return __builtin_##name##f(x); }        \
  static inline double name(double x) { return __builtin_##name(x); }
CU_FLOAT(exp) CU_FLOAT(log) CU_FLOAT(sin) CU_FLOAT(cos) CU_FLOAT(tan) CU_FLOAT(tanh) CU_FLOAT(sinh) CU_FLOAT(cosh)
CU_FLOAT(acos) CU_FLOAT(asin) CU_FLOAT(atan) CU_FLOAT(asinh) CU_FLOAT(acosh) CU_FLOAT(atanh) CU_FLOAT(sqrt)
CU_FLOAT(expm1) CU_FLOAT(log1p) CU_FLOAT(ceil) CU_FLOAT(trunc) CU_FLOAT(floor) CU_FLOAT(rint) CU_FLOAT(erf) CU_FLOAT(fabs)
#define CU_FLOAT2(name)                                                                              \
  static inline float name(float x, float y) { return __builtin_##name##f(x, y); }                   \
  static inline double name(double x, double y) { return __builtin_##name(x, y); }
CU_FLOAT2(pow) CU_FLOAT2(fmod) CU_FLOAT2(atan2) CU_FLOAT2(hypot)
static inline float powf(float x, float y) { return __builtin_powf(x, y); }
static inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long long abs(long long x) { return x < 0 ? -x : x; }

// CUDA's min and max of floats give the other value where one is NaN.
#define CU_MIN_MAX(type)                                              \
  static inline type min(type a, type b) { return a < b ? a : b; }    \
  static inline type max(type a, type b) { return a > b ? a : b; }
CU_MIN_MAX(int) CU_MIN_MAX(unsigned) CU_MIN_MAX(long long) CU_MIN_MAX(unsigned long long) CU_MIN_MAX(long) CU_MIN_MAX(unsigned long)
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); }
static inline double max(double a, double b) { return __builtin_fmax(a, b); }

static inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static inline void cu_max_NaN_f32(const char *, float &out, float a, float b) { out = isnan(a) ? a : isnan(b) ? b : fmaxf(a, b); }
static inline void cu_min_NaN_f32(const char *, float &out, float a, float b) { out = isnan(a) ? a : isnan(b) ? b : fminf(a, b); }
static inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
static inline double fmin(double a, double b) { return __builtin_fmin(a, b); }

#define CU_ATOM(name, type, expression)                                              \
  static inline void cu_atom_relaxed_##name(const char *, type &out, const type *at, type x) { \
    out = *at;                                                                       \
    *const_cast<type *>(at) = expression;                                            \
  }
CU_ATOM(add_f32, float, out + x)
CU_ATOM(min_f32, float, min(out, x))
CU_ATOM(max_f32, float, max(out, x))
CU_ATOM(add_f64, double, out + x)
CU_ATOM(add_u32, unsigned, out + x)
CU_ATOM(add_u32, int, out + x)
CU_ATOM(add_u64, unsigned long long, out + x)
CU_ATOM(min_s32, int, min(out, x))
CU_ATOM(max_s32, int, max(out, x))
CU_ATOM(min_u32, unsigned, min(out, x))
CU_ATOM(max_u32, unsigned, max(out, x))

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
static inline unsigned __brev(unsigned x) {
  unsigned out = 0;
  for (int i = 0; i < 32; i++) out |= (x >> i & 1) << (31 - i);
  return out;
}

// --- Halves: 16 bits that are computed with in f32 and rounded, which is what the hardware's result is -----------------

static inline unsigned short cu_to_f16(float x) {
  _Float16 half = (_Float16)x;
  unsigned short bits;
  __builtin_memcpy(&bits, &half, 2);
  return bits;
}
static inline float cu_from_f16(unsigned short bits) {
  _Float16 half;
  __builtin_memcpy(&half, &bits, 2);
  return half;
}
static inline unsigned short cu_to_bf16(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  if (__builtin_isnan(x)) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline float cu_from_bf16(unsigned short half) {
  unsigned bits = (unsigned)half << 16;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

#define CU_HALF(type, pair, to, from)                                                                                   \
  struct type {                                                                                                         \
    unsigned short bits;                                                                                                \
    type() = default;                                                                                                   \
    type(float x) : bits(to(x)) {}                                                                                      \
    type(double x) : bits(to((float)x)) {}                                                                              \
    type(int x) : bits(to((float)x)) {}                                                                                 \
    type(unsigned x) : bits(to((float)x)) {}                                                                            \
    type(short x) : bits(to((float)x)) {}                                                                               \
    type(unsigned short x) : bits(to((float)x)) {}                                                                      \
    type(signed char x) : bits(to((float)x)) {}                                                                         \
    type(unsigned char x) : bits(to((float)x)) {}                                                                       \
    type(bool x) : bits(to((float)x)) {}                                                                                \
    type(long long x) : bits(to((float)x)) {}                                                                           \
    type(unsigned long long x) : bits(to((float)x)) {}                                                                  \
    operator float() const { return from(bits); }                                                                       \
  };                                                                                                                    \
  static inline type operator+(type a, type b) { return type((float)a + (float)b); }                                    \
  static inline type operator-(type a, type b) { return type((float)a - (float)b); }                                    \
  static inline type operator*(type a, type b) { return type((float)a * (float)b); }                                    \
  static inline type operator/(type a, type b) { return type((float)a / (float)b); }                                    \
  static inline type operator-(type a) { return type(-(float)a); }                                                      \
  static inline bool operator<(type a, type b) { return (float)a < (float)b; }                                          \
  static inline bool operator>(type a, type b) { return (float)a > (float)b; }                                          \
  static inline bool operator<=(type a, type b) { return (float)a <= (float)b; }                                        \
  static inline bool operator>=(type a, type b) { return (float)a >= (float)b; }                                        \
  static inline bool operator==(type a, type b) { return (float)a == (float)b; }                                        \
  static inline bool operator!=(type a, type b) { return (float)a != (float)b; }                                        \
  struct alignas(4) pair { type x, y; };                                                                                \
  static inline pair operator+(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }                                       \
  static inline pair operator-(pair a, pair b) { return {a.x - b.x, a.y - b.y}; }                                       \
  static inline pair operator*(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }                                       \
  static inline pair operator/(pair a, pair b) { return {a.x / b.x, a.y / b.y}; }                                       \
  static inline pair operator-(pair a) { return {-a.x, -a.y}; }                                                         \
  static inline bool __hisnan(type a) { return isnan((float)a); }                                                       \
  static inline type __habs(type a) { return type(fabs((float)a)); }                                                    \
  static inline pair __habs2(pair a) { return {__habs(a.x), __habs(a.y)}; }                                             \
  static inline type __hmin(type a, type b) { return type(min((float)a, (float)b)); }                                   \
  static inline type __hmax(type a, type b) { return type(max((float)a, (float)b)); }                                   \
  static inline type __hmin_nan(type a, type b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmin(a, b); }              \
  static inline type __hmax_nan(type a, type b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmax(a, b); }              \
  static inline pair __hmin2_nan(pair a, pair b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }                \
  static inline pair __hmax2_nan(pair a, pair b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }                \
  static inline pair __hmin2(pair a, pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                           \
  static inline pair __hmax2(pair a, pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                           \
  static inline type __hfma(type a, type b, type c) { return type((double)(float)a * (float)b + (double)(float)c); }    \
  static inline pair __hfma2(pair a, pair b, pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }         \
  static inline bool __hisinf(type a) { return isinf((float)a); }
CU_HALF(__half, __half2, cu_to_f16, cu_from_f16)
CU_HALF(__nv_bfloat16, __nv_bfloat162, cu_to_bf16, cu_from_bf16)

#define CU_HALF_FUNCTION(name)                                                                                     \
  static inline __half h##name(__half x) { return __half(name((float)x)); }                                        \
  static inline __half2 h2##name(__half2 a) { return {h##name(a.x), h##name(a.y)}; }                               \
  static inline __nv_bfloat16 h##name(__nv_bfloat16 x) { return __nv_bfloat16(name((float)x)); }                   \
  static inline __nv_bfloat162 h2##name(__nv_bfloat162 a) { return {h##name(a.x), h##name(a.y)}; }
CU_HALF_FUNCTION(exp) CU_HALF_FUNCTION(log) CU_HALF_FUNCTION(sin) CU_HALF_FUNCTION(cos) CU_HALF_FUNCTION(tanh)
CU_HALF_FUNCTION(sqrt) CU_HALF_FUNCTION(rsqrt) CU_HALF_FUNCTION(ceil) CU_HALF_FUNCTION(trunc) CU_HALF_FUNCTION(floor)
CU_HALF_FUNCTION(rint)

// --- Tensor cores ------------------------------------------------------------------------------------------------------

// TF32 is f32 with the last 13 bits of the mantissa left out.
static inline float cu_to_tf32(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  bits &= ~0x1fffu;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// A fragment is spread over the threads of a warp; here each of them holds all of it.
namespace nvcuda::wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32 {}; }
static inline float __float_to_tf32(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  bits += 0x1000;
  __builtin_memcpy(&x, &bits, 4);
  return cu_to_tf32(x);
}
template <class T> struct element { typedef T type; };
template <> struct element<precision::tf32> { typedef float type; };
template <class I, int M, int N, int K> struct size {};
template <int M, int N, int K> struct size<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct size<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct size<accumulator, M, N, K> { enum { rows = M, columns = N }; };
template <class I, int M, int N, int K, class T, class L = void> struct fragment {
  typedef typename element<T>::type type;
  enum { rows = size<I, M, N, K>::rows, columns = size<I, M, N, K>::columns, num_elements = rows * columns };
  type x[num_elements];
};
template <class I, int M, int N, int K, class T, class L, class V> static inline void fill_fragment(fragment<I, M, N, K, T, L> &f, V value) {
  for (auto &x : f.x) x = value;
}
template <class F, class P> static inline void cu_load(F &f, const P *from, unsigned step, bool by_row) {
  __syncwarp();
  for (int i = 0; i < F::rows; i++)
    for (int j = 0; j < F::columns; j++) f.x[i * F::columns + j] = by_row ? from[i * step + j] : from[j * step + i];
}
template <class I, int M, int N, int K, class T, class P> static inline void load_matrix_sync(fragment<I, M, N, K, T, row_major> &f, const P *from, unsigned step) {
  cu_load(f, from, step, true);
}
template <class I, int M, int N, int K, class T, class P> static inline void load_matrix_sync(fragment<I, M, N, K, T, col_major> &f, const P *from, unsigned step) {
  cu_load(f, from, step, false);
}
template <int M, int N, int K, class T, class P> static inline void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const P *from, unsigned step, layout_t layout) {
  cu_load(f, from, step, layout == mem_row_major);
}
template <int M, int N, int K, class T, class P> static inline void store_matrix_sync(P *to, const fragment<accumulator, M, N, K, T> &f, unsigned step, layout_t layout) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) (layout == mem_row_major ? to[i * step + j] : to[j * step + i]) = f.x[i * N + j];
  __syncwarp();
}
template <class T> static inline float cu_factor(float x) { return x; }
template <> inline float cu_factor<precision::tf32>(float x) { return cu_to_tf32(x); }
template <int M, int N, int K, class C, class T, class L, class R>
static inline void mma_sync(fragment<accumulator, M, N, K, C> &d, const fragment<matrix_a, M, N, K, T, L> &a, const fragment<matrix_b, M, N, K, T, R> &b,
                            const fragment<accumulator, M, N, K, C> &c) {
  float sums[M * N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float sum = c.x[i * N + j];
      for (int k = 0; k < K; k++) sum += cu_factor<T>(a.x[i * K + k]) * cu_factor<T>(b.x[k * N + j]);
      sums[i * N + j] = sum;
    }
  for (int i = 0; i < M * N; i++) d.x[i] = sums[i];
}
}  // namespace nvcuda::wmma

// `mma.sync`, `ldmatrix` and `stmatrix` spread matrices over a warp's registers as PTX says (PTX ISA, 9.7.14).
struct cu_pieces { unsigned a[4], b[2]; };

static inline float cu_half_of(unsigned word, unsigned part, bool bf16) {
  unsigned short bits = part ? word >> 16 : word & 0xffff;
  return bf16 ? cu_from_bf16(bits) : cu_from_f16(bits);
}
static inline float cu_word(unsigned word) {
  float x;
  __builtin_memcpy(&x, &word, 4);
  return cu_to_tf32(x);
}

// kind: 0 tf32 (m16n8k8), 1 f16, 2 bf16 (m16n8k16)
static inline void cu_mma(int kind, float *d, const unsigned *a, const unsigned *b, const float *c) {
  cu_pieces own;
  for (int i = 0; i < 4; i++) own.a[i] = a[i];
  for (int i = 0; i < 2; i++) own.b[i] = b[i];
  cu_leave(own);
  unsigned lane = cu_host->lane & 31, group = lane / 4, place = lane % 4;
  for (int out = 0; out < 4; out++) {
    unsigned column = place * 2 + out % 2, low = out / 2;  // rows `group` and `group + 8`
    float sum = c[out];
    for (unsigned from = 0; from < 4; from++) {
      cu_pieces left = cu_take(own, group * 4 + from), right = cu_take(own, column * 4 + from);
      for (unsigned part = 0; part < 2; part++)
        if (kind == 0) {
          sum += cu_word(left.a[low + 2 * part]) * cu_word(right.b[part]);
        } else {
          for (unsigned h = 0; h < 2; h++) sum += cu_half_of(left.a[low + 2 * part], h, kind == 2) * cu_half_of(right.b[part], h, kind == 2);
        }
    }
    d[out] = sum;
  }
}
#define CU_MMA(name, kind, type)                                                                                                              \
  static inline void name(const char *, float &d0, float &d1, float &d2, float &d3, type a0, type a1, type a2, type a3, type b0, type b1, float c0, \
                          float c1, float c2, float c3) {                                                                                     \
    unsigned a[4], b[2];                                                                                                                      \
    type as[4] = {a0, a1, a2, a3}, bs[2] = {b0, b1};                                                                                          \
    __builtin_memcpy(a, as, 16);                                                                                                              \
    __builtin_memcpy(b, bs, 8);                                                                                                               \
    float d[4], c[4] = {c0, c1, c2, c3};                                                                                                      \
    cu_mma(kind, d, a, b, c);                                                                                                                 \
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                                                               \
  }
CU_MMA(cu_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 0, unsigned)
CU_MMA(cu_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 0, float)
CU_MMA(cu_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, 1, unsigned)
CU_MMA(cu_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 2, unsigned)

static inline unsigned __cvta_generic_to_shared(const void *at) { return (const char *)at - cu_host->shared; }

// `wgmma` as crates/crates/ops/src/cube/wgmma.rs writes it: sums in registers with names, factors in shared memory that descriptors tell of (PTX ISA
// 9.7.15). A descriptor has a start, the step from 64 values across the terms to the next 64, and that from eight rows to the next eight.
static float cu_sums[1024][128];
static inline unsigned long cu_number(const char *&text) {
  while (*text < '0' || *text > '9') text++;
  unsigned long out = 0;
  for (; *text >= '0' && *text <= '9'; text++) out = out * 10 + (*text - '0');
  return out;
}
static inline float cu_described(unsigned long of, unsigned row, unsigned term, bool across, bool bf16) {
  size_t start = (of & 0x3fff) << 4, next = (of >> 16 & 0x3fff) << 4, pattern = (of >> 32 & 0x3fff) << 4;
  size_t at = across ? start + row / 64 * next + row % 64 * 2 + term / 8 * pattern + term % 8 * 128 : start + row / 8 * pattern + row % 8 * 128 + term * 2;
  at ^= (at >> 7 & 7) << 4;
  unsigned short bits;
  __builtin_memcpy(&bits, cu_host->shared + at, 2);
  return bf16 ? cu_from_bf16(bits) : cu_from_f16(bits);
}
static inline void cu__reg(const char *) {
  for (float &sum : cu_sums[cu_host->lane]) sum = 0;
}
template <class P> static inline void cu__reg(const char *, unsigned &out, const P *at) { out = __cvta_generic_to_shared(at); }
static inline void cu__reg(const char *text, unsigned long long a, unsigned long long b) {
  unsigned lane = cu_host->lane % 128, top = lane / 32 * 16 + lane % 32 / 4, left = lane % 4 * 2;
  for (text = __builtin_strstr(text, "add.u64 x"); text; text = __builtin_strstr(text, "add.u64 x")) {
    text = __builtin_strstr(text, "first");
    unsigned long first = a + cu_number(text);
    text = __builtin_strstr(text, "second");
    unsigned long second = b + cu_number(text);
    text = __builtin_strstr(text, ".m64n") + 4;
    unsigned wide = cu_number(text);
    text = __builtin_strstr(text, "k16.f32.") + 8;
    bool bf16 = *text == 'b';
    text = __builtin_strstr(text, "}, x, y, p, 1, 1") + 16;
    bool a_across = cu_number(text), b_across = cu_number(text);
    for (unsigned i = 0; i < wide / 2; i++) {
      unsigned row = top + i / 2 % 2 * 8, column = left + i / 4 * 8 + i % 2;
      for (unsigned k = 0; k < 16; k++)
        cu_sums[cu_host->lane][i] += cu_described(first, row, k, a_across, bf16) * cu_described(second, column, k, b_across, bf16);
    }
  }
}
static inline void cu_mov_f32(const char *text, float &out) {
  text = __builtin_strstr(text, "switchyard_sum");
  out = cu_sums[cu_host->lane][cu_number(text)];
}
static inline void cu_wgmma_wait_group_sync_aligned(const char *) {}

// The eight rows of matrix `i` are named by threads `8 i ..`; a thread gets two values of row `lane / 4`, or of that column.
template <bool T> static inline unsigned cu_ldmatrix(unsigned own, int i) {
  unsigned lane = cu_host->lane & 31, out = 0;
  for (unsigned h = 0; h < 2; h++) {
    unsigned row = T ? lane % 4 * 2 + h : lane / 4, column = T ? lane / 4 : lane % 4 * 2 + h;
    unsigned at = cu_take(own, i * 8 + row) + column * 2;
    unsigned short bits;
    __builtin_memcpy(&bits, cu_host->shared + at, 2);
    out |= (unsigned)bits << (16 * h);
  }
  return out;
}
#define CU_LDMATRIX(suffix, transposed)                                                                                               \
  static inline void cu_ldmatrix_sync_aligned_m8n8_x1##suffix(const char *, unsigned &a, unsigned at) {                               \
    cu_leave(at);                                                                                                                     \
    a = cu_ldmatrix<transposed>(at, 0);                                                                                               \
  }                                                                                                                                   \
  static inline void cu_ldmatrix_sync_aligned_m8n8_x2##suffix(const char *, unsigned &a, unsigned &b, unsigned at) {                  \
    cu_leave(at);                                                                                                                     \
    a = cu_ldmatrix<transposed>(at, 0), b = cu_ldmatrix<transposed>(at, 1);                                                           \
  }                                                                                                                                   \
  static inline void cu_ldmatrix_sync_aligned_m8n8_x4##suffix(const char *, unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned at) { \
    cu_leave(at);                                                                                                                     \
    a = cu_ldmatrix<transposed>(at, 0), b = cu_ldmatrix<transposed>(at, 1);                                                           \
    c = cu_ldmatrix<transposed>(at, 2), d = cu_ldmatrix<transposed>(at, 3);                                                           \
  }
CU_LDMATRIX(_shared__cta_b16, false)
CU_LDMATRIX(_trans_shared__cta_b16, true)
template <bool T> static inline void cu_stmatrix(unsigned own, int i, unsigned word) {
  unsigned lane = cu_host->lane & 31;
  for (unsigned h = 0; h < 2; h++) {
    unsigned row = T ? lane % 4 * 2 + h : lane / 4, column = T ? lane / 4 : lane % 4 * 2 + h;
    unsigned short bits = word >> (16 * h);
    __builtin_memcpy(cu_host->shared + cu_take(own, i * 8 + row) + column * 2, &bits, 2);
  }
}
#define CU_STMATRIX(suffix, transposed)                                                                                               \
  static inline void cu_stmatrix_sync_aligned_m8n8_x1##suffix(const char *, unsigned at, unsigned a) {                                \
    cu_leave(at);                                                                                                                     \
    cu_stmatrix<transposed>(at, 0, a);                                                                                                \
  }                                                                                                                                   \
  static inline void cu_stmatrix_sync_aligned_m8n8_x2##suffix(const char *, unsigned at, unsigned a, unsigned b) {                    \
    cu_leave(at);                                                                                                                     \
    cu_stmatrix<transposed>(at, 0, a), cu_stmatrix<transposed>(at, 1, b);                                                             \
  }                                                                                                                                   \
  static inline void cu_stmatrix_sync_aligned_m8n8_x4##suffix(const char *, unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) { \
    cu_leave(at);                                                                                                                     \
    cu_stmatrix<transposed>(at, 0, a), cu_stmatrix<transposed>(at, 1, b);                                                             \
    cu_stmatrix<transposed>(at, 2, c), cu_stmatrix<transposed>(at, 3, d);                                                             \
  }
CU_STMATRIX(_shared__cta_b16, false)
CU_STMATRIX(_trans_shared__cta_b16, true)

// `cp.async [to], [from], 16, 16;`: how many bytes is in the text; the rest of what is not copied becomes zero.
static inline unsigned cu_bytes(const char *ptx) {
  for (int commas = 0; commas < 2; ptx++) commas += *ptx == ',';
  unsigned bytes = 0;
  for (ptx++; *ptx >= '0' && *ptx <= '9'; ptx++) bytes = bytes * 10 + (*ptx - '0');
  return bytes;
}
#define CU_CP_ASYNC(name)                                                                                    \
  static inline void name(const char *ptx, unsigned to, const void *from) {                                  \
    cu_host->copy(cu_host->shared + to, from, cu_bytes(ptx), cu_bytes(ptx));                                 \
  }                                                                                                          \
  static inline void name(const char *ptx, unsigned to, const void *from, unsigned long from_bytes) {        \
    cu_host->copy(cu_host->shared + to, from, cu_bytes(ptx), from_bytes);                                    \
  }
CU_CP_ASYNC(cu_cp_async_ca_shared__cta_global)
CU_CP_ASYNC(cu_cp_async_cg_shared__cta_global)
static inline void cu_cp_async_mbarrier_arrive_shared__cta_b64(const char *, unsigned barrier) {
  cu_host->arrive_after_copies(cu_host->shared + barrier);
}

// Atomics on halves name their registers by bits.
static inline void cu_atom_relaxed_add_noftz_f16(const char *, unsigned short &out, const void *at, unsigned short x) {
  auto *place = (unsigned short *)at;
  out = *place;
  *place = cu_to_f16(cu_from_f16(out) + cu_from_f16(x));
}
static inline void cu_atom_relaxed_add_noftz_bf16(const char *, unsigned short &out, const void *at, unsigned short x) {
  auto *place = (unsigned short *)at;
  out = *place;
  *place = cu_to_bf16(cu_from_bf16(out) + cu_from_bf16(x));
}

// --- How a kernel is started -------------------------------------------------------------------------------------------

template <class T> struct cu_plain { typedef T type; };
template <class T> struct cu_plain<const T> { typedef T type; };
template <class T> struct cu_plain<T &> { typedef typename cu_plain<T>::type type; };

template <size_t... I> struct cu_indices {};
template <size_t N, size_t... I> struct cu_count : cu_count<N - 1, N - 1, I...> {};
template <size_t... I> struct cu_count<0, I...> { typedef cu_indices<I...> type; };

template <class... A, size_t... I> static inline void cu_call(void (*kernel)(A...), void **arguments, cu_indices<I...>) {
  kernel(*(typename cu_plain<A>::type *)arguments[I]...);
}
template <class... A> static inline void cu_call(void (*kernel)(A...), void **arguments) {
  cu_call(kernel, arguments, typename cu_count<sizeof...(A)>::type());
}
#define CU_ENTRY(name) \
  extern "C" void cu_entry(void **arguments) { cu_call(name, arguments); }
