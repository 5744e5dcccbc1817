#include "kernel_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "dtypes.h"
#include "python_bridge.h"

namespace amanda::tensorflow {
namespace {

using python::NativeOperand;

/// An operand that exists, but not for routines.
struct Hidden final : NativeOperand {
  ValueInfo describe() const override { return {.kind = ValueKind::kOther}; }
} hidden;

ValueInfo described(const TF_Tensor* tensor) {
  ValueInfo info{.kind = ValueKind::kTensor, .device = "cpu"};
  if (const Dtype* dtype = dtype_of(c_api().TF_TensorType(tensor))) info.dtype = dtype->name;
  info.sizes = sizes_of(tensor);
  info.bytes = static_cast<int64_t>(c_api().TF_TensorByteSize(tensor));
  return info;
}

bool same_form(const TF_Tensor* a, const TF_Tensor* b) {
  const CApi& api = c_api();
  const int rank = api.TF_NumDims(a);
  if (api.TF_TensorType(a) != api.TF_TensorType(b) || rank != api.TF_NumDims(b)) return false;
  for (int i = 0; i < rank; ++i) {
    if (api.TF_Dim(a, i) != api.TF_Dim(b, i)) return false;
  }
  return true;
}

}  // namespace

KernelCall::KernelCall(const TapNode& node, std::span<const DataType> types, TF_OpKernelContext* context)
    : OperatorCall(node.op()), node_(node), types_(types), context_(context) {
  const size_t count = node.num_tensors();
  if (count > few_.size()) many_.resize(count);
  tensors_ = count > few_.size() ? std::span(many_) : std::span(few_).first(count);
  for (size_t i = 0; i < count; ++i) {
    tensors_[i].call = this;
    tensors_[i].number = static_cast<int>(i);
  }
  if (!node.has_lists()) return;
  lists_.resize(size(Side::kInputs) + size(Side::kOutputs));
  for (Side side : {Side::kInputs, Side::kOutputs}) {
    for (size_t position = 0; position < size(side); ++position) {
      List& list = lists_[(side == Side::kOutputs ? size(Side::kInputs) : 0) + position];
      list.call = this;
      list.numbers = node.slots(side)[position].tensors;
    }
  }
}

// ---- operands -------------------------------------------------------------------------------------------------------

Value KernelCall::get(Side side, size_t position) {
  if (position >= size(side)) return {};
  const Slot& slot = node_.slots(side)[position];
  if (slot.tensors.empty()) {
    const bool exists = phase() == Phase::kForward && (side == Side::kInputs || node_.tap().point() == Point::kAfter);
    return exists ? hidden.value() : Value{};  // a gradient may be undefined
  }
  const auto first = std::find_if(slot.tensors.begin(), slot.tensors.end(),
                                  [](int number) { return number != Slot::kHidden; });  // of a list, some may be
  const bool not_yet =
      first != slot.tensors.end() && static_cast<size_t>(*first) >= node_.num_args() && !tensors_[*first].tensor;
  if (not_yet) return {};
  if (slot.is_list) return lists_[(side == Side::kOutputs ? size(Side::kInputs) : 0) + position].value();
  return tensors_[slot.tensors[0]].value();
}

const TensorPtr& KernelCall::fetched(int number) const {
  Tensor& known = tensors_[number];
  if (!known.tensor && context_ && static_cast<size_t>(number) < node_.num_args()) {
    TF_Tensor* fetched = nullptr;
    c_api().TF_GetInput(context_, number, &fetched, status_here());
    check_status("TF_GetInput");
    known.tensor = owned(fetched);
  }
  return known.tensor;
}

ValueInfo KernelCall::Tensor::describe() const {
  const TensorPtr& known = get();
  return known ? described(known.get()) : ValueInfo{};
}

ValueInfo KernelCall::List::describe() const {
  ValueInfo info{.kind = ValueKind::kTensors};
  for (size_t i = 0; i < numbers.size(); ++i) {
    info.elements.push_back(numbers[i] == Slot::kHidden ? ValueInfo{} : call->tensors_[numbers[i]].describe());
    const ValueInfo& one = info.elements.back();
    info.dtype = i == 0 || info.dtype == one.dtype ? one.dtype : "";
    info.bytes += one.bytes;
  }
  return info;
}

// ---- edits ----------------------------------------------------------------------------------------------------------

void KernelCall::hold(int number, const TensorPtr& tensor) {
  if (static_cast<size_t>(number) >= node_.num_args()) {
    check_result(number - node_.num_args(), tensor.get());
  } else if (const TensorPtr& now = fetched(number); !same_form(tensor.get(), now.get())) {
    throw Error(fmt::format("{} where {} is needed", text_of(tensor.get()), text_of(now.get())));
  }
  held_.push_back({static_cast<size_t>(number), tensor});
}

// The type and the shape that the graph has for a replacement's result must be true: kernels after it rely on them.
void KernelCall::check_result(size_t result, const TF_Tensor* tensor) const {
  const DataType type = types_[result];
  const std::optional<IntVector>& shape = node_.shapes()[result];
  const IntVector sizes = sizes_of(tensor);
  bool fits = c_api().TF_TensorType(tensor) == type;
  if (shape && context_) {  // another call of the original may be of any shape
    fits &= shape->size() == sizes.size() && std::equal(shape->begin(), shape->end(), sizes.begin(),
                                                        [](auto a, auto b) { return a == kUnknown || a == b; });
  }
  if (fits) return;
  throw Error(fmt::format("{} where {} is needed", text_of(tensor), shape ? text_of(type, *shape) : name_of(type)));
}

void KernelCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
  const Slot& slot = node_.slots(side)[position];
  if (!node_.can_edit(side, position)) {
    if (!value.ref && phase() == Phase::kBackward) return;  // no gradient, where there is none
    throw Error("this operand cannot be replaced in TensorFlow's graph");
  }
  NativeOperand* operand = NativeOperand::of(value);
  if (auto* list = dynamic_cast<List*>(operand); list && slot.is_list) {
    const size_t given = list->own.empty() ? list->numbers.size() : list->own.size();
    if (given != slot.tensors.size()) {
      throw Error(fmt::format("a list of {} where one of {} is needed", given, slot.tensors.size()));
    }
    for (size_t i = 0; i < given; ++i) {
      if (slot.tensors[i] == Slot::kHidden) continue;
      const TensorPtr& member = list->own.empty() ? fetched(list->numbers[i]) : list->own[i].tensor;
      if (member) hold(slot.tensors[i], member);
    }
    return;
  }
  auto* given = dynamic_cast<Tensor*>(operand);
  if (!given || slot.is_list) {
    throw Error(fmt::format("{} where {} is needed",
                            !value.ref ? "None"
                            : given    ? "one tensor"
                                       : "no tensor",
                            slot.is_list ? "a list of tensors" : "a tensor"));
  }
  hold(slot.tensors[0], given->get());
}

