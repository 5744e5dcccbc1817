#include "torch/statistics.h"

#include <chrono>

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
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = rows_.try_emplace(id, Row{id});
  Row& row = at->second;
  if (is_new) row.first_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  ++row.calls;
  if (row.outputs.size() < found.size()) row.outputs.resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) row.outputs[i].merge(found[i]);
  return true;
}

std::vector<StatisticsRecorder::Row> StatisticsRecorder::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const auto& [id, row] : rows_) rows.push_back(row);
  return rows;
}

void StatisticsRecorder::reset() {
  std::lock_guard lock(mutex_);
  rows_.clear();
}

}  // namespace amanda::tools::pytorch
