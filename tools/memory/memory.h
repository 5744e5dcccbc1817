// The memory that PyTorch's allocators hand out and get back while operators run, for PeakMemory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "amanda/action.h"
#include "amanda/base/mutex.h"

namespace amanda::tools::pytorch {

/// A run of an operator or of a backward operator at its place, as PeakMemory numbers them.
using Site = int64_t;
/// Outside operators.
inline constexpr Site kNoSite = -1;

/// Memory that an allocator handed out.
struct Block {
  uint64_t serial = 0;  ///< unique, in the order of allocation
  int64_t bytes = 0;
  Site made_by = kNoSite;
  bool made_in_backward = false;
  bool is_freed = false;
  Site freed_by = kNoSite;  ///< the operator that ran when it was freed, or ended last in a backward pass
  bool freed_in_backward = false;
  int64_t mark = 0;  ///< its contents, as the caller of mark() numbers them; 0 if not known
};

/// The blocks of one device, and those at the peak. Earlier allocations are not known, nor that they are freed.
///
/// Copying the live blocks at each new peak would be quadratic. The blocks of the peak are those that are alive now,
/// less those made since, and with those that are gone since: these are kept until the next peak.
class DeviceMemory {
 public:
  void allocate(const void* pointer, Block block);
  /// Does nothing if the block is not known.
  void free(const void* pointer, Site by, bool in_backward);
  bool mark(const void* pointer, int64_t mark);
  /// The serial of the live block there; 0 if none is known.
  uint64_t serial_of(const void* pointer) const;
  /// Forgets all other blocks: whether and when they are freed is not known any more.
  void forget_all_but(const std::unordered_set<const void*>& pointers);

  int64_t live_bytes() const { return live_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  std::vector<Block> live() const;
  std::vector<Block> peak() const;

 private:
  std::unordered_map<const void*, Block> live_;
  int64_t live_bytes_ = 0, peak_bytes_ = 0;
  uint64_t peak_serial_ = 0;       // blocks with a higher one were made after the peak
  std::vector<Block> gone_since_;  // of the peak
};

/// The bytes that were alive over time, as at most `kSamples` samples: each is the maximum of a span of time.
class Timeline {
 public:
  static constexpr size_t kSamples = 4096;
  struct Sample {
    int64_t ns;
    int64_t bytes;
  };
  void add(int64_t ns, int64_t bytes);
  const std::vector<Sample>& samples() const { return samples_; }

 private:
  std::vector<Sample> samples_;
  int64_t span_ns_ = 1000;
};

/// Listens to the allocators on the threads that call listen(), and on those of the engine that work for them.
class MemoryRecorder : public std::enable_shared_from_this<MemoryRecorder> {
 public:
  MemoryRecorder();
  /// All of one device.
  struct Device {
    DeviceMemory memory;
    Timeline timeline;
    int64_t allocations = 0, allocated_bytes = 0, freed_bytes = 0;
  };
  using Devices = std::map<std::pair<int, int>, Device>;  // by type and index

  /// Listens on this thread from now on. Returns false if PyTorch's profiler does so already.
  bool listen();
  /// Ends it, on the same thread. A forked child does not listen.
  void unlisten() noexcept;
  /// The number of threads on which it listens.
  int64_t listeners() const;

  /// Around the operators of this thread.
  static void enter(Site site);
  static void leave(Site site);
  /// The operator that is running on this thread, or that was left by an exception.
  static Site running();

  void heard(const void* pointer, int64_t bytes, c10::Device device);
  bool mark(const void* pointer, int64_t mark);
  /// The serials of the live blocks of these tensors; 0 where none is known.
  std::vector<uint64_t> serials_of(const std::vector<at::Tensor>& tensors) const;
  /// The serial of the newest block.
  uint64_t last_serial() const;
  /// Forgets all blocks but those of these tensors and their gradients.
  void forget_all_but(const std::vector<at::Tensor>& tensors);
  /// Calls `fn` with the known devices, which do not change meanwhile.
  template <class Fn>
  auto with_devices(const Fn& fn) const {
    std::lock_guard lock(mutex_);
    return fn(devices_);
  }
  void reset();

 private:
  mutable Mutex mutex_;
  Devices devices_;
  uint64_t serials_ = 0;
  int64_t listeners_ = 0;
};

/// The address of the tensor's storage. Null if it has no memory. Does not copy a storage that is copied on write.
const void* memory_of(const at::Tensor& tensor);

}  // namespace amanda::tools::pytorch
