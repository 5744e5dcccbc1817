#include "torch/statistics.h"

#include "torch/tensors.h"

namespace amanda::tools::pytorch {

bool StatisticsRecorder::record(Values& values, OpId id) {
  OpCall& call = values.call();
  c10::SmallVector<Summary, 4> found(call.size(Side::kOutputs));
  for (size_t i = 0; i < found.size(); ++i) {
    const bool read = each_tensor(operand(call, Side::kOutputs, i), [&](const at::Tensor& tensor) {
      const std::optional<Summary> summary = is_readable(tensor) ? summary_of(tensor) : std::nullopt;
      if (summary) found[i].merge(*summary);
      return summary.has_value();
    });
    if (!read) return false;
  }
  rows_.update(id, [&](Found& all) {
    ++all.calls;
    if (all.outputs.size() < found.size()) all.outputs.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) all.outputs[i].merge(found[i]);
  });
  return true;
}

}  // namespace amanda::tools::pytorch