void KernelCall::commit() {
  for (Held& held : held_) tensors_[held.number].tensor = std::move(held.tensor);
  held_.clear();
}

// ---- the original ---------------------------------------------------------------------------------------------------

void KernelCall::run(RunHints) {
  if (node_.tap().point() != Point::kReplace) return;
  py::gil_scoped_acquire gil;
  const auto original = py::reinterpret_borrow<py::object>(node_.original);
  if (!original) {
    throw Error(
        fmt::format("[tensorflow] the original of {} is gone, with the graph that was made for its tools; leave "
                    "the graph with the scope, or keep both",
                    backend().info(type()).name));
  }
  py::tuple inputs(size(Side::kInputs));
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = py::reinterpret_steal<py::object>(to_python(Side::kInputs, i));
  put_results(original(*inputs));
}

void KernelCall::put_results(const py::object& results) {
  const size_t count = size(Side::kOutputs);
  py::list all;
  const bool bare = count == 1 && !PyTuple_Check(results.ptr());
  if (bare) {
    all.append(results);
  } else {
    all = py::list(results);
  }
  if (all.size() != count) {
    throw Error(fmt::format("[tensorflow] the driver '{}' returned {} results of {}, which has {}",
                            backend().name_space(), all.size(), backend().info(type()).name, count));
  }
  for (size_t i = 0; i < count; ++i) {
    const Slot& slot = node_.slots(Side::kOutputs)[i];
    if (slot.tensors.empty()) continue;
    const py::object result = all[i];
    for (size_t j = 0; j < slot.tensors.size(); ++j) {
      if (slot.tensors[j] == Slot::kHidden) continue;
      tensors_[slot.tensors[j]].tensor = copy_of(slot.is_list ? py::object(result[py::int_(j)]) : result);
    }
  }
}

void KernelCall::skip(RunHints) {
  for (size_t position = 0; position < size(Side::kOutputs); ++position) {
    for (int number : node_.slots(Side::kOutputs)[position].tensors) {
      const bool is_set = number == Slot::kHidden || std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
                            return held.number == static_cast<size_t>(number);
                          });
      if (!is_set) throw Error(fmt::format("result {} was not set", position));
    }
  }
}

void KernelCall::emit() {
  const CApi& api = c_api();
  TF_Status* status = status_here();
  const std::vector<size_t>& results = node_.results();
  for (size_t i = 0; i < results.size(); ++i) {
    TF_Tensor* result = tensors_[results[i]].tensor.get();
    TF_Tensor* passed = nullptr;
    if (!result && results[i] < node_.num_args()) {
      api.TF_GetInput(context_, static_cast<int>(results[i]), &passed, status);
      check_status("TF_GetInput");
      result = passed;
    }
    if (!result) throw Error("[tensorflow] a result is missing");
    api.TF_SetOutput(context_, static_cast<int>(i), result, status);
    if (passed) api.TF_DeleteTensor(passed);
    check_status("TF_SetOutput");
  }
}

