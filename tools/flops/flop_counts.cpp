#include "flops/flop_counts.h"

namespace amanda::tools {

std::vector<FlopCounts::Row> FlopCounts::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const auto& [key, tally] : tallies_) {
    const auto& [op, module_path, backward] = key;
    if (tally.runs_) rows.push_back({op, module_path, backward, tally.runs_, tally.flops_});
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
  for (const auto& [op, tally] : uncounted_) {
    if (tally.runs_ > 0) runs[op] = tally.runs_;
  }
  return runs;
}

std::map<std::string, int64_t> FlopCounts::uncounted_products() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, int64_t> runs;
  for (const auto& [op, tally] : uncounted_) {
    if (tally.runs_ > 0 && tally.may_multiply_) runs[op] = tally.runs_;
  }
  return runs;
}

void FlopCounts::reset() {  // routines hold tallies, so none is removed
  std::lock_guard lock(mutex_);
  for (auto& [key, tally] : tallies_) tally.runs_ = tally.flops_ = 0;
  for (auto& [op, tally] : uncounted_) tally.runs_ = 0;
}

FlopCounts::Tally& FlopCounts::tally(const std::string& op, const std::string& module_path, bool backward) {
  std::lock_guard lock(mutex_);
  return tallies_[{op, module_path, backward}];
}

FlopCounts::Tally& FlopCounts::uncounted_tally(const std::string& op, bool may_multiply) {
  std::lock_guard lock(mutex_);
  Tally& tally = uncounted_[op];
  if (may_multiply) tally.may_multiply_ = true;
  return tally;
}

}  // namespace amanda::tools
