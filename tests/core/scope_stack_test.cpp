// The tables that a stack of scopes keeps: they have no public face.
#include "scope_stack.h"

#include <amanda/op_context.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace amanda
