// The shared segment: what lies where, and how ranks wait for each other in it.
//
// Every rank owns slots that only it writes and all read. A slot is reused in turn. Two counters a rank and lane say
// how far that rank is: `ready`, steps that it has published, and `done`, steps whose slots of all ranks it has read.
// Both only grow, and are compared as a ring, so nothing is ever reset:
//
//   to write step s    wait until every peer has done  >= s + 1 - SLOTS   (nobody reads the slot any more)
//   to read step s     wait until that peer has ready  >= s + 1           (all of it is there)
//
// Counters are stored with release order after the data and loaded with acquire order before it.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace counterpoint {

constexpr int SLOTS = 4;
constexpr size_t LINE = 128;  // two cache lines: processors fetch them in pairs
constexpr size_t PAGE = 4096;

enum Lane { INPUT = 0, RESULT = 1, LOAN = 2, LANES = 3 };
enum Failure { NONE = 0, TIMED_OUT = 1, ENDED = 2, MISMATCH = 3, INTERRUPTED = 4 };

struct alignas(LINE) Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

struct RankState {
  Counter ready[LANES];
  Counter done[LANES];
  // What the rank is doing in each slot of the input lane: see `signature`.
  alignas(LINE) std::atomic<uint64_t> signature[SLOTS];
};

struct alignas(PAGE) Header {
  // Zero, or what ended the work of this group: failure, who noticed, whose fault.
  alignas(LINE) std::atomic<uint32_t> broken;
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "counters are shared between processes");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "signatures are shared between processes");

struct Fault {
  int32_t failure;
  int32_t noticed_by;
  int32_t rank;
  uint64_t theirs;  // the signature of the peer, for a mismatch
};

// Asked now and then by a rank that sleeps; anything but zero ends the wait.
using Interrupted = int (*)();

struct Context {
  char* base;
  int rank;
  int world;
  size_t slot_bytes;
  int64_t spin_ns;
  int64_t timeout_ns;
  Interrupted interrupted;
  int watch[1024];  // a descriptor a rank that becomes readable when its process ends, or -1
  uint32_t step[LANES];
  Fault fault;
};

inline size_t control_bytes(int world) {
  size_t bytes = sizeof(Header) + sizeof(RankState) * static_cast<size_t>(world);
  return (bytes + PAGE - 1) / PAGE * PAGE;
}

inline Header& header(const Context& c) { return *reinterpret_cast<Header*>(c.base); }

inline RankState& state(const Context& c, int rank) {
  return reinterpret_cast<RankState*>(c.base + sizeof(Header))[rank];
}

inline char* slot(const Context& c, int lane, int rank, uint32_t step) {
  size_t number = (static_cast<size_t>(lane) * c.world + rank) * SLOTS + step % SLOTS;
  return c.base + control_bytes(c.world) + number * c.slot_bytes;
}

// -- time and sleep ---------------------------------------------------------------------------------------------------

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Returns after a wake-up, a changed value, a signal, or the given time.
inline long sleep_on(std::atomic<uint32_t>& word, uint32_t seen, int64_t ns) {
  timespec t{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  return syscall(SYS_futex, &word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

inline void wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

inline bool has_ended(int watch) {
  if (watch < 0) return false;
  pollfd p{watch, POLLIN, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

// -- counters ---------------------------------------------------------------------------------------------------------

inline bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }

inline void advance(Counter& counter, uint32_t value) {
  // A sleeper counts itself, then looks at the value once more; the full order of both sides loses no wake-up.
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) wake(counter.value);
}

inline int fail(Context& c, int failure, int rank, uint64_t theirs = 0) {
  c.fault = Fault{failure, c.rank, rank, theirs};
  uint32_t none = 0;
  uint32_t what = uint32_t(failure) << 24 | uint32_t(c.rank) << 12 | uint32_t(rank);
  header(c).broken.compare_exchange_strong(none, what, std::memory_order_seq_cst);
  for (int r = 0; r < c.world; ++r) {
    for (int lane = 0; lane < LANES; ++lane) {
      wake(state(c, r).ready[lane].value);
      wake(state(c, r).done[lane].value);
    }
  }
  return failure;
}

inline int broken(Context& c) {
  uint32_t what = header(c).broken.load(std::memory_order_acquire);
  if (what == 0) return NONE;
  c.fault = Fault{int32_t(what >> 24), int32_t(what >> 12 & 0xfff), int32_t(what & 0xfff), 0};
  return c.fault.failure;
}

// Why a rank that sleeps should stop doing so.
inline int trouble(Context& c, int peer, int64_t deadline_ns) {
  if (int failure = broken(c)) return failure;
  if (c.interrupted && c.interrupted()) return fail(c, INTERRUPTED, c.rank);
  if (has_ended(c.watch[peer])) return fail(c, ENDED, peer);
  if (now_ns() >= deadline_ns) return fail(c, TIMED_OUT, peer);
  return NONE;
}

// Spin for as long as a reply normally takes, then sleep; look around every `LOOK_NS`.
inline int await(Context& c, Counter& counter, uint32_t target, int peer) {
  constexpr int64_t LOOK_NS = 20000000;
  auto value = [&] { return counter.value.load(std::memory_order_acquire); };
  if (reached(value(), target)) return NONE;
  int64_t began = now_ns();
  while (now_ns() - began < c.spin_ns) {
    for (int i = 0; i < 16; ++i) {
      if (reached(value(), target)) return NONE;
      relax();
    }
  }
  for (;;) {
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    uint32_t seen = counter.value.load(std::memory_order_seq_cst);
    bool there = reached(seen, target);
    long woken = 0;
    int error = 0;
    if (!there && header(c).broken.load(std::memory_order_seq_cst) == 0) {
      woken = sleep_on(counter.value, seen, LOOK_NS);
      error = errno;
    }
    counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (there || reached(value(), target)) return NONE;
    if (woken == 0 || error != EAGAIN) {
      int failure = trouble(c, peer, began + c.timeout_ns);
      // The peer may have published between our look and its end.
      if (reached(value(), target)) return NONE;
      if (failure) return failure;
    }
  }
}

}  // namespace counterpoint
