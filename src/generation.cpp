#include "generation.h"

namespace amanda {

std::atomic<uint64_t> tool_generation{1};
std::atomic<uint64_t> plan_generation{1};
std::atomic<uint64_t> analyses_done{0};

void tools_changed() {
  tool_generation.fetch_add(1);
  plans_changed();
}

}  // namespace amanda
