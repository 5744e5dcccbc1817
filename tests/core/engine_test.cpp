// What the core tells and asks drivers.
#include <amanda/engine.h>

#include "trace_test.h"

namespace amanda {
namespace {

struct OldDriver final : Backend {
  std::string_view name_space() const override { return "old"; }
  Capabilities capabilities() const override { return {}; }
  const OpInfo& info(OpType) const override { return none; }
  void switch_to(ScopeStack*) override {}
  void* begin_routines(RoutineMode) override { return nullptr; }
  void end_routines(void*) noexcept override {}
  OpInfo none;
};

TEST(EngineTest, ADriverBuiltForAnotherSeamIsRefused) {
  OldDriver driver;
  EXPECT_EQ(error_of([&] { Engine::attach(driver, kSeamVersion + 1); }),
            "[engine] the driver 'old' was built for seam version 2, this core has 1; rebuild the driver");
}

}  // namespace
}  // namespace amanda
