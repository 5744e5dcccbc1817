#include "flops/counter.h"

#include <cctype>
#include <utility>
#include <variant>

#include "compiled_operators.h"
#include "flops/formulas.h"
#include "flops/operator_flops.h"

namespace amanda::tools {
namespace {

enum class Family : uint8_t { kMatmul, kConvolution, kConvolutionBackward, kAttention };

struct FamilyMember {
  Family family;
  int64_t first;  // the position of the first operand, or of its gradient
};
using Members = std::map<std::string, FamilyMember>;

// The innermost operators, which `linear`, `matmul`, `einsum`, `conv2d` and the rest consist of.
const Members kForward = {
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
// The autograd nodes of those.
const Members kBackward = [] {
  Members nodes;
  for (const auto& [op, member] : kForward) {
    if (member.family != Family::kConvolutionBackward) nodes[node_of(op)] = member;
  }
  return nodes;
}();
constexpr const char* kCpuAttention = "_scaled_dot_product_flash_attention_for_cpu";
constexpr FamilyMember kAttention = {Family::kAttention, 0};

std::optional<FamilyMember> find(const Members& members, const std::string& name) {
  const auto found = members.find(name);
  return found == members.end() ? std::nullopt : std::optional(found->second);
}

std::string type_name(const OpInfo& op) { return op.ns + "::" + op.name; }

/// "AddmmBackward0": the number is that of the operator's overload.
std::string without_number(std::string node) {
  while (!node.empty() && std::isdigit(static_cast<unsigned char>(node.back()))) node.pop_back();
  return node;
}

Positions at(const std::vector<int64_t>& positions) {
  return Positions(std::vector<std::variant<int64_t, std::string>>(positions.begin(), positions.end()));
}

/// An operator that is linear in two operands computes one product more for each of them that has a tangent.
template <class Infos>
void add_tangents(std::optional<int64_t>& flops, bool& is_partial, const Infos& infos, bool is_bilinear) {
  int64_t products = 1;
  for (const ValueInfo& info : infos) {
    products += info.tangents;
    is_partial |= info.tangents == kUnknown || (info.tangents != 0 && !is_bilinear);
  }
  if (flops && !is_partial) *flops *= products;
}

ValueInfo info_of(const Values& values, size_t i) { return values.call().backend().describe(values[i]); }

}  // namespace

struct FlopCounter::GradOutput {
  std::optional<IntVector> sizes;  // empty if undefined
  bool has_tangent = false;
};

FlopCounter::FlopCounter(size_t index, const FlopsOptions& options, std::shared_ptr<FlopCounts> counts)
    : Tool("flops.counter"),
      index_(index),
      cpu_attention_(options.cpu_attention),
      counts_(std::move(counts)),
      bilinear_(std::make_shared<BilinearCounter>(counts_, options.operators)) {
  add_inst_for_op([this](OpContext& context) { analyze(context); }, {.ops = OpFilter(types()), .optional = true});
  add_inst_for_op([this](OpContext& context) { analyze_backward(context); },
                  {.backward = true, .ops = OpFilter(types()), .optional = true});
}

UncountedGradients::UncountedGradients(const std::shared_ptr<FlopCounts>& counts) : Tool("flops.gradients") {
  add_inst_for_op(
      [counts](OpContext& context) {
        if (is_compiled(context)) return;
        const bool is_own = without_number(context.backward_op()->name) == node_of(context.op().name);
        if (is_own) FlopCounter::list_backward(context, counts);
      },
      {.backward = true, .ops = OpFilter(operators_with_uncounted_gradients()), .optional = true});
}

std::vector<std::string> FlopCounter::types() const {
  std::vector<std::string> types = torch_types(), others = bilinear_->types();
  types.insert(types.end(), others.begin(), others.end());
  return types;
}

std::vector<std::string> FlopCounter::torch_types() {
  std::vector<std::string> types{std::string("aten::") + kCpuAttention};
  for (const auto& [name, member] : kForward) types.push_back("aten::" + name);
  types.insert(types.end(), torch_operators().begin(), torch_operators().end());
  return types;
}

uint8_t& FlopCounter::counted_inside(size_t index) {
  thread_local std::vector<uint8_t> flags;
  if (index >= flags.size()) flags.resize(index + 1);
  return flags[index];
}

std::shared_ptr<ForwardRuns> FlopCounter::forward_runs(OpId id) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<ForwardRuns>& runs = forward_runs_[id];
  if (!runs) runs = std::make_shared<ForwardRuns>();
  return runs;
}

// ---- forward --------------------------------------------------------------------------------------------------------

void FlopCounter::analyze(OpContext& context) {
  if (bilinear_->knows(context.op().ns)) return bilinear_->analyze(context);
  if (is_compiled(context)) return;
  if (const TorchOperator* op = find_torch_operator(type_name(context.op()))) {
    return op->flops ? count_sized(context, *op) : list(context);
  }
  const std::string& name = context.op().name;
  const auto member = name == kCpuAttention && cpu_attention_ ? kAttention : find(kForward, name);
  if (!member) return list(context);
  switch (member->family) {
    case Family::kMatmul:
      return count(context, {member->first, member->first + 1}, [](Values& values) {
        Count made{flops_of_matmul(values)};
        add_tangents(made.flops, made.is_partial, std::array{info_of(values, 0), info_of(values, 1)}, true);
        return made;
      });
    case Family::kConvolution:
      return count(
          context, {"input", "weight", "stride", "padding", "dilation", "transposed", "output_padding", "groups"},
          [runs = forward_runs(context.op_id())](Values& values) {
            Count made{flops_of_convolution(values, *runs)};
            add_tangents(made.flops, made.is_partial, std::array{info_of(values, 0), info_of(values, 1)}, true);
            return made;
          });
    case Family::kConvolutionBackward:
      return count(context, {"grad_output", "input", "weight", "transposed", "groups", "output_mask"},
                   [](Values& values) {
                     Count made{flops_of_convolution_backward(values)};
                     const std::array factors{info_of(values, 0), info_of(values, 1), info_of(values, 2)};
                     add_tangents(made.flops, made.is_partial, factors, false);
                     return made;
                   });
    case Family::kAttention:
      return count(context, {"query", "key", "value"}, [runs = forward_runs(context.op_id())](Values& values) {
        return Count{flops_of_attention(values, *runs)};
      });
  }
}

// An operator that raises is not counted: non-reentrant checkpointing ends a recomputation with an exception in its
// last operator.
void FlopCounter::count(OpContext& context, Positions inputs, Formula formula) {
  context.insert_before_op([formula = std::move(formula)](Values& values) { values.local<Count>() = formula(values); },
                           {.inputs = std::move(inputs)});
  const std::string name = type_name(context.op());
  context.insert_after_op(
      [index = index_, counts = counts_, &tally = counts_->tally(name, context.module_path(), false),
       &unknown = counts_->uncounted_tally(name, true)](Values& values) {
        const Count& made = values.local<Count>();
        counted_inside(index) = true;
        if (made.flops) tally.add(*made.flops);
        if (!made.flops || made.is_partial) unknown.add(0);
      },
      {.outputs = Positions::none()});
}

void FlopCounter::count_sized(OpContext& context, const TorchOperator& op) {
  context.insert_before_op(
      [](Values& values) {
        std::vector<ValueInfo>& inputs = values.local<SizedRun>().inputs;
        for (size_t i = 0; i < values.size(); ++i) inputs.push_back(info_of(values, i));
      },
      {.inputs = at(op.inputs)});
  const std::string name = type_name(context.op());
  const bool is_recurrent = context.op().name == "mkldnn_rnn_layer";
  context.insert_after_op(
      [index = index_, counts = counts_, &tally = counts_->tally(name, context.module_path(), false),
       &unknown = counts_->uncounted_tally(name, true), runs = forward_runs(context.op_id()), &op,
       is_recurrent](Values& values) {
        SizedRun& run = values.local<SizedRun>();
        run.result = info_of(values, 0);
        counted_inside(index) = true;
        std::optional<int64_t> flops = op.flops(run);
        if (flops && (op.is_bilinear || is_recurrent)) {
          ForwardRuns::Run noted{
              .inputs = {}, .output = run.result.sizes.value_or(IntVector()), .flops = *flops, .groups = 1};
          for (size_t i = 0; i < run.inputs.size(); ++i) noted.inputs[i] = run.inputs[i].sizes.value_or(IntVector());
          runs->note(std::move(noted));
        }
        bool is_partial = false;
        add_tangents(flops, is_partial, run.inputs, op.is_bilinear);
        if (flops) tally.add(*flops);
        if (!flops || is_partial) unknown.add(0);
      },
      {.outputs = {0}});
}

void FlopCounter::list(OpContext& context) {
  context.insert_after_op(
      [index = index_, counts = counts_, &tally = counts_->uncounted_tally(type_name(context.op()), true)](Values&) {
        counted_inside(index) = true;
        tally.add(0);
      },
      {.outputs = Positions::none()});
}

// ---- backward -------------------------------------------------------------------------------------------------------

void FlopCounter::analyze_backward(OpContext& context) {
  if (bilinear_->knows(context.backward_op()->ns)) return bilinear_->analyze_backward(context);
  if (is_compiled(context)) return;
  const std::string node = without_number(context.backward_op()->name);
  const std::string& forward = context.op().name;
  const auto member = cpu_attention_ && node == node_of(kCpuAttention) ? kAttention : find(kBackward, node);
  if (member && member->family == Family::kMatmul) return count_matmul_backward(context, member->first);
  if (member && member->family == Family::kConvolution) return count_by_forward_run(context, {0, 1}, true);
  if (member) return count_by_forward_run(context, {0, 1, 2}, false);
  // The derivative of a backward operator.
  if (node.ends_with("BackwardBackward")) return list_backward(context, counts_);
  // Where an operator calls others, their nodes are no products: those that are have a formula above.
  if (node != node_of(forward)) return;
  const TorchOperator* op = find_torch_operator(type_name(context.op()));
  if (forward == "mkldnn_rnn_layer") return count_recurrent_backward(context);
  if (op && op->is_bilinear) return count_by_forward_run(context, {op->inputs[0], op->inputs[1]}, true);
  // An operator without a formula is listed itself.
  if (op ? op->flops != nullptr : forward != kCpuAttention) list_backward(context, counts_);
}

void FlopCounter::list_backward(OpContext& context, const std::shared_ptr<FlopCounts>& counts) {
  FlopCounts::Tally& tally = counts->uncounted_tally(context.backward_op()->name, true);
  context.insert_before_backward_op([counts, &tally](Values&) { tally.add(0); },
                                    {.grad_outputs = Positions::none(), .with_run = false});
}

// `flops` computes the number by the sizes of the gradients of the first output, and of the inputs. It is empty if not
// known. A gradient that is not needed is undefined, and nothing was computed for it.
void FlopCounter::count_backward(
    OpContext& context, Positions grads,
    std::function<std::optional<int64_t>(const std::optional<IntVector>& output, const Grads&)> flops) {
  context.insert_before_backward_op(
      [](Values& values) {
        const ValueInfo grad = info_of(values, 0);
        values.local<GradOutput>() = {sizes_of(values, 0), grad.tangents != 0};
      },
      {.grad_outputs = {0}, .with_run = false});
  const std::string& name = context.backward_op()->name;
  context.insert_after_backward_op(
      [counts = counts_, &tally = counts_->tally(name, context.module_path(), true),
       &unknown = counts_->uncounted_tally(name, true), flops = std::move(flops)](Values& values) {
        const GradOutput& output = values.local<GradOutput>();
        Grads found;
        bool has_tangent = output.has_tangent;
        for (size_t i = 0; i < values.size() && i < found.size(); ++i) {
          found[i] = sizes_of(values, i);
          has_tangent |= info_of(values, i).tangents != 0;
        }
        if (found == Grads{}) return;
        const std::optional<int64_t> made = flops(output.sizes, found);
        if (made) tally.add(*made);
        if (!made || has_tangent) unknown.add(0);
      },
      {.grad_inputs = std::move(grads), .with_run = false});
}

void FlopCounter::count_matmul_backward(OpContext& context, int64_t first) {
  count_backward(context, {first, first + 1}, [](const std::optional<IntVector>& output, const Grads& grads) {
    const auto& [a, b, none] = grads;
    if (!output || output->size() < 2) return std::optional<int64_t>(0);
    return std::optional((a ? matmul_grad_a_flops(*a, *output) : 0) + (b ? matmul_grad_b_flops(*b, *output) : 0));
  });
}

void FlopCounter::count_by_forward_run(OpContext& context, Positions grads, bool is_bilinear) {
  count_backward(context, std::move(grads),
                 [runs = forward_runs(context.op_id()), is_bilinear](const std::optional<IntVector>& output,
                                                                     const Grads& found) -> std::optional<int64_t> {
                   if (!output) return 0;
                   const auto run = runs->find(*output, found);
                   if (!run || !is_bilinear) return run ? std::optional(run->flops) : std::nullopt;
                   return convolution_backward_flops(run->flops, run->groups, found[0].has_value(),
                                                     found[1].has_value());
                 });
}

// One layer in one direction. Each weight has a gradient, of as many operations as its product takes; so have the
// input, if it needs one, and the state of every step.
void FlopCounter::count_recurrent_backward(OpContext& context) {
  count_backward(context, {0, 1, 2},
                 [runs = forward_runs(context.op_id())](const std::optional<IntVector>& output,
                                                        const Grads& found) -> std::optional<int64_t> {
                   const auto run = runs->find(output.value_or(IntVector()), found);
                   if (!run) return std::nullopt;
                   const int64_t from_input = product(run->inputs[1]), from_state = product(run->inputs[2]);
                   const int64_t products = (found[0] ? from_input : 0) + (found[1] ? from_input : 0) + from_state +
                                            (found[2] ? from_state : 0);
                   return run->flops / (from_input + from_state) * products;
                 });
}

}  // namespace amanda::tools
