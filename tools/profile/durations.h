// The durations of an operator's runs, in memory that does not grow with their number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "amanda/base/lasting.h"

namespace amanda::tools {

/// Their number, their sum, and a histogram for the median.
class Durations {
 public:
  /// Binary digits that are kept of each duration: up to 255 ns all of them have their own bucket; of 256 to 511 ns
  /// every two share one, and so on. Those of one operator usually fill some dozens.
  static constexpr int kBits = 8;
  /// The shortest duration of a bucket, and the number of durations in it.
  using Bucket = std::pair<int64_t, int64_t>;

  void add(int64_t ns) {
    ++count_;
    total_ns_ += ns;
    const int shift = std::bit_width(static_cast<uint64_t>(ns)) - kBits;
    const int64_t shortest = shift > 0 ? ns >> shift << shift : ns;
    const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), Bucket(shortest, 0));
    if (at != buckets_.end() && at->first == shortest) {
      ++at->second;
    } else {
      const Lasting memory;
      buckets_.insert(at, {shortest, 1});
    }
  }

  int64_t count() const { return count_; }
  int64_t total_ns() const { return total_ns_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  int64_t count_ = 0, total_ns_ = 0;
  std::vector<Bucket> buckets_;  // the shortest first
};

}  // namespace amanda::tools
