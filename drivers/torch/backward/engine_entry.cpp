#include "backward/engine_entry.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "base/port.h"
#include "coverage/coverage_counter.h"
#include "thread/engine_threads.h"

namespace amanda::pytorch {
namespace {

using AutogradEngine = torch::autograd::Engine;
using torch::autograd::variable_list;

class OperatorsLeftAlone : NoCopy {
 public:
  OperatorsLeftAlone() : were_caught_(catch_operators(false)) {}
  ~OperatorsLeftAlone() { catch_operators(were_caught_); }

 private:
  const bool were_caught_;
};

/// Has no threads and no queues: the other engine does all work. (Python's is made anew in a forked process, by calls
/// from Python only. Where that matters it had threads, and PyTorch then refuses to run it in the child.)
class EngineEntry final : public AutogradEngine {
 public:
  explicit EngineEntry(AutogradEngine& engine) : engine_(engine) {}

  variable_list execute(const torch::autograd::edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad, const torch::autograd::edge_list& outputs) override {
    auto run = [&] { return engine_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs); };
    if (port::inside_backward()) publish_scopes_now();
    if (counts_calls()) return run();  // operators that are not caught are not counted
    const OperatorsLeftAlone quiet;
    return run();
  }

  // Runs a pass that was prepared elsewhere. Distributed autograd does not call it: it has this engine evaluate single
  // nodes, on threads of its own, and hands their errors to thread_on_exception().
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, port::NodePtr root,
      torch::autograd::InputBuffer&& inputs) override {
    return engine_.execute_with_graph_task(graph_task, std::move(root), std::move(inputs));
  }

  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>& graph_task, const port::NodePtr& node,
                           std::exception& error) override {
    engine_.thread_on_exception(graph_task, node, error);
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return engine_.make_anomaly_metadata();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return engine_.get_default_saved_variable_hooks();
  }

 private:
  AutogradEngine& engine_;
};

std::atomic<EngineEntry*> engine_entry_now{nullptr};
AutogradEngine& engine_entry() { return *engine_entry_now.load(std::memory_order_acquire); }

}  // namespace

void install_engine_entry() {
  if (&AutogradEngine::get_default_engine() == engine_entry_now.load(std::memory_order_acquire)) return;
  static auto& mutex = *new Mutex;
  std::lock_guard lock(mutex);
  AutogradEngine& present = AutogradEngine::get_default_engine();  // importing torch in Python puts another one there
  if (&present == engine_entry_now.load(std::memory_order_acquire)) return;
  static auto& all = *new std::vector<std::unique_ptr<EngineEntry>>;  // never freed: other threads may use them
  engine_entry_now.store(all.emplace_back(std::make_unique<EngineEntry>(present)).get(), std::memory_order_release);
  torch::autograd::set_default_engine_stub(&engine_entry);
}

}  // namespace amanda::pytorch
