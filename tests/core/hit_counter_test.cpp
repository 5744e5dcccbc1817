// No hit is lost, whichever thread counts it.
#include "hit_counter.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace amanda {
namespace {

constexpr uint64_t kEach = 20000;

void count(HitCounter& hits) {
  for (uint64_t i = 0; i < kEach; ++i) hits.add(ThreadCalls::current());
}

TEST(HitCounter, ItsOwnThreadAndOthersCountAtTheSameTime) {
  HitCounter hits;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) others.emplace_back([&] { count(hits); });
  count(hits);
  for (std::thread& other : others) other.join();
  EXPECT_EQ(hits.count(), 4 * kEach);
}

// A new thread may have the state of one that has ended, at the same address.
TEST(HitCounter, OutlivesItsThread) {
  std::unique_ptr<HitCounter> hits;
  std::thread([&] {
    hits = std::make_unique<HitCounter>();
    count(*hits);
  }).join();
  std::vector<std::thread> later;
  for (int i = 0; i < 3; ++i) later.emplace_back([&] { count(*hits); });
  for (std::thread& one : later) one.join();
  EXPECT_EQ(hits->count(), 4 * kEach);
}

}  // namespace
}  // namespace amanda
