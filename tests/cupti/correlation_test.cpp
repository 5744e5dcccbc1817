// Correlation, on made-up records. What comes out is one string: "kernel=run", "kernel=-" where no run was found.
#include "cupti_profiler/correlation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace amanda::tools {
namespace {

class CorrelationTest : public ::testing::Test {
 protected:
  void run(uint32_t id, uint64_t run) { correlation->add(ExternalId{id, run}); }
  void call(uint32_t id, int64_t start, uint32_t thread = 1) {
    correlation->add(ApiCall{.correlation_id = id, .thread = thread, .start_ns = start, .end_ns = start + 5});
  }
  void kernel(const std::string& name, uint32_t id, int64_t start = 0, uint32_t stream = 7) {
    names_.push_back(std::make_unique<std::string>(name));
    correlation->add(Activity{
        .correlation_id = id, .stream = stream, .start_ns = start, .end_ns = start + 10, .name = *names_.back()});
  }
  void activity(const std::string& name, uint32_t id, int64_t start, int64_t end, uint32_t device = 0) {
    names_.push_back(std::make_unique<std::string>(name));
    correlation->add(
        Activity{.correlation_id = id, .device = device, .start_ns = start, .end_ns = end, .name = *names_.back()});
  }
  void limit(size_t calls, size_t waiting) {
    correlation = std::make_unique<Correlation>([this](const Attribution& known) { note(known); },
                                                Correlation::Limits{calls, waiting});
  }
  /// What was handed on since the last time it was asked for.
  std::string handed_on() {
    correlation->settle();
    return std::exchange(text_, {});
  }
  std::string finish() {
    correlation->finish();
    return std::exchange(text_, {});
  }
  const Correlation::Counts& counts() const { return correlation->counts(); }

  std::vector<Attribution> all;
  std::unique_ptr<Correlation> correlation =
      std::make_unique<Correlation>([this](const Attribution& known) { note(known); });

 private:
  void note(const Attribution& known) {
    all.push_back(known);
    if (!text_.empty()) text_ += ' ';
    text_ += std::string(known.activity.name) + "=" + (known.run ? std::to_string(*known.run) : "-");
  }

