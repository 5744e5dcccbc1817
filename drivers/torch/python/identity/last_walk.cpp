#include "python/identity/last_walk.h"

#include <utility>

#ifdef AMANDA_FRAME_LAYOUT
namespace amanda::python {

LastWalk* LastWalk::make(void*& kept) {
  struct Owner {
    explicit Owner(void*& kept) : kept(kept) { kept = &walk; }
    ~Owner() { kept = nullptr; }
    void*& kept;
    LastWalk walk;
  };
  thread_local bool made = false;
  if (std::exchange(made, true)) return nullptr;
  thread_local Owner owner(kept);
  return &owner.walk;
}

uint64_t LastWalk::hash_all(RawFrame* innermost, const PyCodeObject* run_module) {
  size_t size = 0;
  for (RawFrame* frame = innermost; frame; frame = outer_frame(frame)) ++size;
  return hash_from(0, size, innermost, run_module);
}

uint64_t LastWalk::hash_from(size_t changed, size_t size, RawFrame* innermost, const PyCodeObject* run_module) {
  if (size > frames_.size()) {
    places_.resize(2 * size + 1);
    frames_.resize(2 * size);
  }
  size_ = size;
  RawFrame* frame = innermost;
  for (size_t i = size; i-- > changed; frame = outer_frame(frame)) {
    const bool runs_module = code_of(frame) == run_module;
    PyObject* module = runs_module ? first_local(frame) : nullptr;
    const bool free = is_free(code_of(frame));
    places_[i + 1] = place_of(frame) + (runs_module || free ? kMark : 0);
    frames_[i] = {.frame = frame,
                  .module = module,
                  .type = module ? Py_TYPE(module) : nullptr,
                  .name = free ? hash_of_name(globals_of(frame)) : 0,
                  .hash = 0,
                  .is_generators = is_generators(frame),
                  .is_reborn = module && is_reborn(module),
                  .is_free = free};
  }
  uint64_t hash = changed > 0 ? frames_[changed - 1].hash : 0;
  for (size_t i = changed; i < size; ++i) {
    Frame& known = frames_[i];
    hash = with_place(hash, places_[i + 1] & ~kMark, known.name);
    if (known.module) hash = with_module(hash, known.module, known.is_reborn);
    known.hash = hash;
  }
  return hash;
}

}  // namespace amanda::python
#endif
