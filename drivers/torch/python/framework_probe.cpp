#include "python/framework_probe.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/port.h"

namespace amanda::python {
namespace {

using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;
using Heard = FrameworkProbe::Heard;

// PyTorch's allocators report to the object in the profiler slot of the thread's debug information, and PyTorch's
// profiler assumes that this object is its own class. So this class derives from it: it reports that no profiler is on,
// and receives memory events.
class Listener final : public ProfilerStateBase {
 public:
  explicit Listener(Heard heard) : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)), heard_(heard) {}

  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    heard_(size, device.is_cpu());
  }
  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }

 private:
  const Heard heard_;
};

// The state of a thread without other debug information: the usual case, created once.
const std::shared_ptr<ThreadLocalDebugInfo>& listener_alone(Heard heard) {
  static const std::shared_ptr<ThreadLocalDebugInfo> alone = [heard] {
    const auto before = ThreadLocalDebugInfo::current();
    ThreadLocalDebugInfo::_forceCurrentDebugInfo(nullptr);
    ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, std::make_shared<Listener>(heard));
    const auto made = ThreadLocalDebugInfo::current();
    ThreadLocalDebugInfo::_forceCurrentDebugInfo(before);
    return made;
  }();
  return alone;
}

// Installed on this thread only while an outermost operator runs: torch.profiler refuses to start while the slot is
// taken.
struct Listening {
  std::shared_ptr<ThreadLocalDebugInfo> before, with_us;
  bool on = false;
};
Listening& listening() {
  thread_local Listening here;
  return here;
}

bool is_ours(c10::DebugInfoBase* info) { return dynamic_cast<Listener*>(info) != nullptr; }

void* listen(Heard heard) {
  Listening& here = listening();
  if (here.on) return nullptr;
  here.before = ThreadLocalDebugInfo::current();
  if (!here.before) {
    here.with_us = listener_alone(heard);
    ThreadLocalDebugInfo::_forceCurrentDebugInfo(here.with_us);
  } else {
    c10::DebugInfoBase* holder = ThreadLocalDebugInfo::get(DebugInfoKind::PROFILER_STATE);
    if (holder && !is_ours(holder)) {
      here.before = nullptr;
      return nullptr;
    }
    static const auto listener = std::make_shared<Listener>(heard);
    ThreadLocalDebugInfo::_push(DebugInfoKind::PROFILER_STATE, listener);
    here.with_us = ThreadLocalDebugInfo::current();
  }
  here.on = true;
  return &here;
}

// If the state differs from the installed one, it was restored already: autograd's engine does so between nodes.
void unlisten(void* listener) noexcept {
  auto& here = *static_cast<Listening*>(listener);
  here.on = false;
  const auto with_us = std::exchange(here.with_us, nullptr);
  const auto before = std::exchange(here.before, nullptr);
  if (ThreadLocalDebugInfo::current() == with_us) ThreadLocalDebugInfo::_forceCurrentDebugInfo(before);
}

const char* other_profiler() {
  const auto state = pytorch::port::active_profiler<ProfilerStateBase>();
  return state && !is_ours(state.get()) ? "torch.profiler" : nullptr;
}

// Waits without the interpreter lock: a host function on a stream may need it.
void synchronize() {
  std::optional<py::gil_scoped_release> unlocked;
  if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
  const auto& cuda = at::detail::getCUDAHooks();
  if (!cuda.hasCUDA()) return;
  for (int device = 0; device < cuda.getNumGPUs(); ++device) {
    if (cuda.hasPrimaryContext(static_cast<c10::DeviceIndex>(device))) {
      cuda.deviceSynchronize(static_cast<c10::DeviceIndex>(device));
    }
  }
}

}  // namespace

const FrameworkProbe& torch_probe() {
  static const FrameworkProbe probe = {
      .listen = &listen, .unlisten = &unlisten, .other_profiler = &other_profiler, .synchronize = &synchronize};
  return probe;
}

}  // namespace amanda::python
