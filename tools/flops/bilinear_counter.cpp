#include "flops/bilinear_counter.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <variant>
#include <vector>

#include "flops/tensorflow_formulas.h"
#include "flops/word_formulas.h"

namespace amanda::tools {
namespace {

const std::string kTensorflow = "tensorflow";

std::string name_of(const OpInfo& op) { return op.ns + "::" + op.name; }

/// Puts sizes where the formula has them, as far as they are known: of an operand, or of its gradient.
void put(std::optional<IntVector>& sizes, const ValueInfo& info) {
  if (info.kind == ValueKind::kTensor && info.sizes) sizes = info.sizes;
}

void put_input(BilinearShapes& shapes, const BilinearOperator& op, int64_t position, const ValueInfo& info) {
  if (op.a == op.b) {
    if (!info.elements.empty()) put(shapes.a, info.elements[0]);
    if (info.elements.size() > 1) put(shapes.b, info.elements[1]);
  } else {
    put(position == op.a ? shapes.a : shapes.b, info);
  }
}

/// The positions that exist. For a backward operator, these are gradients that it takes or computes itself.
Positions existing(OpContext& context, Side side, std::initializer_list<int64_t> wanted) {
  OpSite& site = context.site();
  std::vector<std::variant<int64_t, std::string>> found;
  for (const int64_t position : wanted) {
    const bool is_there = static_cast<size_t>(position) < site.size(side) && site.get(side, position).ref;
    if (is_there && (found.empty() || found.back() != decltype(found)::value_type(position))) found.push_back(position);
  }
  return Positions(std::move(found));
}

/// Adds up runs of one operator.
struct Count {
  std::shared_ptr<FlopCounts> counts;  // keeps the tallies
  FlopCounts::Tally& tally;
  FlopCounts::Tally& unknown;

  void add(std::optional<int64_t> flops) const { flops ? tally.add(*flops) : unknown.add(0); }
};

}  // namespace

BilinearCounter::BilinearCounter(std::shared_ptr<FlopCounts> counts, const std::vector<FlopsOperator>& operators)
    : counts_(std::move(counts)) {
  for (const FlopsOperator& each : operators) operators_[each.name].push_back(each);
}

std::vector<std::string> BilinearCounter::types() const {
  std::vector<std::string> names = tensorflow_operators();
  for (const auto& [name, descriptions] : operators_) names.push_back(name);
  return names;
}

bool BilinearCounter::knows(const std::string& ns) const {
  return ns == kTensorflow || std::any_of(operators_.begin(), operators_.end(), [&](const auto& described) {
           const std::string known = described.first.substr(0, described.first.find("::"));
           return ns == known || ns.starts_with(known + ".");  // com.microsoft.nchwc
         });
}

bool BilinearCounter::has_formula(const OpInfo& op) const {
  return operators_.contains(name_of(op)) || (op.ns == kTensorflow && find_tensorflow_operator(op.name));
}

std::optional<BilinearOperator> BilinearCounter::find(const OpInfo& op) const {
  const auto described = operators_.find(name_of(op));
  if (described != operators_.end()) return find_described(described->second, op);
  return op.ns == kTensorflow ? find_tensorflow_operator(op.name) : std::nullopt;
}

void BilinearCounter::analyze(OpContext& context) {
  const std::optional<BilinearOperator> op = find(context.op());
  if (!op) return;
  const std::string name = name_of(context.op());
  const Count count{counts_, counts_->tally(name, context.module_path(), false), counts_->uncounted_tally(name, true)};
  const auto count_run = [count, op, equation = context.attribute("equation"),
                          runs = runs(context.op_id())](Values& values) {
    const Backend& backend = values.call().backend();
    BilinearShapes shapes;
    put(shapes.output, backend.describe(values[0]));
    for (size_t i = 0; i < values.num_inputs(); ++i) {
      put_input(shapes, *op, values.input_position(i), backend.describe(values.input(i)));
    }
    const auto flops = op->flops(shapes, equation);
    count.add(flops);
    if (flops) runs->note(std::move(shapes), *flops);
  };
  context.insert_after_op(
      count_run,
      {.outputs = {0}, .inputs = existing(context, Side::kInputs, {op->a, op->b}), .kind = RoutineKind::kObserve});
}

void BilinearCounter::analyze_backward(OpContext& context) {
  const OpInfo& backward = *context.backward_op();
  if (!has_formula(backward)) return;
  // An einsum's gradient may also take an Einsum of one operand, which is no product.
  const std::string own = context.backward_attribute("equation");
  if (!own.empty() && own.find(',') == std::string::npos) return;
  const std::string name = name_of(backward);
  const Count count{counts_, counts_->tally(name, context.module_path(), true), counts_->uncounted_tally(name, true)};
  const std::optional<BilinearOperator> op = find(context.op());
  if (!op) {
    context.insert_after_backward_op([count](Values&) { count.add(std::nullopt); },
                                     {.grad_inputs = Positions::none(), .with_run = false});
    return;
  }
  const auto count_run = [count, op, equation = context.attribute("equation"),
                          runs = runs(context.op_id())](Values& values) {
    const Backend& backend = values.call().backend();
    BilinearShapes shapes;
    if (values.num_inputs() > 0) put(shapes.output, backend.describe(values.input(0)));
    for (size_t i = 0; i < values.size(); ++i) {
      put_input(shapes, *op, values.position(i), backend.describe(values[i]));
    }
    if (const auto flops = op->flops(shapes, equation)) return count.add(flops);
    runs->count(std::move(shapes), count.tally, count.unknown);
  };
  context.insert_after_backward_op(count_run, {.grad_inputs = existing(context, Side::kOutputs, {op->a, op->b}),
                                               .grad_outputs = existing(context, Side::kInputs, {0}),
                                               .kind = RoutineKind::kObserve,
                                               .with_run = false});
}

std::shared_ptr<BilinearRuns> BilinearCounter::runs(OpId id) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<BilinearRuns>& runs = runs_[id];
  if (!runs) runs = std::make_shared<BilinearRuns>();
  return runs;
}

void BilinearCounter::list_uncounted(OpContext& context) {
  if (has_formula(context.op()) || is_tensorflow_view(context.op().name)) return;
  FlopCounts::Tally& tally = counts_->uncounted_tally(name_of(context.op()), may_multiply(context.op().name));
  context.insert_after_op([counts = counts_, &tally](Values&) { tally.add(0); }, {.outputs = Positions::none()});
}

}  // namespace amanda::tools
