#include "flops/flops.h"

#include <c10/util/DimVector.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "amanda/torch.h"
#include "flops/formulas.h"

namespace amanda::tools {
namespace {

using c10::DimVector;

enum class Family : uint8_t { kMatmul, kConvolution, kConvolutionBackward, kAttention };

struct Formula {
  Family family;
  int64_t first;  // the position of the first operand, or of its gradient
};
using Formulas = std::map<std::string, Formula>;

// The innermost operators, as `linear`, `matmul`, `einsum`, `conv2d` and the rest are made of them.
const Formulas kForward = {
    {"mm", {Family::kMatmul, 0}},
    {"bmm", {Family::kMatmul, 0}},
    {"addmm", {Family::kMatmul, 1}},
    {"baddbmm", {Family::kMatmul, 1}},
    {"_scaled_mm", {Family::kMatmul, 0}},
    {"convolution", {Family::kConvolution, 0}},
    {"_convolution", {Family::kConvolution, 0}},
    {"convolution_overrideable", {Family::kConvolution, 0}},
    {"convolution_backward", {Family::kConvolutionBackward, 0}},
    {"_scaled_dot_product_flash_attention", {Family::kAttention, 0}},
    {"_scaled_dot_product_efficient_attention", {Family::kAttention, 0}},
    {"_scaled_dot_product_cudnn_attention", {Family::kAttention, 0}},
};
const Formulas kBackward = {
    {"MmBackward0", {Family::kMatmul, 0}},
    {"BmmBackward0", {Family::kMatmul, 0}},
    {"AddmmBackward0", {Family::kMatmul, 1}},
    {"BaddbmmBackward0", {Family::kMatmul, 1}},
    {"ConvolutionBackward0", {Family::kConvolution, 0}},
    {"ConvolutionOverrideableBackward0", {Family::kConvolution, 0}},
    {"ScaledDotProductFlashAttentionBackward0", {Family::kAttention, 0}},
    {"ScaledDotProductEfficientAttentionBackward0", {Family::kAttention, 0}},
    {"ScaledDotProductCudnnAttentionBackward0", {Family::kAttention, 0}},
};
constexpr const char* kCpuAttention = "_scaled_dot_product_flash_attention_for_cpu";
constexpr const char* kCpuAttentionBackward = "ScaledDotProductFlashAttentionForCpuBackward0";
constexpr Formula kAttention = {Family::kAttention, 0};

std::optional<Formula> find(const Formulas& formulas, const std::string& name) {
  const auto found = formulas.find(name);
  return found == formulas.end() ? std::nullopt : std::optional(found->second);
}

// FlopCounterMode has no formula for what is done in place, but counts its backward operators.
std::vector<std::string> forward_types(bool in_place) {
  std::vector<std::string> types = {std::string("aten::") + kCpuAttention};
  for (const auto& [name, formula] : kForward) types.push_back("aten::" + name);
  if (in_place) types.insert(types.end(), {"aten::addmm_", "aten::baddbmm_"});
  return types;
}

// Null: not a tensor, or one whose sizes are no plain numbers. Formulas run before the operator has checked anything:
// what it is going to refuse must do no harm.
const at::Tensor* sized(Value value) {
  if (!pytorch::is_tensor(value)) return nullptr;
  const at::Tensor& tensor = pytorch::ivalue(value).toTensor();
  const bool plain = !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  return plain ? &tensor : nullptr;
}

Sizes span(c10::IntArrayRef sizes) { return {sizes.data(), sizes.size()}; }

// A list of the operator's, of one element for each spatial dimension or for all.
class PerDimension {
 public:
  explicit PerDimension(Value value) {
    if (const c10::IValue& list = pytorch::ivalue(value); list.isIntList()) list_ = list.toDimVector();
  }
  bool fits(size_t dimensions) const { return list_.size() == 1 || list_.size() == dimensions; }
  int64_t operator[](size_t i) const { return list_.size() == 1 ? list_[0] : list_[i]; }

