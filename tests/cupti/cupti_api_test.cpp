// CuptiApi against the library that stands in for CUPTI: loading, checking, buffers.
#include "cupti_profiler/cupti_api.h"

#include <amanda/error.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "stand_in.h"

namespace amanda::tools {
namespace {

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Writes down what it is given, in order.
class Notes final : public RecordSink {
 public:
  void on(const ExternalId& id) override {
    text += " run" + std::to_string(id.run) + "@" + std::to_string(id.correlation_id);
  }
  void on(const ApiCall& call) override { text += " call@" + std::to_string(call.correlation_id); }
  void on(const Activity& activity) override {
    text += " " + std::string(activity.name) + "@" + std::to_string(activity.correlation_id);
    thread = std::this_thread::get_id();
    last = activity;
    ++activities;
  }

  std::string text;
  std::thread::id thread;
  Activity last;
  size_t activities = 0;
};

class CuptiApiTest : public ::testing::Test {
 protected:
  ~CuptiApiTest() override {
    if (started) cupti->stop();
    stand_in_reset();
  }
  void start(CuptiApi::Limits limits = {}) {
    cupti->start(notes, limits);
    started = true;
  }
  void stop() {
    started = false;
    cupti->stop();
  }

  Notes notes;
  bool started = false;
  CuptiApi* cupti = &stand_in();

 private:
  static CuptiApi& stand_in() {
    setenv("AMANDA_CUPTI", AMANDA_TEST_STAND_IN, 1);
    stand_in_reset();
    return CuptiApi::load({});
  }
};

// ---- loading -------------------------------------------------------------------------------------------------------

TEST_F(CuptiApiTest, TheEnvironmentNamesTheLibrary) {
  EXPECT_EQ(cupti->path(), AMANDA_TEST_STAND_IN);
  EXPECT_GE(cupti->version(), 18u);
}

TEST_F(CuptiApiTest, ALibraryThatCannotBeOpenedIsNamed) {
  setenv("AMANDA_CUPTI", "/nowhere/libcupti.so", 1);
  const std::string error = error_of([] { CuptiApi::load({AMANDA_TEST_STAND_IN}); });
  EXPECT_EQ(error.rfind("[cupti] AMANDA_CUPTI names what cannot be opened: /nowhere/libcupti.so:", 0), 0u) << error;
}

TEST_F(CuptiApiTest, CandidatesComeNext) {
  unsetenv("AMANDA_CUPTI");
  EXPECT_EQ(CuptiApi::load({"/nowhere/libcupti.so", AMANDA_TEST_STAND_IN}).path(), AMANDA_TEST_STAND_IN);
}

TEST_F(CuptiApiTest, ALibraryThatIsNotCuptiIsRefused) {
  setenv("AMANDA_CUPTI", "libm.so.6", 1);
  const std::string error = error_of([] { CuptiApi::load({}); });
  EXPECT_NE(error.find("libm.so.6 has no cuptiGet"), std::string::npos) << error;
  EXPECT_NE(error.find("; CUPTI of CUDA 11.8 or later is needed"), std::string::npos) << error;
}

TEST_F(CuptiApiTest, LibrariesWhoseRecordsAreNotKnownAreRefused) {
  for (const char* version : {"17", "140000"}) {
    const std::string copy = ::testing::TempDir() + "libcupti_" + version + ".so";  // another library to the loader
    std::filesystem::copy_file(AMANDA_TEST_STAND_IN, copy, std::filesystem::copy_options::overwrite_existing);
    setenv("AMANDA_CUPTI", copy.c_str(), 1);
    setenv("STAND_IN_VERSION", version, 1);
    EXPECT_EQ(error_of([] { CuptiApi::load({}); }),
              "[cupti] " + copy + " has CUPTI's API version " + version +
                  "; known are 18 (CUDA 11.8) to 139999 (CUDA 13); let AMANDA_CUPTI name such a library");
    unsetenv("STAND_IN_VERSION");
  }
}

// ---- a collection --------------------------------------------------------------------------------------------------

TEST_F(CuptiApiTest, RecordsAreDeliveredWhenFlushedOnAnotherThread) {
  start();
  cupti->push(10);
  stand_in_launch("gemm", 7);
  cupti->pop();
  stand_in_launch("mine", 8);
  EXPECT_EQ(notes.text, "");
  cupti->flush();
  EXPECT_EQ(notes.text, " run10@1 call@1 gemm@1 call@2 mine@2");
  EXPECT_NE(notes.thread, std::this_thread::get_id());
  EXPECT_EQ(notes.last.stream, 8u);
  EXPECT_EQ(notes.last.duration_ns(), 5000);
  EXPECT_EQ(cupti->counts().records, 6u);  // one is of another client's kind
}

TEST_F(CuptiApiTest, TimesAreThoseOfTheSteadyClock) {
  start();
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); };
  const int64_t before = now();
  stand_in_launch("gemm", 7);
  cupti->flush();
  EXPECT_GE(notes.last.start_ns, before);
  EXPECT_LE(notes.last.start_ns, now() + 2000);
}

