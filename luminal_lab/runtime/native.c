/* The cpu runtime's own C: one parallel loop, and the interpreter of a program of kernel calls.
 *
 * Compiled once per machine and loaded with RTLD_GLOBAL, so that the kernels of every candidate
 * find ll_parallel_for here. One of
 *   LL_GOMP      the OpenMP runtime that PyTorch has loaded already; its entry points are bound by
 *                ll_bind_gomp, so any compiler will do and a second runtime cannot appear
 *   LL_DISPATCH  libdispatch (macOS)
 *   LL_PTHREAD   a small pool of its own, the last resort
 * is defined. No kernel text depends on which.
 */

#include <time.h>

typedef void ll_body(void *ctx, long lo, long hi);
typedef void ll_kernel(char *const *b, long threads);

enum { LL_MAX_THREADS = 256 };

/* Each thread owns a contiguous share of the range, so consecutive kernels meet the same rows in
 * the same core's cache; who runs out takes chunks of the others' shares. */
struct ll_share {
  long next, end;
  char pad[112];
};
struct ll_job {
  ll_body *body;
  void *ctx;
  long chunk, team;
  struct ll_share *shares;
};

static __thread long ll_index;

/* The calling thread's number within the current ll_parallel_for, in [0, threads). */
long ll_thread_index(void) { return ll_index; }

static void ll_work(struct ll_job *job, long self) {
  long before = ll_index;
  ll_index = self;
  for (long k = 0; k < job->team; ++k) {
    struct ll_share *share = &job->shares[(self + k) % job->team];
    while (__atomic_load_n(&share->next, __ATOMIC_RELAXED) < share->end) {
      long lo = __atomic_fetch_add(&share->next, job->chunk, __ATOMIC_RELAXED);
      if (lo >= share->end) break;
      long hi = lo + job->chunk;
      job->body(job->ctx, lo, hi < share->end ? hi : share->end);
    }
  }
  ll_index = before;
}

static void ll_team(struct ll_job *job); /* run ll_work(job, t) for t in [0, job->team) */

/* body(ctx, lo, hi) over disjoint ranges that cover [0, n), at least `grain` items each where n
 * allows it, on up to `threads` threads. Returns when all is done. */
void ll_parallel_for(ll_body *body, void *ctx, long n, long grain, long threads) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (threads > LL_MAX_THREADS) threads = LL_MAX_THREADS;
  if (threads <= 1 || n <= grain) {
    body(ctx, 0, n);
    return;
  }
  /* The team is always the whole one: libgomp ends surplus threads when a team shrinks, and
   * starting them again costs more than letting them find nothing to do. */
  struct ll_share shares[LL_MAX_THREADS];
  long owners = (n + grain - 1) / grain;
  if (owners > threads) owners = threads;
  for (long t = 0; t < threads; ++t) {
    shares[t].next = t < owners ? n * t / owners : n;
    shares[t].end = t < owners ? n * (t + 1) / owners : n;
  }
  long chunk = n / (owners * 16);
  if (chunk < grain) chunk = grain;
  struct ll_job job = {body, ctx, chunk, threads, shares};
  ll_team(&job);
}

/* ------------------------------------------------------------------ the three thread sources */
#if defined(LL_GOMP)

static void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*gomp_thread_num)(void);

void ll_bind_gomp(void *parallel, void *thread_num) {
  gomp_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))parallel;
  gomp_thread_num = (int (*)(void))thread_num;
}

static void gomp_entry(void *job) { ll_work(job, gomp_thread_num()); }

static void ll_team(struct ll_job *job) { gomp_parallel(gomp_entry, job, (unsigned)job->team, 0); }

#elif defined(LL_DISPATCH)

extern void dispatch_apply_f(unsigned long n, void *queue, void *ctx,
                             void (*work)(void *, unsigned long));

static void dispatch_entry(void *job, unsigned long t) { ll_work(job, (long)t); }

static void ll_team(struct ll_job *job) {
  dispatch_apply_f((unsigned long)job->team, (void *)0, job, dispatch_entry);
}

#elif defined(LL_PTHREAD)

#include <pthread.h>

static pthread_mutex_t pool_owner = PTHREAD_MUTEX_INITIALIZER; /* held for a whole job */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER, pool_done = PTHREAD_COND_INITIALIZER;
static struct ll_job *pool_job;
static long pool_size, pool_epoch, pool_left;
static __thread int pool_inside;

static void *pool_thread(void *arg) {
  long self = (long)arg, seen = 0;
  pool_inside = 1;
  pthread_mutex_lock(&pool_lock);
  for (;;) {
    while (pool_epoch == seen || !pool_job) pthread_cond_wait(&pool_wake, &pool_lock);
    seen = pool_epoch;
    struct ll_job *job = pool_job;
    if (self >= job->team) continue;
    pthread_mutex_unlock(&pool_lock);
    ll_work(job, self);
    pthread_mutex_lock(&pool_lock);
    if (--pool_left == 0) pthread_cond_signal(&pool_done);
  }
  return 0;
}

