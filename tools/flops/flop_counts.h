// What Flops has counted: runs and operations, per operator type and module.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "amanda/mutex.h"

namespace amanda::tools {

/// What was counted so far. May be read on any thread while operators run.
class FlopCounts {
 public:
  /// All runs of one operator type in one module.
  struct Row {
    std::string op;           // "aten::addmm"; a backward operator's is the autograd node's: "AddmmBackward0"
    std::string module_path;  // the innermost module, in backward the forward operator's; "" outside modules
    bool backward;
    int64_t runs;
    int64_t flops;
  };
  std::vector<Row> rows() const;

  int64_t total() const;
  std::map<std::string, int64_t> by_operator() const;
  /// Each with the modules inside it; "" is the total.
  std::map<std::string, int64_t> by_module() const;
  /// Operators that ran without anything counted in them, by type, and how often. Views are left out.
  std::map<std::string, int64_t> uncounted() const;
  void reset();

  class Place {
   public:
    void add(int64_t flops) {
      runs_.fetch_add(1, std::memory_order_relaxed);
      flops_.fetch_add(flops, std::memory_order_relaxed);
    }

   private:
    friend class FlopCounts;
    std::atomic<int64_t> runs_{0}, flops_{0};
  };
  /// Where runs of that type in that module are added up; valid as long as this object.
  Place& place(const std::string& op, const std::string& module_path, bool backward);
  Place& uncounted_place(const std::string& op);

 private:
  mutable Mutex mutex_;  // of the maps
  std::map<std::tuple<std::string, std::string, bool>, Place> places_;
  std::map<std::string, Place> uncounted_;
};

}  // namespace amanda::tools
