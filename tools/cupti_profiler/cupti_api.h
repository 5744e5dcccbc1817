// CUPTI, opened at run time. cupti_api.cpp alone names its functions; where there is no cupti.h, no_cupti_api.cpp
// stands in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cupti_profiler/correlation.h"

namespace amanda::tools {

/// Takes what CUPTI delivers, decoded. Called on threads of CUPTI's and on those that flush, one at a time.
class RecordSink {
 public:
  virtual void on(const ExternalId& id) = 0;
  virtual void on(const ApiCall& call) = 0;
  /// Its name lives as long as the process.
  virtual void on(const Activity& activity) = 0;

 protected:
  ~RecordSink() = default;
};

/// A CUPTI library, and this process's one collection with it.
///
/// What fails throws `Error`, which names the function and has CUPTI's own text:
/// "[cupti] cuptiActivityEnable failed: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; ...".
class CuptiApi {
 public:
  struct Limits {
    size_t buffer_bytes = 1 << 20;
    size_t buffers = 64;  // with CUPTI at one time; it drops records, counted, rather than get more. Libraries before
                          // CUDA 12.9 crash without a buffer: they get more
  };
  struct Counts {
    uint64_t buffers = 0;  // delivered
    uint64_t records = 0;  // in these; of all kinds
    uint64_t dropped = 0;  // records that CUPTI had no room for
    uint64_t unread = 0;   // buffers not read to their end: CUPTI reported a failure there
    uint64_t lost = 0;     // records that the sink threw at
    std::string failure;   // the first of these; or a sign that another client has taken the records
  };

  /// Opens the library: what AMANDA_CUPTI names, or nothing else if that is set; a copy that the process has loaded
  /// already; the first of `candidates` that exists; the toolkit's (CUDA_HOME, CUDA_PATH, /usr/local/cuda); what the
  /// loader finds. Stays open until the process ends. Throws `Error` naming what was tried, or why it is refused: no
  /// record layout is known of libraries before CUDA 11.8 or after CUDA 13.
  static CuptiApi& load(const std::vector<std::string>& candidates);

  virtual ~CuptiApi() = default;

  virtual const std::string& path() const = 0;
  virtual uint32_t version() const = 0;  // CUPTI_API_VERSION of the library: 130001 for CUDA 13.0

  /// Collects from now on. Times are those of the steady clock, in nanoseconds.
  /// Throws `Error`, and collects nothing, if there is no GPU to be traced or another profiler holds CUPTI. A client
  /// that gives no name, as torch.profiler's, may be there and idle: if it is not, counts() will have its traces.
  virtual void start(RecordSink& sink, Limits limits) = 0;
  /// Delivers what the device has finished.
  virtual void flush() = 0;
  /// Delivers everything and ends the collection; the sink is not called any more, even if this throws.
  virtual void stop() = 0;

  /// Calls that this thread makes from now on, until pop(), belong to `run`.
  virtual void push(uint64_t run) = 0;
  virtual void pop() = 0;

  virtual Counts counts() const = 0;  // of the last collection
};

}  // namespace amanda::tools
