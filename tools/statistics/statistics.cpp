#include "statistics/statistics.h"

#include "values/tensors.h"

namespace amanda::tools::pytorch {

bool StatisticsRecorder::record(Values& values, OpId id, UnwrittenMemory* memory) {
  OpCall& call = values.call();
  c10::SmallVector<Summary, 4> found(call.size(Side::kOutputs));
  for (size_t i = 0; i < found.size(); ++i) {
    if (memory && memory->has(operand(call, Side::kOutputs, i))) return false;
    const bool read = each_tensor(operand(call, Side::kOutputs, i), [&](const at::Tensor& tensor) {
      const std::optional<Summary> summary = is_readable(tensor) ? summary_of(tensor) : std::nullopt;
      if (summary) found[i].merge(*summary);
      return summary.has_value();
    });
    if (!read) return false;
  }
  add(id, found);
  return true;
}

bool StatisticsRecorder::record_run(Values& values, OpId id) {
  add(id, c10::SmallVector<Summary, 4>(values.call().size(Side::kOutputs)));
  return true;
}

void StatisticsRecorder::add(OpId id, c10::ArrayRef<Summary> found) {
  rows_.update(id, [&](Found& all) {
    ++all.calls;
    if (all.outputs.size() < found.size()) all.outputs.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) all.outputs[i].merge(found[i]);
  });
}

}  // namespace amanda::tools::pytorch
