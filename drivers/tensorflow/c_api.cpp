#include "c_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>

#include "amanda/error.h"

namespace amanda::tensorflow {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

std::atomic<const CApi*> found{nullptr};

struct Status {
  Status() : status(c_api().TF_NewStatus()) {}
  ~Status() { c_api().TF_DeleteStatus(status); }
  TF_Status* status;
};

}  // namespace

const CApi* find_c_api() {
  if (const CApi* known = found.load(std::memory_order_acquire)) return known;
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return nullptr;
  auto api = std::make_unique<CApi>();
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) api->missing.emplace_back(name);
  };
#define AMANDA_FIND(result, name, arguments) find(api->name, #name);
  AMANDA_TENSORFLOW_C_API(AMANDA_FIND)
#undef AMANDA_FIND
  const CApi* expected = nullptr;
  if (found.compare_exchange_strong(expected, api.get())) return api.release();  // for the life of the process
  return expected;
}

const CApi& c_api() { return *found.load(std::memory_order_acquire); }

TF_Status* status_here() {
  thread_local const Status here;
  return here.status;
}

void check_status(const char* what) {
  if (c_api().TF_GetCode(status_here()) == 0) return;
  throw Error(fmt::format("[tensorflow] {} failed: {}", what, c_api().TF_Message(status_here())));
}

}  // namespace amanda::tensorflow