 private:
  DimVector list_;
};

struct Convolution {
  DimVector output;
  bool transposed;
  int64_t groups;
};

// `values`: stride, padding, dilation, transposed, output_padding, groups from `first` on.
std::optional<Convolution> convolution(const Values& values, size_t first, c10::IntArrayRef input,
                                       c10::IntArrayRef weight) {
  const PerDimension stride(values[first]), padding(values[first + 1]), dilation(values[first + 2]);
  const bool transposed = pytorch::ivalue(values[first + 3]).toBool();
  const PerDimension output_padding(values[first + 4]);
  const int64_t groups = pytorch::ivalue(values[first + 5]).toInt();
  if (input.size() < 3 || weight.size() != input.size()) return std::nullopt;
  for (const PerDimension* list : {&stride, &padding, &dilation, &output_padding}) {
    if (!list->fits(input.size() - 2)) return std::nullopt;
  }
  DimVector output{input[0], transposed ? weight[1] * groups : weight[0]};
  for (size_t i = 0; i + 2 < input.size(); ++i) {
    if (stride[i] <= 0) return std::nullopt;
    const int64_t length = input[i + 2], reach = dilation[i] * (weight[i + 2] - 1) + 1;
    output.push_back(transposed ? (length - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i]
                                : (length + 2 * padding[i] - reach) / stride[i] + 1);
  }
  return Convolution{std::move(output), transposed, groups};
}

// Per thread and tool: was something counted since the outermost operator before this one? A byte for each tool made.
uint8_t& counted_inside(size_t index) {
  thread_local std::vector<uint8_t> flags;
  if (index >= flags.size()) flags.resize(index + 1);
  return flags[index];
}

bool is_view(const OpInfo& op) {
  const size_t returns = op.schema.rfind("->");
  return returns != std::string::npos && op.schema.find("(a)", returns) != std::string::npos;
}

// What the backward operators of one place need to know of its runs. Neither a stride nor a filter's size shows in the
// gradients: a run is found again by its shapes, the latest among equals.
class ForwardRuns {
 public:
  struct Run {
    std::array<DimVector, 3> inputs;  // an empty one is not compared
    DimVector output;
    int64_t flops;   // of a convolution: forward; of attention: backward
    int64_t groups;  // of a convolution

    bool operator==(const Run&) const = default;
  };

  void note(Run run) {
    std::lock_guard lock(mutex_);
    if (!runs_.empty() && runs_.back() == run) return;
    std::erase(runs_, run);
    if (runs_.size() == kMaxRuns) runs_.erase(runs_.begin());
    runs_.push_back(std::move(run));
  }

  template <class Fits>
  std::optional<Run> find(const Fits& fits) const {
    std::lock_guard lock(mutex_);
    for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
      if (fits(*run)) return *run;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kMaxRuns = 64;  // of different shapes, between a forward run and its backward one
  mutable Mutex mutex_;
  std::vector<Run> runs_;
};

}  // namespace

std::vector<FlopCounts::Row> FlopCounts::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const auto& [key, place] : places_) {
    const auto& [op, module_path, backward] = key;
    if (place.runs_) rows.push_back({op, module_path, backward, place.runs_, place.flops_});
  }
  return rows;
}

int64_t FlopCounts::total() const {
  int64_t total = 0;
  for (const Row& row : rows()) total += row.flops;
  return total;
}

std::map<std::string, int64_t> FlopCounts::by_operator() const {
  std::map<std::string, int64_t> flops;
  for (const Row& row : rows()) flops[row.op] += row.flops;
  return flops;
}

std::map<std::string, int64_t> FlopCounts::by_module() const {
  std::map<std::string, int64_t> flops;
  for (const Row& row : rows()) {
    std::string path = row.module_path;
    flops[path] += row.flops;
    while (!path.empty()) {
      const size_t dot = path.rfind('.');
      path.resize(dot == std::string::npos ? 0 : dot);
      flops[path] += row.flops;
    }
  }
  return flops;
}

std::map<std::string, int64_t> FlopCounts::uncounted() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, int64_t> runs;
  for (const auto& [op, place] : uncounted_) {
    if (place.runs_) runs[op] = place.runs_;
  }
  return runs;
}

void FlopCounts::reset() {  // routines hold places: none goes
  std::lock_guard lock(mutex_);
  for (auto& [key, place] : places_) place.runs_ = place.flops_ = 0;
  for (auto& [op, place] : uncounted_) place.runs_ = 0;
}

FlopCounts::Place& FlopCounts::place(const std::string& op, const std::string& module_path, bool backward) {
  std::lock_guard lock(mutex_);
  return places_[{op, module_path, backward}];
}

FlopCounts::Place& FlopCounts::uncounted_place(const std::string& op) {
  std::lock_guard lock(mutex_);
  return uncounted_[op];
}

