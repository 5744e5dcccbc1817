#include "torch/gradients.h"

#include <algorithm>
#include <chrono>

#include "torch/elements.h"
#include "torch/tensors.h"

namespace amanda::tools::pytorch {

void Norms::add(std::optional<double> norm) {
  if (!norm) {
    ++undefined;
    return;
  }
  last = norm;
  last_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (!std::isfinite(*norm)) {
    ++nonfinite;
    return;
  }
  ++finite;
  min = std::min(min, *norm);
  max = std::max(max, *norm);
  sum += *norm;
}

bool GradientRecorder::record(Values& values, OpId id) {
  OpCall& call = values.call();
  const Side side = values.point() == Point::kBefore ? Side::kInputs : Side::kOutputs;
  c10::SmallVector<std::optional<double>, 4> found(call.size(side));
  for (size_t i = 0; i < found.size(); ++i) {
    const c10::IValue& gradient = operand(call, side, i);
    if (gradient.isNone() || (gradient.isTensor() && !gradient.toTensor().defined())) continue;
    if (!gradient.isTensor() || !is_readable(gradient.toTensor())) return false;
    found[i] = norm_of(gradient.toTensor());
    if (!found[i]) return false;
  }
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = rows_.try_emplace(id, Row{id});
  Row& row = at->second;
  if (is_new) row.first_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  Gradients& gradients = row.sides[side == Side::kOutputs];
  ++gradients.calls;
  if (gradients.norms.size() < found.size()) gradients.norms.resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) gradients.norms[i].add(found[i]);
  return true;
}

std::vector<GradientRecorder::Row> GradientRecorder::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const auto& [id, row] : rows_) rows.push_back(row);
  return rows;
}

void GradientRecorder::reset() {
  std::lock_guard lock(mutex_);
  rows_.clear();
}

}  // namespace amanda::tools::pytorch
