#include "gradients/gradients.h"

#include <algorithm>

#include "clock.h"
#include "values/elements.h"
#include "values/tensors.h"

namespace amanda::tools::pytorch {

void Norms::add(std::optional<double> norm) {
  if (!norm) {
    ++undefined;
    return;
  }
  last = norm;
  last_ns = now_ns();
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
  rows_.update(id, [&](Sides& sides) {
    Gradients& gradients = sides[side == Side::kOutputs];
    ++gradients.calls;
    if (gradients.norms.size() < found.size()) gradients.norms.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) gradients.norms[i].add(found[i]);
  });
  return true;
}

}  // namespace amanda::tools::pytorch
