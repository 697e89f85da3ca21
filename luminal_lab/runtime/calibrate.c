/* What this machine can do: the rates that the cost model divides by. Compiled with -DLL_VW=<floats
 * per vector> and -DLL_MR=<rows of the register tile>. Each kernel works on b[0], an array of floats;
 * its size and the repetitions are read from b[1] as longs. The C prelude stands before this text. */

typedef float vec __attribute__((vector_size(4 * LL_VW), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LL_VW), aligned(4), may_alias));

#define X ((float *)((char *const *)ctx)[0])
#define SIZE (((const long *)((char *const *)ctx)[1])[0])
#define REPEAT (((const long *)((char *const *)ctx)[1])[1])
#define THREADS (((const long *)((char *const *)ctx)[1])[2])

/* x[third k] = a + s*b over a thread's part of three arrays, REPEAT times: 12 bytes an element. */
static void triad(void *ctx, long lo, long hi) {
  long part = SIZE / 3 / THREADS / LL_VW * LL_VW;
  for (long t = lo; t < hi; ++t) {
    float *a = X + 3 * part * t, *b = a + part, *c = b + part;
    for (long r = 0; r < REPEAT; ++r)
      for (long i = 0; i < part; i += LL_VW)
        *(vec *)(c + i) = *(vec *)(a + i) + 0.5f * *(vec *)(b + i);
  }
}

/* The same past the caches: an ordinary store would read its line first, and not be counted. */
static void far(void *ctx, long lo, long hi) {
  long part = SIZE / 3 / THREADS / LL_VW * LL_VW;
  for (long t = lo; t < hi; ++t) {
    float *a = X + 3 * part * t, *b = a + part, *c = b + part;
    for (long r = 0; r < REPEAT; ++r)
      for (long i = 0; i < part; i += LL_VW)
        ll_nt_f32(c + i, ll_ld_f32(a + i) + 0.5f * ll_ld_f32(b + i));
  }
  ll_nt_fence();
}

/* A register tile of LL_MR x 2 vectors, operands in the first-level cache: the shape of a packed
 * product. 2 * LL_MR * 2 * LL_VW flops a step. */
static void dot(void *ctx, long lo, long hi) {
  for (long t = lo; t < hi; ++t) {
    float *a = X + 8192 * t, *b = a + 4096;
    vec acc[LL_MR][2] = {};
    for (long r = 0; r < REPEAT; ++r) {
      const float *p = a, *q = b;
      for (long k = 0; k < 4096 / (2 * LL_VW); ++k) {
        vec b0 = *(vec *)q, b1 = *(vec *)(q + LL_VW);
        _Pragma("GCC unroll 16") for (int i = 0; i < LL_MR; ++i) {
          vec x = (vec){} + p[i];
          acc[i][0] += x * b0;
          acc[i][1] += x * b1;
        }
        p += LL_MR;
        q += 2 * LL_VW;
      }
    }
    for (int i = 0; i < LL_MR; ++i) *(vec *)(a + i * LL_VW) = acc[i][0] + acc[i][1];
  }
}

/* y = (x*p + q)*x + r on 4096 floats in the first-level cache: 4 flops an element. */
static void simple(void *ctx, long lo, long hi) {
  for (long t = lo; t < hi; ++t) {
    float *x = X + 8192 * t, *y = x + 4096;
    for (long r = 0; r < REPEAT; ++r)
      for (long i = 0; i < 4096; i += LL_VW) {
        vec v = *(vec *)(x + i);
        *(vec *)(y + i) = (v * 0.3f + 0.7f) * v + 0.1f;
      }
  }
}

/* 2**x by range reduction and a polynomial, on 4096 floats in the first-level cache. */
static void special(void *ctx, long lo, long hi) {
  for (long t = lo; t < hi; ++t) {
    float *x = X + 8192 * t, *y = x + 4096;
    for (long r = 0; r < REPEAT; ++r)
      for (long i = 0; i < 4096; i += LL_VW) {
        vec v = *(vec *)(x + i);
        ivec low = v < -126.0f, high = v > 127.0f; /* lanes of zeros or ones */
        v = (vec)(((ivec)(vec){} & (low | high)) | ((ivec)v & ~(low | high)));
        ivec k = __builtin_convertvector(v + 200.5f, ivec) - 200;
        vec f = v - __builtin_convertvector(k, vec);
        vec p = f * 1.5353362e-4f + 1.3398874e-3f;
        p = p * f + 9.6184374e-3f;
        p = p * f + 5.5503324e-2f;
        p = p * f + 2.4022648e-1f;
        p = p * f + 6.9314720e-1f;
        p = p * f + 1.0f;
        *(vec *)(y + i) = (vec)((ivec)p + (k << 23));
      }
  }
}

#define ENTRY(name) \
  void ll_rate_##name(char *const *b, long threads) { \
    ll_parallel_for(name, (void *)b, threads, 1, threads); \
  }
ENTRY(triad)
ENTRY(far)
ENTRY(dot)
ENTRY(simple)
ENTRY(special)
