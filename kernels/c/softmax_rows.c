// kernel: softmax_rows
// law: y[m, n] = exp(x[m, n] - max over n) / (the sum of those over n)
// roles: m n
// read x: f32 m n
// write y: f32 m n
// unit: x.n y.n
// parallel: m
// cost: vector 16*m*n special m*n
// reference: torch.softmax(x, -1)
//
// Three sweeps over a row that stays in the first-level cache: the maximum, the exponentials with
// their sum, the scale. exp(d) is 2^k * 2^f with k whole and |f| <= 1/2, and 2^f a polynomial of
// degree 6; below 2^-126 it is 0. A NaN in a row makes all of it NaN, and so do two infinities of
// one sign, as in PyTorch: each makes the sum NaN.

typedef float softmax_rows_f __attribute__((vector_size(64)));
typedef float softmax_rows_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int softmax_rows_i __attribute__((vector_size(64)));

static inline softmax_rows_f softmax_rows_pick(softmax_rows_i m, softmax_rows_f a, softmax_rows_f b) {
  return (softmax_rows_f)((m & (softmax_rows_i)a) | (~m & (softmax_rows_i)b));
}

// Lanes from `lanes` on are -inf, which changes neither a maximum nor a sum of exponentials.
static inline softmax_rows_f softmax_rows_load(const float *a, long lanes) {
  if (lanes >= 16) return *(const softmax_rows_u *)a;
  softmax_rows_f v = (softmax_rows_f){} - __builtin_inff();
  for (long q = 0; q < lanes; ++q) v[q] = a[q];
  return v;
}

static inline void softmax_rows_store(float *b, softmax_rows_f v, long lanes) {
  if (lanes >= 16) *(softmax_rows_u *)b = v;
  else for (long q = 0; q < lanes; ++q) b[q] = v[q];
}

static inline softmax_rows_f softmax_rows_exp(softmax_rows_f d) {  // d <= 0, or NaN
  softmax_rows_f z = d * 1.44269504f, zero = {};
  softmax_rows_i low = z < -126.0f;
  z = softmax_rows_pick(low, zero, z);
  softmax_rows_i k = __builtin_convertvector(z - 0.5f, softmax_rows_i);
  softmax_rows_f f = z - __builtin_convertvector(k, softmax_rows_f);
  softmax_rows_f p = f * 1.53533333e-4f + 1.33988744e-3f;
  p = p * f + 9.61843736e-3f;
  p = p * f + 5.55033242e-2f;
  p = p * f + 2.40226479e-1f;
  p = p * f + 6.93147182e-1f;
  p = p * f + 1.0f;
  return softmax_rows_pick(low, zero, p * (softmax_rows_f)((k + 127) << 23));
}

static void softmax_rows(const float *restrict x, float *restrict y, long lo, long hi) {
  for (long m = lo; m < hi; ++m) {
    const float *a = x + m * X_M;
    float *b = y + m * Y_M;
    softmax_rows_f tops = (softmax_rows_f){} - __builtin_inff(), sums = {};
    for (long n = 0; n < N; n += 16) {
      softmax_rows_f v = softmax_rows_load(a + n, N - n);
      tops = softmax_rows_pick(v > tops, v, tops);
    }
    float top = tops[0], sum = 0;
    for (int q = 1; q < 16; ++q) top = tops[q] > top ? tops[q] : top;
    for (long n = 0; n < N; n += 16) {
      softmax_rows_f e = softmax_rows_exp(softmax_rows_load(a + n, N - n) - top);
      softmax_rows_store(b + n, e, N - n);
      sums += e;
    }
    for (int q = 0; q < 16; ++q) sum += sums[q];
    float scale = 1.0f / sum;
    for (long n = 0; n < N; ++n) b[n] *= scale;
  }
}
