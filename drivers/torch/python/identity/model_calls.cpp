#include "python/identity/model_calls.h"

#include <c10/util/SmallVector.h>

#include "base/hash.h"
#include "base/stack_value.h"
#include "python/identity/deaths.h"
#include "python/identity/frames.h"  // Python first
#include "python/identity/namespaces.h"
#include "python/identity/path_hash.h"
#include "python/identity/steps.h"

namespace amanda::python {
namespace {

#ifdef AMANDA_FRAME_LAYOUT
using Frames = c10::SmallVector<RawFrame*, 64>;

uint64_t hash_of(const Frames& frames, size_t count, const PyCodeObject* run_module) {
  uint64_t hash = 0;
  for (size_t i = count; i-- > 0;) {
    PyObject* globals = globals_of(frames[i]);
    const uint64_t name = is_free(code_of(frames[i])) ? hash_of_name(globals) : 0;
    hash = with_place(hash, place_in(instruction_of(frames[i]), globals), name);
    PyObject* module = code_of(frames[i]) == run_module ? first_local(frames[i]) : nullptr;
    if (module) hash = with_module(hash, module, is_reborn(module));
  }
  return hash;
}

const LastingStep* step_of(const RawFrame* frame) {
  return find_step(code_of(frame), offset_of(frame), globals_of(frame));
}
#endif

}  // namespace

ModelCalls::Place ModelCalls::here(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                                   const PyCodeObject* run_module) {
  Place place;
#ifdef AMANDA_FRAME_LAYOUT
  if (has_dead_objects()) return place;
  place.epoch = pytorch::python_hooks.epoch.load(std::memory_order_acquire);
  Frames frames;
  size_t inside = 0;
  for (RawFrame* frame = innermost_frame(PyThreadState_Get()); frame; frame = outer_frame(frame)) {
    frames.push_back(frame);
    if (code_of(frame) == run_module) inside = frames.size();
  }
  if (inside == 0) return place;
  for (size_t i = 0; i < inside && !place.source_is_inside; ++i) {
    const LastingStep* step = step_of(frames[i]);
    if (!step) return place;
    place.source_is_inside = !step->part().source.empty();
  }
  for (size_t i = inside; i < frames.size(); ++i) {
    const LastingStep* step = step_of(frames[i]);
    if (!step || step->part().is_checkpoint || step->spot->lends()) return place;
    if (place.source.empty()) place.source = step->part().source;
  }
  place.frames = pytorch::mix(hash_of(frames, inside, run_module), name_hash);
  place.note(tensors);
#endif
  return place;
}

void ModelCalls::Place::note(const std::vector<pytorch::TensorOperand>& tensors) {
  key = frames;
  for (const auto& [position, tensor, counts] : tensors) {
    PyObject* object = pytorch::py_object(*tensor);
    const uint64_t tag = object ? pytorch::python_hooks.tag(tensor->unsafeGetTensorImpl(), object) : ~uint64_t{1};
    if (counts || (tag & 1)) key = pytorch::mix(key + position, tag);
  }
}

bool ModelCalls::find(const Place& place, Identified& found) const {
  if (place.key == 0) return false;
  const auto known = known_.find(place.key);
  if (known == known_.end() || known->second.epoch != place.epoch) return false;
  found = known->second.call;
  if (found.source.empty()) found.source = place.source;
  return true;
}

void ModelCalls::add(const Place& place, const Identified& call) {
  constexpr size_t kMost = 1 << 15;
  if (place.key == 0) return;
  if (known_.size() >= kMost) known_.clear();
  Known& known = known_[place.key] = {place.epoch, call};
  if (!place.source_is_inside) known.call.source.clear();
}

}  // namespace amanda::python
