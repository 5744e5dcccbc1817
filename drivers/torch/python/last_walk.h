// The walk over this thread's frames that compares them with those of the walk before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "python/frames.h"
#include "python/path_hash.h"

namespace amanda::python {

#ifdef AMANDA_FRAME_LAYOUT
/// The frames of a thread's last walk. The next one compares each of its frames with them, and hashes again only from
/// the outermost one that differs: in a model, all but the inner ones stay as they are between two operators.
///
/// The hash is a function of what is compared (instructions and modules), never of where frames lie. The addresses of
/// frames only tell which are to be compared; they may be those of frames that are gone, and are never dereferenced.
class LastWalk {
 public:
  /// This thread's. Null: the thread ends. `kept`: where this thread keeps it; null at first.
  static LastWalk* here(void*& kept) { return kept ? static_cast<LastWalk*>(kept) : make(kept); }

  /// The hash of `innermost` and all outer frames. 0: null.
  uint64_t hash(RawFrame* innermost, const PyCodeObject* run_module) {
    // Frames lie on a stack, with the exception of generators'. What lies above the innermost one has returned.
    size_t known = size_, made = 0;
    RawFrame* frame = innermost;
    for (; frame; frame = outer_frame(frame), ++made) {
      known = match(frame, known);
      if (known > 0 && frames_[known - 1].frame == frame) break;
    }
    size_t changed = known;
    const uint64_t *first = instructions_.data(), *at = first + known;
    for (; frame; frame = outer_frame(frame), --at) {
      if (instruction_of(frame) == *at) continue;
      if (at == first) return hash_all(innermost, run_module);  // more frames than there were
      const size_t i = at - first - 1;
      if (!is_same_module(frame, i)) changed = i;
    }
    if (at != first) return hash_all(innermost, run_module);  // fewer
    if (made == 0 && changed == known && known == size_) return size_ > 0 ? frames_[size_ - 1].hash : 0;
    return hash_from(changed, known + made, innermost, run_module);
  }

 private:
  struct Frame {
    const RawFrame* frame;
    PyObject* module;  // null: none
    PyTypeObject* type;
    uint64_t hash;  // of this one and all outer ones
    bool is_generators, is_reborn;
  };

  /// How many of the first `known` frames may be outer to, or the same as, `frame`.
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
  /// The instruction of a frame that runs a module is stored with a mark: all others need one comparison.
  bool is_same_module(const RawFrame* frame, size_t i) const {
    PyObject* module = frames_[i].module;
    if (instruction_of(frame) + kModule != instructions_[i + 1] || first_local(frame) != module) return false;
    return !module || (Py_TYPE(module) == frames_[i].type && is_reborn(module) == frames_[i].is_reborn);
  }
  static LastWalk* make(void*& kept);
  uint64_t hash_all(RawFrame* innermost, const PyCodeObject* run_module);
  uint64_t hash_from(size_t changed, size_t size, RawFrame* innermost, const PyCodeObject* run_module);

  static constexpr uint64_t kModule = 1;  // instructions lie at even addresses

  std::vector<uint64_t> instructions_;  // of frame i at i + 1; the first is none's, and ends the comparison
  std::vector<Frame> frames_;           // outermost first
  size_t size_ = 0;                     // how many of these are of the last walk
};
#endif

}  // namespace amanda::python
