#include "errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#include "amanda/base/mutex.h"

namespace amanda::tensorflow {
namespace {

constexpr std::string_view kToken = "[amanda error ";
constexpr size_t kMost = 64;

struct Kept {
  uint64_t token;
  int64_t step;
  std::exception_ptr error;
};

Mutex mutex;
uint64_t next_token = 1;
std::deque<Kept>& kept() {
  static auto* all = new std::deque<Kept>;  // leaked: threads may outlive static objects
  return *all;
}

std::string first_line(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    const std::string text = known.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

std::string keep_error(std::exception_ptr error, int64_t step) {
  const std::string line = first_line(error);
  std::exception_ptr dropped;  // outside the lock: it may hold Python objects
  std::lock_guard lock(mutex);
  kept().push_back({next_token, step, std::move(error)});
  if (kept().size() > kMost) {
    dropped = std::move(kept().front().error);
    kept().pop_front();
  }
  return fmt::format("{}{}] {}", kToken, next_token++, line);
}

std::exception_ptr take_error(const std::string& text) {
  const size_t at = text.find(kToken);
  if (at == std::string::npos) return nullptr;
  uint64_t token = 0;
  std::from_chars(text.data() + at + kToken.size(), text.data() + text.size(), token);
  std::vector<std::exception_ptr> dropped;
  std::exception_ptr taken;
  std::lock_guard lock(mutex);
  auto found = std::find_if(kept().begin(), kept().end(), [&](const Kept& one) { return one.token == token; });
  if (found == kept().end()) return nullptr;
  taken = std::move(found->error);
  const int64_t step = found->step;
  for (Kept& one : kept()) {
    if (one.step == step && one.error) dropped.push_back(std::move(one.error));
  }
  std::erase_if(kept(), [&](const Kept& one) { return !one.error; });
  return taken;
}

}  // namespace amanda::tensorflow
