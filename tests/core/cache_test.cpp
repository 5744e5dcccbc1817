// What a scope remembers, and how it forgets.
#include "trace_test.h"

namespace amanda {
namespace {

using CacheTest = TraceTest;

TEST_F(CacheTest, InfoCountsAnalysesAndRunsThatNeededNone) {
  Scope& scope = apply({tool("a")});
  for (int i = 0; i < 3; ++i) call("add");
  call("mul");
  const CacheInfo info = scope.cache_info();
  EXPECT_EQ(info.misses, 2u);
  EXPECT_EQ(info.hits, 2u);
  EXPECT_EQ(info.size, 2u);
}

TEST_F(CacheTest, WithTheCacheOffEveryRunIsAnalysed) {
  apply({tool("a").tells_analysis()});
  call("add");
  {
    Switch off = cache_disabled();
    EXPECT_FALSE(is_cache_enabled());
    call("add");
    call("add");
  }
  EXPECT_TRUE(is_cache_enabled());
  EXPECT_EQ(trace(), "a? a< add a> a? a< add a> a? a< add a>");
}

TEST_F(CacheTest, WithTheCacheOffOutputAnalysesRunEachTimeToo) {
  tool("a").does(
      [&](OpContext& op) {
        note("a?");
        op.insert_after_op([&](Values&) { note("a>"); });
      },
      {.require_outputs = true});
  apply({tool("a")});
  Switch off = cache_disabled();
  call("add");
  call("add");
  EXPECT_EQ(trace(), "add a? a> add a? a>");
}

TEST_F(CacheTest, KeysOutliveARunWithTheCacheOff) {
  tool("a").does([&](OpContext& op) {
    const auto* runs = op.get<int64_t>("runs");
    op.set("runs", runs ? *runs + 1 : int64_t{1});
    note(std::to_string(*op.get<int64_t>("runs")));
  });
  apply({tool("a")});
  Switch off = cache_disabled();
  call("add");
  call("add");
  EXPECT_EQ(trace(), "1 add 2 add");
}

TEST_F(CacheTest, CacheSwitchesNest) {
  apply({tool("a").tells_analysis()});
  call("add");
  trace();
  Switch off = cache_disabled();
  {
    Switch on = cache_enabled();
    call("add");
    EXPECT_EQ(trace(), "a< add a>");
  }
  call("add");
  EXPECT_EQ(trace(), "a? a< add a>");
}

TEST_F(CacheTest, ClearingForgetsAllOperators) {
  Scope& scope = apply({tool("a").tells_analysis()});
  call("add");
  call("mul");
  trace();
  scope.cache_clear();
  EXPECT_EQ(scope.cache_info().size, 0u);
  call("add");
  call("mul");
  EXPECT_EQ(trace(), "a? a< add a> a? a< mul a>");
}

TEST_F(CacheTest, ClearingForgetsOneOperatorAndItsKeys) {
  OpId add = 0;
  tool("a").does([&](OpContext& op) {
    if (op.op().name == "add") add = op.op_id();
    note(op.op().name + (op.get<bool>("seen") ? " again" : "?"));
    op.set("seen", true);
  });
  Scope& scope = apply({tool("a")});
  call("add");
  call("mul");
  scope.cache_clear(add);
  call("add");
  call("mul");
  EXPECT_EQ(trace(), "add? add mul? mul add? add mul");
}

TEST_F(CacheTest, ClearingLetsRoutinesGo) {
  struct Held final : Routine {
    explicit Held(bool& retired) : retired(retired) {}
    void operator()(Values&) override {}
    std::string name() const override { return "held"; }
    void retire() override { retired = true; }
    bool& retired;
  };
  bool retired = false;
  Action action;
  tool("a").does([&](OpContext& op) { action = op.insert_before_op(std::make_shared<Held>(retired)); });
  Scope& scope = apply({tool("a")});
  call("add");
  EXPECT_FALSE(retired);
  scope.cache_clear();
  EXPECT_TRUE(retired);
  EXPECT_TRUE(action.removed());
}

TEST_F(CacheTest, AnAnalysisMayClearTheCacheOfItsScope) {
  Scope* scope = nullptr;
  bool cleared = false;
  tool("a").does([&](OpContext& op) {
    note("a?");
    if (!std::exchange(cleared, true)) scope->cache_clear();
    op.insert_before_op([&](Values&) { note("a<"); });
  });
  scope = &apply({tool("a")});
  call("add");
  call("add");
  call("add");
  EXPECT_EQ(trace(), "a? a< add a? a< add a< add");
}

TEST_F(CacheTest, ARoutineMayClearTheCacheOfItsScope) {
  Scope* scope = nullptr;
  tool("a").does([&](OpContext& op) {
    note("a?");
    op.insert_before_op([&](Values&) {
      note("a<");
      scope->cache_clear();
    });
  });
  scope = &apply({tool("a")});
  call("add");
  call("add");
  EXPECT_EQ(trace(), "a? a< add a? a< add");
}

TEST_F(CacheTest, OperatorsWithoutActionsOrKeysAreForgottenAtLast) {
  int analyses = 0;
  tool("looks").does([&](OpContext& op) {
    if (++analyses == 1) op.set("kept", true);
  });
  Scope& scope = apply({tool("looks")});
  auto run_at = [&](size_t place) {
    Place here(std::to_string(place));
    call("add");
  };
  for (size_t place = 0; place < kMaxEmptyRecords + 100; ++place) run_at(place);
  // The first one has a key: it came up for eviction, and stayed.
  EXPECT_EQ(scope.cache_info().size, kMaxEmptyRecords + 1);
  EXPECT_EQ(analyses, static_cast<int>(kMaxEmptyRecords) + 100);
}

TEST_F(CacheTest, OperatorsInUseAreNotForgotten) {
  std::map<std::string, int> analyses;
  tool("looks").does([&](OpContext& op) { ++analyses[op.op().name]; });
  Scope& scope = apply({tool("looks")});
  call("mul");
  for (size_t place = 0; place < 3 * kMaxEmptyRecords; ++place) {
    if (place % 1000 == 0) call("sub");
    Place here(std::to_string(place));
    call("add");
  }
  scope.cache_clear(1);  // of nothing: plans are made again, from what is known
  call("sub");
  call("mul");
  EXPECT_EQ(analyses["sub"], 1);
  EXPECT_EQ(analyses["mul"], 2);
  EXPECT_EQ(scope.cache_info().size, kMaxEmptyRecords);
}

TEST_F(CacheTest, AllOperatorsInUseDoNotKeepOthersOut) {
  int analyses = 0;
  tool("looks").does([&](OpContext&) { ++analyses; });
  Scope& scope = apply({tool("looks")});
  auto run_all = [&] {
    for (size_t place = 0; place < kMaxEmptyRecords; ++place) {
      Place here(std::to_string(place));
      call("add");
    }
  };
  run_all();
  scope.cache_clear(1);
  run_all();  // each is looked up again
  call("mul");
  EXPECT_EQ(scope.cache_info().size, kMaxEmptyRecords);
  EXPECT_EQ(analyses, static_cast<int>(kMaxEmptyRecords) + 1);
}

}  // namespace
}  // namespace amanda
