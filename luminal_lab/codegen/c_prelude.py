# ruff: noqa: E501 (lines of C)
"""The C prelude: vector types of the machine's width, loads and stores, and our own mathematics.

All kernels of a translation unit share it. It includes nothing. Every function is `static inline`
and keeps NaN; vectors hold `W` lanes whatever the element (a vector of doubles is two registers),
and a vector of booleans is a vector of int with 0 or -1 in each lane.
"""

from __future__ import annotations

from functools import lru_cache

from luminal_lab.search.machine import Machine

# Minimax coefficients, lowest first, fitted in double (tests/codegen/test_c_math.py checks errors).
EXP2 = (
    "0x1p+0f", "0x1.62e43p-1f", "0x1.ebfbep-3f", "0x1.c6aedp-5f",
    "0x1.3b29aap-7f", "0x1.5f47bp-10f", "0x1.448fcp-13f",
)  # fmt: skip
# ln(1 + m) = m - m*m/2 + m*m*m * P(m) (Cephes logf)
LOG2 = (
    "3.3333331174e-1f", "-2.4999993993e-1f", "2.0000714765e-1f", "-1.6668057665e-1f",
    "1.4249322787e-1f", "-1.2420140846e-1f", "1.1676998740e-1f", "-1.1514610310e-1f",
    "7.0376836292e-2f",
)  # fmt: skip
# (suffix, memory type, vector of memory elements, register vector, register scalar)
MEMORY = (
    ("f32", "float", "vf", "float"),
    ("f64", "double", "vd", "double"),
    ("i64", "long", "vl", "long"),
    ("i32", "int", "vi", "int"),
    ("i16", "short", "vi", "int"),
    ("i8", "signed char", "vi", "int"),
    ("u8", "unsigned char", "vi", "int"),
    ("bool", "unsigned char", "vi", "int"),
    ("f16", "unsigned short", "vf", "float"),
    ("bf16", "unsigned short", "vf", "float"),
    ("f8e4m3", "unsigned char", "vf", "float"),
    ("f8e5m2", "unsigned char", "vf", "float"),
)
C_TYPE = {row[0]: row[1] for row in MEMORY}


