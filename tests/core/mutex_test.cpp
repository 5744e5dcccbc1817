// Mutexes, and what a fork makes of them.
#include "amanda/base/mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace amanda {
namespace {

/// Forks, and returns what `in_child` returns there.
int forked(const auto& in_child) {
  const pid_t child = fork();
  if (child == 0) _exit(in_child());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MutexTest, IsFreeInAForkedChildAndWhatItGuardsIsWhole) {
  Mutex mutex, other;
  std::atomic<int> begun = 0, ended = 0;
  std::atomic<bool> stop = false;
  std::jthread busy([&] {
    while (!stop) {
      {
        std::lock_guard lock(mutex);
        std::lock_guard inner(other);
        ++begun;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        ++ended;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  while (begun == 0) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(forked([&] {
                alarm(120);
                std::lock_guard inner(other);
                std::lock_guard lock(mutex);
                return begun == ended ? 3 : 4;
              }),
              3);
  }
  stop = true;
}

TEST(MutexTest, ItsOwnerIsToldInTheChild) {
  int told = 0;
  Mutex mutex([](void* owner) { ++*static_cast<int*>(owner); }, &told);
  EXPECT_EQ(forked([&] { return told; }), 1);
  EXPECT_EQ(told, 0);
}

TEST(MutexTest, MayBeMadeAndDestroyedWhileOthersFork) {
  std::atomic<bool> stop = false;
  std::jthread busy([&] {
    while (!stop) {
      Mutex mutex;
      std::lock_guard lock(mutex);
      Mutex inner;
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(forked([&] {
                Mutex mutex;
                return mutex.try_lock() ? 3 : 4;
              }),
              3);
  }
  stop = true;
}

}  // namespace
}  // namespace amanda
