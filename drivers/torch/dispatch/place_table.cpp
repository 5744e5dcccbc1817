#include "dispatch/place_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "amanda/base/lasting.h"
#include "amanda/torch.h"
#include "backward/running_node.h"
#include "base/port.h"
#include "coverage/coverage_counter.h"
#include "dispatch/caller_errors.h"

namespace amanda::pytorch {

/// One place, as one thread knows it, in a cache line.
struct Place {
  uint64_t key = 0;  // 0 if there is none
  uint64_t epoch = 0;
  OpId id = 0;
  KnownCall call;
};

/// The knowledge of a thread: its types, and its places in a table that grows with their number.
class PlaceTable {
 public:
  ~PlaceTable() { thread_keys().places = nullptr; }

  [[gnu::hot]] const Sight& sight(const ThreadKeys& thread, OpType type) {
    Type& known = types_[(type ^ (thread.calls->inside + thread.serial) * 37) % types_.size()];
    if (C10_UNLIKELY(known.type != type || !known.sight.holds(thread.serial, *thread.calls))) {
      const Lasting memory;
      known = {type, Engine::sight(*thread.scopes, backend(), type)};
    }
    return known.sight;
  }

  /// The place, or null if it is not known.
  [[gnu::hot]] const Place* find(const RawPlace& raw, const ThreadKeys& thread) {
    const uint64_t key = key_of(raw, thread);
    const Place& first = slot(key, 0);
    return C10_LIKELY(first.key == key) ? &first : find_further(key);
  }

  size_t count() const {
    return std::count_if(places_.begin(), places_.end(), [](const Place& place) { return place.key != 0; });
  }

  void put(const RawPlace& raw, const ThreadKeys& thread, OpId id, KnownCall call) {
    const uint64_t key = key_of(raw, thread);
    Place* room = room_for(key, call);
    while (!room && places_.size() < kMost) {
      grow(call);
      room = room_for(key, call);
    }
    if (!room) room = &slot(key, 0);  // another's
    *room = {key, raw.epoch, id, std::move(call)};
  }

 private:
  struct Type {
    OpType type = 0;
    Sight sight;
  };
  static constexpr size_t kMost = 4096, kProbes = 4;

  static uint64_t key_of(const RawPlace& raw, const ThreadKeys& thread) {
    return raw.key ^ (thread.serial + thread.calls->inside) * 0x9E3779B97F4A7C15u;
  }
  Place& slot(uint64_t key, size_t probe) { return places_[(key + probe) & (places_.size() - 1)]; }

  C10_NOINLINE const Place* find_further(uint64_t key) {
    for (size_t probe = 1; probe < kProbes; ++probe) {
      const Place& place = slot(key, probe);
      if (place.key == key) return &place;
    }
    return nullptr;
  }
  // The key's slot, an empty one, or that of other scopes, which may have closed. Null if there is none.
  Place* room_for(uint64_t key, const KnownCall& call) {
    Place *empty = nullptr, *other = nullptr;
    for (size_t probe = 0; probe < kProbes; ++probe) {
      Place& place = slot(key, probe);
      if (place.key == key) return &place;
      if (place.key == 0) {
        if (!empty) empty = &place;
      } else if (!other && !place.call.has_scopes_of(call)) {
        other = &place;
      }
    }
    return empty ? empty : other;
  }
  void grow(const KnownCall& call) {
    std::vector<Place> before(places_.size() * 2);
    before.swap(places_);
    for (Place& place : before) {
      if (place.key == 0 || !place.call.has_scopes_of(call)) continue;
      if (Place* room = room_for(place.key, place.call)) *room = std::move(place);
    }
  }

  std::array<Type, 256> types_;
  std::vector<Place> places_ = std::vector<Place>(64);  // by key, with linear probing
};

namespace {

std::atomic<bool> places_used{true};

// Null while the thread ends.
PlaceTable* make_table(ThreadKeys& thread) {
  thread.with_torch_state();
  const Lasting memory;
  thread_local bool made = false;
  if (std::exchange(made, true)) return nullptr;
  thread_local const auto owner = std::make_unique<PlaceTable>();
  return owner.get();
}

bool is_plain(const ThreadKeys& thread, KeyRole role, const OpRecord& record) {
  const bool busy = (thread.unobserved | thread.running_nodes | static_cast<size_t>(thread.recording)) != 0;
  if (thread.role != role || busy || record.noise) return false;
  return !counts_calls() && places_used.load(std::memory_order_relaxed);
}

bool may_be_traced(c10::DispatchKeySet rest, c10::ArrayRef<OperandTensor> arguments) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kModes({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Tracer});
  if (rest.has_any(kModes)) return true;
  for (const OperandTensor& operand : arguments) {
    const at::TensorImpl* impl = operand.tensor->unsafeGetTensorImpl();
    if (impl->key_set().has(DispatchKey::Python) || impl->has_symbolic_sizes_strides()) return true;
  }
  return false;
}

}  // namespace

[[gnu::hot]] void find_way(Way& way, KeyRole role, const OpRecord& record, c10::DispatchKeySet rest, bool symbols,
                           c10::ArrayRef<OperandTensor> arguments) {
  ThreadKeys& thread = thread_keys();
  if (!is_plain(thread, role, record)) return;
  if (C10_UNLIKELY(!thread.places) && !(thread.places = make_table(thread))) return;
  const Sight& sight = thread.places->sight(thread, record.type);
  way.thread = &thread;
  way.seeing = sight.seeing();
  way.sight = &sight;
  way.observes_inner = sight.observes_inner();
  if (way.seeing == 0) {  // whatever its operands are
    way.kind = Way::Kind::kBelow;
    return;
  }
  if (symbols || may_be_traced(rest, arguments) || port::inside_backward()) return;
  way.raw = raw_place(thread.walk, record, arguments);
  if (way.raw.path == 0) return;
  way.scopes = thread.serial;
  const Place* place = thread.places->find(way.raw, thread);
  if (!place || place->epoch != way.raw.epoch || !place->call.holds(sight)) return;
  if (place->call.does_nothing()) {
    Engine::count_hit(*thread.calls, *thread.scopes);
    way.kind = Way::Kind::kBelow;
  } else {
    way.call = &place->call;
    way.id = place->id;
    way.kind = Way::Kind::kKnown;
  }
}

[[gnu::hot]] bool observe_known(Way& way, ForwardCall& call) {
  call.know(way.id, way.raw.path);
  Engine::Left left;
  rethrow_for_callers(call, [&] {
    ThreadCalls& calls = *way.thread->calls;
    left = Engine::on_known_op(calls, *way.thread->scopes, call, *way.sight, *way.call);
    if (C10_LIKELY(!left.runs_operator || !call.is_boxed())) return;
    const OpFrame frame(calls, way.seeing);
    call.run({.observe_inner = left.observes_inner});
    call.finish();
    left.runs_operator = false;
  });
  way.observes_inner = left.observes_inner;
  return left.runs_operator;
}

void learn_place(const Way& way, ForwardCall& call) {
  ThreadKeys& thread = thread_keys();
  if (way.raw.path == 0 || way.scopes != thread.serial || !thread.places) return;
  const Lasting memory;
  const OpId id = call.id_found_by(way.raw);
  if (id == 0) return;
  KnownCall known = Engine::known_call(*thread.scopes, backend(), call.type(), id);
  if (known.is_known()) thread.places->put(way.raw, thread, id, std::move(known));
}

void use_known_places(bool on) { places_used = on; }

size_t count_known_places() { return thread_keys().places ? thread_keys().places->count() : 0; }

}  // namespace amanda::pytorch
