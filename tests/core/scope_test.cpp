// Where tools apply: nested scopes, and leaving them.
#include <amanda/reference/operator.h>

#include <thread>

#include "trace_test.h"

namespace amanda {
namespace {

using ScopeTest = TraceTest;

TEST_F(ScopeTest, InnerToolsRunAfterOuterOnes) {
  apply({tool("outer")});
  apply({tool("inner")});
  call("add");
  leave();
  call("add");
  leave();
  call("add");
  EXPECT_EQ(trace(), "outer< inner< add outer> inner> outer< add outer> add");
}

TEST_F(ScopeTest, OpeningAnInnerScopeAnalysesNothingAgain) {
  apply({tool("a").tells_analysis()});
  call("add");
  trace();
  apply({tool("b").tells_analysis()});
  call("add");
  EXPECT_EQ(trace(), "b? a< b< add a> b>");
  leave();
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
}

TEST_F(ScopeTest, AToolThatIsActiveAlreadyRunsOnce) {
  apply({tool("a").tells_analysis()});
  apply({tool("b"), tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a? a< b< add a> b>");
}

TEST_F(ScopeTest, OneObjectEnteredTwiceRunsItsToolsOnce) {
  Scope& scope = apply({tool("a")});
  enter(scope);
  call("add");
  leave();
  call("add");
  leave();
  call("add");
  EXPECT_EQ(trace(), "a< add a> a< add a> add");
}

TEST_F(ScopeTest, EnteringTheSameObjectAgainKeepsItsAnalysis) {
  Scope& scope = apply({tool("a").tells_analysis()});
  call("add");
  leave();
  enter(scope);
  call("add");
  EXPECT_EQ(trace(), "a? a< add a> a< add a>");
}

TEST_F(ScopeTest, AnotherObjectStartsFresh) {
  apply({tool("a").tells_analysis()});
  call("add");
  leave();
  apply({tool("a")});
  call("add");
  EXPECT_EQ(trace(), "a? a< add a> a? a< add a>");
}

TEST_F(ScopeTest, TheInnerContextStartsWithACopyOfTheOuterKeys) {
  tool("a").does([&](OpContext& op) { op.set("mask", std::string("outer")); });
  tool("b").does([&](OpContext& op) {
    note(*op.get<std::string>("mask"));
    op.set("mask", std::string("inner"));
  });
  tool("c").does([&](OpContext& op) { note(*op.get<std::string>("mask")); });
  apply({tool("a")});
  apply({tool("b")});
  call("add");
  leave();
  apply({tool("c")});  // beside b's scope, in a's
  call("add");
  EXPECT_EQ(trace(), "outer add outer add");
}

TEST_F(ScopeTest, ScopesMayBeLeftInAnyOrder) {
  Scope& first = apply({tool("a")});
  apply({tool("b")});
  leave(first);
  call("add");
  leave();
  call("add");
  EXPECT_EQ(trace(), "b< add b> add");
}

TEST_F(ScopeTest, LeavingAnOuterScopeKeepsTheToolsThatAnInnerOneHasToo) {
  Scope& first = apply({tool("a")});
  apply({tool("a"), tool("b")});
  leave(first);
  call("add");
  EXPECT_EQ(trace(), "a< b< add a> b>");
}

TEST_F(ScopeTest, LeavingOnAnotherThreadRaises) {
  const auto scope = this->scope({tool("a")});
  const uint64_t entry = scope->enter_entry();
  std::string error;
  std::thread([&] { error = error_of([&] { scope->leave_entry(entry, nullptr); }); }).join();
  EXPECT_EQ(error,
            "[scope] this scope was not entered on this thread, or was left already; leave it where it was entered");
  call("add");
  EXPECT_EQ(trace(), "a< add a>");
  scope->leave_entry(entry, nullptr);
}

TEST_F(ScopeTest, LeavingTwiceRaises) {
  const auto scope = this->scope({tool("a")});
  const uint64_t entry = scope->enter_entry();
  scope->leave_entry(entry, nullptr);
  EXPECT_EQ(error_of([&] { scope->leave_entry(entry, nullptr); }),
            "[scope] this scope was not entered on this thread, or was left already; leave it where it was entered");
}

TEST_F(ScopeTest, AGuardLeavesAtTheEndOfItsBlock) {
  const auto scope = this->scope({tool("a")});
  {
    auto in = scope->enter();
    call("add");
  }
  call("add");
  EXPECT_EQ(trace(), "a< add a> add");
}

TEST_F(ScopeTest, AScopeIsMadeOfToolsInAnyNumber) {
  Tool a("a"), b("b");
  Scope one(a), two(b, a);
  EXPECT_EQ(one.tools(), (std::vector<Tool*>{&a}));
  EXPECT_EQ(two.tools(), (std::vector<Tool*>{&b, &a}));
}

TEST_F(ScopeTest, SixtyFourToolsMayBeActive) {
  std::vector<std::unique_ptr<Tool>> tools;
  std::vector<Tool*> pointers;
  int runs = 0;
  for (int i = 0; i < 65; ++i) {
    tools.push_back(std::make_unique<Tool>("tool"));
    tools.back()->add_inst_for_op([&](OpContext& op) { op.insert_before_op([&](Values&) { ++runs; }); });
    if (i < 64) pointers.push_back(tools.back().get());
  }
  Scope most(pointers);
  auto in = most.enter();
  call("add");
  EXPECT_EQ(runs, 64);
  Scope one_more(*tools.back());
  EXPECT_EQ(error_of([&] { one_more.enter_entry(); }),
            "[scope] more than 64 tools are active on this thread; leave a scope first");
  call("add");
  EXPECT_EQ(runs, 128);
}

TEST_F(ScopeTest, AScopeMayBeEnteredInsideAnOperator) {
  const auto inner = scope({tool("inner")});
  reference::define({{"test", "enters", "", {}, {"result"}, ""}, [&](const Operands&) -> Operands {
                       auto in = inner->enter();
                       return {call("add")};
                     }});
  apply({tool("outer")});
  reference::call("enters", {});
  EXPECT_EQ(trace(), "outer< enters inner< add inner> outer>");
}

TEST_F(ScopeTest, AScopeLeftInsideAnOperatorEndsThere) {
  Scope* outer = nullptr;
  const auto other = scope({tool("other")});
  reference::define({{"test", "leaves", "", {}, {"result"}, ""}, [&](const Operands&) -> Operands {
                       leave(*outer);
                       auto in = other->enter();
                       return {call("add")};
                     }});
  outer = &apply({tool("outer")});
  reference::call("leaves", {});
  EXPECT_EQ(trace(), "outer< leaves other< add other> outer>");
  call("add");
  EXPECT_EQ(trace(), "add");
}

// Each entry below makes another stack of scopes while on_op works with an earlier one.
TEST_F(ScopeTest, ARoutineMayOpenAndCloseScopes) {
  const auto inner = scope({tool("inner")});
  tool("a").does(
      [&](OpContext& op) {
        op.insert_before_op(
            [&](Values&) {
              for (int i = 0; i < 20; ++i) {
                const auto fresh = scope({tool("fresh" + std::to_string(i))});
                auto in = fresh->enter();
                auto again = inner->enter();
                call("neg");
              }
            },
            {.inputs = Positions::none()});
        op.insert_after_op([&](Values&) { note("a>"); });
      },
      {.nested = true});
  reference::define({{"test", "nests", "", {}, {"result"}, ""}, [&](const Operands&) -> Operands {
                       auto in = inner->enter();
                       return {call("add")};
                     }});
  apply({tool("a")});
  reference::call("nests", {});
  std::string negs;
  for (int i = 0; i < 20; ++i) negs += "neg ";
  EXPECT_EQ(trace(), negs + "nests " + negs + "inner< add a> inner> a>");
}

}  // namespace
}  // namespace amanda
