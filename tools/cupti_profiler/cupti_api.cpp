#include "cupti_profiler/cupti_api.h"

#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "amanda/error.h"

namespace amanda::tools {
namespace {

// Records grow at their end between CUPTI versions: the fields that are read here have the same offsets in older
// versions, and in the headers of CUDA 11.8 to 13.4.
#define AMANDA_SAME_PLACE(newer, older, field) static_assert(offsetof(newer, field) == offsetof(older, field))
#define AMANDA_SAME_ACTIVITY(newer, older)    \
  AMANDA_SAME_PLACE(newer, older, start);     \
  AMANDA_SAME_PLACE(newer, older, end);       \
  AMANDA_SAME_PLACE(newer, older, deviceId);  \
  AMANDA_SAME_PLACE(newer, older, contextId); \
  AMANDA_SAME_PLACE(newer, older, streamId);  \
  AMANDA_SAME_PLACE(newer, older, correlationId)
AMANDA_SAME_ACTIVITY(CUpti_ActivityKernel9, CUpti_ActivityKernel4);
AMANDA_SAME_PLACE(CUpti_ActivityKernel9, CUpti_ActivityKernel4, name);
AMANDA_SAME_ACTIVITY(CUpti_ActivityMemcpy5, CUpti_ActivityMemcpy4);
AMANDA_SAME_PLACE(CUpti_ActivityMemcpy5, CUpti_ActivityMemcpy4, bytes);
AMANDA_SAME_ACTIVITY(CUpti_ActivityMemcpyPtoP4, CUpti_ActivityMemcpyPtoP3);
AMANDA_SAME_PLACE(CUpti_ActivityMemcpyPtoP4, CUpti_ActivityMemcpyPtoP3, bytes);
AMANDA_SAME_ACTIVITY(CUpti_ActivityMemset4, CUpti_ActivityMemset3);
AMANDA_SAME_PLACE(CUpti_ActivityMemset4, CUpti_ActivityMemset3, bytes);
#if CUPTI_API_VERSION >= 130000
AMANDA_SAME_ACTIVITY(CUpti_ActivityKernel10, CUpti_ActivityKernel9);
AMANDA_SAME_PLACE(CUpti_ActivityKernel10, CUpti_ActivityKernel9, name);
AMANDA_SAME_ACTIVITY(CUpti_ActivityMemcpy6, CUpti_ActivityMemcpy5);
#endif
#undef AMANDA_SAME_ACTIVITY
#undef AMANDA_SAME_PLACE

constexpr uint32_t kOldest = 18;         // CUDA 11.8
constexpr uint32_t kNextMajor = 140000;  // its headers are unknown

#define AMANDA_CUPTI_NAMES_SUBSCRIBERS (CUPTI_API_VERSION >= 130000)

constexpr auto kExternalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;  // torch.profiler has 0 and 1
constexpr uint32_t kMayRefuseBuffers = 27;                               // older ones crash if they get no buffer
constexpr size_t kAlignment = 8;                                         // of buffers

// API calls are recorded completely: a call that is not recorded has no external id either.
constexpr std::array kKinds = {
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
};

std::string_view copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "Memcpy HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "Memcpy DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "Memcpy DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: return "Memcpy HtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "Memcpy PtoP";
    default: return "Memcpy";
  }
}

template <class Clock>
uint64_t CUPTIAPI now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// One copy of each name: CUPTI's own is freed with the module of the kernel.
std::string_view interned(const char* record) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string, std::less<>>;  // needed until the process ends
  const std::string_view name = record ? record : "(unnamed kernel)";
  std::lock_guard lock(mutex);
  const auto known = names.find(name);
  return known != names.end() ? *known : *names.emplace(name).first;
}

class Library {
 public:
  explicit Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }
  template <class Function>
  Function* need(const char* name) const {
    if (auto* function = find<Function>(name)) return function;
    throw Error(fmt::format("[cupti] {} has no {}; CUPTI of CUDA 11.8 or later is needed", path_, name));
  }
  const std::string& path() const { return path_; }

 private:
  void* handle_;  // stays open: CUPTI's threads run in it
  std::string path_;
};

