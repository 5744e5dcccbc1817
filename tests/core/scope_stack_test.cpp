// The tables that a stack of scopes keeps: they have no public face.
#include "scope_stack.h"

#include <amanda/op_context.h>
#include <gtest/gtest.h>

#include "plan.h"
#include "scope_stack_use.h"

namespace amanda {
namespace {

// What is derived from the tools lives as long as the stack: a loop that makes tools must not add to it.
TEST(ScopeStackTest, TheTablesStayWhenOtherToolsChange) {
  Tool mine("mine"), other("other");
  ScopeState scope({&mine}, {}), elsewhere({&other}, {});
  const ScopeStack stack({&scope}, true, nullptr);
  const ScopeStack::Tables* before = &stack.tables();
  other.add_inst_for_op([](OpContext&) {});
  EXPECT_EQ(&stack.tables(), before);
  mine.add_inst_for_op([](OpContext&) {});
  EXPECT_NE(&stack.tables(), before);
}

TEST(ScopeStackTest, FormerTablesGoWhereOneThreadUsesTheStack) {
  Tool mine("mine");
  ScopeState scope({&mine}, {});
  const auto stack = std::make_shared<ScopeStack>(std::vector<ScopeState*>{&scope}, true, nullptr);
  auto use = ScopeStackUse::begin(stack, {});
  const std::weak_ptr<const ScopeStack::Tables> first = stack->share_tables();
  mine.add_inst_for_op([](OpContext&) {});
  stack->tables();
  EXPECT_TRUE(first.expired());

  const auto another = ScopeStackUse::begin(stack, {});
  const std::weak_ptr<const ScopeStack::Tables> second = stack->share_tables();
  mine.add_inst_for_op([](OpContext&) {});
  stack->tables();
  EXPECT_FALSE(second.expired());  // the other thread may be reading them
  use.reset();
  mine.add_inst_for_op([](OpContext&) {});
  stack->tables();
  EXPECT_TRUE(second.expired());
}

TEST(ScopeStackTest, PlansOfTwoDriversAreTwo) {
  Tool tool("tool");
  ScopeState scope({&tool}, {});
  const ScopeStack stack({&scope}, true, nullptr);
  struct Site final : OpSite {
    Backend& backend() const override { abort(); }
    OpType type() const override { return 0; }
    Phase phase() const override { return Phase::kForward; }
    OpId id() override { return 7; }
    size_t size(Side) const override { return 0; }
    Value get(Side, size_t) override { return {}; }
    std::string detail(Detail) override { return ""; }
  } site;
  const auto plan = std::make_shared<const Plan>(std::vector<ScheduledPtr>(), Plan::Outlook(), site);
  stack.keep_plan({7, {.outer = 1, .backend = 0}}, 1, plan);
  EXPECT_EQ(stack.find_plan({7, {.outer = 1, .backend = 0}}, 1), plan);
  EXPECT_EQ(stack.find_plan({7, {.outer = 1, .backend = 1}}, 1), nullptr);
}
}  // namespace
}  // namespace amanda