def prelude(machine: Machine | None = None) -> str:
    """The text that every translation unit of this machine's kernels begins with."""
    return _prelude((machine or Machine()).vector_bytes // 4)


@lru_cache(maxsize=8)
def _prelude(w: int) -> str:
    parts = [_TYPES.replace("@W", str(w)), _scalar_conversions()]
    parts.append(_streaming(w))
    parts.append("".join(_memory(w, *row) for row in MEMORY))
    parts.append(
        _MATH.replace("@EXP2", _horner(EXP2, "f")).replace("@LOG2", _horner(LOG2, "m"))
    )
    parts.append(_reductions(w))
    parts.append(_transposes(w))
    return "\n".join(parts)


def _horner(coefficients: tuple[str, ...], x: str) -> str:
    text = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        text = f"({text} * {x} + {c})"
    return text


_TYPES = """\
/* Luminal Lab: vectors of @W lanes */
enum { W = @W };
typedef float vf __attribute__((vector_size(4 * @W)));
typedef int vi __attribute__((vector_size(4 * @W)));
typedef unsigned vu __attribute__((vector_size(4 * @W)));
typedef double vd __attribute__((vector_size(8 * @W)));
typedef long vl __attribute__((vector_size(8 * @W)));
typedef short vs __attribute__((vector_size(2 * @W)));
typedef unsigned short vus __attribute__((vector_size(2 * @W)));
typedef signed char vb __attribute__((vector_size(@W)));
typedef unsigned char vub __attribute__((vector_size(@W)));
#define LL_UNALIGNED(T, A) T __attribute__((aligned(A), may_alias))
typedef LL_UNALIGNED(vf, 4) vf_u;
typedef LL_UNALIGNED(vi, 4) vi_u;
typedef LL_UNALIGNED(vd, 8) vd_u;
typedef LL_UNALIGNED(vl, 8) vl_u;
typedef LL_UNALIGNED(vs, 2) vs_u;
typedef LL_UNALIGNED(vus, 2) vus_u;
typedef LL_UNALIGNED(vb, 1) vb_u;
typedef LL_UNALIGNED(vub, 1) vub_u;
#define LL_FN static inline __attribute__((always_inline, unused))
#define ll_ask(p) __builtin_prefetch((p), 0, 2) /* into the second level: it is for a later row */
#define LL_CONVERT(x, T) __builtin_convertvector(x, T)
#if @W == 16 && defined(__AVX512F__) && !defined(__clang__)
#define LL_512 1
#else
#define LL_512 0
#endif
#if @W == 8 && defined(__AVX__)
#define LL_256 1
#else
#define LL_256 0
#endif

extern void ll_parallel_for(void (*body)(void *ctx, long lo, long hi), void *ctx, long n,
                            long grain, long threads);
extern long ll_thread_index(void);
extern double exp2(double), log2(double), sin(double), erf(double), sqrt(double), fmod(double, double);
extern float fmodf(float, float);

LL_FN vf ll_vf(float x) { return (vf){} + x; }
// The same number, of which the compiler does not know how it was made.
LL_FN float ll_keep_float(float x) { __asm__("" : "+m"(x)); return x; }
LL_FN double ll_keep_double(double x) { __asm__("" : "+m"(x)); return x; }
LL_FN vf ll_keep_vf(vf x) { __asm__("" : "+m"(x)); return x; }
LL_FN vd ll_keep_vd(vd x) { __asm__("" : "+m"(x)); return x; }
// 0, which the compiler does not know.
LL_FN float ll_zero(void) { int z = 0; __asm__("" : "+r"(z)); return (float)z; }
LL_FN vi ll_vi(int x) { return (vi){} + x; }
LL_FN vd ll_vd(double x) { return (vd){} + x; }
LL_FN vl ll_vl(long x) { return (vl){} + x; }
LL_FN vi ll_lanes(void) {
  vi r;
  for (int q = 0; q < W; ++q) r[q] = q;
  return r;
}
LL_FN vi ll_first(int n) { return ll_lanes() < n; }
LL_FN vi ll_bits(vf x) { union { vf f; vi i; } u = {x}; return u.i; }
LL_FN vf ll_float(vi x) { union { vi i; vf f; } u = {x}; return u.f; }
LL_FN int ll_bits_s(float x) { union { float f; int i; } u = {x}; return u.i; }
LL_FN float ll_float_s(int x) { union { int i; float f; } u = {x}; return u.f; }
LL_FN vi ll_sel_i(vi m, vi a, vi b) { return (m & a) | (~m & b); }
LL_FN vf ll_sel_f(vi m, vf a, vf b) { return (vf)ll_sel_i(m, (vi)a, (vi)b); }
LL_FN vl ll_sel_l(vi m, vl a, vl b) { vl w = LL_CONVERT(m, vl); return (w & a) | (~w & b); }
LL_FN vd ll_sel_d(vi m, vd a, vd b) { return (vd)ll_sel_l(m, (vl)a, (vl)b); }
LL_FN long ll_clamp(long i, long n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
LL_FN long ll_fdiv(long a, long b) { return a / b - (a % b < 0); }
LL_FN long ll_fmod(long a, long b) { long r = a % b; return r < 0 ? r + b : r; }
LL_FN long ll_min(long a, long b) { return a < b ? a : b; }
LL_FN long ll_max(long a, long b) { return a > b ? a : b; }

/* 16-bit floats: exact to float, round-to-nearest-even from float */
LL_FN vf ll_from_f16(vi h) {
  vi em = (h & 0x7fff) << 13;
  vf x = (vf)em * 0x1p112f;
  vi r = (vi)x | ((em >= (31 << 23)) & 0x7f800000);
  return (vf)(r | ((h & 0x8000) << 16));
}
LL_FN vi ll_to_f16(vf x) {
  vi u = (vi)x, s = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  vi normal = (a + 0xfff + ((a >> 13) & 1) - (112 << 23)) >> 13;
  vi small = (vi)((vf)a + 0.5f) - 0x3f000000;
  vi r = ll_sel_i(a < (113 << 23), small, normal);
  r = ll_sel_i(a >= 0x477ff000, ll_vi(0x7c00), r);
  r = ll_sel_i(a > 0x7f800000, ll_vi(0x7e00), r);
  return r | s;
}
LL_FN vf ll_from_bf16(vi h) { return (vf)(h << 16); }
LL_FN vi ll_to_bf16(vf x) {
  vi u = (vi)x;
  vi r = ((u + 0x7fff + ((u >> 16) & 1)) >> 16) & 0xffff;
  return ll_sel_i(x != x, ll_vi(0x7fc0), r);
}
LL_FN vf ll_round_f16(vf x) { return ll_from_f16(ll_to_f16(x)); }
LL_FN vf ll_round_bf16(vf x) { return ll_from_bf16(ll_to_bf16(x)); }
"""


def _scalar_conversions() -> str:
    return """\
LL_FN float ll_from_f16_s(int h) {
  int em = (h & 0x7fff) << 13;
  int r = ll_bits_s(ll_float_s(em) * 0x1p112f);
  if (em >= (31 << 23)) r |= 0x7f800000;
  return ll_float_s(r | ((h & 0x8000) << 16));
}
LL_FN int ll_to_f16_s(float x) {
  int u = ll_bits_s(x), s = (u >> 16) & 0x8000, a = u & 0x7fffffff, r;
  if (a > 0x7f800000) r = 0x7e00;
  else if (a >= 0x477ff000) r = 0x7c00;
  else if (a < (113 << 23)) r = ll_bits_s(ll_float_s(a) + 0.5f) - 0x3f000000;
  else r = (a + 0xfff + ((a >> 13) & 1) - (112 << 23)) >> 13;
  return r | s;
}
LL_FN float ll_from_bf16_s(int h) { return ll_float_s((int)((unsigned)h << 16)); }
LL_FN int ll_to_bf16_s(float x) {
  int u = ll_bits_s(x);
  return x != x ? 0x7fc0 : ((u + 0x7fff + ((u >> 16) & 1)) >> 16) & 0xffff;
}
/* 8-bit floats: e exponent bits, m mantissa bits; `inf` says whether infinities exist */
LL_FN float ll_from_f8_s(int b, int e, int m, int inf) {
  int s = (b & 128) << 24, bias = (1 << (e - 1)) - 1;
  int ex = (b & 127) >> m, ma = b & ((1 << m) - 1);
  if (inf ? ex == (1 << e) - 1 : (b & 127) == 127)
    return ll_float_s(s | (inf && !ma ? 0x7f800000 : 0x7fc00000));
  float unit = ll_float_s((127 - bias - m + (ex ? ex : 1)) << 23);
  float v = unit * (float)(ex ? ma + (1 << m) : ma);
  return s ? -v : v;
}
LL_FN int ll_to_f8_s(float x, int e, int m, int inf) {
  int u = ll_bits_s(x), s = (u >> 24) & 128, bias = (1 << (e - 1)) - 1;
  int a = u & 0x7fffffff;
  if (a > 0x7f800000) return s | (inf ? 126 | 1 : 127);
  int least = 1 - bias; /* exponent of the smallest normal number */
  int ex = (a >> 23) - 127;
  if (ex < least) ex = least;
  /* adding and subtracting 1.5 * 2^(23 + ex - m) rounds to a multiple of 2^(ex - m) */
  volatile float big = ll_float_s((23 + ex - m + 127) << 23) * 1.5f;
  volatile float sum = ll_float_s(a) + big;
  float v = sum - big;
  float top = ll_float_s((bias + (inf ? 0 : 1) + 127) << 23) * (inf ? 2.0f - ll_float_s((127 - m) << 23)
                                                              : 2.0f - ll_float_s((128 - m) << 23));
  if (v > top) return s | (inf ? ((1 << e) - 1) << m : 127);
  int r = ll_bits_s(v), rx = (r >> 23) - 127;
  if (v == 0.0f) return s;
  if (rx < least) return s | (int)(v / ll_float_s((127 + least - m) << 23));
  return s | ((rx + bias) << m) | ((r >> (23 - m)) & ((1 << m) - 1));
}
LL_FN float ll_from_f8e4m3_s(int b) { return ll_from_f8_s(b, 4, 3, 0); }
LL_FN float ll_from_f8e5m2_s(int b) { return ll_from_f8_s(b, 5, 2, 1); }
LL_FN int ll_to_f8e4m3_s(float x) { return ll_to_f8_s(x, 4, 3, 0); }
LL_FN int ll_to_f8e5m2_s(float x) { return ll_to_f8_s(x, 5, 2, 1); }
LL_FN float ll_round_f16_s(float x) { return ll_from_f16_s(ll_to_f16_s(x)); }
LL_FN float ll_round_bf16_s(float x) { return ll_from_bf16_s(ll_to_bf16_s(x)); }
LL_FN float ll_round_f8e4m3_s(float x) { return ll_from_f8e4m3_s(ll_to_f8e4m3_s(x)); }
LL_FN float ll_round_f8e5m2_s(float x) { return ll_from_f8e5m2_s(ll_to_f8e5m2_s(x)); }
LL_FN vf ll_round_f8e4m3(vf x) { for (int q = 0; q < W; ++q) x[q] = ll_round_f8e4m3_s(x[q]); return x; }
LL_FN vf ll_round_f8e5m2(vf x) { for (int q = 0; q < W; ++q) x[q] = ll_round_f8e5m2_s(x[q]); return x; }
"""


def _streaming(w: int) -> str:
    """Stores of 16 bytes up to a register past the caches, and the fence behind them."""
    isa = {16: "__AVX512F__", 8: "__AVX__"}.get(w, "__SSE2__")
    text = (
        "/* Stores past the caches, where x86 has them: to aligned places, and weakly ordered */\n"
        f"#if defined(__x86_64__) && defined({isa})\n#define LL_NT 1\n"
    )
    for n, suffix in ((16, ""), (32, "256"), (64, "512")):
        if n <= 4 * w:
            text += (
                f"typedef float ll_v{n} __attribute__((vector_size({n}), may_alias));\n"
                "#ifdef __clang__\n"
                f"LL_FN void ll_nt{n}(void *p, ll_v{n} x) {{ __builtin_nontemporal_store(x, (ll_v{n} *)p); }}\n"
                "#else\n"
                f"LL_FN void ll_nt{n}(void *p, ll_v{n} x) {{ __builtin_ia32_movntps{suffix}((float *)p, x); }}\n"
                "#endif\n"
            )
    text += "LL_FN void ll_nt_fence(void) { __builtin_ia32_sfence(); }\n"
    return text + "#else\n#define LL_NT 0\nLL_FN void ll_nt_fence(void) {}\n#endif\n"


def _stream(w: int, name: str, c: str, vector: str, memory: str, value: str) -> str:
    """The store of a whole vector past the caches, an ordinary one where that cannot be.

    Arguments:
        w: Lanes.
        name: The element's name.
        c: Its type in memory.
        vector: The type of the vector in registers.
        memory: The type of the vector in memory; empty when that is written lane by lane.
        value: The vector `x` as one of these.
    """
    size = {"double": 8, "long": 8, "float": 4, "int": 4}.get(c, 2 if "short" in c else 1) * w
    step = min(size, 4 * w)  # bytes of one store
    text = f" ll_st_{name}(p, x); "
    if memory and step >= 16:
        parts = " ".join(
            f"ll_nt{step}((char *)p + {k * step}, u.part[{k}]);" for k in range(size // step)
        )
        text = (
            "\n#if LL_NT\n"
            f"  if (!((unsigned long)p % {step})) {{\n"
            f"    union {{ {memory} x; ll_v{step} part[{size // step}]; }} u = {{{value}}};\n"
            f"    {parts}\n"
            "    return;\n"
            f"  }}\n#endif\n {text}"
        )
    return f"LL_FN void ll_nt_{name}({c} *p, {vector} x) {{{text}}}\n"


def _memory(w: int, name: str, c: str, vector: str, scalar: str) -> str:
    """Scalar get/put, vector load/store, and partial vector load/store of one element type."""
    get, put = "*p", f"({c})x"
    load: str | None = None
    memory, value = "", "x"  # what a whole vector is stored as
    raw = {"short": "vs", "signed char": "vb", "unsigned char": "vub", "unsigned short": "vus"}
    if name in ("f32", "f64", "i32", "i64"):
        load, memory = f"*(const {vector}_u *)p", vector
    elif name in ("i16", "i8", "u8"):
        load = f"LL_CONVERT(*(const {raw[c]}_u *)p, vi)"
        memory, value = raw[c], f"LL_CONVERT(x, {raw[c]})"
    elif name == "bool":
        get, put = "*p != 0", "(unsigned char)(x != 0)"
        load = "LL_CONVERT(*(const vub_u *)p, vi) != 0"
        memory, value = "vub", "LL_CONVERT(x & 1, vub)"
    elif name in ("f16", "bf16"):
        get, put = f"ll_from_{name}_s(*p)", f"({c})ll_to_{name}_s(x)"
        load = f"ll_from_{name}(LL_CONVERT(*(const vus_u *)p, vi))"
        memory, value = "vus", f"LL_CONVERT(ll_to_{name}(x), vus)"
    else:
        get, put = f"ll_from_{name}_s(*p)", f"({c})ll_to_{name}_s(x)"
    lane = "p[q]" if get == "*p" else f"ll_get_{name}(p + q)"
    if name == "bool":
        lane = "-(p[q] != 0)"
    partial_load = f"{vector} r = {{}}; for (int q = 0; q < n; ++q) r[q] = {lane}; return r;"
    partial_store = f"for (int q = 0; q < n; ++q) ll_put_{name}(p + q, x[q]);"
    if name == "f32":
        partial_load = (
            "\n#if LL_512\n"
            "  return (vf)__builtin_ia32_loadups512_mask(p, (vf){}, (unsigned short)((1u << n) - 1));\n"
            f"#endif\n  {partial_load}"
        )
        partial_store = (
            "\n#if LL_512\n"
            "  __builtin_ia32_storeups512_mask(p, x, (unsigned short)((1u << n) - 1)); return;\n"
            f"#endif\n  {partial_store}"
        )
    full_load = (
        f"{{ return {load}; }}" if load else
        f"{{ {vector} r; for (int q = 0; q < W; ++q) r[q] = {lane}; return r; }}"
    )  # fmt: skip
    full_store = (
        f"{{ *({memory}_u *)p = {value}; }}" if memory else
        f"{{ for (int q = 0; q < W; ++q) ll_put_{name}(p + q, x[q]); }}"
    )  # fmt: skip
    return (
        f"LL_FN {scalar} ll_get_{name}(const {c} *p) {{ return {get}; }}\n"
        f"LL_FN void ll_put_{name}({c} *p, {scalar} x) {{ *p = {put}; }}\n"
        f"LL_FN {vector} ll_ld_{name}(const {c} *p) {full_load}\n"
        f"LL_FN void ll_st_{name}({c} *p, {vector} x) {full_store}\n"
        f"{_stream(w, name, c, vector, memory, value)}"
        f"LL_FN {vector} ll_ldn_{name}(const {c} *p, int n) {{ {partial_load} }}\n"
        f"LL_FN void ll_stn_{name}({c} *p, {vector} x, int n) {{ {partial_store} }}\n"
    )


_MATH = """\
/* 2**x: NaN kept, overflow to inf, gradual underflow */
LL_FN vf ll_exp2(vf x) {
#if LL_512 /* vscalefps makes 2**inf and 2**-inf right although f is NaN there */
  const unsigned short all = 0xffff;
  vf k = (vf)__builtin_ia32_rndscaleps_mask(x, 8, x, all, 4);
  vf f = x - k;
  return (vf)__builtin_ia32_scalefps512_mask(@EXP2, k, x, all, 4);
#else
  vf y = ll_sel_f(x > 160.0f, ll_vf(160.0f), x);
  y = ll_sel_f(y < -160.0f, ll_vf(-160.0f), y);
  vi k = LL_CONVERT(ll_sel_f(y != y, ll_vf(0.0f), y) + 200.5f, vi) - 200;
  vf f = y - LL_CONVERT(k, vf);
  vi half = k >> 1;
  vf p = @EXP2; /* half of the exponent by integer addition, half by one exact product */
  return (vf)((vi)p + (half << 23)) * (vf)((k - half + 127) << 23);
#endif
}
LL_FN vf ll_sqrt(vf x) {
  vf r;
  for (int q = 0; q < W; ++q) r[q] = __builtin_sqrtf(x[q]);
  return r;
}
/* log2(x): -inf at 0, NaN below */
LL_FN vf ll_log2(vf x) {
  vi tiny = x < 0x1p-126f;
  vf y = ll_sel_f(tiny, x * 0x1p23f, x);
  vi u = (vi)y, e = ((u - 0x3f3504f3) >> 23);
  vf m = (vf)(u - (e << 23)) - 1.0f; /* in [sqrt(1/2) - 1, sqrt(2) - 1) */
  vf n = LL_CONVERT(e, vf) - ll_sel_f(tiny, ll_vf(23.0f), ll_vf(0.0f));
  vf r = (@LOG2 * m - 0.5f) * m * m; /* ln(1 + m) - m */
  r = r * 0.44269504f + m * 0.44269504f + r + m + n;
  r = ll_sel_f(x == 0.0f, ll_vf(-__builtin_inff()), r);
  r = ll_sel_f(x == __builtin_inff(), x, r);
  return ll_sel_f((x < 0.0f) | (x != x), ll_vf(__builtin_nanf("")), r);
}
/* erf(x), within 3 ulp (N. Juffa's two polynomials) */
LL_FN vf ll_erf(vf a) {
  vi sign = (vi)a & (int)0x80000000;
  vf t = (vf)((vi)a & 0x7fffffff), s = a * a;
  vf r = -1.72853470e-5f * t + 3.83197126e-4f;
  vf u = -3.88396438e-3f * t + 2.42546219e-2f;
  r = r * s + u;
  r = r * t + -1.06777877e-1f;
  r = r * t + -6.34846687e-1f;
  r = r * t + -1.28717512e-1f;
  r = r * t - t;
  r = 1.0f - ll_exp2(r * 1.44269504f);
  r = (vf)((vi)r | sign);
  vf q = -5.96761703e-4f * s + 4.99119423e-3f;
  q = q * s + -2.67681349e-2f;
  q = q * s + 1.12819925e-1f;
  q = q * s + -3.76125336e-1f;
  q = q * s + 1.28379166e-1f;
  q = q * a + a;
  return ll_sel_f(t > 0.927734375f, r, ll_sel_f(a != a, a, q));
}
/* sin(x): reduced by pi in double, so good to half a float ulp up to |x| ~ 1e8 */
LL_FN vf ll_sin(vf x) {
  vd d = LL_CONVERT(x, vd);
  vd k = d * 0.31830988618379067154;
  vl n = LL_CONVERT(k + ll_sel_d(x < 0.0f, ll_vd(-0.5), ll_vd(0.5)), vl);
  vf r = LL_CONVERT(d - LL_CONVERT(n, vd) * 3.14159265358979323846, vf);
  r = (vf)((vi)r ^ LL_CONVERT(n << 31, vi));
  vf s = r * r;
  vf p = -2.3889859e-8f * s + 2.7525562e-6f;
  p = p * s + -1.9840874e-4f;
  p = p * s + 8.3333331e-3f;
  p = p * s + -1.6666667e-1f;
  r = p * s * r + r;
  return ll_sel_f((vi)((vf)((vi)x & 0x7fffffff) < __builtin_inff()), r, ll_vf(__builtin_nanf("")));
}
LL_FN float ll_exp2_s(float x) { return ll_exp2(ll_vf(x))[0]; }
LL_FN float ll_log2_s(float x) { return ll_log2(ll_vf(x))[0]; }
LL_FN float ll_erf_s(float x) { return ll_erf(ll_vf(x))[0]; }
LL_FN float ll_sin_s(float x) { return ll_sin(ll_vf(x))[0]; }
LL_FN float ll_sqrt_s(float x) { return __builtin_sqrtf(x); }
LL_FN double ll_exp2_ds(double x) { return exp2(x); }
LL_FN double ll_log2_ds(double x) { return log2(x); }
LL_FN double ll_erf_ds(double x) { return erf(x); }
LL_FN double ll_sin_ds(double x) { return sin(x); }
LL_FN double ll_sqrt_ds(double x) { return sqrt(x); }
#define LL_DOUBLE(f) LL_FN vd ll_##f##_d(vd x) { for (int q = 0; q < W; ++q) x[q] = f(x[q]); return x; }
LL_DOUBLE(exp2) LL_DOUBLE(log2) LL_DOUBLE(erf) LL_DOUBLE(sin) LL_DOUBLE(sqrt)

/* maximum: NaN wins */
LL_FN vf ll_max_f(vf a, vf b) {
#if LL_512 /* a stays where either is NaN: the test of b is not on the chain from a to the result */
  vf r = (vf)__builtin_ia32_maxps512_mask(b, a, a, (unsigned short)0xffff, 4);
  return (vf)__builtin_ia32_blendmps_512_mask(r, b, __builtin_ia32_cmpps512_mask(b, b, 3, 0xffff, 4));
#elif LL_256
  return __builtin_ia32_blendvps256(__builtin_ia32_maxps256(b, a), b, (vf)(b != b));
#else
  return ll_sel_f((b > a) | (b != b), b, a);
#endif
}
LL_FN vd ll_max_d(vd a, vd b) { vl m = (b > a) | (b != b); return (vd)((m & (vl)b) | (~m & (vl)a)); }
LL_FN vi ll_max_i(vi a, vi b) { return ll_sel_i(b > a, b, a); }
LL_FN vl ll_max_l(vl a, vl b) { vl m = b > a; return (m & b) | (~m & a); }
LL_FN float ll_max_fs(float a, float b) { return b > a || b != b ? b : a; }
LL_FN double ll_max_ds(double a, double b) { return b > a || b != b ? b : a; }
LL_FN int ll_max_is(int a, int b) { return b > a ? b : a; }
LL_FN long ll_max_ls(long a, long b) { return b > a ? b : a; }

/* remainder with the divisor's sign; 0 for a zero integer divisor */
LL_FN float ll_mod_fs(float a, float b) { float r = fmodf(a, b); return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r; }
LL_FN double ll_mod_ds(double a, double b) { double r = fmod(a, b); return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r; }
LL_FN int ll_mod_is(int a, int b) { if (b == 0 || b == -1) return 0; int r = a % b; return r && (r ^ b) < 0 ? r + b : r; }
LL_FN long ll_mod_ls(long a, long b) { if (b == 0 || b == -1) return 0; long r = a % b; return r && (r ^ b) < 0 ? r + b : r; }
#define LL_MOD(v, f, g) LL_FN v f(v a, v b) { for (int q = 0; q < W; ++q) a[q] = g(a[q], b[q]); return a; }
LL_MOD(vf, ll_mod_f, ll_mod_fs) LL_MOD(vd, ll_mod_d, ll_mod_ds)
LL_MOD(vi, ll_mod_i, ll_mod_is) LL_MOD(vl, ll_mod_l, ll_mod_ls)
"""


def _reductions(w: int) -> str:
    """Horizontal sums, maxima and their integer kin, by halving."""
    out = []
    for letter, vector, scalar in (
        ("f", "vf", "float"),
        ("d", "vd", "double"),
        ("i", "vi", "int"),
        ("l", "vl", "long"),
    ):
        for name, step in (
            ("hadd", "x + y"),
            ("hmax", f"ll_max_{letter}(x, y)"),
            ("hor", "x | y"),
        ):
            if name == "hor" and letter != "i":
                continue
            lines = [f"LL_FN {scalar} ll_{name}_{letter}({vector} x) {{", f"  {vector} y;"]
            half = w // 2
            while half:
                lanes = ", ".join(str((k + half) % w) for k in range(w))
                lines.append(f"  y = __builtin_shufflevector(x, x, {lanes});")
                lines.append(f"  x = {step};")
                half //= 2
            out.append("\n".join([*lines, "  return x[0];", "}"]))
    return "\n".join(out) + "\n"


def _transposes(w: int) -> str:
    """Blocks of as many vectors as a vector has lanes, transposed by exchanging halves."""
    out = []
    for letter, vector in (("f", "vf"), ("i", "vi")):
        lines = [
            f"LL_FN void ll_transpose_{letter}({vector} *a) {{",
            f"  {vector} x;",
        ]
        half = w // 2
        while half:
            low = ", ".join(str(k if not k & half else w + k - half) for k in range(w))
            high = ", ".join(str(k + half if not k & half else w + k) for k in range(w))
            for i in range(w):
                if not i & half:
                    a, b = f"a[{i}]", f"a[{i + half}]"
                    lines.append(f"  x = __builtin_shufflevector({a}, {b}, {low});")
                    lines.append(f"  {b} = __builtin_shufflevector({a}, {b}, {high});")
                    lines.append(f"  {a} = x;")
            half //= 2
        out.append("\n".join([*lines, "}"]))
    return "\n".join(out) + "\n"
