// The identities of calls in models, which are the same wherever the model is called.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/python_hooks.h"
#include "python/identity/naming.h"

namespace amanda::python {

// NOTE: [calls in models] The raw path of a call has all frames. A model that is called at another line, as in each new
// scope, has other raw paths, although its ids are the same: the path that an id is made of ends at the outermost
// module that has state, or at a checkpoint. Where neither is outside the outermost running module, the id depends only
// on the frames inside that module. So before Python names a call, it is looked up by these frames and its operands'
// numbers. It is named again if a frame outside has no step yet, is a checkpoint's, or lends the model its tensors. The
// source is the first line outside of torch, which may be a frame's outside the model.

/// The identities of calls in models by their frames inside the model. With the interpreter lock.
class ModelCalls {
 public:
  /// The place of this thread in a model. The key is 0 if it is in none, if the frames outside may change the id, or if
  /// a frame has no step yet.
  struct Place {
    uint64_t frames = 0, key = 0, epoch = 0;
    std::string source;             // of the frames outside
    bool source_is_inside = false;  // the frames inside have one, which counts

    /// Updates the place after operands may have got numbers.
    void note(const std::vector<pytorch::TensorOperand>& tensors);
  };
  static Place here(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors,
                    const PyCodeObject* run_module);

  /// Returns false if the call is not known.
  bool find(const Place& place, Identified& found) const;
  void add(const Place& place, const Identified& call);

 private:
  struct Known {
    uint64_t epoch;
    Identified call;  // the source is empty if the frames outside have it
  };
  std::unordered_map<uint64_t, Known> known_;
};

}  // namespace amanda::python
