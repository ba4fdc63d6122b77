// Collectives of the ranks of one host, through a segment of memory that all have mapped. Called from Python by ctypes,
// which lets go of the interpreter lock meanwhile.
//
// Large messages go through the slots in chunks, so the memory that a group needs does not grow with them. A rank
// publishes one chunk ahead of the one it reads, which takes up small differences in pace.
#include "reduce.h"
#include "segment.h"

using namespace counterpoint;

namespace {

// What a rank is about to do, so that peers who do something else are told, not served nonsense.
uint64_t signature(int kind, int type, int operation, size_t bytes) {
  return uint64_t(kind) << 60 | uint64_t(type) << 54 | uint64_t(operation) << 48 | (bytes & 0xffffffffffff);
}

int step_to_write(Context& c, int lane, uint32_t step) {
  for (int i = 1; i < c.world; ++i) {
    int peer = (c.rank + i) % c.world;
    if (int failure = await(c, state(c, peer).done[lane], step + 1 - SLOTS, peer)) return failure;
  }
  return NONE;
}

void publish(Context& c, int lane, uint32_t step) { advance(state(c, c.rank).ready[lane], step + 1); }

void finish(Context& c, int lane, uint32_t step) { advance(state(c, c.rank).done[lane], step + 1); }

int step_to_read(Context& c, int lane, uint32_t step, int peer) {
  return await(c, state(c, peer).ready[lane], step + 1, peer);
}

// One collective: `begin` claims the steps of its chunks, and the first chunk's signatures are compared.
struct Call {
  Context& c;
  uint64_t what;
  size_t chunks;
  uint32_t first[LANES];

  Call(Context& context, uint64_t signature, size_t count) : c(context), what(signature), chunks(count) {
    for (int lane = 0; lane < LANES; ++lane) first[lane] = c.step[lane];
  }

  uint32_t step(int lane, size_t chunk) const { return first[lane] + uint32_t(chunk); }

  // Fills the input slot of a chunk by `fill(slot)`.
  template <class Fill>
  int send(size_t chunk, Fill fill) {
    uint32_t s = step(INPUT, chunk);
    if (int failure = step_to_write(c, INPUT, s)) return failure;
    fill(slot(c, INPUT, c.rank, s));
    state(c, c.rank).signature[s % SLOTS].store(what, std::memory_order_relaxed);
    publish(c, INPUT, s);
    return NONE;
  }

  // Waits for the chunk of a peer.
  int receive(size_t chunk, int peer) {
    uint32_t s = step(INPUT, chunk);
    if (int failure = step_to_read(c, INPUT, s, peer)) return failure;
    uint64_t theirs = state(c, peer).signature[s % SLOTS].load(std::memory_order_relaxed);
    return theirs == what ? NONE : fail(c, MISMATCH, peer, theirs);
  }

  int receive_all(size_t chunk) {
    for (int i = 1; i < c.world; ++i) {
      if (int failure = receive(chunk, (c.rank + i) % c.world)) return failure;
    }
    return NONE;
  }

  void received(size_t chunk) { finish(c, INPUT, step(INPUT, chunk)); }

  // Claims the steps; the last thing that a collective does.
  int end(bool results) {
    c.step[INPUT] += uint32_t(chunks);
    if (results) c.step[RESULT] += uint32_t(chunks);
    return NONE;
  }
};

size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }
size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// Sends chunk after chunk, one ahead of the chunk that `take` works on.
template <class Send, class Take>
int pipeline(size_t chunks, Send send, Take take) {
  if (int failure = send(0)) return failure;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) {
      if (int failure = send(chunk + 1)) return failure;
    }
    if (int failure = take(chunk)) return failure;
  }
  return NONE;
}

enum Kind { ONE_SHOT = 1, TWO_SHOT, ALL_GATHER, REDUCE_SCATTER };  // named in library.py

}  // namespace

