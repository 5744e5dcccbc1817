// What the core tells drivers, and what they may ask it.
#include <amanda/driver/backward.h>
#include <amanda/driver/engine.h>

#include <barrier>
#include <thread>

#include "trace_test.h"

namespace amanda {
namespace {

/// A driver that runs nothing: it remembers what it is told.
struct ProbeDriver final : Backend {
  std::string_view name_space() const override { return "probe"; }
  Capabilities capabilities() const override { return {}; }
  const OpInfo& info(OpType type) const override { return infos[type]; }
  void switch_to(ScopeStack* now) override {
    if (refuses && now && now != scopes) throw std::runtime_error("not now");
    scopes = now;
  }
  void expect(const std::vector<std::string>& patterns) override { expected = patterns; }
  void* begin_routines(RoutineMode) override { return nullptr; }
  void end_routines(void*) noexcept override {}

  static inline thread_local ScopeStack* scopes = nullptr;
  static inline thread_local std::vector<std::string> expected;  // for other threads
  static inline thread_local bool refuses = false;
  OpInfo infos[3] = {
      {"probe", "add", "", {}, {}, ""}, {"probe", "mul", "", {}, {}, ""}, {"probe", "Gradient", "", {}, {}, ""}};
};
constexpr OpType kAdd = 0, kMul = 1, kGradient = 2;

/// A forward operator, or a backward operator of one that `seen_by` saw.
struct ProbeSite final : OpSite {
  ProbeSite(ProbeDriver& driver, OpType type) : driver(driver), forward(type), kind(Phase::kForward) {}
  ProbeSite(const ProbeSite& of, SubscriptionPtr seen_by)
      : driver(of.driver), forward(of.forward), kind(Phase::kBackward), seen_by(std::move(seen_by)) {}

  Backend& backend() const override { return driver; }
  OpType type() const override { return kind == Phase::kForward ? forward : kGradient; }
  Phase phase() const override { return kind; }
  OpId id() override { return 10 + type(); }
  size_t size(Side) const override { return 0; }
  Value get(Side, size_t) override { return {}; }
  std::string detail(Detail) override { return ""; }
  OpType forward_type() const override { return forward; }
  OpId forward_id() override { return 10 + forward; }
  const Subscription* subscription() const override { return seen_by.get(); }

