#include "amanda/base/wait_hooks.h"

namespace amanda {
namespace {
WaitHooks current;
}

void set_wait_hooks(WaitHooks hooks) { current = hooks; }
const WaitHooks& wait_hooks() { return current; }

}  // namespace amanda