std::string real_path(void* handle, const std::string& fallback) {
  std::array<char, 4096> folder{};
  const bool known = dlinfo(handle, RTLD_DI_ORIGIN, folder.data()) == 0;
  const std::string file = fallback.substr(fallback.rfind('/') + 1);
  return known ? std::string(folder.data()) + "/" + file : fallback;
}

std::optional<Library> open(const std::string& name, int flags = 0) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (!handle) return std::nullopt;
  return Library(handle, name.find('/') == std::string::npos ? real_path(handle, name) : name);
}

Library find_library(const std::vector<std::string>& candidates) {
  if (const char* named = std::getenv("AMANDA_CUPTI"); named && *named) {
    if (auto library = open(named)) return *library;
    throw Error(fmt::format("[cupti] AMANDA_CUPTI names what cannot be opened: {}", dlerror()));
  }
  const std::array loaded = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  for (const char* name : loaded) {  // two copies in one process would not detect each other
    if (auto library = open(name, RTLD_NOLOAD)) return *library;
  }
  std::vector<std::string> paths = candidates;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable); root && *root) {
      paths.push_back(fmt::format("{}/extras/CUPTI/lib64/libcupti.so", root));
      paths.push_back(fmt::format("{}/lib64/libcupti.so", root));
    }
  }
  paths.push_back("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so");
  paths.push_back("/usr/local/cuda/lib64/libcupti.so");
  for (const std::string& path : paths) {
    if (access(path.c_str(), R_OK) != 0) continue;
    if (auto library = open(path)) return *library;
  }
  for (const char* name : loaded) {
    if (auto library = open(name)) return *library;
  }
  throw Error(
      "[cupti] CUPTI (libcupti.so) was not found; install the CUDA toolkit or the package nvidia-cuda-cupti, or let "
      "AMANDA_CUPTI name the library");
}

class Cupti;
// CUPTI has one client in a process.
std::atomic<pid_t> client_of{0};          // the process that has claimed it, or 0
std::atomic<Cupti*> collecting{nullptr};  // the target of its callbacks

// Precedes each buffer, which may be returned after its collection has ended.
struct alignas(kAlignment) Origin {
  Cupti* owner;  // null if requested outside collections
  uint64_t collection;
};

// CUPTI's functions, as the header declares them.
class Cupti final : public CuptiApi {
 public:
  explicit Cupti(Library library) : library_(std::move(library)) {
    check("cuptiGetVersion", get_version_(&version_));
    if (version_ >= kOldest && version_ < kNextMajor) return;
    throw Error(
        fmt::format("[cupti] {} has CUPTI's API version {}; known are {} (CUDA 11.8) to {} (CUDA 13); let "
                    "AMANDA_CUPTI name such a library",
                    library_.path(), version_, kOldest, kNextMajor - 1));
  }

  const std::string& path() const override { return library_.path(); }
  uint32_t version() const override { return version_; }

  void start(RecordSink& sink, Limits limits) override {
    claim();
    {
      std::lock_guard lock(mutex_);  // a buffer of the last collection that comes back now belongs to none
      buffers_ = first_of_next(buffers_);
      sink_ = &sink;
      counts_ = {};
    }
    limits_ = limits;
    collecting = this;
    try {
      look_for_other_clients();
      check("cuptiActivityRegisterTimestampCallback", register_timestamp_(&now<std::chrono::steady_clock>));
      our_clock_ = true;
      check("cuptiActivityRegisterCallbacks", register_callbacks_(&Cupti::give_buffer, &Cupti::take_buffer));
      for (const CUpti_ActivityKind kind : kKinds) {
        check("cuptiActivityEnable", enable_(kind));
        enabled_.push_back(kind);
      }
    } catch (...) {
      end();
      throw;
    }
  }

  void flush() override { check("cuptiActivityFlushAll", flush_all_(0)); }