// Looks through composite operators at those that have a formula.
class Flops::Counter final : public Tool {
 public:
  Counter(size_t index, bool cpu_attention, std::shared_ptr<FlopCounts> counts)
      : Tool("flops.counter"), index_(index), cpu_attention_(cpu_attention), counts_(std::move(counts)) {
    add_inst_for_op([this](OpContext& context) { analyze(context); }, {.ops = OpFilter(forward_types(false))});
    add_inst_for_op([this](OpContext& context) { analyze_backward(context); },
                    {.backward = true, .ops = OpFilter(forward_types(true))});
  }

 private:
  void analyze(OpContext& context);
  void analyze_backward(OpContext& context);
  /// `formula` returns nothing where the operands are of a kind that it is not for.
  void count(OpContext& context, Positions inputs, std::function<std::optional<int64_t>(Values&)> formula);

  std::shared_ptr<ForwardRuns> forward_runs(OpId id) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<ForwardRuns>& runs = forward_runs_[id];
    if (!runs) runs = std::make_shared<ForwardRuns>();
    return runs;
  }

  const size_t index_;  // of the flag in counted_inside()
  const bool cpu_attention_;
  const std::shared_ptr<FlopCounts> counts_;
  Mutex mutex_;  // of the map
  std::map<OpId, std::shared_ptr<ForwardRuns>> forward_runs_;
};

// What is left is listed by a dependent tool: it sees the outermost operators, and looks after they were counted.
Flops::Flops(FlopsOptions options) : Tool("flops") {
  static std::atomic<size_t> made{0};
  const size_t index = made++;
  counter_ = std::make_unique<Counter>(index, options.cpu_attention, counts_);
  depends_on(*counter_);
  if (!options.uncounted) return;
  add_inst_for_op([index, counts = counts_](OpContext& context) {
    const OpInfo& op = context.op();
    if (is_view(op)) return;
    context.insert_after_op(
        [index, counts, &place = counts->uncounted_place(op.ns + "::" + op.name)](Values&) {
          if (!std::exchange(counted_inside(index), false)) place.add(0);
        },
        {.outputs = Positions::none()});
  });
}

Flops::~Flops() = default;

void Flops::Counter::analyze(OpContext& context) {
  const std::string& name = context.op().name;
  const auto formula = name == kCpuAttention && cpu_attention_ ? kAttention : find(kForward, name);
  if (!formula) return;
  switch (formula->family) {
    case Family::kMatmul:
      count(context, {formula->first, formula->first + 1}, [](Values& values) -> std::optional<int64_t> {
        const at::Tensor *a = sized(values[0]), *b = sized(values[1]);
        if (!a || !b || a->dim() < 2 || b->dim() < 2) return std::nullopt;
        return matmul_flops(span(a->sizes()), span(b->sizes()));
      });
      break;
    case Family::kConvolution:
      count(context, {"input", "weight", "stride", "padding", "dilation", "transposed", "output_padding", "groups"},
            [runs = forward_runs(context.op_id())](Values& values) -> std::optional<int64_t> {
              const at::Tensor *input = sized(values[0]), *weight = sized(values[1]);
              if (!input || !weight) return std::nullopt;
              auto made = convolution(values, 2, input->sizes(), weight->sizes());
              if (!made) return std::nullopt;
              const int64_t flops =
                  convolution_flops(span(input->sizes()), span(weight->sizes()), span(made->output), made->transposed);
              runs->note({{DimVector(input->sizes()), DimVector(weight->sizes())},
                          std::move(made->output),
                          flops,
                          made->groups});
              return flops;
            });
      break;
    case Family::kConvolutionBackward:
      count(context, {"grad_output", "input", "weight", "transposed", "groups", "output_mask"},
            [](Values& values) -> std::optional<int64_t> {
              const at::Tensor *grad = sized(values[0]), *input = sized(values[1]), *weight = sized(values[2]);
              if (!grad || !input || !weight || grad->dim() < 3 || input->dim() < 3) return std::nullopt;
              const int64_t flops = convolution_flops(span(input->sizes()), span(weight->sizes()), span(grad->sizes()),
                                                      pytorch::ivalue(values[3]).toBool());
              const auto mask = pytorch::ivalue(values[5]).toBoolList();
              if (mask.size() != 3) return std::nullopt;
              return convolution_backward_flops(flops, pytorch::ivalue(values[4]).toInt(), mask[0], mask[1]);
            });
      break;
    case Family::kAttention:
      count(context, {"query", "key", "value"},
            [runs = forward_runs(context.op_id())](Values& values) -> std::optional<int64_t> {
              const at::Tensor *query = sized(values[0]), *key = sized(values[1]), *value = sized(values[2]);
              if (!query || !key || !value || query->dim() != 4 || value->dim() != 4) return std::nullopt;
              DimVector output(query->sizes());
              output.back() = value->sizes().back();
              runs->note({{DimVector(query->sizes()), DimVector(key->sizes()), DimVector(value->sizes())},
                          std::move(output),
                          attention_backward_flops(span(query->sizes()), span(value->sizes())),
                          1});
              return attention_flops(span(query->sizes()), span(value->sizes()));
            });
      break;
  }
}