TEST_F(CuptiApiTest, CopiesHaveTheirBytesAndDirection) {
  start();
  stand_in_copy(4096);
  cupti->flush();
  EXPECT_EQ(notes.last.name, "Memcpy HtoD");
  EXPECT_EQ(notes.last.bytes, 4096u);
  EXPECT_EQ(notes.last.kind, Activity::Kind::kMemcpy);
}

TEST_F(CuptiApiTest, TheInnermostIdIsTheOneRecorded) {
  start();
  cupti->push(10), cupti->push(20);
  stand_in_launch("inner", 7);
  cupti->pop();
  stand_in_launch("outer", 7);
  cupti->pop();
  cupti->flush();
  EXPECT_EQ(notes.text, " run20@1 call@1 inner@1 run10@2 call@2 outer@2");
}

TEST_F(CuptiApiTest, StoppingDeliversTheRestAndLeavesNothingOn) {
  start();
  EXPECT_EQ(stand_in_enabled(), 7u);
  stand_in_launch("last", 7);
  stop();
  EXPECT_EQ(notes.text, " call@1 last@1");
  EXPECT_EQ(stand_in_enabled(), 0u);
  EXPECT_EQ(cupti->counts().failure, "");
  stand_in_deliver();  // a buffer that comes too late
  EXPECT_EQ(notes.activities, 1u);
}

TEST_F(CuptiApiTest, TheSubscriptionIsLeftToOthers) {
  start();
  EXPECT_FALSE(stand_in_subscribed());
}

TEST_F(CuptiApiTest, ItCanCollectAgain) {
  for (int i = 0; i < 3; ++i) {
    start();
    stand_in_launch("k", 7);
    stop();
  }
  EXPECT_EQ(notes.activities, 3u);
  EXPECT_EQ(cupti->counts().buffers, 1u);  // of the last collection
}

TEST_F(CuptiApiTest, OnlyOneCollectionAtATime) {
  start();
  EXPECT_EQ(error_of([&] { cupti->start(notes, {}); }),
            "[cupti] another CuptiProfiler of this process is collecting; leave its scope first");
  stand_in_launch("k", 7);
  cupti->flush();
  EXPECT_EQ(notes.activities, 1u);  // the first one continues
}

// ---- failures ------------------------------------------------------------------------------------------------------

TEST_F(CuptiApiTest, AnotherSubscriberIsNamed) {
  stand_in_hold("CUPTI for Nsight Systems");
  EXPECT_EQ(error_of([&] { start(); }),
            "[cupti] cuptiSubscribe_v2 failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED; 'CUPTI for Nsight "
            "Systems' holds CUPTI, end it first");
}

TEST_F(CuptiApiTest, ASubscriberWithoutANameMayBeIdle) {
  for (const char* name : {"", "CUPTI"}) {
    stand_in_hold(name);
    start();
    stand_in_launch("k", 7);
    stop();
    EXPECT_EQ(cupti->counts().failure, "");
  }
  EXPECT_EQ(notes.activities, 2u);
}

TEST_F(CuptiApiTest, ASubscriberWithoutANameIsSuspectedIfNothingIsDelivered) {
  stand_in_hold("");
  start();
  stop();
  EXPECT_EQ(cupti->counts().failure,
            "[cupti] no record was delivered, and another client has subscribed to CUPTI: is it collecting?");
}

