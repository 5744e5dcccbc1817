// Which filters have matched nothing, without a scope around them.
#include "filter_use.h"

#include <gtest/gtest.h>

#include "amanda/tool.h"

namespace amanda {
namespace {

struct FilterUseTest : testing::Test {
  FilterUseTest() {
    tool.add_inst_for_op([](OpContext&) {}, {.ops = {"add"}, .modules = {"encoder.*"}});
  }

  Tool tool{"tool"};
  std::vector<Tool*> tools{&tool};
  FilterUse use{tools};
};

TEST_F(FilterUseTest, ARoutineThatMetNothingIsToldOnce) {
  EXPECT_TRUE(use.has_unmatched());
  const std::vector<Unmatched> told = use.take_unmatched(tool);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_FALSE(told[0].ops_matched);
  EXPECT_FALSE(use.has_unmatched());
  EXPECT_TRUE(use.take_unmatched(tool).empty());
}

TEST_F(FilterUseTest, OperatorsInOtherModulesAreNamed) {
  use.note(&tool, 0, false, "head");
  use.note(&tool, 0, false, "decoder.0");
  const std::vector<Unmatched> told = use.take_unmatched(tool);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].ops_matched);
  EXPECT_EQ(told[0].elsewhere, (std::vector<std::string>{"decoder.0", "head"}));
}

TEST_F(FilterUseTest, OneMatchIsEnough) {
  use.note(&tool, 0, false, "head");
  use.note(&tool, 0, true, "");
  EXPECT_FALSE(use.has_unmatched());
  EXPECT_TRUE(use.take_unmatched(tool).empty());
}

TEST_F(FilterUseTest, AnotherToolOfTheSameKindHasItsOwn) {
  Tool other("other");
  other.add_inst_for_op([](OpContext&) {}, {.ops = {"add"}});
  tools.push_back(&other);
  use.note(&tool, 0, true, "");
  EXPECT_EQ(use.take_unmatched(other).size(), 1u);
  EXPECT_TRUE(use.take_unmatched(tool).empty());
}

}  // namespace
}  // namespace amanda
