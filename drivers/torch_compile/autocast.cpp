#include "autocast.h"

#include <ATen/autocast_mode.h>

namespace amanda::pytorch {

std::vector<int64_t> autocast_here() {
  std::vector<int64_t> found;
  for (const c10::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    if (!at::autocast::is_autocast_enabled(device)) continue;
    found.push_back(static_cast<int64_t>(device));
    found.push_back(static_cast<int64_t>(at::autocast::get_autocast_dtype(device)));
  }
  return found;
}

WithAutocast::WithAutocast(c10::ArrayRef<int64_t> wanted) : cache_(at::autocast::is_autocast_cache_enabled()) {
  for (const c10::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    const bool was = at::autocast::is_autocast_enabled(device);
    const c10::ScalarType* dtype = nullptr;
    c10::ScalarType given{};
    for (size_t i = 0; i + 1 < wanted.size(); i += 2) {
      if (wanted[i] != static_cast<int64_t>(device)) continue;
      given = static_cast<c10::ScalarType>(wanted[i + 1]);
      dtype = &given;
    }
    if (!was && !dtype) continue;
    changed_.push_back({device, was, at::autocast::get_autocast_dtype(device)});
    at::autocast::set_autocast_enabled(device, dtype != nullptr);
    if (dtype) at::autocast::set_autocast_dtype(device, *dtype);
  }
  at::autocast::set_autocast_cache_enabled(false);
}

WithAutocast::~WithAutocast() {
  for (const Before& one : changed_) {
    at::autocast::set_autocast_enabled(one.device, one.enabled);
    at::autocast::set_autocast_dtype(one.device, one.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_);
}

}  // namespace amanda::pytorch
