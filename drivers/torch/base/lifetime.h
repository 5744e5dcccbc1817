// Tensors that are remembered without being kept alive.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <variant>

namespace amanda::pytorch {

/// Reports the death of one tensor. In a Python program weak references cannot be used for this, neither C++ nor Python
/// ones: torch.utils.swap_tensors refuses tensors that have one.
class Lifetime {
 public:
  /// The tensor's Lifetime, which all callers share. It is stored with the tensor's forward gradients, as an empty
  /// record. PyTorch itself leaves such a record there after a dual level.
  static std::shared_ptr<Lifetime> of(const at::TensorBase& tensor);

  /// `died` is called when the tensor dies, on the thread that frees it, with or without the interpreter lock.
  void tell(void (*died)(const c10::TensorImpl*));

  bool over() const;

  /// The result of `fn(c10::TensorImpl&)`, if the tensor is alive. Its memory is not freed during the call; but another
  /// thread may be about to free it, so `fn` must not simply take a reference.
  template <class Fn>
  at::Tensor if_alive(const Fn& fn) const {
    std::lock_guard lock(mutex_);
    return tensor_ ? fn(*tensor_) : at::Tensor();
  }

 private:
  struct End;

  mutable std::mutex mutex_;
  c10::TensorImpl* tensor_ = nullptr;  // null if it is dead
  void (*died_)(const c10::TensorImpl*) = nullptr;
};

/// Uses a Lifetime in a Python program, and a weak reference elsewhere.
class WeakTensor {
 public:
  explicit WeakTensor(const at::Tensor& tensor);
  bool expired() const;
  /// The tensor; undefined if it is dead. In a Python program, a tensor without a Python object is not returned itself,
  /// but as another tensor on its memory, without gradients; undefined if it is not dense.
  at::Tensor lock() const;

 private:
  // Enough to make another tensor on the same memory.
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::DispatchKeySet keys;
    caffe2::TypeMeta dtype;
    c10::DimVector sizes, strides;
    int64_t offset;
    c10::VariableVersion version;

    at::Tensor tensor() const;
  };
  struct InPython {
    std::shared_ptr<Lifetime> lifetime;
    std::unique_ptr<Memory> memory;  // null if not dense
  };
  using Reference = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::variant<InPython, Reference> tensor_;
};

}  // namespace amanda::pytorch
