#include "memory/memory.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "amanda/routine_capsule.h"
#include "clock.h"
#include "torch_bindings.h"

namespace amanda::tools::pytorch {
namespace {

using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;

// An operator that runs on this thread. One that an exception has left is still here until the next one begins.
struct Running {
  Site site;
  const char* frame;  // on the stack, which grows downwards
};

struct ThreadState {
  std::vector<Running> running;
  Site last_left = kNoSite;
  std::shared_ptr<ThreadLocalDebugInfo> before, with_us;
};
ThreadState& here() {
  thread_local ThreadState state;
  return state;
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

// Allocators report to the object in this slot, and PyTorch's profiler assumes that it is of this class.
class Listener final : public torch::profiler::impl::ProfilerStateBase {
 public:
  explicit Listener(std::shared_ptr<MemoryRecorder> recorder)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        recorder_(std::move(recorder)) {}

  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* pointer, int64_t size, size_t, size_t, c10::Device device) override {
    recorder_->heard(pointer, size, device);
  }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

 private:
  const std::shared_ptr<MemoryRecorder> recorder_;
};

/// Takes the listener off this thread.
void restore_slot() noexcept {
  ThreadState& state = here();
  const auto with_us = std::exchange(state.with_us, nullptr);
  const auto before = std::exchange(state.before, nullptr);
  if (with_us && ThreadLocalDebugInfo::current() == with_us) ThreadLocalDebugInfo::_forceCurrentDebugInfo(before);
}

}  // namespace

// ---- blocks ---------------------------------------------------------------------------------------------------------

void DeviceMemory::allocate(const void* pointer, Block block) {
  free(pointer, kNoSite, false);  // a thread that is not listened to has freed what was there
  live_bytes_ += block.bytes;
  if (live_bytes_ > peak_bytes_) {
    peak_bytes_ = live_bytes_;
    peak_serial_ = block.serial;
    gone_since_.clear();
  }
  live_[pointer] = block;
}

void DeviceMemory::free(const void* pointer, Site by, bool in_backward) {
  const auto found = live_.find(pointer);
  if (found == live_.end()) return;
  Block block = found->second;
  live_.erase(found);
  live_bytes_ -= block.bytes;
  block.is_freed = true;
  block.freed_by = by;
  block.freed_in_backward = in_backward;
  if (block.serial <= peak_serial_) gone_since_.push_back(block);
}

bool DeviceMemory::mark(const void* pointer, int64_t mark) {
  const auto found = live_.find(pointer);
  if (found == live_.end()) return false;
  found->second.mark = mark;
  return true;
}

uint64_t DeviceMemory::serial_of(const void* pointer) const {
  const auto found = live_.find(pointer);
  return found == live_.end() ? 0 : found->second.serial;
}

void DeviceMemory::forget_all_but(const std::unordered_set<const void*>& pointers) {
  for (auto i = live_.begin(); i != live_.end();) {
    const Block& block = i->second;
    if (pointers.contains(i->first)) {
      ++i;
      continue;
    }
    live_bytes_ -= block.bytes;
    if (block.serial <= peak_serial_) gone_since_.push_back(block);
    i = live_.erase(i);
  }
}

std::vector<Block> DeviceMemory::live() const {
  std::vector<Block> blocks;
  for (const auto& [pointer, block] : live_) blocks.push_back(block);
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.serial < b.serial; });
  return blocks;
}

std::vector<Block> DeviceMemory::peak() const {
  std::vector<Block> blocks = gone_since_;
  for (const auto& [pointer, block] : live_) {
    if (block.serial <= peak_serial_) blocks.push_back(block);
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.serial < b.serial; });
  return blocks;
}

void Timeline::add(int64_t ns, int64_t bytes) {
  if (!samples_.empty() && ns - samples_.back().ns < span_ns_) {
    samples_.back().bytes = std::max(samples_.back().bytes, bytes);
    return;
  }
  samples_.push_back({ns, bytes});
  if (samples_.size() < kSamples) return;
  span_ns_ *= 2;
  std::vector<Sample> fewer;
  for (const Sample& sample : samples_) {
    if (!fewer.empty() && sample.ns - fewer.back().ns < span_ns_) {
      fewer.back().bytes = std::max(fewer.back().bytes, sample.bytes);
    } else {
      fewer.push_back(sample);
    }
  }
  samples_ = std::move(fewer);
}

