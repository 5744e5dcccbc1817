// The fixture of the core's tests: behaviour is the order of events, as one string.
//
//   a?  analysis of tool a      a<  its before-action      a>  its after-action      add  the operator itself
//   a=  it replaces the operator      a( )a  it replaces it, and calls the original in between
//   a+  on_enter      a-  on_exit      a!  on_disable
#pragma once

#include <amanda/amanda.h>
#include <amanda/reference/array.h>
#include <amanda/reference/call.h>
#include <amanda/reference/operand.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace amanda {

using reference::Array;
using reference::Operand;
using reference::Operands;
using reference::Place;

class TraceTest;

/// A tool that says what it does. Without does(), it puts a routine before and after every operator it asks for.
class TraceTool : public Tool {
 public:
  TraceTool(TraceTest& test, const std::string& name) : Tool(name), test_(test) {}

  TraceTool& after(const std::string& name);
  TraceTool& asks(OpFilter ops);
  TraceTool& nested();
  TraceTool& backward();  // does the same on backward operators that forward operators made; not on AccumulateGrad
  TraceTool& replaces();  // with its first input
  TraceTool& wraps();
  TraceTool& tells_analysis();
  TraceTool& tells_lifecycle();
  TraceTool& does(std::function<void(OpContext&)> analysis, InstOptions options = {});
  /// From now on throws std::runtime_error("boom") where it says `mark` ("?", "<", ...); "" ends that.
  TraceTool& fails_at(const std::string& mark);

  void say(const std::string& mark);
  void register_once();  // when everything about it was said

  void on_enter(Scope&) override { lifecycle("+"); }
  void on_exit(Scope&, const std::exception_ptr& error) override { lifecycle(error ? "-error" : "-"); }
  void on_disable(const std::exception_ptr&) override { lifecycle("!"); }

 private:
  void lifecycle(const std::string& mark) {
    if (tells_lifecycle_) say(mark);
  }
  void analyse(OpContext& op);
  void analyse_backward(OpContext& op);

  TraceTest& test_;
  InstOptions options_;
  bool registered_ = false, tells_analysis_ = false, tells_lifecycle_ = false;
  enum { kAround, kReplaces, kWraps } what_ = kAround;
  std::string fails_at_;
};

class TraceTest : public ::testing::Test {
 public:
  void note(const std::string& word);
  TraceTool& tool(const std::string& name);  // made when first named

 protected:
  TraceTest();
  ~TraceTest() override;

  using Tools = std::initializer_list<std::reference_wrapper<TraceTool>>;
  std::unique_ptr<Scope> scope(Tools tools, OnError on_error = OnError::kRaise);
  /// Opens a new scope, until the end of the test or leave().
  Scope& apply(Tools tools, OnError on_error = OnError::kRaise);
  /// Opens a scope once more.
  void enter(Scope& scope);
  void leave();              // what was opened last
  void leave(Scope& scope);  // its last entry

  /// Runs an operator on operands that suit it; returns the first result.
  Array call(const std::string& op);
  /// What happened since the last time it was asked for.
  std::string trace();
  std::vector<std::string> log();

 private:
  struct Open {
    Scope* scope;
    uint64_t entry;
  };
  std::mutex mutex_;
  std::string trace_;
  std::vector<std::string> log_;
  std::map<std::string, std::unique_ptr<TraceTool>> tools_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Open> open_;
};

/// The text of the E that `fn` throws; fails the test if it throws none.
template <class E = Error>
std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

inline Array input(const Values& values, size_t i = 0) { return reference::array(values[i]); }

}  // namespace amanda