// What raises does not count: non-reentrant checkpointing ends a recomputation by an exception in its last operator.
void Flops::Counter::count(OpContext& context, Positions inputs,
                           std::function<std::optional<int64_t>(Values&)> formula) {
  struct Count {
    std::optional<int64_t> flops;
  };
  context.insert_before_op(
      [formula = std::move(formula)](Values& values) { values.run<Count>().flops = formula(values); },
      {.inputs = std::move(inputs)});
  context.insert_after_op(
      [index = index_, counts = counts_,
       &place = counts_->place("aten::" + context.op().name, context.module_path(), false)](Values& values) {
        const std::optional<int64_t> flops = values.run<Count>().flops;
        if (!flops) return;
        counted_inside(index) = true;
        place.add(*flops);
      },
      {.outputs = Positions::none()});
}

void Flops::Counter::analyze_backward(OpContext& context) {
  const std::string& name = context.backward_op()->name;
  if (name.ends_with("BackwardBackward0")) {
    context.insert_before_backward_op(
        [counts = counts_, &place = counts_->uncounted_place(name)](Values&) { place.add(0); },
        {.grad_outputs = Positions::none()});
    return;
  }
  const auto formula = name == kCpuAttentionBackward && cpu_attention_ ? kAttention : find(kBackward, name);
  if (!formula) return;

  struct GradOutput {
    DimVector sizes;  // empty: undefined
  };
  context.insert_before_backward_op(
      [](Values& values) {
        if (const at::Tensor* grad = sized(values[0])) values.run<GradOutput>().sizes = grad->sizes();
      },
      {.grad_outputs = {0}});

  auto count = [counts = counts_, &place = counts_->place(name, context.module_path(), true)](int64_t flops) {
    place.add(flops);
  };
  // A gradient that nobody needs is undefined, and nothing was computed for it.
  if (formula->family == Family::kMatmul) {
    context.insert_after_backward_op(
        [count](Values& values) {
          const DimVector& grad = values.run<GradOutput>().sizes;
          const at::Tensor *a = sized(values[0]), *b = sized(values[1]);
          if (grad.empty() || (!a && !b)) return;
          count((a ? matmul_grad_a_flops(span(a->sizes()), span(grad)) : 0) +
                (b ? matmul_grad_b_flops(span(b->sizes()), span(grad)) : 0));
        },
        {.grad_inputs = {formula->first, formula->first + 1}});
    return;
  }
  const bool is_convolution = formula->family == Family::kConvolution;
  auto routine = [count, is_convolution, runs = forward_runs(context.op_id()), counts = counts_,
                  &unknown = counts_->uncounted_place(name)](Values& values) {
    const DimVector& grad = values.run<GradOutput>().sizes;
    std::array<const at::Tensor*, 3> found{};
    for (size_t i = 0; i < values.size(); ++i) found[i] = sized(values[i]);
    if (grad.empty() || found == decltype(found){}) return;
    const auto run = runs->find([&](const ForwardRuns::Run& run) {
      bool fits = run.output == grad;
      for (size_t i = 0; i < found.size() && fits; ++i) {
        fits = !found[i] || c10::IntArrayRef(run.inputs[i]) == found[i]->sizes();
      }
      return fits;
    });
    if (!run) {
      unknown.add(0);
    } else if (is_convolution) {
      count(convolution_backward_flops(run->flops, run->groups, found[0], found[1]));
    } else {
      count(run->flops);
    }
  };
  context.insert_after_backward_op(routine, {.grad_inputs = is_convolution ? Positions{0, 1} : Positions{0, 1, 2}});
}

}  // namespace amanda::tools
