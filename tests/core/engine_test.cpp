// What the core tells drivers, and what they may ask it.
#include <amanda/engine.h>

#include "trace_test.h"

namespace amanda {
namespace {

/// A driver that runs nothing: it remembers what it is told.
struct ProbeDriver final : Backend {
  std::string_view name_space() const override { return "probe"; }
  Capabilities capabilities() const override { return {}; }
  const OpInfo& info(OpType type) const override { return infos[type]; }
  void switch_to(ScopeStack* now) override { scopes = now; }
  void* begin_routines(RoutineMode) override { return nullptr; }
  void end_routines(void*) noexcept override {}

  static inline thread_local ScopeStack* scopes = nullptr;
  OpInfo infos[3] = {
      {"probe", "add", "", {}, {}, ""}, {"probe", "mul", "", {}, {}, ""}, {"probe", "Gradient", "", {}, {}, ""}};
};
constexpr OpType kAdd = 0, kMul = 1, kGradient = 2;

/// A forward operator, or a backward operator of one that `seen_by` saw.
struct ProbeSite final : OpSite {
  ProbeSite(ProbeDriver& driver, OpType type) : driver(driver), forward(type), kind(Phase::kForward) {}
  ProbeSite(const ProbeSite& of, SightingPtr seen_by)
      : driver(of.driver), forward(of.forward), kind(Phase::kBackward), seen_by(std::move(seen_by)) {}

  Backend& backend() const override { return driver; }
  OpType type() const override { return kind == Phase::kForward ? forward : kGradient; }
  Phase phase() const override { return kind; }
  OpId id() override { return 10 + type(); }
  size_t size(Point) const override { return 0; }
  Value get(Point, size_t) override { return {}; }
  std::string detail(Detail) override { return ""; }
  OpType forward_type() const override { return forward; }
  OpId forward_id() override { return 10 + forward; }
  const Sighting* sighting() const override { return seen_by.get(); }

  ProbeDriver& driver;
  OpType forward;
  Phase kind;
  SightingPtr seen_by;
};

class EngineTest : public TraceTest {
 protected:
  static ProbeDriver& attached() {
    static ProbeDriver driver;  // as long as the process
    Engine::attach(driver);     // once is enough, and more does no harm
    return driver;
  }
  ProbeDriver& driver = attached();
};

TEST_F(EngineTest, ADriverBuiltForAnotherSeamIsRefused) {
  ProbeDriver old;
  EXPECT_EQ(error_of([&] { Engine::attach(old, kSeamVersion + 1); }),
            "[engine] the driver 'probe' was built for seam version 2, this core has 1; rebuild the driver");
}

TEST_F(EngineTest, DriversAreToldOfTheScopesOfTheThread) {
  EXPECT_EQ(driver.scopes, nullptr);
  apply({tool("a")});
  ScopeStack* outer = driver.scopes;
  EXPECT_NE(outer, nullptr);
  apply({tool("b")});
  EXPECT_NE(driver.scopes, outer);
  {
    Switch off = disabled();
    EXPECT_EQ(driver.scopes, nullptr);
  }
  leave();
  EXPECT_EQ(driver.scopes, outer);
  leave();
  EXPECT_EQ(driver.scopes, nullptr);
}

TEST_F(EngineTest, WantsAnswersForAnyToolNestedOrNot) {
  apply({tool("a").asks({"mul"}).nested(), tool("b").asks(OpFilter::on_demand())});
  EXPECT_FALSE(Engine::wants(*driver.scopes, driver, kAdd));
  EXPECT_TRUE(Engine::wants(*driver.scopes, driver, kMul));
  EXPECT_FALSE(Engine::wants_all(*driver.scopes));
  apply({tool("c")});
  EXPECT_TRUE(Engine::wants(*driver.scopes, driver, kAdd));
  EXPECT_TRUE(Engine::wants_all(*driver.scopes));
}

TEST_F(EngineTest, PatternsAreThoseThatTheToolsAskFor) {
  apply({tool("a").asks({"mul"}), tool("b").asks(OpFilter::on_demand())});
  EXPECT_EQ(Engine::patterns(*driver.scopes), std::vector<std::string>{"mul"});
  tool("a").does([](OpContext&) {}, {.ops = {"add"}});
  EXPECT_TRUE(Engine::wants(*driver.scopes, driver, kAdd));
  EXPECT_EQ(Engine::patterns(*driver.scopes), (std::vector<std::string>{"mul", "add"}));
}

TEST_F(EngineTest, AnOperatorThatRanElsewhereIsSeenBackwardsByWhoeverAsks) {
  ProbeSite add(driver, kAdd), mul(driver, kMul);
  apply({tool("a"), tool("b").asks({"mul"}).backward()});
  EXPECT_EQ(Engine::sighting(*driver.scopes, add), nullptr);
  ProbeSite gradient(mul, Engine::sighting(*driver.scopes, mul));
  ASSERT_NE(gradient.seen_by, nullptr);
  EXPECT_TRUE(Engine::interest(*driver.scopes, gradient).pending);
  ProbeSite unseen(add, nullptr);
  EXPECT_FALSE(Engine::interest(*driver.scopes, unseen).any());
  leave();
  apply({tool("b")});  // another scope object
  EXPECT_FALSE(Engine::interest(*driver.scopes, gradient).any());
}

}  // namespace
}  // namespace amanda
