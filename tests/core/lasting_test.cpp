// Memory that is taken while an amanda::Lasting exists: where it lies, and that anyone may free it.
#include "amanda/base/lasting.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace amanda {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Is it in the heap that malloc uses on the first thread, where a program's buffers are?
bool is_in_heap(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[heap]") == std::string::npos) continue;
    char* end = nullptr;
    const auto from = std::strtoull(line.c_str(), &end, 16), to = std::strtoull(end + 1, nullptr, 16);
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at >= from && at < to) return true;
  }
  return false;
}

class LastingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
    // Larger than what malloc keeps of freed blocks for a thread, wherever they came from.
    if (!is_in_heap(std::vector<char>(60000).data())) GTEST_SKIP() << "malloc is not glibc's";
  }
};

TEST_F(LastingTest, IsNotBetweenTheProgramsBuffers) {
  for (const size_t size : {1, 16, 17, 100, 256, 500, 512}) {
    const Lasting memory;
    { const Lasting nested; }
    std::vector<std::vector<char>> all(1000);  // more than what is fetched in advance
    for (std::vector<char>& lasting : all) {
      lasting.resize(size);
      ASSERT_FALSE(is_in_heap(lasting.data())) << size;
    }
  }
  EXPECT_FALSE(Lasting::is_on());
  EXPECT_TRUE(is_in_heap(std::vector<char>(60000).data()));
}

TEST_F(LastingTest, LeavesLargeBlocksWhereTheyAre) {
  const Lasting memory;
  for (const size_t size : {513, 60000}) EXPECT_TRUE(is_in_heap(std::vector<char>(size).data())) << size;
}

TEST_F(LastingTest, CoversWhatContainersAndStringsAllocate) {
  const Lasting memory;
  const std::vector<std::string> texts(100, std::string(40, 'x'));
  for (const std::string& text : texts) EXPECT_FALSE(is_in_heap(text.data()));
}

TEST_F(LastingTest, MayBeFreedOnAnotherThreadAndByFree) {
  std::vector<void*> blocks;
  {
    const Lasting memory;
    for (size_t i = 0; i < 5000; ++i) blocks.push_back(::operator new(8 + i % 2000));
  }
  std::thread([&] {
    for (size_t i = 0; i < blocks.size(); i += 2) std::free(blocks[i]);
  }).join();
  for (size_t i = 1; i < blocks.size(); i += 2) std::free(blocks[i]);
}

TEST_F(LastingTest, HoldsForItsThreadOnly) {
  const Lasting memory;
  std::thread([] { EXPECT_FALSE(Lasting::is_on()); }).join();
  EXPECT_TRUE(Lasting::is_on());
}

TEST_F(LastingTest, WorksInThreadLocalDestructorsAndAfterAFork) {
  struct Late {
    ~Late() {
      const Lasting memory;
      std::string(100, 'x').swap(text);
    }
    std::string text;
  };
  std::thread([] {
    thread_local Late late;  // destroyed after what take_lasting() keeps for the thread, which is newer
    late.text = "used";
    const Lasting memory;
    EXPECT_EQ(std::string(50, 'y').size(), 50);
  }).join();
  const pid_t child = fork();
  if (child == 0) {
    const Lasting memory;
    const std::vector<int> numbers(100, 1);
    _exit(is_in_heap(numbers.data()) ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace amanda
