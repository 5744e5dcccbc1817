#include "distributed/collectives.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "clock.h"
#include "torch_bindings.h"

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

constexpr std::string_view kNamespace = "c10d::";

bool is_collective(std::string_view name) {
  name.remove_prefix(kNamespace.size());
  return name != "send" && !name.starts_with("recv");  // of two ranks only
}

// The row of a collective that is being called.
struct Called : at::ObserverContext {
  struct Row {
    std::shared_ptr<CollectiveRecorder> recorder;
    CollectiveRecorder::RowRef ref;
  };
  std::vector<Row> rows;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (!std::string_view(function.name()).starts_with(kNamespace)) return nullptr;
  auto called = std::make_unique<Called>();
  if (!is_collective(function.name())) return called;
  const int64_t now = now_ns();
  const auto schema = function.operator_schema();
  const auto position = schema ? schema->argumentIndexWithName("process_group") : std::nullopt;
  const auto inputs = function.inputs();
  if (!position || static_cast<size_t>(*position) >= inputs.size()) return called;
  const auto group = inputs[*position].toCustomClass<c10d::ProcessGroup>();
  Listening& all = listening();
  const std::scoped_lock lock(all.mutex);
  for (const auto& recorder : all.recorders) {
    called->rows.push_back({recorder, recorder->add({function.name(), group->getGroupName(), now})});
  }
  return called;
}

// The outputs of an operator of c10d end with the work.
c10::intrusive_ptr<c10d::Work> work_of(const at::RecordFunction& function) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>();
  for (const c10::IValue& output : function.outputs()) {
    if (output.isObject() && *output.type() == *type) return output.toCustomClass<c10d::Work>();
  }
  return nullptr;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  const int64_t now = now_ns();
  const auto work = work_of(function);
  if (work) {
    Listening& all = listening();
    const std::scoped_lock lock(all.mutex);
    for (const auto& recorder : all.recorders) recorder->forget(*work);
  }
  for (const auto& [recorder, ref] : static_cast<Called*>(context)->rows) {
    recorder->returned(ref, now, work.get());
  }
}

}  // namespace

void CollectiveRecorder::start() {
  Listening& all = listening();
  const std::scoped_lock lock(all.mutex);
  if (all.recorders.empty()) {
    all.callback = at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
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

CollectiveRecorder::RowRef CollectiveRecorder::add(StartedCollective collective) {
  const std::scoped_lock lock(mutex_);
  rows_.push_back(std::move(collective));
  return {resets_, rows_.size() - 1};
}

void CollectiveRecorder::returned(RowRef ref, int64_t time_ns, const c10d::Work* work) {
  const std::scoped_lock lock(mutex_);
  if (ref.resets != resets_) return;
  StartedCollective& row = rows_[ref.row];
  row.inside.emplace_back(row.time_ns, time_ns);
  if (work != nullptr) works_.insert_or_assign(work, ref.row);
}

void CollectiveRecorder::forget(const c10d::Work& work) {
  const std::scoped_lock lock(mutex_);
  works_.erase(&work);
}

bool CollectiveRecorder::waited(const c10d::Work& work, int64_t start_ns, int64_t end_ns) {
  const std::scoped_lock lock(mutex_);
  const auto found = works_.find(&work);
  if (found == works_.end()) return false;
  rows_[found->second].inside.emplace_back(start_ns, end_ns);
  works_.erase(found);
  return true;
}

std::vector<StartedCollective> CollectiveRecorder::rows() const {
  const std::scoped_lock lock(mutex_);
  return rows_;
}

void CollectiveRecorder::reset() {
  const std::scoped_lock lock(mutex_);
  rows_.clear();
  works_.clear();
  ++resets_;
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
            using Times = std::vector<std::pair<int64_t, int64_t>>;
            std::vector<std::tuple<std::string, std::string, int64_t, Times>> rows;
            for (StartedCollective& row : recorder.rows()) {
              rows.emplace_back(std::move(row.op), std::move(row.group), row.time_ns, std::move(row.inside));
            }
            return rows;
          },
          Unlocked(),
          "Operator, name of the group, time of `time.perf_counter_ns`, and the times that the process was inside, in "
          "the order of their starts.")
      .def("waited", &CollectiveRecorder::waited, py::arg("work"), py::arg("start_ns"), py::arg("end_ns"), Unlocked(),
           "A program has waited for this work. False: it belongs to no collective that was heard of.");
}

}  // namespace amanda::tools::pytorch
