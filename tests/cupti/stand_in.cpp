// Not CUPTI: a library that stands in for it where there is no GPU. It has the entry points that cupti_api.cpp calls,
// as the toolkit's cupti.h declares them, and makes up records of kernels that never ran. It tests our loading,
// checking and buffer handling, nothing else. Environment: STAND_IN_FAIL="cuptiActivityEnable=35",
// STAND_IN_HOLDER="Nsight Systems",
// STAND_IN_VERSION=26.
#include "stand_in.h"

#include <cupti.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

struct State {
  std::mutex mutex;
  std::map<std::string, int> failures;
  std::string holder;
  bool held = false, subscribed = false;
  uint32_t version = CUPTI_API_VERSION;
  std::set<CUpti_ActivityKind> enabled;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc now = nullptr;
  std::vector<std::string> records;  // bytes of one record each
  size_t dropped = 0;
  uint32_t correlation_id = 0;
};

void read_environment(State& state) {
  if (const char* fail = std::getenv("STAND_IN_FAIL")) {
    const std::string text = fail;
    const size_t equals = text.find('=');
    state.failures[text.substr(0, equals)] = std::stoi(text.substr(equals + 1));
  }
  if (const char* holder = std::getenv("STAND_IN_HOLDER")) state.holder = holder, state.held = true;
  if (const char* version = std::getenv("STAND_IN_VERSION")) state.version = std::stoul(version);
}

State& state() {
  static State& made = [&]() -> State& {
    auto& fresh = *new State;
    read_environment(fresh);
    return fresh;
  }();
  return made;
}

std::vector<uint64_t>& external_ids() {
  thread_local std::vector<uint64_t> ids;
  return ids;
}

CUptiResult injected(const char* function) {
  std::lock_guard lock(state().mutex);
  const auto found = state().failures.find(function);
  return found == state().failures.end() ? CUPTI_SUCCESS : static_cast<CUptiResult>(found->second);
}

template <class Record>
void add(CUpti_ActivityKind kind, Record record) {
  if (!state().enabled.contains(kind)) return;
  record.kind = kind;
  state().records.emplace_back(reinterpret_cast<const char*>(&record), sizeof record);
}

size_t size_of(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
    default: return sizeof(CUpti_ActivityExternalCorrelation);
  }
}

// The records of one call, in the order in which CUPTI makes them: external ids, the call, later what it caused.
template <class Cause>
void call(const Cause& cause) {
  std::lock_guard lock(state().mutex);
  const uint32_t id = ++state().correlation_id;
  const uint64_t start = state().now ? state().now() : 0;
  if (!external_ids().empty()) {
    CUpti_ActivityExternalCorrelation external{};
    external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;
    external.externalId = external_ids().back();
    external.correlationId = id;
    add(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, external);
    external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;  // as torch.profiler's would be: not ours
    external.externalId = 0;
    add(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, external);
  }
  CUpti_ActivityAPI api{};
  api.start = start, api.end = start + 1000;
  api.threadId = static_cast<uint32_t>(syscall(SYS_gettid));
  api.correlationId = id;
  add(CUPTI_ACTIVITY_KIND_RUNTIME, api);
  cause(id, start + 2000);
}

// A thread of the library's: as with CUPTI, callbacks come from anywhere.
void deliver() {
  static std::mutex one_at_a_time;  // a flush waits for what is being delivered
  std::lock_guard delivering(one_at_a_time);
  std::vector<std::string> records;
  CUpti_BuffersCallbackRequestFunc request;
  CUpti_BuffersCallbackCompleteFunc complete;
  {
    std::lock_guard lock(state().mutex);
    records.swap(state().records);
    request = state().request, complete = state().complete;
  }
  if (!request || !complete) return;
  std::thread([&] {
    uint8_t* buffer = nullptr;
    size_t size = 0, max = 0, used = 0;
    for (const std::string& record : records) {
      if (buffer && used + record.size() > size) {
        complete(nullptr, 0, buffer, size, used);
        buffer = nullptr;
      }
      if (!buffer) {
        request(&buffer, &size, &max);
        used = 0;
      }
      if (!buffer || record.size() > size) {
        std::lock_guard lock(state().mutex);
        ++state().dropped;
        continue;
      }
      std::memcpy(buffer + used, record.data(), record.size());
      used += record.size();
    }
    if (!buffer) {  // where records are dropped, an empty buffer tells in the end
      request(&buffer, &size, &max);
      used = 0;
    }
    if (buffer) complete(nullptr, 0, buffer, size, used);
  }).join();
}

}  // namespace

// ---- for tests -----------------------------------------------------------------------------------------------------

