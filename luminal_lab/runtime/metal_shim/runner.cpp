// Runs one kernel of a shim-compiled Metal file: main, buffers between guard pages, and fibers.
//
//   PROGRAM entry gx gy gz tx ty tz reverse file
//
// `file` holds an int64 count, then an int64 byte size and the bytes of each buffer; the buffers
// are written back in place. Exit codes: 0, 2 (usage), 3 (the kernel broke a rule, on stderr).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#if !(defined(__x86_64__) && defined(__linux__))
#include <ucontext.h>
#endif

struct uint3 { unsigned x, y, z; };
struct msl_position {
  uint3 group, groups, local, size;
  unsigned index, lane, simdgroup;
};
struct msl_entry {
  const char *name;
  void (*call)(char *const *buffers, const msl_position *p);
};
extern "C" const msl_entry msl_entries[];

[[noreturn]] static void fail(const char *format, long a = 0, long b = 0, long c = 0) {
  fprintf(stderr, format, a, b, c);
  fputc('\n', stderr);
  fflush(stderr);
  _exit(3);
}

// ------------------------------------------------------------------------------------------ fibers
enum State { READY, IN_GROUP, IN_SIMD, DONE };
struct Fiber {
  State state;
  int line;
  msl_position at;
  char *stack;
  unsigned exchanges;
#if defined(__x86_64__) && defined(__linux__)
  void *sp;
#else
  ucontext_t context;
#endif
};
static const size_t STACK = 256 << 10;
static const msl_entry *entry;
static std::vector<char *> bases;
static std::vector<Fiber> fibers;
static Fiber *now;
static std::vector<char> slots; // per simdgroup: two phases of 32 slots of 16 bytes
struct Shared { void *array; unsigned long bytes; };
static std::vector<Shared> shared_now; // threadgroup arrays that this group has declared