// ---- C++ tools ------------------------------------------------------------------------------------------------------

std::optional<TensorView> KernelCall::tensor(Value value) const {
  const auto* operand = dynamic_cast<const Tensor*>(NativeOperand::of(value));
  const TF_Tensor* known = operand ? operand->get().get() : nullptr;
  if (!known || !dtype_of(c_api().TF_TensorType(known))) return std::nullopt;
  return TensorView{c_api().TF_TensorType(known), sizes_of(known), c_api().TF_TensorData(known),
                    c_api().TF_TensorByteSize(known)};
}

std::vector<std::optional<TensorView>> KernelCall::tensors(Value value) const {
  std::vector<std::optional<TensorView>> members;
  const auto* list = dynamic_cast<const List*>(NativeOperand::of(value));
  if (!list) return members;
  for (int number : list->numbers) {
    members.push_back(number == Slot::kHidden ? std::nullopt : tensor(tensors_[number].value()));
  }
  return members;
}

NewTensor KernelCall::allocate(DataType dtype, const IntVector& sizes) {
  auto made = std::make_unique<Tensor>();
  made->call = this;
  made->tensor = tensorflow::allocate(dtype, sizes);
  made_.push_back(std::move(made));
  return {c_api().TF_TensorData(made_.back()->tensor.get()), made_.back()->value()};
}

// ---- Python ---------------------------------------------------------------------------------------------------------

py::object KernelCall::shown(int number) const {
  if (number == Slot::kHidden) return py::none();
  const TensorPtr& known = fetched(number);
  return known ? array_of(known) : py::none();
}

PyObject* KernelCall::to_python(Side side, size_t position) {
  if (position >= size(side)) return Py_NewRef(Py_None);
  const Slot& slot = node_.slots(side)[position];
  if (slot.tensors.empty()) return Py_NewRef(Py_None);
  if (!slot.is_list) return shown(slot.tensors[0]).release().ptr();
  py::list members;
  for (int number : slot.tensors) members.append(shown(number));
  return members.release().ptr();
}

void KernelCall::from_python(Side side, size_t position, PyObject* object, const std::function<void(Value)>& put) {
  if (object == Py_None) return put({});
  const Slot* slot = position < size(side) ? &node_.slots(side)[position] : nullptr;
  const auto convert = [&](py::handle from, int number) {
    Tensor converted;
    converted.call = this;
    const bool is_same =
        number != Slot::kHidden && static_cast<size_t>(number) < node_.num_args() && is_array_of(from, fetched(number));
    converted.tensor = is_same ? fetched(number) : copy_of(from);
    return converted;
  };
  if (!slot || !slot->is_list) {
    Tensor converted = convert(object, slot && !slot->tensors.empty() ? slot->tensors[0] : Slot::kHidden);
    return put(converted.value());
  }
  if (!PyList_Check(object) && !PyTuple_Check(object)) {
    throw python::ConversionError(
        fmt::format("{} where a list of arrays is needed", std::string(Py_TYPE(object)->tp_name)));
  }
  List list;
  list.call = this;
  const auto members = py::reinterpret_borrow<py::sequence>(object);
  for (size_t i = 0; i < members.size(); ++i) {
    const py::object member = members[i];
    const int number = i < slot->tensors.size() ? slot->tensors[i] : Slot::kHidden;
    list.own.push_back(member.is_none() ? Tensor() : convert(member, number));
  }
  put(list.value());
}

bool KernelCall::is_list(Side side, size_t position) {
  return position < size(side) && node_.slots(side)[position].is_list;
}

bool KernelCall::is_operand(size_t position, PyObject* object) {
  const Slot& slot = node_.slots(Side::kInputs)[position];
  if (slot.is_list || slot.tensors.empty()) return false;
  const TensorPtr& known = fetched(slot.tensors[0]);
  return known && is_array_of(object, known);
}

PyObject* KernelCall::call_original(PyObject* args) {
  KernelCall call(node_, types_, nullptr);
  const auto given = py::reinterpret_borrow<py::tuple>(args);
  for (size_t i = 0; i < given.size(); ++i) {
    const Slot& slot = node_.slots(Side::kInputs)[i];
    const py::object argument = given[i];
    for (size_t j = 0; j < slot.tensors.size(); ++j) {
      if (slot.tensors[j] == Slot::kHidden) continue;
      const py::object from = slot.is_list ? py::object(argument[py::int_(j)]) : argument;
      const TensorPtr& own = fetched(slot.tensors[j]);
      call.tensors_[slot.tensors[j]].tensor = own && is_array_of(from, own) ? own : copy_of(from);
    }
  }
  Engine::call_original(call);
  return call.results_to_python();
}

}  // namespace amanda::tensorflow
