#include "flops/bilinear_counter.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "flops/operator_flops.h"

namespace amanda::tools {
namespace {

std::string name_of(const OpInfo& op) { return op.ns + "::" + op.name; }

std::optional<IntVector> sizes_of(const ValueInfo& info) {
  if (info.kind != ValueKind::kTensor || !info.sizes) return std::nullopt;
  if (std::find(info.sizes->begin(), info.sizes->end(), kUnknown) != info.sizes->end()) return std::nullopt;
  return info.sizes;
}

/// Puts the operands of an operator where its formula has them: of its inputs, or of their gradients.
void put(BilinearShapes& shapes, const BilinearOperator& op, size_t position, const ValueInfo& info) {
  const auto a = static_cast<size_t>(op.a), b = static_cast<size_t>(op.b);
  if (a == b && position == a) {
    if (info.elements.size() > 0) shapes.a = sizes_of(info.elements[0]);
    if (info.elements.size() > 1) shapes.b = sizes_of(info.elements[1]);
  } else if (position == a) {
    shapes.a = sizes_of(info);
  } else if (position == b) {
    shapes.b = sizes_of(info);
  }
}

std::optional<int64_t> flops_of(const BilinearOperator& op, const BilinearShapes& shapes, const std::string& equation) {
  if (!shapes.a || !shapes.b || !shapes.output) return std::nullopt;
  return op.flops(*shapes.a, *shapes.b, *shapes.output, equation);
}

/// As far as they are known before it runs, of the (forward) operator.
BilinearShapes shapes_of(OpContext& context, const BilinearOperator& op) {
  BilinearShapes shapes;
  if (!context.is_symbolic()) return shapes;
  for (const int64_t position : {op.a, op.b})
    put(shapes, op, position, context.backend().describe(context.input(position)));
  shapes.output = sizes_of(context.backend().describe(context.site().forward_get(Side::kOutputs, 0)));
  return shapes;
}

Positions positions(const std::vector<int64_t>& found) {
  return Positions(std::vector<std::variant<int64_t, std::string>>(found.begin(), found.end()));
}
/// Those that exist.
std::vector<int64_t> existing(OpContext& context, Side side, std::initializer_list<int64_t> wanted) {
  OpSite& site = context.site();
  std::vector<int64_t> found;
  for (const int64_t position : wanted) {
    const bool is_there = static_cast<size_t>(position) < site.size(side) && site.get(side, position).ref;
    if (is_there && (found.empty() || found.back() != position)) found.push_back(position);
  }
  return found;
}

}  // namespace

void BilinearCounter::analyze(OpContext& context) {
  const BilinearOperator* op = find_tensorflow_operator(context.op().name);
  if (!op) return;
  FlopCounts::Place& place = counts_->place(name_of(context.op()), context.module_path(), false);
  FlopCounts::Place& unknown = counts_->uncounted_place(name_of(context.op()));
  const auto flops = flops_of(*op, shapes_of(context, *op), context.attribute("equation"));
  if (!flops) return count_by_run(context, place, unknown, *op);
  context.insert_after_op([counts = counts_, &place, flops = *flops](Values&) { place.add(flops); },
                          {.outputs = Positions::none()});
}

void BilinearCounter::count_by_run(OpContext& context, FlopCounts::Place& place, FlopCounts::Place& unknown,
                                   const BilinearOperator& op) {
  auto count = [counts = counts_, &place, &unknown, &op, runs = runs(context.op_id()),
                equation = context.attribute("equation")](Values& values) {
    const Backend& backend = values.call().backend();
    BilinearShapes shapes{.output = sizes_of(backend.describe(values[0]))};
    for (size_t i = 0; i < values.num_inputs(); ++i) {
      put(shapes, op, values.input_position(i), backend.describe(values.input(i)));
    }
    const auto flops = flops_of(op, shapes, equation);
    if (!flops) return unknown.add(0);
    place.add(*flops);
    runs->note(std::move(shapes), *flops);
  };
  context.insert_after_op(std::move(count), {.outputs = {0},
                                             .kind = RoutineKind::kObserve,
                                             .inputs = positions(existing(context, Side::kInputs, {op.a, op.b}))});
}

// The bracket of an einsum's gradient may also hold an Einsum of one operand, which is no product.
void BilinearCounter::analyze_backward(OpContext& context) {
  const OpInfo& backward = *context.backward_op();
  if (!find_tensorflow_operator(backward.name)) return;
  if (backward.name == "Einsum" && context.backward_attribute("equation").find(',') == std::string::npos) return;
  FlopCounts::Place& unknown = counts_->uncounted_place(name_of(backward));
  const BilinearOperator* forward = find_tensorflow_operator(context.op().name);
  if (!forward) {
    context.insert_after_backward_op([counts = counts_, &unknown](Values&) { unknown.add(0); },
                                     {.grad_inputs = Positions::none(), .with_run = false});
    return;
  }
  FlopCounts::Place& place = counts_->place(name_of(backward), context.module_path(), true);
  const auto flops = flops_of(*forward, shapes_of(context, *forward), context.attribute("equation"));
  if (!flops) return count_backward_by_run(context, place, unknown, *forward);
  context.insert_after_backward_op([counts = counts_, &place, flops = *flops](Values&) { place.add(flops); },
                                   {.grad_inputs = Positions::none(), .with_run = false});
}

void BilinearCounter::count_backward_by_run(OpContext& context, FlopCounts::Place& place, FlopCounts::Place& unknown,
                                            const BilinearOperator& forward) {
  auto count = [counts = counts_, &place, &unknown, &forward, runs = runs(context.op_id())](Values& values) {
    const Backend& backend = values.call().backend();
    BilinearShapes shapes;
    if (values.num_inputs()) shapes.output = sizes_of(backend.describe(values.input(0)));
    for (size_t i = 0; i < values.size(); ++i) {
      put(shapes, forward, values.position(i), backend.describe(values[i]));
    }
    const auto flops = runs->flops(shapes);
    flops ? place.add(*flops) : unknown.add(0);
  };
  context.insert_after_backward_op(std::move(count),
                                   {.grad_inputs = positions(existing(context, Side::kOutputs, {forward.a, forward.b})),
                                    .kind = RoutineKind::kObserve,
                                    .grad_outputs = positions(existing(context, Side::kInputs, {0})),
                                    .with_run = false});
}

void BilinearCounter::list_uncounted(OpContext& context) {
  if (find_tensorflow_operator(context.op().name) || is_tensorflow_view(context.op().name)) return;
  context.insert_after_op(
      [counts = counts_, &place = counts_->uncounted_place(name_of(context.op()))](Values&) { place.add(0); },
      {.outputs = Positions::none()});
}

std::shared_ptr<BilinearRuns> BilinearCounter::runs(OpId id) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<BilinearRuns>& runs = runs_[id];
  if (!runs) runs = std::make_shared<BilinearRuns>();
  return runs;
}

}  // namespace amanda::tools
