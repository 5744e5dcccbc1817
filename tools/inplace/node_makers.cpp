#include "inplace/node_makers.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <mutex>

namespace amanda::tools::pytorch {
namespace {

constexpr size_t kKeptMakers = 200'000;  // of the last operators that made nodes, on each thread

}  // namespace

void NodeMakers::begin() {
  const std::lock_guard lock(mutex_);
  OfThread& here = threads_[std::this_thread::get_id()];
  here.first = at::sequence_number::peek();
  here.has_begun = true;
}

void NodeMakers::end(Maker maker) {
  const std::lock_guard lock(mutex_);
  OfThread& here = threads_[std::this_thread::get_id()];
  const uint64_t end = at::sequence_number::peek();
  if (!here.has_begun || end <= here.first) return;
  here.has_begun = false;
  here.made.push_back({here.first, end, maker});
  if (here.made.size() > kKeptMakers) here.made.pop_front();
}

std::vector<NodeMakers::Maker> NodeMakers::of(uint64_t number) const {
  std::vector<Maker> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [thread, of_thread] : threads_) {
    for (const Made& made : of_thread.made) {
      if (made.first <= number && number < made.end) found.push_back(made.maker);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void NodeMakers::clear() {
  const std::lock_guard lock(mutex_);
  threads_.clear();
}

}  // namespace amanda::tools::pytorch
