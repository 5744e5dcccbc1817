// A build without cupti.h: the tool says so, and measures operators.
#include <amanda/reference/array.h>
#include <amanda/reference/call.h>
#include <gtest/gtest.h>

#include <string>

#include "cupti_profiler/cupti_profiler.h"

namespace amanda::tools {
namespace {

TEST(NoCuptiTest, TheProfilerSaysWhatIsMissingAndTimesOperators) {
  std::string log;
  set_log_sink([&](const std::string& line) { log += line; });
  CuptiProfiler tool;
  Scope scope(tool);
  {
    auto in = scope.enter();
    reference::call("neg", {reference::Array{1}});
  }
  set_log_sink({});
  EXPECT_EQ(
      tool.profile()->gpu_status(),
      "no GPU kernels are collected, operators are timed on the host: [cupti] this build has no CUPTI: cupti.h was "
      "not found; configure with -DAMANDA_CUPTI_INCLUDE_DIR=<folder of cupti.h>");
  EXPECT_EQ(log, "[cupti_profiler] " + tool.profile()->gpu_status());
  EXPECT_EQ(tool.profile()->runs()->events().size(), 1u);
}

}  // namespace
}  // namespace amanda::tools