TEST_F(CuptiApiTest, AClientThatTakesOverIsNoticed) {
  start();
  stand_in_keep_a_buffer();
  stop();
  EXPECT_EQ(cupti->counts().failure,
            "[cupti] 1 buffers of records did not come back: was another profiler started inside the scope?");
  stand_in_return_buffers();  // too late to count; it is freed
}

TEST_F(CuptiApiTest, ABufferOfAnEarlierCollectionIsNotTakenForOneOfThis) {
  start();
  stand_in_keep_a_buffer();
  stop();
  start();
  stand_in_keep_a_buffer();
  const size_t before = cupti->counts().records;
  stand_in_return_buffers();
  EXPECT_EQ(cupti->counts().records, before + 1);  // the second's
  stop();
  EXPECT_EQ(cupti->counts().failure, "");
}

TEST_F(CuptiApiTest, ABufferThatIsAskedForOutsideCollectionsIsGivenAndFreed) {
  start();
  stop();
  stand_in_keep_a_buffer();
  stand_in_return_buffers();
  EXPECT_EQ(notes.text, "");
}

TEST_F(CuptiApiTest, AnExceptionOfTheSinkDoesNotReachCuptisThread) {
  class Full final : public RecordSink {
    void on(const ExternalId&) override {}
    void on(const ApiCall&) override {}
    void on(const Activity&) override { throw std::bad_alloc(); }
  } full;
  cupti->start(full, {});
  stand_in_launch("a", 7), stand_in_launch("b", 7);
  cupti->stop();
  EXPECT_EQ(cupti->counts().lost, 2u);
  EXPECT_EQ(cupti->counts().failure, "[cupti] a record could not be kept: std::bad_alloc");
}

TEST_F(CuptiApiTest, AfterwardsTheClockIsCuptisOwnAgain) {
  start();
  stop();
  const auto now = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  EXPECT_NEAR(static_cast<double>(stand_in_now()), static_cast<double>(now), 60e9);
}

