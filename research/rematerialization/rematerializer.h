// Evicts saved tensors of autograd when memory is short, and computes them again when a backward operator asks for
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "amanda/amanda.h"
#include "compiled_operators.h"
#include "rematerialization/allocation_meter.h"
#include "rematerialization/call.h"
#include "rematerialization/heuristic.h"

namespace amanda::tools::rematerialization {

struct Options {
  size_t budget;  // in bytes
  Heuristic heuristic;
  std::function<double(int64_t ns)> cost;  // of an operator's run, which took so long
};

/// A saved tensor while autograd keeps it.
struct Saved {
  ValuePtr value;    // null if it is not managed; `kept` is then the tensor
  Outline outline;   // of the tensor in the value
  at::Tensor kept;   // shares the version counter
  uint32_t version;  // when it was saved
};

/// One execution of an operator, from before to after.
struct Run {
  bool recorded = false, trains = false;
  std::optional<c10::impl::LocalDispatchKeySet> keys;
  at::ScalarType autocast_dtype{};
  int64_t start = 0, taken = 0;
  Site* outer = nullptr;
};

class Rematerializer final : public AllocationCount {
 public:
  struct Row {
    std::string op, module_path, kept_because;
    int64_t kept, kept_bytes, evicted, evicted_bytes, recomputed, recompute_ns;
  };

  explicit Rematerializer(Options options) : options_(options) {}

  /// The operator's site. Null if the operator makes no values of its own.
  Site* add_site(OpContext& context);
  void before(Site& site, Values& values);
  void before_write(Site& site, Values& values);
  void after(Site& site, Values& values);

  Saved pack(const at::Tensor& tensor);
  at::Tensor unpack(const Saved& saved);
  void release(Saved& saved);
  void make_room(size_t bytes) override;

  /// Throws `Error` if a pass did not fit into the budget. To be called between passes.
  void check_budget();
  /// Forgets that it did not.
  void forget_overrun();

  std::vector<Row> rows();
  void reset();

  /// Those that it does not run again.
  CompiledOperators& compiled() { return compiled_; }

 private:
  struct Kept {
    void add(size_t size) {
      ++count;
      bytes += static_cast<int64_t>(size);
    }
    int64_t count = 0, bytes = 0;
  };

  ValuePtr value_of(const at::Tensor& tensor);
  ValuePtr new_value(const c10::Storage& storage);
  void keep(const std::vector<at::Tensor>& results, Site& site, const char* because);
  void will_write(Values& values, const std::vector<size_t>& positions);
  void will_write(const at::Tensor& tensor);
  const char* record(Site& site, Values& values, const std::vector<at::Tensor>& results, Run& run);

  void hold(Value& value, c10::Storage memory);
  void let_go(Value& value);
  Value* least_valuable();
  void evict(Value& value);
  void is_here(Value& value);
  void move_to(const ValuePtr& value, const c10::Storage& memory);
  c10::Storage materialize(const ValuePtr& value);
  c10::Storage run_again(Call& call, const std::vector<c10::Storage>& memory, const ValuePtr& wanted);
  void forget_calls();
  void end_pass();
  void sweep();

  const Options options_;
  CompiledOperators compiled_{
      "[rematerialization] Rematerialization leaves out operators of compiled functions, where the compiler decides "
      "what "
      "memory is used for"};
  std::recursive_mutex mutex_;  // of everything below: running an operator again allocates, which evicts
  std::list<Site> sites_;
  Site outside_{};
  std::unordered_map<c10::StorageImpl*, ValuePtr> values_;
  std::vector<Value*> held_;  // those that have `held`
  std::map<std::pair<const Site*, std::string>, Kept> kept_;
  size_t saved_ = 0, sweep_at_ = 1024;
  uint64_t clock_ = 0;
  Site* running_ = nullptr;
  bool recording_ = false;  // operators were recorded since the last backward operator

  std::atomic<bool> must_tell_{false};  // the pass that overran is over
  bool overran_ = false;
  size_t needed_ = 0;       // by a pass that did not fit
  std::string needed_for_;  // the operator
  // The bytes that the pass would take if nothing were evicted. They do not depend on evictions.
  std::atomic<size_t> evicted_{0};       // bytes that would be alive
  std::atomic<size_t> plain_needed_{0};  // at least, where it is more than the budget
};

}  // namespace amanda::tools::rematerialization