  std::string text_;
  std::vector<std::unique_ptr<std::string>> names_;
};

TEST_F(CorrelationTest, AKernelBelongsToTheRunThatLaunchedIt) {
  run(1, 10);
  call(1, 100);
  kernel("gemm", 1, 120);
  EXPECT_EQ(handed_on(), "gemm=10");
  ASSERT_TRUE(all[0].call);
  EXPECT_EQ(all[0].call->start_ns, 100);
  EXPECT_EQ(counts().attributed, 1u);
}

TEST_F(CorrelationTest, CopiesAndSetsBelongToRunsToo) {
  run(1, 10), run(2, 20);
  correlation->add(Activity{.kind = Activity::Kind::kMemcpy, .correlation_id = 1, .name = "HtoD", .bytes = 64});
  correlation->add(Activity{.kind = Activity::Kind::kMemset, .correlation_id = 2, .name = "set", .bytes = 32});
  EXPECT_EQ(handed_on(), "HtoD=10 set=20");
  EXPECT_EQ(all[0].activity.bytes, 64u);
}

TEST_F(CorrelationTest, RecordsMayComeInAnyOrder) {
  std::vector<std::function<void()>> records;
  for (uint32_t id = 1; id <= 3; ++id) {
    records.push_back([this, id] { run(id, 10 * id); });
    records.push_back([this, id] { call(id, 100 * id); });
    records.push_back([this, id] { kernel("k" + std::to_string(id), id, 100 * id + 20); });
  }
  std::mt19937 random(0);
  for (int i = 0; i < 200; ++i) {
    std::shuffle(records.begin(), records.end(), random);
    all.clear();
    for (const auto& record : records) record();
    finish();
    ASSERT_EQ(all.size(), 3u);
    for (const Attribution& known : all) EXPECT_EQ(known.run, 10 * known.activity.correlation_id);
  }
}

TEST_F(CorrelationTest, AKernelWaitsForItsRecords) {
  kernel("early", 1, 120);
  EXPECT_EQ(handed_on(), "");
  call(1, 100);
  EXPECT_EQ(handed_on(), "");
  run(1, 10);
  EXPECT_EQ(handed_on(), "early=10");
  EXPECT_EQ(correlation->waiting(), 0u);
}

TEST_F(CorrelationTest, AKernelMayComeLongAfterItsCall) {
  run(1, 10);
  call(1, 100);
  for (uint32_t id = 2; id < 1000; ++id) run(id, id), call(id, 100 * id);
  kernel("late", 1, 200'000);
  EXPECT_EQ(handed_on(), "late=10");
}

TEST_F(CorrelationTest, AMissingLaunchIsNoLoss) {
  run(1, 10);
  kernel("gemm", 1, 120);
  EXPECT_EQ(handed_on(), "gemm=10");
  EXPECT_FALSE(all[0].call);
}

TEST_F(CorrelationTest, WorkOutsideOperatorsIsHandedOnWithoutARun) {
  call(1, 100);
  kernel("mine", 1, 120);
  EXPECT_EQ(handed_on(), "");
  EXPECT_EQ(finish(), "mine=-");
  EXPECT_EQ(counts().outside, 1u);
  EXPECT_EQ(counts().unmatched, 0u);
}

TEST_F(CorrelationTest, AKernelOfWhichNothingIsKnownIsCountedAndHandedOn) {
  kernel("stray", 1, 120);
  EXPECT_EQ(finish(), "stray=-");
  EXPECT_EQ(counts().unmatched, 1u);
  EXPECT_EQ(counts().activities, 1u);
}

TEST_F(CorrelationTest, KernelsOfOneGraphLaunchShareTheCall) {
  run(1, 10);
  call(1, 100);
  for (const char* name : {"a", "b", "c"}) kernel(name, 1, 120);
  EXPECT_EQ(handed_on(), "a=10 b=10 c=10");
  kernel("d", 1, 150);
  EXPECT_EQ(handed_on(), "d=10");
}

TEST_F(CorrelationTest, RecordsThatComeTwiceChangeNothing) {
  for (int i = 0; i < 2; ++i) run(1, 10), call(1, 100);
  kernel("gemm", 1, 120);
  EXPECT_EQ(handed_on(), "gemm=10");
  EXPECT_EQ(correlation->calls(), 1u);
}

TEST_F(CorrelationTest, TheDriversCallInsideTheRuntimesIsTheSameCall) {
  run(1, 10);
  correlation->add(ApiCall{.correlation_id = 1, .thread = 1, .start_ns = 102, .end_ns = 108});
  correlation->add(ApiCall{.correlation_id = 1, .thread = 1, .start_ns = 100, .end_ns = 110});
  kernel("gemm", 1, 120);
  EXPECT_EQ(handed_on(), "gemm=10");
  EXPECT_EQ(correlation->calls(), 1u);
  EXPECT_EQ(all[0].call->start_ns, 100);
  EXPECT_EQ(all[0].call->end_ns, 110);
}

TEST_F(CorrelationTest, StreamsAndThreadsAreIndependent) {
  run(1, 10), run(2, 20);
  call(2, 101, /*thread=*/2), call(1, 100, /*thread=*/1);
  kernel("on 8", 2, 110, /*stream=*/8);
  kernel("on 7", 1, 130, /*stream=*/7);
  EXPECT_EQ(handed_on(), "on 8=20 on 7=10");
  EXPECT_EQ(all[0].activity.stream, 8u);
  EXPECT_EQ(all[0].call->thread, 2u);
  EXPECT_EQ(all[1].call->thread, 1u);
}

TEST_F(CorrelationTest, DevicesDoNotMix) {
  run(1, 10), call(1, 100), run(2, 20), call(2, 110);
  activity("on 1", 2, 130, 140, /*device=*/1);
  activity("on 0", 1, 130, 140, /*device=*/0);
  EXPECT_EQ(handed_on(), "on 1=20 on 0=10");
  EXPECT_EQ(all[0].activity.device, 1u);
}

TEST_F(CorrelationTest, EveryActivityCountsEvenOneThatLooksLikeAnother) {
  run(1, 10), call(1, 100);
  for (int i = 0; i < 2; ++i) activity("branch", 1, 120, 130);  // of a graph: at the same time, on one stream
  EXPECT_EQ(handed_on(), "branch=10 branch=10");
}

TEST_F(CorrelationTest, ManyCallsThatLaunchNothingAreNoLoss) {
  limit(/*calls=*/64, /*waiting=*/64);
  for (uint32_t id = 1; id <= 10'000; ++id) {
    run(id, 10);
    call(id, 100 * id);
    if (id % 16 == 0) kernel("k", id, 100 * id + 20);
  }
  finish();
  EXPECT_EQ(counts().attributed, 625u);
  EXPECT_EQ(counts().unmatched, 0u);
}

// ---- times
// ------------------------------------------------------------------------------------------------------------

TEST_F(CorrelationTest, AnActivityWithoutTimesHasItsRunAndTakesNone) {
  run(1, 10), call(1, 1'000'000'000'000);
  activity("unknown", 1, 0, 0);
  EXPECT_EQ(handed_on(), "unknown=10");
  EXPECT_EQ(all[0].activity.duration_ns(), 0);
  EXPECT_EQ(counts().untimed, 1u);
}

TEST_F(CorrelationTest, ARecordThatWasDeliveredTooEarlyTakesNoNegativeTime) {
  run(1, 10), call(1, 100);
  activity("unfinished", 1, 120, 0);
  activity("backwards", 1, 120, 119);
  activity("empty", 1, 120, 120);
  EXPECT_EQ(handed_on(), "unfinished=10 backwards=10 empty=10");
  for (const Attribution& known : all) EXPECT_EQ(known.activity.duration_ns(), 0);
  EXPECT_EQ(counts().untimed, 2u);
}

TEST_F(CorrelationTest, ACallWithoutTimesIsFoundByItsId) {
  run(1, 10);
  correlation->add(ApiCall{.correlation_id = 1, .thread = 1, .start_ns = 0, .end_ns = 0});
  kernel("gemm", 1, 1'000'000'000'000);
  EXPECT_EQ(handed_on(), "gemm=10");
}

TEST_F(CorrelationTest, ExtremeTimesDoNoHarm) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  run(1, 10);
  correlation->add(ApiCall{.correlation_id = 1, .thread = 1, .start_ns = kMost - 1, .end_ns = kMost});
  activity("a", 1, kLeast, kMost), activity("b", 1, kMost, kLeast), activity("c", 1, kMost, kMost);
  finish();
  EXPECT_EQ(counts().attributed, 3u);
}

// ---- ids that are reused -------------------------------------------------------------------------------------------

TEST_F(CorrelationTest, AfterTheLastIdComesTheFirst) {
  const uint32_t last = std::numeric_limits<uint32_t>::max();
  run(last, 10), call(last, 100), run(0, 20), call(0, 200), run(1, 30), call(1, 300);
  kernel("a", last, 110), kernel("b", 0, 210), kernel("c", 1, 310);
  EXPECT_EQ(handed_on(), "a=10 b=20 c=30");
}

TEST_F(CorrelationTest, AnIdThatCameRoundBelongsToTheCallBeforeTheKernel) {
  run(5, 10), call(5, 100);
  run(5, 20), call(5, 1000);
  kernel("new", 5, 1010);
  kernel("old", 5, 120);
  EXPECT_EQ(handed_on(), "new=20 old=10");
}

TEST_F(CorrelationTest, AKernelThatOvertakesItsRecordsIsNotGivenToTheEarlierCall) {
  run(5, 10), call(5, 100);
  kernel("new", 5, 1010);  // its records are still to come, in this batch
  run(5, 20), call(5, 1000);
  EXPECT_EQ(handed_on(), "new=20");
}

TEST_F(CorrelationTest, WithoutTimesOrderOfArrivalDecides) {
  run(5, 10);
  kernel("old", 5, 120);
  run(5, 20);
  kernel("new", 5, 1010);
  EXPECT_EQ(handed_on(), "old=10 new=20");
}

TEST_F(CorrelationTest, ALostLaunchOfTheLaterCallIsMadeUpForByOrder) {
  run(5, 10), call(5, 100);
  kernel("old", 5, 120);
  run(5, 20);
  kernel("new", 5, 1010);
  EXPECT_EQ(handed_on(), "old=10 new=20");
}

TEST_F(CorrelationTest, AnIdOfACallOutsideOperatorsComesRound) {
  call(5, 100);
  kernel("mine", 5, 120);
  run(5, 20), call(5, 1000);
  kernel("theirs", 5, 1010);
  EXPECT_EQ(handed_on(), "theirs=20");
  EXPECT_EQ(finish(), "mine=-");
}

TEST_F(CorrelationTest, AnIdComesRoundToACallOutsideOperators) {
  run(5, 10), call(5, 100);
  call(5, 1000);
  kernel("mine", 5, 1010), kernel("theirs", 5, 120);
  EXPECT_EQ(handed_on(), "theirs=10");
  EXPECT_EQ(finish(), "mine=-");
}

TEST_F(CorrelationTest, AnIdThatComesRoundManyTimes) {
  for (uint64_t round = 1; round <= 50; ++round) {
    run(7, round), call(7, 1000 * round);
    kernel("k" + std::to_string(round), 7, 1000 * round + 20);
  }
  finish();
  ASSERT_EQ(all.size(), 50u);
  for (const Attribution& known : all) EXPECT_EQ("k" + std::to_string(*known.run), known.activity.name);
}

TEST_F(CorrelationTest, ADeviceClockThatIsAheadDoesNotGiveAKernelToTheCallOfARoundAgo) {
  constexpr int64_t kHour = 3'600'000'000'000;
  run(5, 10), call(5, 100);
  run(5, 20), call(5, kHour);
  kernel("new", 5, kHour - 2), kernel("old", 5, 120);
  EXPECT_EQ(handed_on(), "new=20 old=10");
}

TEST_F(CorrelationTest, TheDevicesClockMayBeALittleAhead) {
  run(1, 10), call(1, 100);
  kernel("gemm", 1, 98);
  EXPECT_EQ(handed_on(), "gemm=10");
}

TEST_F(CorrelationTest, ACallLongAfterTheKernelIsNotItsCause) {
  run(5, 20), call(5, 3'600'000'000'000);
  kernel("old", 5, 120);
  EXPECT_EQ(finish(), "old=-");
}

// ---- bounds --------------------------------------------------------------------------------------------------------

TEST_F(CorrelationTest, WaitingKernelsAreBoundedAndNoneIsLost) {
  limit(/*calls=*/100, /*waiting=*/8);
  for (uint32_t id = 0; id < 1000; ++id) {
    kernel("k", id, 100 * id);
    EXPECT_LE(correlation->waiting(), 8u);
  }
  finish();
  EXPECT_EQ(all.size(), 1000u);
  EXPECT_EQ(counts().unmatched, 1000u);
}

TEST_F(CorrelationTest, KernelsWithRunsLeaveFirst) {
  limit(/*calls=*/100, /*waiting=*/4);
  kernel("stray", 99, 50);
  for (uint32_t id = 0; id < 20; ++id) run(id, id), call(id, 100 * id), kernel("k", id, 100 * id + 50);
  EXPECT_EQ(counts().unmatched, 0u);
  finish();
  EXPECT_EQ(counts().unmatched, 1u);
  EXPECT_EQ(counts().attributed, 20u);
}

TEST_F(CorrelationTest, CallsAreBoundedTheOldestGoAndAreCounted) {
  limit(/*calls=*/8, /*waiting=*/100);
  for (uint32_t id = 0; id < 100; ++id) {
    run(id, id);
    call(id, 100 * id);
    EXPECT_LE(correlation->calls(), 8u);
  }
  EXPECT_GE(counts().calls_forgotten, 92u);
  kernel("new", 99, 10'000), kernel("old", 3, 10'000);
  EXPECT_EQ(finish(), "new=99 old=-");
  EXPECT_EQ(counts().unmatched, 1u);
}

TEST_F(CorrelationTest, WaitingKernelsAreSettledBeforeTheirCallsAreForgotten) {
  limit(/*calls=*/8, /*waiting=*/1000);
  for (uint32_t id = 0; id < 500; ++id) run(id, id), call(id, 100 * id), kernel("k", id, 100 * id + 50);
  finish();
  EXPECT_EQ(counts().attributed, 500u);
  EXPECT_EQ(counts().calls_forgotten, 0u);
}

TEST_F(CorrelationTest, LimitsOfZeroDoNoHarm) {
  limit(0, 0);
  for (uint32_t id = 0; id < 10; ++id) run(id, id), kernel("k", id, 100 * id);
  finish();
  EXPECT_EQ(all.size(), 10u);
}

TEST_F(CorrelationTest, AfterFinishItStartsAnew) {
  run(1, 10);
  finish();
  EXPECT_EQ(correlation->calls(), 0u);
  kernel("stray", 1, 120);
  EXPECT_EQ(finish(), "stray=-");
}

}  // namespace
}  // namespace amanda::tools
