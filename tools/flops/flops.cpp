#include "flops/flops.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "amanda/error.h"
#include "flops/bilinear_counter.h"
#include "flops/formulas.h"
#include "flops/forward_runs.h"
#include "flops/operator_flops.h"

namespace amanda::tools {
namespace {

enum class Family : uint8_t { kMatmul, kConvolution, kConvolutionBackward, kAttention };

struct Formula {
  Family family;
  int64_t first;  // the position of the first operand, or of its gradient
};
using Formulas = std::map<std::string, Formula>;

// The innermost operators, which `linear`, `matmul`, `einsum`, `conv2d` and the rest consist of.
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

// FlopCounterMode has no formula for in-place operators, but counts their backward operators.
std::vector<std::string> forward_types(bool in_place) {
  std::vector<std::string> types = tensorflow_operators();
  types.push_back(std::string("aten::") + kCpuAttention);
  for (const auto& [name, formula] : kForward) types.push_back("aten::" + name);
  if (in_place) types.insert(types.end(), {"aten::addmm_", "aten::baddbmm_"});
  return types;
}

// Per thread and tool: was something counted since the previous outermost operator? One byte per tool.
uint8_t& counted_inside(size_t index) {
  thread_local std::vector<uint8_t> flags;
  if (index >= flags.size()) flags.resize(index + 1);
  return flags[index];
}

// Those that consist of operators with a formula, which compiled functions do not show.
const std::vector<std::string> kComposite = {"aten::linear",
                                             "aten::matmul",
                                             "aten::einsum",
                                             "aten::bilinear",
                                             "aten::conv1d",
                                             "aten::conv2d",
                                             "aten::conv3d",
                                             "aten::conv_transpose1d",
                                             "aten::conv_transpose2d",
                                             "aten::conv_transpose3d",
                                             "aten::scaled_dot_product_attention"};

bool is_tensorflow(const OpInfo& op) { return op.ns == "tensorflow"; }

void refuse_compiled(const OpContext& context) {
  const OpInfo& op = context.op();
  if (!context.is_symbolic() || !context.name_space().starts_with("pytorch/")) return;
  throw Error("[flops] Flops can't work in compiled functions, as " + op.ns + "::" + op.name +
              " is in one: it counts the operators inside of others, such as linear, and they show only the outermost; "
              "apply it with compiled=\"eager\"");
}

bool is_view(const OpInfo& op) {
  const size_t returns = op.schema.rfind("->");
  return returns != std::string::npos && op.schema.find("(a)", returns) != std::string::npos;
}

}  // namespace

// Looks through composite operators at those that have a formula.
class Flops::Counter final : public Tool {
 public:
  Counter(size_t index, bool cpu_attention, std::shared_ptr<FlopCounts> counts)
      : Tool("flops.counter"),
        index_(index),
        cpu_attention_(cpu_attention),
        counts_(std::move(counts)),
        bilinear_(std::make_shared<BilinearCounter>(counts_)) {
    add_inst_for_op([this](OpContext& context) { analyze(context); },
                    {.ops = OpFilter(forward_types(false)), .optional = true});
    add_inst_for_op([this](OpContext& context) { analyze_backward(context); },
                    {.backward = true, .ops = OpFilter(forward_types(true)), .optional = true});
  }

  /// Of TensorFlow's operators.
  const std::shared_ptr<BilinearCounter>& bilinear() const { return bilinear_; }

 private:
  struct GradOutput {
    IntVector sizes;  // empty: undefined
  };

  void analyze(OpContext& context);
  void analyze_backward(OpContext& context);
  /// `formula` returns nothing for kinds of operands that it does not cover.
  void count(OpContext& context, Positions inputs, std::function<std::optional<int64_t>(Values&)> formula);
  void count_matmul_backward(OpContext& context, FlopCounts::Place& place, int64_t first);
  void count_by_forward_run(OpContext& context, FlopCounts::Place& place, bool is_convolution);

  std::shared_ptr<ForwardRuns> forward_runs(OpId id) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<ForwardRuns>& runs = forward_runs_[id];
    if (!runs) runs = std::make_shared<ForwardRuns>();
    return runs;
  }

  const size_t index_;  // of the flag in counted_inside()
  const bool cpu_attention_;
  const std::shared_ptr<FlopCounts> counts_;
  const std::shared_ptr<BilinearCounter> bilinear_;
  Mutex mutex_;  // of the map
  std::map<OpId, std::shared_ptr<ForwardRuns>> forward_runs_;
};

// A dependent tool lists the uncounted operators: it sees the outermost operators, after they were counted.
Flops::Flops(FlopsOptions options) : Tool("flops") {
  static std::atomic<size_t> made{0};
  const size_t index = made++;
  counter_ = std::make_unique<Counter>(index, options.cpu_attention, counts_);
  depends_on(*counter_);
  if (!options.uncounted) {
    add_inst_for_op(refuse_compiled, {.ops = OpFilter(kComposite), .optional = true});
    return;
  }
  add_inst_for_op([index, counts = counts_, bilinear = counter_->bilinear()](OpContext& context) {
    const OpInfo& op = context.op();
    if (is_tensorflow(op)) return bilinear->list_uncounted(context);
    refuse_compiled(context);
    if (is_view(op)) return;
    context.insert_after_op(
        [index, counts, &place = counts->uncounted_place(op.ns + "::" + op.name)](Values&) {
          if (!std::exchange(counted_inside(index), false)) place.add(0);
        },
        {.outputs = Positions::none()});
  });
}