// ---- the recorder ---------------------------------------------------------------------------------------------------

MemoryRecorder::MemoryRecorder()
    : mutex_(
          [](void* owner) {
            restore_slot();
            static_cast<MemoryRecorder*>(owner)->listeners_ = 0;
          },
          this) {}

bool MemoryRecorder::listen() {
  ThreadState& state = here();
  if (ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE)) return false;
  state.before = ThreadLocalDebugInfo::current();
  ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, std::make_shared<Listener>(shared_from_this()));
  state.with_us = ThreadLocalDebugInfo::current();
  state.running.clear();
  std::lock_guard lock(mutex_);
  ++listeners_;
  return true;
}

void MemoryRecorder::unlisten() noexcept {
  restore_slot();
  std::lock_guard lock(mutex_);
  --listeners_;
}

int64_t MemoryRecorder::listeners() const {
  std::lock_guard lock(mutex_);
  return listeners_;
}

void MemoryRecorder::enter(Site site) {
  const auto* frame = static_cast<const char*>(__builtin_frame_address(0));
  std::vector<Running>& running = here().running;
  while (!running.empty() && running.back().frame <= frame) running.pop_back();  // left by exceptions
  running.push_back({site, frame});
}

void MemoryRecorder::leave(Site site) {
  ThreadState& state = here();
  const auto found = std::find_if(state.running.rbegin(), state.running.rend(),
                                  [&](const Running& running) { return running.site == site; });
  if (found == state.running.rend()) return;
  state.running.erase(std::prev(found.base()), state.running.end());
  state.last_left = site;
}

Site MemoryRecorder::running() {
  const ThreadState& state = here();
  return state.running.empty() ? kNoSite : state.running.back().site;
}

void MemoryRecorder::heard(const void* pointer, int64_t bytes, c10::Device device) {
  const int64_t now = now_ns();
  Site site = running();
  const bool backward = in_backward();
  std::lock_guard lock(mutex_);
  Device& known = devices_[{static_cast<int>(device.type()), device.index()}];
  if (bytes > 0) {
    ++known.allocations;
    known.allocated_bytes += bytes;
    known.memory.allocate(pointer,
                          {.serial = ++serials_, .bytes = bytes, .made_by = site, .made_in_backward = backward});
  } else {
    // A node frees what it has saved when it has run.
    if (site == kNoSite && backward) site = here().last_left;
    known.freed_bytes -= bytes;
    known.memory.free(pointer, site, backward);
  }
  known.timeline.add(now, known.memory.live_bytes());
}

bool MemoryRecorder::mark(const void* pointer, int64_t mark) {
  std::lock_guard lock(mutex_);
  bool found = false;
  for (auto& [device, known] : devices_) found |= known.memory.mark(pointer, mark);
  return found;
}

std::vector<uint64_t> MemoryRecorder::serials_of(const std::vector<at::Tensor>& tensors) const {
  std::vector<uint64_t> serials;
  serials.reserve(tensors.size());
  std::lock_guard lock(mutex_);
  for (const at::Tensor& tensor : tensors) {
    const void* pointer = memory_of(tensor);
    uint64_t serial = 0;
    for (const auto& [device, known] : devices_) serial = std::max(serial, known.memory.serial_of(pointer));
    serials.push_back(serial);
  }
  return serials;
}

uint64_t MemoryRecorder::last_serial() const {
  std::lock_guard lock(mutex_);
  return serials_;
}

void MemoryRecorder::forget_all_but(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> pointers;
  for (const at::Tensor& tensor : tensors) {
    pointers.insert(memory_of(tensor));
    if (tensor.defined()) pointers.insert(memory_of(tensor.unsafeGetTensorImpl()->grad()));
  }
  std::lock_guard lock(mutex_);
  for (auto& [device, known] : devices_) known.memory.forget_all_but(pointers);
}

const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  try {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().data_ptr().get();
  } catch (const c10::Error&) {  // of a fake tensor, for instance
    return nullptr;
  }
}

void MemoryRecorder::reset() {
  std::lock_guard lock(mutex_);
  devices_.clear();
}

// ---- in Python ------------------------------------------------------------------------------------------------------

