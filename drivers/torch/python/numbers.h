// Which tensors count as parameters, and the numbers by which the driver tells them apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "amanda/mutex.h"

namespace amanda::python {

/// Tags of objects by address: read without a lock or the interpreter's, while others write. A seqlock over an open
/// hash table without gravestones.
class TagTable {
 public:
  /// 0: none.
  uint64_t find(const void* object) const;
  void set(const void* object, uint64_t tag);
  uint64_t erase(const void* object);  // returns the tag it had

 private:
  struct Slot {
    std::atomic<const void*> object{nullptr};
    std::atomic<uint64_t> tag{0};
  };
  struct Slots {
    explicit Slots(int bits) : bits(bits), slots(size_t{1} << bits) {}
    size_t home(const void* object) const;
    size_t next(size_t i) const { return (i + 1) & (slots.size() - 1); }
    void put(const void* object, uint64_t tag);

    int bits;
    std::vector<Slot> slots;
  };
  class Change;
  void grow();

  Mutex mutex_;                              // writers
  std::atomic<uint64_t> changes_{0};         // odd: one is being made
  std::atomic<Slots*> slots_{nullptr};       // the last of all_
  std::vector<std::unique_ptr<Slots>> all_;  // readers may still look into an outgrown one: together no larger than it
  size_t size_ = 0;
};

/// For python_hooks.tag: see there. `parameter_class` is nn.Parameter.
void install_numbers(PyObject* parameter_class);

/// The tensor's number, 0 if it has none.
uint64_t number_of(const at::Tensor& tensor);
/// Gives a tensor the next number, in the place of the one it has; `counts`: as a parameter whatever its type and
/// `requires_grad` say. The number is gone when the tensor dies.
uint64_t give_number(const at::Tensor& tensor, bool counts);
/// Takes a number from its tensor, if that is alive.
void take_number(uint64_t number);
/// torch.utils.swap_tensors has exchanged what two Python objects stand for: their numbers stay with the objects.
void exchange_numbers(const at::Tensor& a, const at::Tensor& b);
/// Numbers of tensors that died since the last call.
std::vector<uint64_t> dead_numbers();

}  // namespace amanda::python