extern "C" {

void stand_in_reset() {
  State& current = state();
  std::lock_guard lock(current.mutex);
  current.failures.clear(), current.records.clear(), current.enabled.clear();
  current.held = current.subscribed = false;
  current.dropped = current.correlation_id = 0;
  external_ids().clear();
}

void stand_in_fail(const char* function, int result) {
  std::lock_guard lock(state().mutex);
  state().failures[function] = result;
}

void stand_in_hold(const char* subscriber) {
  std::lock_guard lock(state().mutex);
  state().held = subscriber != nullptr;
  state().holder = subscriber ? subscriber : "";
}

static void launch(const char* kernel, uint32_t stream, bool finished) {
  static auto& names = *new std::unordered_set<std::string>;
  const char* name;
  {
    std::lock_guard lock(state().mutex);
    name = names.emplace(kernel).first->c_str();
  }
  call([&](uint32_t id, uint64_t start) {
    CUpti_ActivityKernel9 record{};
    record.start = start, record.end = finished ? start + 5000 : 0;
    record.streamId = stream, record.contextId = 1;
    record.correlationId = id;
    record.name = name;
    add(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, record);
  });
}

void stand_in_launch(const char* kernel, uint32_t stream) { launch(kernel, stream, true); }
void stand_in_launch_unfinished(const char* kernel) { launch(kernel, 7, false); }

void stand_in_copy(uint64_t bytes) {
  call([&](uint32_t id, uint64_t start) {
    CUpti_ActivityMemcpy5 record{};
    record.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    record.start = start, record.end = start + 3000;
    record.correlationId = id;
    record.bytes = bytes;
    add(CUPTI_ACTIVITY_KIND_MEMCPY, record);
  });
}

static std::vector<uint8_t*> kept;

void stand_in_keep_a_buffer() {
  uint8_t* buffer = nullptr;
  size_t size = 0, max = 0;
  state().request(&buffer, &size, &max);
  kept.push_back(buffer);
}

void stand_in_return_buffers() {
  for (uint8_t* buffer : std::exchange(kept, {})) {
    CUpti_ActivityAPI record{};
    record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
    std::memcpy(buffer, &record, sizeof record);
    state().complete(nullptr, 0, buffer, sizeof record, sizeof record);
  }
}

void stand_in_deliver() { deliver(); }
size_t stand_in_depth() { return external_ids().size(); }
size_t stand_in_enabled() { return state().enabled.size(); }
uint64_t stand_in_now() { return state().now(); }
bool stand_in_subscribed() { return state().subscribed; }

// ---- CUPTI's -------------------------------------------------------------------------------------------------------

#define INJECT()                                                                \
  if (const CUptiResult result = injected(__func__); result != CUPTI_SUCCESS) { \
    return result;                                                              \
  }

CUptiResult cuptiGetVersion(uint32_t* version) {
  INJECT();
  *version = state().version;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  static const std::map<int, const char*> texts = {
      {CUPTI_ERROR_NOT_INITIALIZED, "CUPTI_ERROR_NOT_INITIALIZED"},
      {CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"},
      {CUPTI_ERROR_INVALID_KIND, "CUPTI_ERROR_INVALID_KIND"},
      {CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"},
      {CUPTI_ERROR_UNKNOWN, "CUPTI_ERROR_UNKNOWN"},
  };
  const auto found = texts.find(result);
  if (found == texts.end()) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = found->second;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc, void*) {
  INJECT();
  std::lock_guard lock(state().mutex);
  if (state().held || state().subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&state());
  state().subscribed = true;
  return CUPTI_SUCCESS;
}

#if CUPTI_API_VERSION >= 130000
CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback, void* data,
                              CUpti_SubscriberParams* parameters) {
  INJECT();
  if (parameters->structSize != CUpti_SubscriberParams_STRUCT_SIZE) return CUPTI_ERROR_INVALID_PARAMETER;
  const CUptiResult result = cuptiSubscribe(subscriber, callback, data);
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && parameters->oldSubscriberName) {
    std::strncpy(parameters->oldSubscriberName, state().holder.c_str(), parameters->oldSubscriberSize - 1);
  }
  return result;
}
#endif

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  INJECT();
  state().subscribed = false;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  INJECT();
  std::lock_guard lock(state().mutex);
  state().enabled.insert(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  INJECT();
  std::lock_guard lock(state().mutex);
  state().enabled.erase(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  INJECT();
  std::lock_guard lock(state().mutex);
  state().request = request, state().complete = complete;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc now) {
  INJECT();
  std::lock_guard lock(state().mutex);
  state().now = now;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  INJECT();
  deliver();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  INJECT();
  uint8_t* next = *record ? reinterpret_cast<uint8_t*>(*record) + size_of((*record)->kind) : buffer;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  INJECT();
  std::lock_guard lock(state().mutex);
  *dropped = state().dropped;
  state().dropped = 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id) {
  INJECT();
  external_ids().push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  INJECT();
  if (external_ids().empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last) *last = external_ids().back();
  external_ids().pop_back();
  return CUPTI_SUCCESS;
}

}  // extern "C"
