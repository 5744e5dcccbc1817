// The tools in force, as an object that graph drivers hold as a key.
#include <amanda/amanda.h>
#include <amanda/driver/engine.h>
#include <amanda/reference/call.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace amanda {
namespace {

class ToolsetTest : public testing::Test {
 protected:
  static ToolsetPtr toolset() { return Engine::toolset(*Engine::scopes_here()); }

  Tool first{"first"}, second{"second"};
};

TEST_F(ToolsetTest, ItIsTheSameObjectUntilSomethingChanges) {
  Scope scope(first);
  ToolsetPtr before;
  {
    auto in = scope.enter();
    before = toolset();
    EXPECT_EQ(toolset(), before);
  }
  auto again = scope.enter();
  EXPECT_EQ(toolset(), before);
  EXPECT_FALSE(before->is_over());
}

TEST_F(ToolsetTest, ItIsTheSameOnAnotherThread) {
  Scope scope(first);
  auto in = scope.enter();
  const ToolsetPtr here = toolset();
  ToolsetPtr there;
  std::thread([&] {
    auto in = scope.enter();
    there = toolset();
  }).join();
  EXPECT_EQ(here, there);
}

TEST_F(ToolsetTest, AnotherScopeOfTheSameToolsHasAnother) {
  Scope scope(first), other(first);
  ToolsetPtr one, two;
  {
    auto in = scope.enter();
    one = toolset();
  }
  {
    auto in = other.enter();
    two = toolset();
  }
  EXPECT_NE(one, two);
  EXPECT_NE(one->key(), two->key());
}

TEST_F(ToolsetTest, TheOrderOfScopesCounts) {
  Scope scope(first), other(second);
  ToolsetPtr one, two;
  {
    auto in = scope.enter();
    auto inner = other.enter();
    one = toolset();
  }
  {
    auto in = other.enter();
    auto inner = scope.enter();
    two = toolset();
  }
  EXPECT_NE(one, two);
}

TEST_F(ToolsetTest, AToolThatChangesEndsIt) {
  Scope scope(first);
  auto in = scope.enter();
  const ToolsetPtr before = toolset();
  first.add_inst_for_op([](OpContext&) {});
  EXPECT_TRUE(before->is_over());
  EXPECT_NE(toolset(), before);
  EXPECT_FALSE(toolset()->is_over());
}

TEST_F(ToolsetTest, AToolOfNoOpenScopeChangesNothing) {
  Scope scope(first);
  auto in = scope.enter();
  const ToolsetPtr before = toolset();
  second.add_inst_for_op([](OpContext&) {});
  EXPECT_FALSE(before->is_over());
  EXPECT_EQ(toolset(), before);
}

TEST_F(ToolsetTest, ClearingTheCacheEndsIt) {
  Scope scope(first);
  auto in = scope.enter();
  const ToolsetPtr before = toolset();
  scope.cache_clear();
  EXPECT_TRUE(before->is_over());
  EXPECT_NE(toolset(), before);
}

TEST_F(ToolsetTest, WithoutTheCacheEachCallHasItsOwn) {
  Scope scope(first);
  auto in = scope.enter();
  const ToolsetPtr cached = toolset();
  const Switch off = cache_disabled();
  const ToolsetPtr one = toolset();
  EXPECT_NE(one, cached);
  EXPECT_NE(one, toolset());
  EXPECT_TRUE(one->is_over());
}

TEST_F(ToolsetTest, ItDoesNotKeepItsScopeAlive) {
  std::optional<Scope> scope(first);
  ToolsetPtr held;
  {
    auto in = scope->enter();
    held = toolset();
  }
  EXPECT_FALSE(held->is_over());
  scope.reset();
  EXPECT_TRUE(held->is_over());
}

TEST_F(ToolsetTest, AToolInsideItsOwnOperatorIsNotInForce) {
  ToolsetPtr outside, inside;
  first.add_inst_for_op([](OpContext&) {}, {.ops = {"linear"}});
  second.add_inst_for_op([&](OpContext&) { inside = toolset(); }, {.ops = {"matmul"}});
  Scope scope(first, second);
  auto in = scope.enter();
  outside = toolset();
  using reference::Array;
  reference::call("linear", {Array({1, 1}, {1}), Array({1, 1}, {1}), Array({1, 1}, {1})});
  ASSERT_NE(inside, nullptr);
  EXPECT_NE(inside, outside);
  EXPECT_EQ(toolset(), outside);
}

}  // namespace
}  // namespace amanda
