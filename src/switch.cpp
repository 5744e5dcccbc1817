#include "amanda/switch.h"

#include <fmt/format.h>

#include <utility>

#include "amanda/error.h"
#include "amanda/log.h"
#include "thread_scopes.h"

namespace amanda {
namespace {

Turns& turns_of(ThreadScopes& thread, Switch::Which which) {
  return which == Switch::Which::kInstrumentation ? thread.instrumentation : thread.cache;
}

}  // namespace

Switch::Switch(Which which, bool on) : which_(which) {
  ThreadScopes& thread = ThreadScopes::current();
  Turns& turns = turns_of(thread, which);
  const bool was_on = turns.on();
  turn_ = turns.turn(on);
  if (was_on != on) thread.changed([&] { turns.put_back(turn_); });
}

Switch::Switch(Switch&& other) noexcept
    : which_(other.which_), thread_(other.thread_), turn_(other.turn_), armed_(std::exchange(other.armed_, false)) {}

Switch::~Switch() {
  if (thread_ != std::this_thread::get_id()) return;
  try {
    put_back();
  } catch (...) {  // a destructor must not throw
    log_warning(fmt::format("[amanda] putting a switch back failed: {}", describe(std::current_exception())));
  }
}

void Switch::put_back() {
  if (!armed_) return;
  if (thread_ != std::this_thread::get_id()) {
    throw Error("[scope] this switch was turned on another thread; put it back where it was turned");
  }
  armed_ = false;
  Turns& turns = turns_of(ThreadScopes::current(), which_);
  const bool was_on = turns.on();
  turns.put_back(turn_);
  if (turns.on() != was_on) ThreadScopes::current().ended();
}

Switch disabled() { return Switch(Switch::Which::kInstrumentation, false); }
Switch enabled() { return Switch(Switch::Which::kInstrumentation, true); }
Switch cache_disabled() { return Switch(Switch::Which::kCache, false); }
Switch cache_enabled() { return Switch(Switch::Which::kCache, true); }
bool is_enabled() { return ThreadScopes::current().instrumentation.on(); }
bool is_cache_enabled() { return ThreadScopes::current().cache.on(); }

}  // namespace amanda