#if defined(__x86_64__) && defined(__linux__)
static void *scheduler_sp;
extern "C" void msl_switch(void **save, void *load);
asm(R"(
.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static void leave() { msl_switch(&now->sp, scheduler_sp); }
static void enter(Fiber &f) { now = &f; msl_switch(&scheduler_sp, f.sp); }
#else
static ucontext_t scheduler;
static void leave() { swapcontext(&now->context, &scheduler); }
static void enter(Fiber &f) { now = &f; swapcontext(&scheduler, &f.context); }
#endif

static void body() {
  entry->call(bases.data(), &now->at);
  now->state = DONE;
  leave();
  abort();
}

static void prepare(Fiber &f) {
#if defined(__x86_64__) && defined(__linux__)
  void **top = (void **)(f.stack + STACK);
  *--top = nullptr; // keeps the stack 16-byte aligned at the entry of body
  *--top = (void *)body;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.sp = top;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = STACK;
  f.context.uc_link = nullptr;
  makecontext(&f.context, body, 0);
#endif
}

static void wait(State state, int line) {
  now->state = state;
  now->line = line;
  leave();
}

// Releases fibers [from, to) when all of them wait in the same state at the same line.
static bool release(size_t from, size_t to, State state) {
  int line = -1;
  for (size_t i = from; i < to; ++i) {
    if (fibers[i].state != state) return false;
    if (line >= 0 && fibers[i].line != line)
      fail("divergence: threads of one group wait at the barriers of lines %ld and %ld", line,
           fibers[i].line);
    line = fibers[i].line;
  }
  for (size_t i = from; i < to; ++i) fibers[i].state = READY;
  return true;
}

static void run_group(bool reverse) {
  const size_t n = fibers.size();
  shared_now.clear();
  for (auto &f : fibers) {
    f.state = READY;
    f.exchanges = 0;
    prepare(f);
  }
  for (;;) {
    bool progress = false;
    for (size_t k = 0; k < n; ++k) {
      Fiber &f = fibers[reverse ? n - 1 - k : k];
      if (f.state != READY) continue;
      enter(f);
      progress = true;
    }
    for (size_t s = 0; s < n; s += 32) progress |= release(s, s + 32 < n ? s + 32 : n, IN_SIMD);
    progress |= release(0, n, IN_GROUP);
    if (progress) continue;
    const Fiber *waiting = nullptr, *other = nullptr;
    for (auto &f : fibers) {
      if (f.state == IN_GROUP || f.state == IN_SIMD) waiting = &f;
      if (f.state == DONE || (waiting && f.state != waiting->state)) other = &f;
    }
    if (!waiting) return;
    fail(other && other->state != DONE
             ? "divergence: thread %ld waits at line %ld, but another waits elsewhere"
             : "divergence: thread %ld waits at line %ld, but another has left the kernel",
         waiting->at.index, waiting->line);
  }
}

extern "C" void msl_barrier(int whole_group, int line) {
  wait(whole_group ? IN_GROUP : IN_SIMD, line);
}
extern "C" unsigned msl_lane() { return now->at.lane; }
extern "C" const void *msl_exchange(const void *value, unsigned long size, int line) {
  // Two phases: nobody reaches exchange k+2 before all have read exchange k.
  char *base = &slots[(now->at.simdgroup * 2 + (now->exchanges++ & 1)) * 32 * 16];
  memcpy(base + 16 * now->at.lane, value, size);
  wait(IN_SIMD, line);
  return base;
}
extern "C" void msl_threadgroup(void *array, unsigned long bytes, int line) {
  unsigned long total = bytes;
  for (auto &s : shared_now) {
    if (s.array == array) return;
    total += s.bytes;
  }
  if (total > 32768) fail("%ld bytes of threadgroup memory at line %ld (at most 32768)", total, line);
  shared_now.push_back({array, bytes});
  memset(array, 0xff, bytes); // what another group left must not look right
}

// ----------------------------------------------------------------------------------------- buffers
struct Guarded { char *map; size_t mapped; char *data; size_t size; };
static std::vector<Guarded> buffers;
static const size_t GUARD = 1 << 20;

static void on_fault(int, siginfo_t *info, void *) {
  char *at = (char *)info->si_addr;
  for (size_t k = 0; k < buffers.size(); ++k) {
    Guarded &b = buffers[k];
    if (at >= b.map && at < b.map + b.mapped)
      fail("buffer %ld is accessed at byte %ld, but has %ld bytes", k, at - b.data, b.size);
  }
  fail("a memory access outside of every buffer");
}

static Guarded guarded(size_t size) {
  const size_t page = sysconf(_SC_PAGESIZE);
  size_t body = (size + 15 + page) / page * page;
  Guarded b;
  b.mapped = body + 2 * GUARD;
  b.size = size;
  b.map = (char *)mmap(nullptr, b.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b.map == MAP_FAILED || mprotect(b.map + GUARD, body, PROT_READ | PROT_WRITE))
    fail("no memory for a buffer of %ld bytes", size);
  memset(b.map + GUARD, 0xff, body);
  b.data = b.map + GUARD + body - (size + 7) / 8 * 8; // ends at a guard page, 8-byte aligned
  return b;
}

int main(int argc, char **argv) {
  if (argc != 10) return 2;
  for (entry = msl_entries; entry->name && strcmp(entry->name, argv[1]); ++entry) {}
  if (!entry->name) return 2;
  unsigned d[6];
  for (int i = 0; i < 6; ++i) d[i] = strtoul(argv[2 + i], nullptr, 10);
  const bool reverse = argv[8][0] == '1';
  const unsigned n = d[3] * d[4] * d[5];
  if (n == 0 || n > 1024) fail("%ld threads in a threadgroup (at most 1024)", n);

  FILE *file = fopen(argv[9], "r+b");
  int64_t count = 0;
  if (!file || fread(&count, 8, 1, file) != 1) return 2;
  for (int64_t k = 0; k < count; ++k) {
    int64_t size = 0;
    if (fread(&size, 8, 1, file) != 1) return 2;
    buffers.push_back(guarded(size));
    if (size && fread(buffers.back().data, size, 1, file) != 1) return 2;
    bases.push_back(buffers.back().data);
  }

  static char handler_stack[64 << 10];
  stack_t alternative = {};
  alternative.ss_sp = handler_stack;
  alternative.ss_size = sizeof handler_stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);

  char *stacks = (char *)mmap(nullptr, n * STACK, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) fail("no memory for %ld stacks", n);
  fibers.resize(n);
  slots.resize((n + 31) / 32 * 2 * 32 * 16);
  for (unsigned i = 0; i < n; ++i) {
    Fiber &f = fibers[i];
    f.stack = stacks + i * STACK;
    f.at.groups = {d[0], d[1], d[2]};
    f.at.size = {d[3], d[4], d[5]};
    f.at.local = {i % d[3], i / d[3] % d[4], i / d[3] / d[4]};
    f.at.index = i;
    f.at.lane = i % 32;
    f.at.simdgroup = i / 32;
  }
  for (unsigned z = 0; z < d[2]; ++z)
    for (unsigned y = 0; y < d[1]; ++y)
      for (unsigned x = 0; x < d[0]; ++x) {
        for (auto &f : fibers) f.at.group = {x, y, z};
        run_group(reverse);
      }

  for (size_t k = 0; k < buffers.size(); ++k)
    for (char *p = buffers[k].map + GUARD; p < buffers[k].data; ++p)
      if (*p != (char)0xff) fail("buffer %ld is written before its first byte", k);
  fseek(file, 8, SEEK_SET);
  for (auto &b : buffers) {
    fseek(file, 8, SEEK_CUR);
    if (b.size && fwrite(b.data, b.size, 1, file) != 1) return 2;
    fflush(file);
  }
  return fclose(file) ? 2 : 0;
}
