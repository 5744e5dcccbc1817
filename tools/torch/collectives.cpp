#include "torch/collectives.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "clock.h"
#include "torch/bindings.h"

namespace amanda::tools::pytorch {
namespace {

// The recorders that have started; one callback of RecordFunction is for all.
struct Listening {
  std::mutex mutex;
  std::vector<std::shared_ptr<CollectiveRecorder>> recorders;
  at::CallbackHandle callback = 0;
};

Listening& listening() {
  static auto* const all = new Listening;  // threads may outlive static objects
  return *all;
}

bool is_collective(std::string_view name) {
  constexpr std::string_view kNamespace = "c10d::";
  if (!name.starts_with(kNamespace)) return false;
  name.remove_prefix(kNamespace.size());
  return name != "send" && !name.starts_with("recv");  // of two ranks only
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (!is_collective(function.name())) return nullptr;
  const int64_t now = now_ns();
  const auto schema = function.operator_schema();
  const auto position = schema ? schema->argumentIndexWithName("process_group") : std::nullopt;
  const auto inputs = function.inputs();
  if (!position || static_cast<size_t>(*position) >= inputs.size()) return nullptr;
  const auto group = inputs[*position].toCustomClass<c10d::ProcessGroup>();
  Listening& all = listening();
  const std::scoped_lock lock(all.mutex);
  for (const auto& recorder : all.recorders) recorder->add({function.name(), group->getGroupName(), now});
  return nullptr;
}

}  // namespace

void CollectiveRecorder::start() {
  Listening& all = listening();
  const std::scoped_lock lock(all.mutex);
  if (all.recorders.empty()) {
    all.callback =
        at::addGlobalCallback(at::RecordFunctionCallback(&begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  all.recorders.push_back(shared_from_this());
}

void CollectiveRecorder::stop() {
  Listening& all = listening();
  const std::scoped_lock lock(all.mutex);
  const auto found = std::ranges::find(all.recorders, shared_from_this());
  if (found == all.recorders.end()) return;
  all.recorders.erase(found);
  if (all.recorders.empty()) at::removeCallback(all.callback);
}

void CollectiveRecorder::add(StartedCollective collective) {
  const std::scoped_lock lock(mutex_);
  rows_.push_back(std::move(collective));
}

std::vector<StartedCollective> CollectiveRecorder::rows() const {
  const std::scoped_lock lock(mutex_);
  return rows_;
}

void CollectiveRecorder::reset() {
  const std::scoped_lock lock(mutex_);
  rows_.clear();
}

void bind_collectives(pybind11::module_& m) {
  namespace py = pybind11;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<CollectiveRecorder, std::shared_ptr<CollectiveRecorder>>(m, "CollectiveRecorder",
                                                                      "Hears of the collectives of torch.distributed.")
      .def(py::init<>())
      .def("start", &CollectiveRecorder::start, Unlocked(), "From now on. Calls nest.")
      .def("stop", &CollectiveRecorder::stop, Unlocked())
      .def("reset", &CollectiveRecorder::reset, Unlocked())
      .def(
          "rows",
          [](const CollectiveRecorder& recorder) {
            std::vector<std::tuple<std::string, std::string, int64_t>> rows;
            for (StartedCollective& row : recorder.rows()) {
              rows.emplace_back(std::move(row.op), std::move(row.group), row.time_ns);
            }
            return rows;
          },
          Unlocked(), "Operator, name of the group, and time of `time.perf_counter_ns`, in the order of their starts.");
}

}  // namespace amanda::tools::pytorch
