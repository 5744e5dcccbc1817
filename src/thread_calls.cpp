#include "amanda/base/thread_calls.h"

#include <utility>

namespace amanda {

ThreadCalls& ThreadCalls::current() {
  thread_local constinit ThreadCalls calls;
  return calls;
}

size_t OpFrame::depth(ToolBits tool) {
  size_t depth = 0;
  for (const OpFrame* frame = ThreadCalls::current().innermost; frame; frame = frame->outer_) {
    depth += (frame->seeing_ & tool) != 0;
  }
  return depth;
}

void CallFrame::let_go() { delete std::exchange(thread_.kept, nullptr); }

void CallFrame::keep(std::shared_ptr<const void> dropped) {
  ThreadCalls& thread = ThreadCalls::current();
  if (thread.calls == 0) return;
  if (!thread.kept) thread.kept = new std::vector<std::shared_ptr<const void>>;
  thread.kept->push_back(std::move(dropped));
}

}  // namespace amanda
