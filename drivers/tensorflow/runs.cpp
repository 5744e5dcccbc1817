#include "runs.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "amanda/base/leaked.h"
#include "amanda/base/mutex.h"
#include "amanda/error.h"

namespace amanda::tensorflow {
namespace {

struct OneExecution {
  uint64_t frame;
  int64_t iteration;
  RunStatePtr state;
};
using Executions = std::vector<OneExecution>;  // of one operator, in the order in which they began

struct Step {
  uint64_t began;  // when its first node ran
  std::unordered_map<std::shared_ptr<const python::GraphOperator>, Executions> operators;
};

struct Table {
  Mutex mutex;
  uint64_t clock = 0;
  std::vector<uint64_t> running;  // when they began, in that order
  std::unordered_map<int64_t, Step> steps;
};

thread_local std::vector<uint64_t> begun_here;

RunStatePtr* find(Executions& executions, const Execution& here) {
  auto found = std::find_if(executions.begin(), executions.end(), [&](const OneExecution& one) {
    return one.frame == here.frame && one.iteration == here.iteration;
  });
  return found == executions.end() ? nullptr : &found->state;
}

// Iterations of one loop may overtake each other.
RunStatePtr nth_last(Executions executions, size_t n) {
  if (n >= executions.size()) return nullptr;
  std::stable_sort(executions.begin(), executions.end(), [](const OneExecution& a, const OneExecution& b) {
    return a.frame == b.frame && a.iteration < b.iteration;
  });
  return executions[executions.size() - 1 - n].state;
}

}  // namespace

void begin_run() {
  Table& table = leaked<Table>();
  std::lock_guard lock(table.mutex);
  table.running.push_back(++table.clock);
  begun_here.push_back(table.clock);
}

void end_run() {
  if (begun_here.empty()) throw Error("[tensorflow] end_run() without begin_run() on this thread");
  const uint64_t began = begun_here.back();
  begun_here.pop_back();
  std::vector<Step> over;  // outside the lock: they may hold Python objects
  Table& table = leaked<Table>();
  std::lock_guard lock(table.mutex);
  std::erase(table.running, began);
  // A step of a run that is in progress began with that run, or later.
  const uint64_t first = table.running.empty() ? ~uint64_t{0} : table.running.front();
  for (auto it = table.steps.begin(); it != table.steps.end();) {
    if (it->second.began >= first) {
      ++it;
      continue;
    }
    over.push_back(std::move(it->second));
    it = table.steps.erase(it);
  }
}

RunStatePtr run_state(const std::shared_ptr<const python::GraphOperator>& op, const Execution& here) {
  Table& table = leaked<Table>();
  std::lock_guard lock(table.mutex);
  if (table.running.empty()) return nullptr;
  Step& step = table.steps.try_emplace(here.step, Step{table.clock, {}}).first->second;
  Executions& executions = step.operators[op];
  if (RunStatePtr* known = find(executions, here)) return *known;
  RunStatePtr forward;
  if (op->forward) {
    const size_t before = executions.size();
    if (auto found = step.operators.find(op->forward); found != step.operators.end()) {
      forward = nth_last(found->second, before);
    }
  }
  step.operators[op].push_back({here.frame, here.iteration, std::make_shared<RunState>(std::move(forward))});
  return step.operators[op].back().state;
}

}  // namespace amanda::tensorflow