void bind_memory(pybind11::module_& m) {
  namespace py = pybind11;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  using Fields = std::tuple<uint64_t, int64_t, Site, bool, bool, Site, bool, int64_t>;
  const auto name_of = [](const auto& key) {
    return c10::Device(static_cast<c10::DeviceType>(key.first), static_cast<c10::DeviceIndex>(key.second)).str();
  };
  const auto fields = [](const std::vector<Block>& blocks) {
    std::vector<Fields> found;
    for (const Block& b : blocks) {
      found.emplace_back(b.serial, b.bytes, b.made_by, b.made_in_backward, b.is_freed, b.freed_by, b.freed_in_backward,
                         b.mark);
    }
    return found;
  };
  py::class_<MemoryRecorder, std::shared_ptr<MemoryRecorder>>(m, "MemoryRecorder",
                                                              "What PeakMemory has heard from PyTorch's allocators.")
      .def(py::init<>())
      .def("listen", &MemoryRecorder::listen, "On this thread. False: another profiler does.")
      .def("unlisten", &MemoryRecorder::unlisten)
      .def("listeners", &MemoryRecorder::listeners, Unlocked(), "On how many threads it listens.")
      .def_static(
          "enter", [](Site site) { return python::capsule_of([site](Values&) { MemoryRecorder::enter(site); }); },
          py::arg("site"), "A routine for `_core.NativeRoutine`, before an operator.")
      .def_static(
          "leave", [](Site site) { return python::capsule_of([site](Values&) { MemoryRecorder::leave(site); }); },
          py::arg("site"), "The routine after it.")
      .def_static("running", &MemoryRecorder::running,
                  "The operator that runs on this thread, or that an exception has left; -1: none.")
      .def(
          "mark",
          [](MemoryRecorder& recorder, const at::Tensor& tensor, int64_t mark) {
            const void* pointer = memory_of(tensor);
            return pointer && recorder.mark(pointer, mark);
          },
          py::arg("tensor"), py::arg("mark"), "Notes what a tensor's live block holds. False: it is not known.")
      .def("serials_of", &MemoryRecorder::serials_of, py::arg("tensors"),
           "The serials of the live blocks of these tensors; 0 where none is known.")
      .def("last_serial", &MemoryRecorder::last_serial, Unlocked(), "The serial of the newest block.")
      .def("forget_all_but", &MemoryRecorder::forget_all_but, py::arg("tensors"),
           "Forgets all live blocks but those of these tensors and their gradients.")
      .def(
          "devices",
          [name_of](const MemoryRecorder& recorder) {
            return recorder.with_devices([&](const MemoryRecorder::Devices& devices) {
              std::vector<std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, int64_t>> found;
              for (const auto& [key, device] : devices) {
                found.emplace_back(name_of(key), device.memory.peak_bytes(), device.memory.live_bytes(),
                                   device.allocations, device.allocated_bytes, device.freed_bytes);
              }
              return found;
            });
          },
          Unlocked(), "Name, bytes at the peak and now, number and bytes of allocations, bytes freed.")
      .def(
          "blocks",
          [fields, name_of](const MemoryRecorder& recorder, const std::string& name, bool at_peak) {
            return recorder.with_devices([&](const MemoryRecorder::Devices& devices) {
              for (const auto& [key, device] : devices) {
                if (name_of(key) == name) return fields(at_peak ? device.memory.peak() : device.memory.live());
              }
              return std::vector<Fields>{};
            });
          },
          py::arg("device"), py::arg("at_peak"), Unlocked(),
          "The blocks at the peak, or those that are alive now, in the order of the fields of `_Block`.")
      .def(
          "timeline",
          [name_of](const MemoryRecorder& recorder, const std::string& name) {
            return recorder.with_devices([&](const MemoryRecorder::Devices& devices) {
              std::vector<std::pair<int64_t, int64_t>> samples;
              for (const auto& [key, device] : devices) {
                if (name_of(key) != name) continue;
                for (const Timeline::Sample& sample : device.timeline.samples())
                  samples.emplace_back(sample.ns, sample.bytes);
              }
              return samples;
            });
          },
          py::arg("device"), Unlocked(), "Time in nanoseconds, and bytes.")
      .def("reset", &MemoryRecorder::reset, Unlocked());
}

}  // namespace amanda::tools::pytorch
