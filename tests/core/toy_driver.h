// A driver of a few lines, with ids of its own, that can be told to break the rules of the seam.
#pragma once

#include <amanda/driver/engine.h>
#include <amanda/driver/graph.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace amanda {

class Toy final : public Backend {
 public:
  static Toy& get() {
    static Toy toy;
    return toy;
  }
  static inline thread_local ScopeStack* here = nullptr;

  std::string_view name_space() const override { return "toy/1/graph"; }
  Capabilities capabilities() const override { return {.backward = BackwardOps::kOne, .symbolic_analysis = true}; }
  const OpInfo& info(OpType) const override {
    static const OpInfo info{"toy", "mul", "", {"a", "b"}, {"result"}, "toy::mul"};
    return info;
  }
  void switch_to(ScopeStack* scopes) override { here = scopes; }
  void* begin_routines(RoutineMode) override { return nullptr; }
  void end_routines(void*) noexcept override {}

 private:
  Toy() { Engine::attach(*this); }
};
[[maybe_unused]] inline const Toy& toy_attached = Toy::get();  // a scope tells only the drivers that it knows

/// A graph's operator, and an execution of it.
struct ToyCall final : OpCall {
  Backend* driver = &Toy::get();
  OpId name = 7;
  Phase when = Phase::kForward;
  size_t num_inputs = 2;
  std::vector<double> numbers{1, 2};
  bool gives_null = false;
  Value edited{};

  Backend& backend() const override { return *driver; }
  OpType type() const override { return 0; }
  Phase phase() const override { return when; }
  OpId id() override { return when == Phase::kForward || name == 0 ? name : name + 1000; }
  OpId forward_id() override { return name; }
  size_t size(Side side) const override { return side == Side::kOutputs ? 1 : num_inputs; }
  Value get(Side, size_t at) override { return {gives_null ? nullptr : &numbers.at(at)}; }
  std::string detail(Detail) override { return "first"; }
  void run(RunHints) override {}
  void skip(RunHints) override {}
  bool has_results() const override { return false; }
  void finish() override {}
  void set(Side, size_t, Value value) override { edited = value; }
  void commit() override {}
  void discard() noexcept override {}
  uint64_t versions(Side) const override { return 0; }
};

struct ToyGraph : GraphSite {
  std::vector<ToyCall> ops{1};
  /// What lower() does first; the artifact is what the taps are held by.
  std::function<void()> lowers = [] {};
  std::vector<TapPtr> taps{};
  int traced = 0;  // taps that were run with the graph's own symbols, and edited them

  Backend& backend() const override { return Toy::get(); }
  void each_op(GraphVisitor& visitor) override {
    for (ToyCall& op : ops) visitor.op(op);
  }
  std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) override {
    lowers();
    auto held = std::make_shared<std::vector<TapPtr>>();
    for (const SitePlan& site : sites) {
      for (const TapPtr& tap : site.taps) {
        held->push_back(tap);
        if (tap->kind() != RoutineKind::kTraceable) continue;
        Engine::run(*tap, ops[site.index]);
        traced += ops[site.index].edited.ref != nullptr;
      }
    }
    taps = *held;
    return held;
  }
};

}  // namespace amanda
