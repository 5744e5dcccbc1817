// Tensors that are remembered without being kept alive.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <variant>

namespace amanda::pytorch {

/// Of one tensor: tells when it dies. In a Python program no weak reference may do that, in C++ or in Python:
/// torch.utils.swap_tensors refuses tensors that have one.
class Lifetime {
 public:
  /// The tensor's: all callers share one. It is kept where the tensor keeps its forward gradients, in an empty record
  /// of them, which is what PyTorch itself leaves there after a dual level.
  static std::shared_ptr<Lifetime> of(const at::TensorBase& tensor);

  /// `died` is called when the tensor dies, on the thread that frees it, with or without the interpreter lock.
  void tell(void (*died)(const c10::TensorImpl*));

  bool over() const;

  /// What `fn(c10::TensorImpl&)` returns, if the tensor is alive. Meanwhile its memory is not freed; but a thread may
  /// be about to free it, so this alone does not allow to take a reference.
  template <class Fn>
  at::Tensor if_alive(const Fn& fn) const {
    std::lock_guard lock(mutex_);
    return tensor_ ? fn(*tensor_) : at::Tensor();
  }

 private:
  struct End;

  mutable std::mutex mutex_;
  c10::TensorImpl* tensor_ = nullptr;  // null: it is dead
  void (*died_)(const c10::TensorImpl*) = nullptr;
};

/// In a Python program by its Lifetime, elsewhere a weak reference.
class WeakTensor {
 public:
  explicit WeakTensor(const at::Tensor& tensor);
  bool expired() const;
  /// Undefined: it is dead. In a Python program, a tensor without a Python object is not given itself, but another
  /// without gradients on its memory; undefined too if it is not dense.
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
    std::unique_ptr<Memory> memory;  // null: not dense
  };
  using Reference = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::variant<InPython, Reference> tensor_;
};

}  // namespace amanda::pytorch
