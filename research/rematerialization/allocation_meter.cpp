#include "rematerialization/allocation_meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "amanda/error.h"

namespace amanda::tools::rematerialization {
namespace {

thread_local std::shared_ptr<AllocationCount> counting;  // null if this thread's allocations are not counted

// In front of PyTorch's CPU allocator while a thread counts. It lives forever: storages keep the allocator they are
// from.
class Meter final : public c10::Allocator {
 public:
  static Meter& instance() {
    static auto* meter = new Meter;
    return *meter;
  }

  void open() {
    const std::lock_guard lock(mutex_);
    if (threads_ == 0) {
      c10::Allocator* found = c10::GetCPUAllocator();
      if (!found->raw_deleter()) {
        throw Error("[rematerialization] PyTorch's CPU allocator was replaced by one that cannot be counted");
      }
      inner_ = found;
      c10::SetCPUAllocator(this);
      if (c10::GetCPUAllocator() != this) {
        throw Error("[rematerialization] PyTorch's CPU allocator was replaced by one that cannot be counted");
      }
    }
    ++threads_;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--threads_ == 0 && c10::GetCPUAllocator() == this) c10::SetCPUAllocator(inner_);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const std::shared_ptr<AllocationCount> count = counting;
    if (count && bytes > 0) count->make_room(bytes);
    c10::DataPtr data = inner_.load()->allocate(bytes);
    const c10::Device device = data.device();
    void* memory = data.release_context();
    if (count && bytes > 0) {
      count->add(bytes);
      const std::lock_guard lock(mutex_);
      blocks_[memory] = {bytes, count};
    }
    return {memory, memory, &free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    size_t bytes;
    std::shared_ptr<AllocationCount> count;
  };

  static void free(void* memory) {
    Meter& meter = instance();
    Block block{};
    {
      const std::lock_guard lock(meter.mutex_);
      if (auto node = meter.blocks_.extract(memory)) block = std::move(node.mapped());
    }
    if (block.count) block.count->subtract(block.bytes);
    meter.inner_.load()->raw_deallocate(memory);
  }

  std::mutex mutex_;
  size_t threads_ = 0;
  std::atomic<c10::Allocator*> inner_{nullptr};
  std::unordered_map<void*, Block> blocks_;  // by address, of what is counted and alive
};

}  // namespace

void start_counting(std::shared_ptr<AllocationCount> count) {
  if (counting) {
    throw Error("[rematerialization] another budget is in force on this thread; leave its scope first");
  }
  Meter::instance().open();
  counting = std::move(count);
}

void stop_counting() {
  if (!counting) return;
  counting.reset();
  Meter::instance().close();
}

}  // namespace amanda::tools::rematerialization
