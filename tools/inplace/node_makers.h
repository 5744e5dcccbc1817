// Which operator made a node of the backward graph, by the node's number, for InplaceErrors.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <unordered_map>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

/// The numbers of the nodes that operators have made. A thread numbers its nodes, so two threads have the same numbers.
/// May be used on any thread.
class NodeMakers {
 public:
  /// As the caller numbers operators at their places.
  using Maker = uint32_t;

  /// An operator begins on this thread; none runs inside another one.
  void begin();
  /// It has ended. Without begin() on this thread, does nothing.
  void end(Maker maker);
  /// The operators that made nodes with this number, each once.
  std::vector<Maker> of(uint64_t number) const;
  void clear();

 private:
  struct Made {
    uint64_t first, end;
    Maker maker;
  };
  struct OfThread {
    uint64_t first = 0;
    bool has_begun = false;
    std::deque<Made> made{};
  };

  mutable Mutex mutex_;  // guards the member below
  std::unordered_map<std::thread::id, OfThread> threads_;
};

}  // namespace amanda::tools::pytorch
