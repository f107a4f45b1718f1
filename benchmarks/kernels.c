// The peers of the Numba kernels in benchmarks/kernels.py: copy, triad and AdamW, plain and with stores past the cache.
//
//     gcc -O3 -march=native -fopenmp -shared -fPIC -o kernels.so kernels.c
//
// One chunk a thread, as the Numba kernels have it. gcc 12 leaves a loop over _Float16 scalar: AdamW is in intrinsics
// (AVX2, FMA and F16C). Every array begins at a multiple of 64 bytes.

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

typedef int64_t i64;

#define CHUNK(lanes)                                                       \
  i64 size = ((n + threads - 1) / threads + (lanes) - 1) / (lanes) * (lanes); \
  i64 first = t * size < n ? t * size : n, last = first + size < n ? first + size : n;

void copy_plain(i64 n, i64 threads, const double *restrict a, double *restrict b) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (i64 t = 0; t < threads; t++) {
    CHUNK(8)
    for (i64 i = first; i < last; i++) b[i] = a[i];
  }
}

void copy_streaming(i64 n, i64 threads, const double *restrict a, double *restrict b) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (i64 t = 0; t < threads; t++) {
    CHUNK(8)
    i64 i = first;
    for (; i + 4 <= last; i += 4) _mm256_stream_pd(b + i, _mm256_loadu_pd(a + i));
    for (; i < last; i++) b[i] = a[i];
    _mm_sfence();
  }
}

void triad_plain(i64 n, i64 threads, const double *restrict b, const double *restrict c, double *restrict a, double q) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (i64 t = 0; t < threads; t++) {
    CHUNK(8)
    for (i64 i = first; i < last; i++) a[i] = b[i] + q * c[i];
  }
}

void triad_streaming(i64 n, i64 threads, const double *restrict b, const double *restrict c, double *restrict a, double q) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (i64 t = 0; t < threads; t++) {
    CHUNK(8)
    i64 i = first;
    __m256d q4 = _mm256_set1_pd(q);
    for (; i + 4 <= last; i += 4)
      _mm256_stream_pd(a + i, _mm256_fmadd_pd(q4, _mm256_loadu_pd(c + i), _mm256_loadu_pd(b + i)));
    for (; i < last; i++) a[i] = b[i] + q * c[i];
    _mm_sfence();
  }
}

// The constants of kernels/weight_update.py, in its order.
typedef struct { float beta1, new1, beta2, new2, c1, c2, rate, eps, keep; } Constants;

static inline void adamw_one(i64 i, uint16_t *w, const uint16_t *g, float *p, float *m, float *v, Constants k) {
  float gradient = _cvtsh_ss(g[i]), master = k.keep * p[i];
  m[i] = k.beta1 * m[i] + k.new1 * gradient;
  v[i] = k.beta2 * v[i] + k.new2 * gradient * gradient;
  p[i] = master - k.rate * (k.c1 * m[i]) / (sqrtf(k.c2 * v[i]) + k.eps);
  w[i] = _cvtss_sh(p[i], 0);
}

static inline __m128i adamw_eight(i64 i, const uint16_t *g, float *p, float *m, float *v, Constants k) {
  __m256 gradient = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(g + i)));
  __m256 first = _mm256_fmadd_ps(_mm256_set1_ps(k.beta1), _mm256_loadu_ps(m + i),
                                 _mm256_mul_ps(_mm256_set1_ps(k.new1), gradient));
  __m256 second = _mm256_fmadd_ps(_mm256_set1_ps(k.beta2), _mm256_loadu_ps(v + i),
                                  _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(k.new2), gradient), gradient));
  __m256 step = _mm256_mul_ps(_mm256_set1_ps(k.rate), _mm256_mul_ps(_mm256_set1_ps(k.c1), first));
  __m256 root = _mm256_sqrt_ps(_mm256_mul_ps(_mm256_set1_ps(k.c2), second));
  __m256 kept = _mm256_mul_ps(_mm256_set1_ps(k.keep), _mm256_loadu_ps(p + i));
  __m256 master = _mm256_sub_ps(kept, _mm256_div_ps(step, _mm256_add_ps(root, _mm256_set1_ps(k.eps))));
  _mm256_storeu_ps(m + i, first);
  _mm256_storeu_ps(v + i, second);
  _mm256_storeu_ps(p + i, master);
  return _mm256_cvtps_ph(master, 0);
}

void adamw_plain(i64 n, i64 threads, uint16_t *w, const uint16_t *g, float *p, float *m, float *v, const Constants *k) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (i64 t = 0; t < threads; t++) {
    CHUNK(32)
    i64 i = first;
    for (; i + 8 <= last; i += 8) _mm_storeu_si128((__m128i *)(w + i), adamw_eight(i, g, p, m, v, *k));
    for (; i < last; i++) adamw_one(i, w, g, p, m, v, *k);
  }
}

void adamw_streaming(i64 n, i64 threads, uint16_t *w, const uint16_t *g, float *p, float *m, float *v, const Constants *k) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (i64 t = 0; t < threads; t++) {
    CHUNK(32)
    i64 i = first;
    for (; i + 8 <= last; i += 8) _mm_stream_si128((__m128i *)(w + i), adamw_eight(i, g, p, m, v, *k));
    for (; i < last; i++) adamw_one(i, w, g, p, m, v, *k);
    _mm_sfence();
  }
}