TEST_F(CuptiApiTest, AForkedChildOfACollectingProcessIsRefused) {
  start();
  const pid_t child = fork();
  if (child == 0) {
    const std::string error = error_of([&] { cupti->start(notes, {}); });
    _exit(error.rfind("[cupti] this process was forked from one that is collecting", 0) == 0 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(CuptiApiTest, EveryCallThatStartsIsCheckedAndAFailedStartLeavesNothingOn) {
  for (const std::string function : {"cuptiSubscribe_v2", "cuptiActivityRegisterTimestampCallback",
                                     "cuptiActivityRegisterCallbacks", "cuptiActivityEnable"}) {
    stand_in_fail(function.c_str(), 35);
    EXPECT_EQ(error_of([&] { start(); }),
              "[cupti] " + function +
                  " failed: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; the driver lets only administrators profile "
                  "(NVreg_RestrictProfilingToAdminUsers)");
    EXPECT_EQ(stand_in_enabled(), 0u);
    stand_in_reset();
  }
  start();  // and it can start later
}

TEST_F(CuptiApiTest, AResultWithoutATextIsANumber) {
  stand_in_fail("cuptiActivityEnable", 12345);
  EXPECT_EQ(error_of([&] { start(); }).rfind("[cupti] cuptiActivityEnable failed: CUptiResult 12345", 0), 0u);
}

TEST_F(CuptiApiTest, AFailedFlushOrPushIsAnErrorToo) {
  start();
  stand_in_fail("cuptiActivityFlushAll", 999);
  EXPECT_EQ(error_of([&] { cupti->flush(); }).rfind("[cupti] cuptiActivityFlushAll failed: CUPTI_ERROR_UNKNOWN", 0),
            0u);
  stand_in_fail("cuptiActivityPushExternalCorrelationId", 999);
  EXPECT_EQ(error_of([&] {
              cupti->push(1);
            }).rfind("[cupti] cuptiActivityPushExternalCorrelationId failed: CUPTI_ERROR_UNKNOWN", 0),
            0u);
  started = false;
  EXPECT_EQ(error_of([&] { cupti->stop(); }).rfind("[cupti] cuptiActivityFlushAll failed: CUPTI_ERROR_UNKNOWN", 0), 0u);
  EXPECT_EQ(stand_in_enabled(), 0u);  // stopped all the same
}

TEST_F(CuptiApiTest, ABufferThatCannotBeReadIsCountedAndItsFailureKept) {
  start();
  stand_in_launch("k", 7);
  stand_in_fail("cuptiActivityGetNextRecord", 21);
  cupti->flush();
  EXPECT_EQ(notes.activities, 0u);
  EXPECT_EQ(cupti->counts().unread, 1u);
  EXPECT_EQ(cupti->counts().failure.rfind("[cupti] cuptiActivityGetNextRecord failed: CUPTI_ERROR_INVALID_KIND", 0),
            0u);
}

// ---- buffers -------------------------------------------------------------------------------------------------------

TEST_F(CuptiApiTest, ManyBuffersOfRecords) {
  start({.buffer_bytes = 4096, .buffers = 4});
  for (int i = 0; i < 1000; ++i) {
    cupti->push(i);
    stand_in_launch("k", 7);
    cupti->pop();
  }
  cupti->flush();
  EXPECT_EQ(notes.activities, 1000u);
  EXPECT_GT(cupti->counts().buffers, 50u);
  EXPECT_EQ(cupti->counts().dropped, 0u);
}

TEST_F(CuptiApiTest, WithoutABufferRecordsAreDroppedAndCounted) {
  start({.buffer_bytes = 4096, .buffers = 0});
  for (int i = 0; i < 10; ++i) stand_in_launch("k", 7);
  stand_in_deliver();
  EXPECT_EQ(notes.activities, 0u);
  stop();
  EXPECT_EQ(cupti->counts().buffers, 0u);
  start();
  stand_in_launch("k", 7);
  stop();
  EXPECT_EQ(cupti->counts().dropped, 20u);  // a call and a kernel each: told with the next buffer
  EXPECT_EQ(notes.activities, 1u);
}

TEST_F(CuptiApiTest, LibrariesThatCrashWithoutABufferAlwaysGetOne) {
  const std::string copy = ::testing::TempDir() + "libcupti_old.so";  // another library to the loader
  std::filesystem::copy_file(AMANDA_TEST_STAND_IN, copy, std::filesystem::copy_options::overwrite_existing);
  setenv("AMANDA_CUPTI", copy.c_str(), 1);
  setenv("STAND_IN_VERSION", "26", 1);
  CuptiApi& old = CuptiApi::load({});
  EXPECT_EQ(old.version(), 26u);
  old.start(notes, {.buffer_bytes = 4096, .buffers = 0});
  void* library = dlopen(copy.c_str(), RTLD_NOW);
  reinterpret_cast<decltype(&stand_in_launch)>(dlsym(library, "stand_in_launch"))("k", 7);
  old.stop();
  EXPECT_EQ(notes.activities, 1u);
}

TEST_F(CuptiApiTest, SeveralThreadsLaunchAndFlush) {
  start({.buffer_bytes = 4096, .buffers = 64});
  std::vector<std::thread> threads;
  for (uint64_t run = 1; run <= 4; ++run) {
    threads.emplace_back([&, run] {
      for (int i = 0; i < 200; ++i) {
        cupti->push(run);
        stand_in_launch("k", run);
        cupti->pop();
        if (i % 50 == 0) cupti->flush();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop();
  EXPECT_EQ(notes.activities, 800u);
}

TEST_F(CuptiApiTest, AWorkerMayDeliverWhileACollectionEnds) {
  std::atomic<bool> done = false;
  start();
  stop();  // the callbacks are known
  std::thread worker([&] {
    while (!done) stand_in_deliver();
  });
  for (int i = 0; i < 50; ++i) {
    start({.buffer_bytes = 4096, .buffers = 8});
    for (int j = 0; j < 10; ++j) stand_in_launch("k", 7);
    stop();
  }
  done = true;
  worker.join();
  EXPECT_EQ(notes.activities, 500u);
}

}  // namespace
}  // namespace amanda::tools