static void pool_after_fork(void) { /* threads do not survive a fork */
  pthread_mutex_init(&pool_owner, 0);
  pthread_mutex_init(&pool_lock, 0);
  pthread_cond_init(&pool_wake, 0);
  pthread_cond_init(&pool_done, 0);
  pool_size = pool_left = 0;
  pool_job = 0;
  pool_inside = 0;
}

static void ll_team(struct ll_job *job) {
  /* A nested loop, or one beside another Python thread's, runs on its own thread alone. */
  if (pool_inside || pthread_mutex_trylock(&pool_owner)) {
    ll_work(job, ll_index < job->team ? ll_index : 0);
    return;
  }
  pool_inside = 1;
  pthread_mutex_lock(&pool_lock);
  if (!pool_size) {
    pthread_atfork(0, 0, pool_after_fork);
    pool_size = 1;
  }
  while (pool_size < job->team) {
    pthread_t thread;
    if (pthread_create(&thread, 0, pool_thread, (void *)pool_size)) break;
    pthread_detach(thread);
    ++pool_size;
  }
  pool_job = job;
  pool_left = (pool_size < job->team ? pool_size : job->team) - 1;
  ++pool_epoch;
  pthread_cond_broadcast(&pool_wake);
  pthread_mutex_unlock(&pool_lock);
  ll_work(job, 0);
  pthread_mutex_lock(&pool_lock);
  while (pool_left) pthread_cond_wait(&pool_done, &pool_lock);
  pool_job = 0;
  pthread_mutex_unlock(&pool_lock);
  pool_inside = 0;
  pthread_mutex_unlock(&pool_owner);
}

#else
#error "define LL_GOMP, LL_DISPATCH or LL_PTHREAD"
#endif

/* -------------------------------------------------------------- BLAS, from PyTorch's library */
typedef void ll_sgemm_fn(const char *, const char *, const int *, const int *, const int *,
                         const float *, const float *, const int *, const float *, const int *,
                         const float *, float *, const int *);
ll_sgemm_fn *ll_sgemm;

void ll_bind_blas(void *sgemm) { ll_sgemm = (ll_sgemm_fn *)sgemm; }

/* ------------------------------------------------------------------ programs of kernel calls */
static long long ll_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

struct ll_call {
  ll_kernel *kernel;
  long row; /* where its pointers begin in the table */
};
struct ll_patch {
  long slot, external; /* table[slot] = external[...] */
};
/* What one concurrent call owns: the pointer table into its arena, and the call's own tensors. */
struct ll_frame {
  const struct ll_call *calls;
  const struct ll_patch *patches;
  long npatches;
  char **external, **table;
};

void ll_bind(struct ll_frame *f) {
  for (long k = 0; k < f->npatches; ++k)
    f->table[f->patches[k].slot] = f->external[f->patches[k].external];
}

void ll_run(struct ll_frame *f, long first, long last, long threads) {
  for (long k = first; k < last; ++k) f->calls[k].kernel(f->table + f->calls[k].row, threads);
}

/* Binds and runs everything: the one entry of a program without Python steps. */
void ll_call_all(struct ll_frame *f, long ncalls, long threads) {
  ll_bind(f);
  ll_run(f, 0, ncalls, threads);
}

/* As ll_run; start[k] and stop[k] receive each call's times in nanoseconds. */
void ll_run_timed(struct ll_frame *f, long first, long last, long threads, long long *start,
                  long long *stop) {
  for (long k = first; k < last; ++k) {
    start[k] = ll_now();
    f->calls[k].kernel(f->table + f->calls[k].row, threads);
    stop[k] = ll_now();
  }
}

/* One kernel, `samples` times `inner` calls, on tables[0], tables[1], ... in turn. */
void ll_time_kernel(ll_kernel *kernel, char *const *const *tables, long ntables, long samples,
                    long inner, long threads, long long *ns) {
  long t = 0;
  for (long k = 0; k < samples; ++k) {
    long long start = ll_now();
    for (long i = 0; i < inner; ++i) {
      kernel(tables[t], threads);
      if (++t == ntables) t = 0;
    }
    ns[k] = ll_now() - start;
  }
}

static void ll_nothing(void *ctx, long lo, long hi) { (void)ctx, (void)lo, (void)hi; }

/* An empty parallel loop: what a launch costs. */
void ll_empty(char *const *b, long threads) {
  ll_parallel_for(ll_nothing, (void *)b, threads, 1, threads);
}