  void stop() override {
    const CUptiResult flushed = flush_all_(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    look_for_thieves();
    end();
    check("cuptiActivityFlushAll", flushed);
  }

  void push(uint64_t run) override { check("cuptiActivityPushExternalCorrelationId", push_(kExternalKind, run)); }
  void pop() override { check("cuptiActivityPopExternalCorrelationId", pop_(kExternalKind, nullptr)); }

  Counts counts() const override {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  // ---- errors -------------------------------------------------------------------------------------------------------

  std::string text(CUptiResult result) const {
    const char* text = nullptr;
    if (result_string_(result, &text) != CUPTI_SUCCESS || !text) return fmt::format("CUptiResult {}", int(result));
    return text;
  }

  std::string failure(const char* function, CUptiResult result) const {
    return fmt::format("[cupti] {} failed: {}{}", function, text(result), advice(result));
  }

  void check(const char* function, CUptiResult result) const {
    if (result != CUPTI_SUCCESS) throw Error(failure(function, result));
  }

  static std::string advice(CUptiResult result) {
    switch (result) {
      case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: return "; is another profiler on?";
      case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
        return "; the driver lets only administrators profile (NVreg_RestrictProfilingToAdminUsers)";
      default: break;
    }
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return "; this machine has no CUDA driver (libcuda.so.1)";
    dlclose(driver);
    return "";
  }

  static uint64_t collection_of(uint64_t buffers) { return buffers >> 32; }
  static uint64_t in_flight(uint64_t buffers) { return buffers & 0xFFFFFFFF; }
  static uint64_t first_of_next(uint64_t buffers) { return (collection_of(buffers) + 1) << 32; }

  // ---- a collection -------------------------------------------------------------------------------------------------

  static void claim() {
    pid_t holder = 0;
    if (client_of.compare_exchange_strong(holder, getpid())) return;
    throw Error(holder == getpid()
                    ? "[cupti] another CuptiProfiler of this process is collecting; leave its scope first"
                    : "[cupti] this process was forked from one that is collecting, where CUPTI does not work; start "
                      "it before the scope is entered, or spawn it");
  }

  // CUPTI has one subscriber, which may be collecting. The subscription is claimed and released at once, because
  // torch.profiler would not try again. PyTorch's profiler stays subscribed from its first use on, idle or not, and has
  // no name; an idle one does no harm. So only a named subscriber is a reason to refuse.
  void look_for_other_clients() {
    std::array<char, 128> name{};
    CUpti_SubscriberHandle subscriber = nullptr;
    const auto [function, result] = try_to_subscribe(subscriber, name);
    anonymous_client_ = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    if (!anonymous_client_) {
      check(function, result);
      return check("cuptiUnsubscribe", unsubscribe_(subscriber));
    }
    const std::string_view holder = name.data();
    if (holder.empty() || holder == "CUPTI") return;
    throw Error(fmt::format("[cupti] {} failed: {}; '{}' holds CUPTI, end it first", function, text(result), holder));
  }

  std::pair<const char*, CUptiResult> try_to_subscribe(CUpti_SubscriberHandle& subscriber,
                                                       std::array<char, 128>& holder) const {
    const auto ignore = [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {};
#if AMANDA_CUPTI_NAMES_SUBSCRIBERS
    if (subscribe_v2_) {
      CUpti_SubscriberParams parameters{};
      parameters.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
      parameters.subscriberName = "Amanda";
      parameters.oldSubscriberName = holder.data();
      parameters.oldSubscriberSize = holder.size();
      return {"cuptiSubscribe_v2", subscribe_v2_(&subscriber, ignore, nullptr, &parameters)};
    }
#endif
    return {"cuptiSubscribe", subscribe_(&subscriber, ignore, nullptr)};
  }

  void end() noexcept {
    for (const CUpti_ActivityKind kind : std::exchange(enabled_, {})) disable_(kind);
    // Restores CUPTI's own clock, which a later client may rely on. A client that has taken over has set its own.
    if (std::exchange(our_clock_, false) && in_flight(buffers_) == 0)
      register_timestamp_(&now<std::chrono::system_clock>);
    {
      std::lock_guard lock(mutex_);
      sink_ = nullptr;
    }
    collecting = nullptr;
    client_of = 0;
  }

  // After everything was delivered, because a later client may have taken over.
  void look_for_thieves() {
    std::lock_guard lock(mutex_);
    if (!counts_.failure.empty()) return;
    if (const uint64_t missing = in_flight(buffers_)) {
      counts_.failure = fmt::format(
          "[cupti] {} buffers of records did not come back: was another profiler started "
          "inside the scope?",
          missing);
    } else if (anonymous_client_ && counts_.records == 0) {
      counts_.failure =
          "[cupti] no record was delivered, and another client has subscribed to CUPTI: is it collecting?";
    }
  }

  // Called on any thread, for instance one that launches a kernel: it must not wait for a thread that delivers records.
  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
    *buffer = nullptr;
    *size = 0;
    *max_records = 0;
    Cupti* owner = collecting;
    const uint64_t before = owner ? owner->buffers_.load() : 0;
    if (owner && owner->version_ >= kMayRefuseBuffers && in_flight(before) >= owner->limits_.buffers) return;
    const size_t bytes = owner ? owner->limits_.buffer_bytes : Limits{}.buffer_bytes;
    void* memory = std::aligned_alloc(kAlignment, sizeof(Origin) + bytes);
    if (!memory) return;
    *buffer = reinterpret_cast<uint8_t*>(new (memory) Origin{owner, owner ? owner->lend() : 0} + 1);
    *size = bytes;
  }

  static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
    if (!buffer) return;
    auto* origin = reinterpret_cast<Origin*>(buffer) - 1;
    const std::unique_ptr<void, void (*)(void*)> memory(origin, std::free);
    if (origin->owner) origin->owner->take(origin->collection, context, stream, buffer, valid);
  }

  // One more buffer of the collection whose number it returns: of the one that counts it, whatever begins meanwhile.
  uint64_t lend() { return collection_of(buffers_++); }

  // Runs on a CUPTI thread, which no exception may reach. If the collection has ended, stop() has already reported the
  // loss.
  void take(uint64_t collection, CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) noexcept {
    std::lock_guard lock(mutex_);
    if (collection != collection_of(buffers_) || !sink_) return;
    --buffers_;
    ++counts_.buffers;
    size_t dropped = 0;
    const CUptiResult asked = num_dropped_(context, stream, &dropped);
    counts_.dropped += dropped;
    if (asked != CUPTI_SUCCESS) note(failure("cuptiActivityGetNumDroppedRecords", asked));
    CUpti_Activity* record = nullptr;
    CUptiResult result = CUPTI_SUCCESS;
    while (valid && (result = next_record_(buffer, valid, &record)) == CUPTI_SUCCESS) {
      ++counts_.records;
      try {
        deliver(*record);
      } catch (const std::exception& error) {
        ++counts_.lost;
        note(fmt::format("[cupti] a record could not be kept: {}", error.what()));
      }
    }
    if (result == CUPTI_SUCCESS || result == CUPTI_ERROR_MAX_LIMIT_REACHED) return;
    ++counts_.unread;
    note(failure("cuptiActivityGetNextRecord", result));
  }

  void note(const std::string& failure) {
    if (counts_.failure.empty()) counts_.failure = failure;
  }

  // ---- records ------------------------------------------------------------------------------------------------------

  template <class Record>
  static Activity activity(Activity::Kind kind, const CUpti_Activity& any, std::string_view name, uint64_t bytes) {
    const auto& record = reinterpret_cast<const Record&>(any);
    return {.kind = kind,
            .correlation_id = record.correlationId,
            .device = record.deviceId,
            .context = record.contextId,
            .stream = record.streamId,
            .start_ns = static_cast<int64_t>(record.start),
            .end_ns = static_cast<int64_t>(record.end),
            .name = name,
            .bytes = bytes};
  }

  void deliver(const CUpti_Activity& any) {
    using Kind = Activity::Kind;
    switch (any.kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& record = reinterpret_cast<const CUpti_ActivityKernel9&>(any);
        return sink_->on(activity<CUpti_ActivityKernel9>(Kind::kKernel, any, interned(record.name), 0));
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& record = reinterpret_cast<const CUpti_ActivityMemcpy5&>(any);
        return sink_->on(activity<CUpti_ActivityMemcpy5>(Kind::kMemcpy, any, copy_name(record.copyKind), record.bytes));
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY2: {  // between devices
        const auto& record = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(any);
        return sink_->on(
            activity<CUpti_ActivityMemcpyPtoP4>(Kind::kMemcpy, any, copy_name(record.copyKind), record.bytes));
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& record = reinterpret_cast<const CUpti_ActivityMemset4&>(any);
        return sink_->on(activity<CUpti_ActivityMemset4>(Kind::kMemset, any, "Memset", record.bytes));
      }
      case CUPTI_ACTIVITY_KIND_RUNTIME:
      case CUPTI_ACTIVITY_KIND_DRIVER: {
        const auto& record = reinterpret_cast<const CUpti_ActivityAPI&>(any);
        return sink_->on(ApiCall{.correlation_id = record.correlationId,
                                 .thread = record.threadId,
                                 .start_ns = static_cast<int64_t>(record.start),
                                 .end_ns = static_cast<int64_t>(record.end)});
      }
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& record = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(any);
        if (record.externalKind == kExternalKind) sink_->on(ExternalId{record.correlationId, record.externalId});
        return;
      }
      default:  // another client's kind
        return;
    }
  }

