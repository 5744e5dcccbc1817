// The switches of a thread, and what tools are told of their scopes.
#include <amanda/reference/operator.h>

#include "trace_test.h"

namespace amanda {
namespace {

using SwitchTest = TraceTest;

TEST_F(SwitchTest, DisabledHidesOperators) {
  apply({tool("a")});
  {
    Switch off = disabled();
    EXPECT_FALSE(is_enabled());
    call("add");
  }
  EXPECT_TRUE(is_enabled());
  call("add");
  EXPECT_EQ(trace(), "add a< add a>");
}

TEST_F(SwitchTest, SwitchesNest) {
  apply({tool("a")});
  Switch off = disabled();
  {
    Switch on = enabled();
    call("add");
    {
      Switch off_again = disabled();
      call("mul");
    }
    call("sub");
  }
  call("neg");
  EXPECT_EQ(trace(), "a< add a> mul a< sub a> neg");
}

TEST_F(SwitchTest, AScopeEnteredWhileDisabledStaysSilentUntilEnabled) {
  Switch off = disabled();
  apply({tool("a")});
  call("add");
  Switch on = enabled();
  call("add");
  EXPECT_EQ(trace(), "add a< add a>");
}

TEST_F(SwitchTest, SwitchesArePutBackInAnyOrder) {
  apply({tool("a")});
  Switch first = disabled(), second = disabled();
  first.put_back();
  EXPECT_FALSE(is_enabled());
  second.put_back();
  EXPECT_TRUE(is_enabled());
  Switch off = disabled(), on = enabled();
  off.put_back();
  EXPECT_TRUE(is_enabled());
  on.put_back();
  EXPECT_TRUE(is_enabled());
  Switch uncached = cache_disabled(), uncached_again = cache_disabled();
  uncached.put_back();
  EXPECT_FALSE(is_cache_enabled());
  uncached_again.put_back();
  EXPECT_TRUE(is_cache_enabled());
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(SwitchTest, DisabledInsideAnOperatorHidesWhatFollows) {
  reference::define({{"test", "switches", "", {}, {"result"}, ""}, [&](const Operands&) -> Operands {
                       call("add");
                       Switch off = disabled();
                       return {call("add")};
                     }});
  apply({tool("a").nested()});
  reference::call("switches", {});
  EXPECT_EQ(trace(), "a< switches a< add a> add a>");
}

using LifecycleTest = TraceTest;

TEST_F(LifecycleTest, ToolsEnterInOrderAndExitInReverse) {
  apply({tool("a").tells_lifecycle(), tool("b").tells_lifecycle()});
  EXPECT_EQ(trace(), "a+ b+");
  leave();
  EXPECT_EQ(trace(), "b- a-");
}

TEST_F(LifecycleTest, AToolThatIsActiveAlreadyDoesNotEnterAgain) {
  Scope& scope = apply({tool("a").tells_lifecycle()});
  apply({tool("a"), tool("b").tells_lifecycle()});
  enter(scope);
  EXPECT_EQ(trace(), "a+ b+");
  leave();
  leave();
  EXPECT_EQ(trace(), "b-");
  leave();
  EXPECT_EQ(trace(), "a-");
}

TEST_F(LifecycleTest, AToolExitsWhenTheLastScopeThatHasItIsLeft) {
  Scope& outer = apply({tool("a").tells_lifecycle()});
  apply({tool("a"), tool("b").tells_lifecycle()});
  leave(outer);
  EXPECT_EQ(trace(), "a+ b+");
  leave();
  EXPECT_EQ(trace(), "b- a-");
}

TEST_F(LifecycleTest, AnEntryThatFailsIsTakenBack) {
  tool("b").fails_at("+");
  const auto scope = this->scope({tool("a").tells_lifecycle(), tool("b").tells_lifecycle(), tool("c")});
  EXPECT_EQ(error_of<std::runtime_error>([&] { scope->enter_entry(); }), "boom");
  call("add");
  EXPECT_EQ(trace(), "a+ b+ a-error add");
}

TEST_F(LifecycleTest, ExitIsToldOfTheException) {
  const auto scope = this->scope({tool("a").tells_lifecycle()});
  try {
    auto in = scope->enter();
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(trace(), "a+ a-error");
}

TEST_F(LifecycleTest, AFailingExitDoesNotKeepTheOthersFromTheirs) {
  tool("b").fails_at("-");
  const auto scope = this->scope({tool("a").tells_lifecycle(), tool("b").tells_lifecycle()});
  const uint64_t entry = scope->enter_entry();
  EXPECT_EQ(error_of<std::runtime_error>([&] { scope->leave_entry(entry, nullptr); }), "boom");
  call("add");
  EXPECT_EQ(trace(), "a+ b+ b- a- add");
}

TEST_F(LifecycleTest, AGuardLogsAFailingExit) {
  tool("a").fails_at("-");
  {
    const auto scope = this->scope({tool("a").tells_lifecycle()});
    auto in = scope->enter();
  }
  EXPECT_EQ(trace(), "a+ a-");
  EXPECT_EQ(log(), (std::vector<std::string>{"[amanda] leaving a scope failed: boom"}));
}

}  // namespace
}  // namespace amanda