extern "C" {

size_t cp_context_bytes() { return sizeof(Context); }

size_t cp_segment_bytes(int world, size_t slot_bytes) {
  return control_bytes(world) + size_t(2) * world * SLOTS * slot_bytes;
}

// `context` is memory of the caller, zeroed. All ranks begin with the same step; a peer's is not looked at before all
// have joined.
int cp_join(Context* context, char* base, int rank, int world, size_t slot_bytes, int64_t spin_ns, int64_t timeout_ns,
            const int* watch, Interrupted interrupted, uint32_t first_step) {
  if (world < 1 || world > 1024 || rank < 0 || rank >= world) return -1;
  Context& c = *context;
  c.base = base;
  c.rank = rank;
  c.world = world;
  c.slot_bytes = slot_bytes;
  c.spin_ns = spin_ns;
  c.timeout_ns = timeout_ns;
  c.interrupted = interrupted;
  for (int r = 0; r < world; ++r) c.watch[r] = watch[r];
  for (int lane = 0; lane < LANES; ++lane) {
    c.step[lane] = first_step;
    state(c, rank).ready[lane].value.store(first_step);
    state(c, rank).done[lane].value.store(first_step);
  }
  return 0;
}

void cp_fault(const Context* context, Fault* fault) { *fault = context->fault; }

// Elementwise reduction of buffers in this process's reach: 0, or -1 where the type has no such operation.
int cp_combine(char* to, const char* const* from, int sources, size_t count, int type, int operation) {
  Combine combine = find_combine(type, operation);
  if (!combine) return -1;
  combine({to}, from, sources, count, operation == AVG ? sources : 1);
  return 0;
}

// Every rank reads the whole input of every other.
int cp_one_shot(Context* context, const char* in, char* out, size_t count, int type, int operation) {
  Context& c = *context;
  if (int failure = broken(c)) return failure;
  Combine combine = find_combine(type, operation);
  if (!combine) return -1;
  size_t item = ITEM_BYTES[type], bytes = count * item, chunk_bytes = c.slot_bytes;
  Call call(c, signature(ONE_SHOT, type, operation, bytes), divide_up(bytes, chunk_bytes));
  auto length = [&](size_t k) { return smaller(chunk_bytes, bytes - k * chunk_bytes); };
  auto send = [&](size_t k) {
    return call.send(k, [&](char* to) { std::memcpy(to, in + k * chunk_bytes, length(k)); });
  };
  auto take = [&](size_t k) {
    if (int failure = call.receive_all(k)) return failure;
    const char* from[1024];
    for (int r = 0; r < c.world; ++r) from[r] = slot(c, INPUT, r, call.step(INPUT, k));
    from[c.rank] = in + k * chunk_bytes;
    combine({out + k * chunk_bytes}, from, c.world, length(k) / item, operation == AVG ? c.world : 1);
    call.received(k);
    return int(NONE);
  };
  if (call.chunks == 0) return NONE;
  int failure = pipeline(call.chunks, send, take);
  return failure ? failure : call.end(false);
}

// Every rank reduces its part of each chunk and publishes the result, which the others copy.
int cp_two_shot(Context* context, const char* in, char* out, size_t count, int type, int operation) {
  Context& c = *context;
  if (int failure = broken(c)) return failure;
  Combine combine = find_combine(type, operation);
  if (!combine) return -1;
  size_t item = ITEM_BYTES[type], bytes = count * item, chunk_bytes = c.slot_bytes;
  Call call(c, signature(TWO_SHOT, type, operation, bytes), divide_up(bytes, chunk_bytes));
  auto length = [&](size_t k) { return smaller(chunk_bytes, bytes - k * chunk_bytes); };
  // Parts of a chunk begin at cache lines.
  auto border = [&](size_t k, int r) {
    size_t part = divide_up(divide_up(length(k), size_t(c.world)), 64) * 64;
    return smaller(part * size_t(r), length(k));
  };
  auto send = [&](size_t k) {
    return call.send(k, [&](char* to) {
      const char* from = in + k * chunk_bytes;
      size_t mine = border(k, c.rank), after = border(k, c.rank + 1);
      std::memcpy(to, from, mine);
      std::memcpy(to + after, from + after, length(k) - after);
    });
  };
  auto reduce = [&](size_t k) {
    if (int failure = call.receive_all(k)) return failure;
    size_t mine = border(k, c.rank), part = border(k, c.rank + 1) - mine;
    const char* from[1024];
    for (int r = 0; r < c.world; ++r) from[r] = slot(c, INPUT, r, call.step(INPUT, k)) + mine;
    from[c.rank] = in + k * chunk_bytes + mine;
    uint32_t s = call.step(RESULT, k);
    if (int failure = step_to_write(c, RESULT, s)) return failure;
    char* result = slot(c, RESULT, c.rank, s);
    Target target{result, out + k * chunk_bytes + mine};
    combine(target, from, c.world, part / item, operation == AVG ? c.world : 1);
    call.received(k);
    publish(c, RESULT, s);
    return int(NONE);
  };
  auto collect = [&](size_t k) {
    uint32_t s = call.step(RESULT, k);
    for (int i = 1; i < c.world; ++i) {
      int peer = (c.rank + i) % c.world;
      if (int failure = step_to_read(c, RESULT, s, peer)) return failure;
      size_t begin = border(k, peer);
      std::memcpy(out + k * chunk_bytes + begin, slot(c, RESULT, peer, s), border(k, peer + 1) - begin);
    }
    finish(c, RESULT, s);
    return int(NONE);
  };
  if (call.chunks == 0) return NONE;
  int failure = pipeline(call.chunks, send, [&](size_t k) {
    if (int broke = reduce(k)) return broke;
    return k > 0 ? collect(k - 1) : int(NONE);
  });
  if (!failure) failure = collect(call.chunks - 1);
  return failure ? failure : call.end(true);
}

// `out` holds the inputs of all ranks side by side.
int cp_all_gather(Context* context, const char* in, char* out, size_t bytes) {
  Context& c = *context;
  if (int failure = broken(c)) return failure;
  size_t chunk_bytes = c.slot_bytes;
  Call call(c, signature(ALL_GATHER, 0, 0, bytes), divide_up(bytes, chunk_bytes));
  auto length = [&](size_t k) { return smaller(chunk_bytes, bytes - k * chunk_bytes); };
  auto send = [&](size_t k) {
    const char* from = in + k * chunk_bytes;
    char* own = out + bytes * c.rank + k * chunk_bytes;
    int failure = call.send(k, [&](char* to) { std::memcpy(to, from, length(k)); });
    // At once, while it is in the cache.
    if (!failure && own != from) std::memcpy(own, from, length(k));
    return failure;
  };
  auto take = [&](size_t k) {
    for (int i = 1; i < c.world; ++i) {
      int peer = (c.rank + i) % c.world;
      if (int failure = call.receive(k, peer)) return failure;
      std::memcpy(out + bytes * peer + k * chunk_bytes, slot(c, INPUT, peer, call.step(INPUT, k)), length(k));
    }
    call.received(k);
    return int(NONE);
  };
  if (call.chunks == 0) return NONE;
  int failure = pipeline(call.chunks, send, take);
  return failure ? failure : call.end(false);
}

// `count` elements a rank; `in` holds what goes to rank 0, then what goes to rank 1, ...
int cp_reduce_scatter(Context* context, const char* in, char* out, size_t count, int type, int operation) {
  Context& c = *context;
  if (int failure = broken(c)) return failure;
  Combine combine = find_combine(type, operation);
  if (!combine) return -1;
  size_t item = ITEM_BYTES[type], bytes = count * item;
  size_t chunk_bytes = c.slot_bytes / c.world / 64 * 64;
  Call call(c, signature(REDUCE_SCATTER, type, operation, bytes), divide_up(bytes, chunk_bytes));
  auto length = [&](size_t k) { return smaller(chunk_bytes, bytes - k * chunk_bytes); };
  auto send = [&](size_t k) {
    return call.send(k, [&](char* to) {
      for (int r = 0; r < c.world; ++r) {
        if (r != c.rank) std::memcpy(to + chunk_bytes * r, in + bytes * r + k * chunk_bytes, length(k));
      }
    });
  };
  auto take = [&](size_t k) {
    if (int failure = call.receive_all(k)) return failure;
    const char* from[1024];
    for (int r = 0; r < c.world; ++r) from[r] = slot(c, INPUT, r, call.step(INPUT, k)) + chunk_bytes * c.rank;
    from[c.rank] = in + bytes * c.rank + k * chunk_bytes;
    combine({out + k * chunk_bytes}, from, c.world, length(k) / item, operation == AVG ? c.world : 1);
    call.received(k);
    return int(NONE);
  };
  if (call.chunks == 0) return NONE;
  int failure = pipeline(call.chunks, send, take);
  return failure ? failure : call.end(false);
}

// -- loans: regions that peers read in place, see loan.py -------------------------------------------------------------

// Waits until no peer reads what was lent up to (not including) a step.
int cp_wait_returned(Context* context, uint32_t step) {
  Context& c = *context;
  for (int i = 1; i < c.world; ++i) {
    int peer = (c.rank + i) % c.world;
    if (int failure = await(c, state(c, peer).done[LOAN], step, peer)) return failure;
  }
  return broken(c);
}

// Waits until a peer has published the given number of steps.
int cp_wait_lent(Context* context, int peer, uint32_t step) {
  return await(*context, state(*context, peer).ready[LOAN], step, peer);
}

int cp_lend(Context* context, uint32_t step) {
  advance(state(*context, context->rank).ready[LOAN], step);
  return NONE;
}

int cp_return(Context* context, uint32_t step) {
  advance(state(*context, context->rank).done[LOAN], step);
  return NONE;
}
}