  const Library library_;
  uint32_t version_ = 0;

  template <class Function>
  Function* need(const char* name) const {
    return library_.need<Function>(name);
  }
#define AMANDA_CUPTI(member, function) decltype(&function) const member = need<decltype(function)>(#function)
  AMANDA_CUPTI(result_string_, cuptiGetResultString);
  AMANDA_CUPTI(get_version_, cuptiGetVersion);
  AMANDA_CUPTI(subscribe_, cuptiSubscribe);
  AMANDA_CUPTI(unsubscribe_, cuptiUnsubscribe);
  AMANDA_CUPTI(enable_, cuptiActivityEnable);
  AMANDA_CUPTI(disable_, cuptiActivityDisable);
  AMANDA_CUPTI(register_callbacks_, cuptiActivityRegisterCallbacks);
  AMANDA_CUPTI(register_timestamp_, cuptiActivityRegisterTimestampCallback);
  AMANDA_CUPTI(flush_all_, cuptiActivityFlushAll);
  AMANDA_CUPTI(next_record_, cuptiActivityGetNextRecord);
  AMANDA_CUPTI(num_dropped_, cuptiActivityGetNumDroppedRecords);
  AMANDA_CUPTI(push_, cuptiActivityPushExternalCorrelationId);
  AMANDA_CUPTI(pop_, cuptiActivityPopExternalCorrelationId);
#undef AMANDA_CUPTI
#if AMANDA_CUPTI_NAMES_SUBSCRIBERS
  decltype(&cuptiSubscribe_v2) const subscribe_v2_ = library_.find<decltype(cuptiSubscribe_v2)>("cuptiSubscribe_v2");
#endif

  bool anonymous_client_ = false, our_clock_ = false;
  std::vector<CUpti_ActivityKind> enabled_;
  Limits limits_;  // of the current collection
  // The number of the collection, and below it how many of its buffers have not come back: they change together.
  std::atomic<uint64_t> buffers_{0};
  mutable std::mutex mutex_;  // of the members below, and of one sink call at a time
  RecordSink* sink_ = nullptr;
  Counts counts_;
};

}  // namespace

CuptiApi& CuptiApi::load(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static auto& opened = *new std::map<std::string, std::unique_ptr<Cupti>>;  // CUPTI's threads may run in one
  std::lock_guard lock(mutex);
  Library library = find_library(candidates);
  std::unique_ptr<Cupti>& cupti = opened[library.path()];
  if (!cupti) cupti = std::make_unique<Cupti>(std::move(library));
  return *cupti;
}

}  // namespace amanda::tools
