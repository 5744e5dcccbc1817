// The walk over this thread's frames that compares them with those of the walk before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "python/identity/frames.h"
#include "python/identity/namespaces.h"
#include "python/identity/path_hash.h"

namespace amanda::python {

#ifdef AMANDA_FRAME_LAYOUT
/// The frames of a thread's last walk. The next one compares each of its frames with them, and hashes again only from
/// the outermost one that differs: in a model, all but the inner ones stay as they are between two operators.
///
/// The hash is a function of the compared values (instructions, globals and modules), never of the addresses of frames.
/// The addresses only select the frames to compare. They may be those of frames that are gone, and are never
/// dereferenced.
class LastWalk {
 public:
  /// This thread's last walk. Null if the thread is ending. `kept`: where this thread keeps it; null at first.
  static LastWalk* here(void*& kept) { return kept ? static_cast<LastWalk*>(kept) : make(kept); }

  /// The hash of `innermost` and all outer frames. 0 if `innermost` is null.
  uint64_t hash(RawFrame* innermost, const PyCodeObject* run_module) {
    if (const uint64_t found = free_codes_found.load(std::memory_order_acquire); found != found_) {
      found_ = found;
      size_ = 0;  // frames of such code are stored with a mark
    }
    // Frames lie on a stack, with the exception of generators'. Frames above the innermost one have returned.
    size_t known = size_, made = 0;
    RawFrame* frame = innermost;
    for (; frame; frame = outer_frame(frame), ++made) {
      known = match(frame, known);
      if (known > 0 && frames_[known - 1].frame == frame) break;
    }
    size_t changed = known;
    const uint64_t *first = places_.data(), *at = first + known;
    for (; frame; frame = outer_frame(frame), --at) {
      if (place_of(frame) == *at) continue;
      if (at == first) return hash_all(innermost, run_module);  // more frames than there were
      const size_t i = at - first - 1;
      if (!is_same_marked(frame, i)) changed = i;
    }
    if (at != first) return hash_all(innermost, run_module);  // fewer
    if (made == 0 && changed == known && known == size_) return size_ > 0 ? frames_[size_ - 1].hash : 0;
    return hash_from(changed, known + made, innermost, run_module);
  }

 private:
  struct Frame {
    const RawFrame* frame;
    PyObject* module;  // null if there is none
    PyTypeObject* type;
    uint64_t name;  // of the globals, if the code is free
    uint64_t hash;  // of this one and all outer ones
    bool is_generators, is_reborn, is_free;
  };

  /// The number of the first `known` frames that may be outer to, or the same as, `frame`.
  size_t match(const RawFrame* frame, size_t known) const {
    if (known == 0 || frames_[known - 1].frame == frame) return known;
    if (is_generators(frame)) {
      for (size_t i = known; i > 0; --i) {
        if (frames_[i - 1].frame == frame) return i;
      }
      return known;
    }
    while (known > 0 && (frames_[known - 1].is_generators || frames_[known - 1].frame > frame)) --known;
    return known;
  }
  static uint64_t place_of(const RawFrame* frame) { return place_in(instruction_of(frame), globals_of(frame)); }
  /// The place of a frame that runs a module, or free code, is stored with a mark: all others need one comparison.
  bool is_same_marked(const RawFrame* frame, size_t i) const {
    const Frame& known = frames_[i];
    if (place_of(frame) + kMark != places_[i + 1]) return false;
    if (known.is_free) return hash_of_name(globals_of(frame)) == known.name;
    if (first_local(frame) != known.module) return false;
    return !known.module || (Py_TYPE(known.module) == known.type && is_reborn(known.module) == known.is_reborn);
  }
  static LastWalk* make(void*& kept);
  uint64_t hash_all(RawFrame* innermost, const PyCodeObject* run_module);
  uint64_t hash_from(size_t changed, size_t size, RawFrame* innermost, const PyCodeObject* run_module);

  static constexpr uint64_t kMark = 1;  // places are even

  std::vector<uint64_t> places_;  // of frame i at i + 1; the first is none's, and ends the comparison
  std::vector<Frame> frames_;     // outermost first
  size_t size_ = 0;               // the number of these that are of the last walk
  uint64_t found_ = 0;            // free_codes_found at the last walk
};
#endif

}  // namespace amanda::python
