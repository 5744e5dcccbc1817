#include "amanda/log.h"

#include <cstdio>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "amanda/base/mutex.h"

namespace amanda {
namespace {

Mutex mutex;
LogSink& sink() {
  static auto* current = new LogSink([](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
  return *current;  // leaked: static destructors must not touch a binding's sink
}

}  // namespace

void set_log_sink(LogSink replacement) {
  std::lock_guard lock(mutex);
  sink() = std::move(replacement);
}

void log_warning(const std::string& line) {
  LogSink current;
  {
    std::lock_guard lock(mutex);
    current = sink();
  }
  current(line);  // outside the lock: a sink may wait for an interpreter
}

void log_warning_once(const std::string& line) {
  static auto* said = new std::unordered_set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!said->insert(line).second) return;
  }
  log_warning(line);
}

}  // namespace amanda
