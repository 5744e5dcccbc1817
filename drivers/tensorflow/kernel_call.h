// One execution of a tap's node, as the core and Python see it.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "amanda/tensorflow.h"
#include "tap_node.h"
#include "tensor.h"

namespace amanda::tensorflow {

/// On the stack of the thread that runs the node. Tensors are fetched from TensorFlow when someone asks for one.
class KernelCall final : public python::OperatorCall, public TensorCall, NoCopy {
 public:
  /// `types`: of the node's results. `context`: null for a call of the original on other arguments.
  KernelCall(const TapNode& node, std::span<const DataType> types, TF_OpKernelContext* context);

  size_t size(Side side) const override { return node_.slots(side).size(); }
  Value get(Side side, size_t position) override;

  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override { held_.clear(); }

  PyObject* to_python(Side side, size_t position) override;
  void from_python(Side side, size_t position, PyObject* object, const std::function<void(Value)>& put) override;
  bool is_list(Side side, size_t position) override;
  bool is_operand(size_t position, PyObject* object) override;
  PyObject* call_original(PyObject* args) override;

  std::optional<TensorView> tensor(Value value) const override;
  std::vector<std::optional<TensorView>> tensors(Value value) const override;
  NewTensor allocate(DataType dtype, const IntVector& sizes) override;

  /// At the end: gives the node's results to TensorFlow.
  void emit();

 private:
  /// A tensor, of an operand or for one.
  struct Tensor final : python::NativeOperand {
    ValueInfo describe() const override;
    const TensorPtr& get() const { return number == Slot::kHidden ? tensor : call->fetched(number); }

    KernelCall* call = nullptr;
    int number = Slot::kHidden;  // of an argument that was not fetched yet, or else
    TensorPtr tensor;            // null if it was not fetched, or does not exist
  };
  struct List final : python::NativeOperand {
    ValueInfo describe() const override;

    KernelCall* call = nullptr;
    std::span<const int> numbers;
    std::vector<Tensor> own;  // of an edit; those without a tensor are kept
  };
  struct Held {
    size_t number;  // of a tensor
    TensorPtr tensor;
  };

  /// Null if there is none, as for a result before the node has run.
  const TensorPtr& fetched(int number) const;
  py::object shown(int number) const;
  void hold(int number, const TensorPtr& tensor);
  void check_result(size_t result, const TF_Tensor* tensor) const;
  void put_results(const py::object& results);

  const TapNode& node_;
  const std::span<const DataType> types_;
  TF_OpKernelContext* const context_;
  std::array<Tensor, 6> few_;
  std::vector<Tensor> many_;  // all of them, once they are more
  std::span<Tensor> tensors_;
  std::vector<List> lists_;                    // by position: inputs, then outputs; none if no operand is a list
  std::vector<std::unique_ptr<Tensor>> made_;  // by allocate()
  std::vector<Held> held_;
};

}  // namespace amanda::tensorflow