  ProbeDriver& driver;
  OpType forward;
  Phase kind;
  SubscriptionPtr seen_by;
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

TEST_F(EngineTest, IdsOfADriverThatIsNotAttachedAreRefused) {
  ProbeDriver other, numbering;
  EXPECT_EQ(error_of([&] { Engine::attach(other, kSeamVersion, &numbering); }),
            "[engine] 'probe' cannot use the operator ids of 'probe', which is not attached; attach it first");
}

TEST_F(EngineTest, ADriverThatWasNeverAttachedIsNamed) {
  ProbeDriver stranger;
  apply({tool("a").asks({"add"})});
  ProbeSite add(stranger, kAdd);
  EXPECT_EQ(error_of([&] { Backward::subscription(*Engine::scopes_here(), add); }),
            "[engine] the driver 'probe' showed probe::add and was never attached; call Engine::attach first");
}

TEST_F(EngineTest, ADriverBuiltForAnotherSeamIsRefused) {
  ProbeDriver old;
  EXPECT_EQ(error_of([&] { Engine::attach(old, kSeamVersion + 1); }),
            "[engine] the driver 'probe' was built for seam version " + std::to_string(kSeamVersion + 1) +
                ", this core has " + std::to_string(kSeamVersion) + "; rebuild the driver");
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

TEST_F(EngineTest, ADriverNeedNotDescribeItsValues) {
  int anything = 0;
  EXPECT_EQ(driver.describe({&anything}).kind, ValueKind::kOther);
  EXPECT_EQ(driver.describe({}).kind, ValueKind::kNone);
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
  EXPECT_EQ(Backward::subscription(*driver.scopes, add), nullptr);
  ProbeSite gradient(mul, Backward::subscription(*driver.scopes, mul));
  ASSERT_NE(gradient.seen_by, nullptr);
  EXPECT_TRUE(Backward::hook_needs(*driver.scopes, gradient).pending);
  ProbeSite unseen(add, nullptr);
  EXPECT_FALSE(Backward::hook_needs(*driver.scopes, unseen).any());
  leave();
  apply({tool("b")});  // another scope object
  EXPECT_FALSE(Backward::hook_needs(*driver.scopes, gradient).any());
}

TEST_F(EngineTest, ADriverThatRefusesTheScopesIsToldOfThoseBeforeAgain) {
  apply({tool("a").tells_lifecycle()});
  ScopeStack* outer = driver.scopes;
  const auto inner = scope({tool("b").tells_lifecycle()});
  driver.refuses = true;
  EXPECT_EQ(error_of<std::runtime_error>([&] { inner->enter_entry(); }), "not now");
  driver.refuses = false;
  EXPECT_EQ(driver.scopes, outer);
  call("add");
  EXPECT_EQ(trace(), "a+ b+ b-error a< add a>");
}

TEST_F(EngineTest, AScopeIsLeftEvenIfADriverRefusesThoseThatAreLeft) {
  apply({tool("a").tells_lifecycle()});
  const auto inner = scope({tool("b").tells_lifecycle()});
  const uint64_t entry = inner->enter_entry();
  driver.refuses = true;
  EXPECT_EQ(error_of<std::runtime_error>([&] { inner->leave_entry(entry, nullptr); }), "not now");
  driver.refuses = false;
  call("add");
  EXPECT_EQ(trace(), "a+ b+ b- a< add a>");
}

TEST_F(EngineTest, ARefusedSwitchIsNotTurned) {
  apply({tool("a")});
  Switch off = disabled();
  driver.refuses = true;
  EXPECT_EQ(error_of<std::runtime_error>([&] { Switch on = enabled(); }), "not now");
  driver.refuses = false;
  EXPECT_FALSE(is_enabled());
  off.put_back();
  EXPECT_TRUE(is_enabled());
}

// What another thread registers must be caught on the thread that has the tool open.
TEST_F(EngineTest, DriversAreToldWhatAToolOfAnotherThreadAsksFor) {
  apply({tool("a").asks({"mul"})});
  std::jthread([&] {
    tool("a").does([](OpContext&) {}, {.ops = {"add"}});
    EXPECT_EQ(driver.expected, std::vector<std::string>{"add"});
    tool("a").does([](OpContext&) {});
    EXPECT_EQ(driver.expected, std::vector<std::string>{"*"});
  }).join();
  tool("a").does([](OpContext&) {}, {.ops = {"sub"}});
  EXPECT_TRUE(driver.expected.empty());  // of its own thread they are told by switch_to()
}

TEST_F(EngineTest, BorrowedScopesOutliveTheThreadsOwnEntry) {
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> tools = owner;
  tool("a").register_once();
  auto mine = std::make_unique<Scope>(std::vector<Tool*>{&tool("a")}, ScopeOptions{.tools_owner = std::move(owner)});
  const uint64_t entry = mine->enter_entry();
  const std::weak_ptr<ScopeStack> published = Engine::scopes_here();
  std::barrier step(2);
  std::jthread other([&] {
    std::shared_ptr<ScopeStack> borrowed = Engine::borrow(published);
    step.arrive_and_wait();
    step.arrive_and_wait();  // meanwhile the thread that has them open leaves
    EXPECT_FALSE(tools.expired());
    EXPECT_TRUE(Engine::wants(*borrowed, driver, kAdd));
  });
  step.arrive_and_wait();
  mine->leave_entry(entry, nullptr);
  mine.reset();
  step.arrive_and_wait();
  other.join();
  EXPECT_TRUE(tools.expired());
  EXPECT_EQ(Engine::borrow(published), nullptr);
}

}  // namespace
}  // namespace amanda