Flops::~Flops() = default;

void Flops::narrow(const OpFilter& ops, const ModuleFilter& modules) {
  const std::vector<std::string> counted = forward_types(true);
  const bool counts_any = std::any_of(counted.begin(), counted.end(), [&](const std::string& type) {
    const size_t colons = type.find("::");
    return ops.matches({type.substr(0, colons), type.substr(colons + 2), "", {}, {}, ""});
  });
  if (!counts_any) {
    throw std::invalid_argument(
        "[flops] narrow: nothing is counted in these operators themselves; what is counted often runs inside others, "
        "as addmm does in linear: give its name, such as addmm, mm, bmm or convolution, or modules=");
  }
  Tool::narrow(ops, modules);
  counter_->narrow(ops, modules);
}

void Flops::Counter::analyze(OpContext& context) {
  if (is_tensorflow(context.op())) return bilinear_->analyze(context);
  refuse_compiled(context);
  const std::string& name = context.op().name;
  const auto formula = name == kCpuAttention && cpu_attention_ ? kAttention : find(kForward, name);
  if (!formula) return;
  switch (formula->family) {
    case Family::kMatmul: return count(context, {formula->first, formula->first + 1}, flops_of_matmul);
    case Family::kConvolution:
      return count(
          context, {"input", "weight", "stride", "padding", "dilation", "transposed", "output_padding", "groups"},
          [runs = forward_runs(context.op_id())](Values& values) { return flops_of_convolution(values, *runs); });
    case Family::kConvolutionBackward:
      return count(context, {"grad_output", "input", "weight", "transposed", "groups", "output_mask"},
                   flops_of_convolution_backward);
    case Family::kAttention:
      return count(context, {"query", "key", "value"}, [runs = forward_runs(context.op_id())](Values& values) {
        return flops_of_attention(values, *runs);
      });
  }
}

// An operator that raises is not counted: non-reentrant checkpointing ends a recomputation with an exception in its
// last operator.
void Flops::Counter::count(OpContext& context, Positions inputs,
                           std::function<std::optional<int64_t>(Values&)> formula) {
  struct Count {
    std::optional<int64_t> flops;
  };
  context.insert_before_op(
      [formula = std::move(formula)](Values& values) { values.local<Count>().flops = formula(values); },
      {.inputs = std::move(inputs)});
  context.insert_after_op(
      [index = index_, counts = counts_,
       &place = counts_->place("aten::" + context.op().name, context.module_path(), false)](Values& values) {
        const std::optional<int64_t> flops = values.local<Count>().flops;
        if (!flops) return;
        counted_inside(index) = true;
        place.add(*flops);
      },
      {.outputs = Positions::none()});
}

void Flops::Counter::analyze_backward(OpContext& context) {
  if (is_tensorflow(*context.backward_op())) return bilinear_->analyze_backward(context);
  const std::string& name = context.backward_op()->name;
  if (name.ends_with("BackwardBackward0")) {
    context.insert_before_backward_op(
        [counts = counts_, &place = counts_->uncounted_place(name)](Values&) { place.add(0); },
        {.grad_outputs = Positions::none(), .with_run = false});
    return;
  }
  const auto formula = name == kCpuAttentionBackward && cpu_attention_ ? kAttention : find(kBackward, name);
  if (!formula) return;

  context.insert_before_backward_op(
      [](Values& values) { values.local<GradOutput>().sizes = sizes_of(values, 0).value_or(IntVector()); },
      {.grad_outputs = {0}, .with_run = false});
  FlopCounts::Place& place = counts_->place(name, context.module_path(), true);
  if (formula->family == Family::kMatmul) {
    count_matmul_backward(context, place, formula->first);
  } else {
    count_by_forward_run(context, place, formula->family == Family::kConvolution);
  }
}

// A gradient that is not needed is undefined, and nothing was computed for it.
void Flops::Counter::count_matmul_backward(OpContext& context, FlopCounts::Place& place, int64_t first) {
  auto count = [counts = counts_, &place](Values& values) {
    const IntVector& grad = values.local<GradOutput>().sizes;
    const auto a = sizes_of(values, 0), b = sizes_of(values, 1);
    if (grad.empty() || (!a && !b)) return;
    place.add((a ? matmul_grad_a_flops(*a, grad) : 0) + (b ? matmul_grad_b_flops(*b, grad) : 0));
  };
  context.insert_after_backward_op(count, {.grad_inputs = {first, first + 1}, .with_run = false});
}

void Flops::Counter::count_by_forward_run(OpContext& context, FlopCounts::Place& place, bool is_convolution) {
  auto count = [counts = counts_, &place, &unknown = counts_->uncounted_place(context.backward_op()->name),
                runs = forward_runs(context.op_id()), is_convolution](Values& values) {
    const IntVector& grad = values.local<GradOutput>().sizes;
    std::array<std::optional<IntVector>, 3> found;
    for (size_t i = 0; i < values.size(); ++i) found[i] = sizes_of(values, i);
    if (grad.empty() || found == decltype(found){}) return;
    const auto run = runs->find(grad, found);
    if (!run) {
      unknown.add(0);
    } else if (is_convolution) {
      place.add(convolution_backward_flops(run->flops, run->groups, found[0].has_value(), found[1].has_value()));
    } else {
      place.add(run->flops);
    }
  };
  context.insert_after_backward_op(
      count, {.grad_inputs = is_convolution ? Positions{0, 1} : Positions{0, 1, 2}, .with_run = false});
}

}  // namespace amanda::tools
