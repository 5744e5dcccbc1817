// CUPTI, opened at run time. cupti_api.cpp alone names its functions; where there is no cupti.h, no_cupti_api.cpp
// replaces it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cupti_profiler/correlation.h"

namespace amanda::tools {

/// Receives CUPTI's records, decoded. Called on CUPTI's threads and on those that flush, one at a time.
class RecordSink {
 public:
  /// A record of one kind.
  virtual void on(const ExternalId& id) = 0;
  /// A record of one kind.
  virtual void on(const ApiCall& call) = 0;
  /// A record of one kind. Its name lives as long as the process.
  virtual void on(const Activity& activity) = 0;

 protected:
  ~RecordSink() = default;
};

/// A CUPTI library, and this process's one collection with it.
///
/// Failures throw `Error`, which names the function and has CUPTI's own text: "[cupti] cuptiActivityEnable failed:
/// CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; ...".
class CuptiApi {
 public:
  /// Memory for records that CUPTI has not delivered yet.
  struct Limits {
    size_t buffer_bytes = 1 << 20;  ///< size of one buffer
    size_t buffers = 64;  ///< with CUPTI at one time; it drops records, counted, rather than get more. Libraries before
                          // CUDA 12.9 crash without a buffer: they get more
  };
  /// The counts of delivered and lost records.
  struct Counts {
    uint64_t buffers = 0;  ///< delivered
    uint64_t records = 0;  ///< in these; of all kinds
    uint64_t dropped = 0;  ///< records for which CUPTI had no room
    uint64_t unread = 0;   ///< buffers that were not read to their end: CUPTI reported a failure there
    uint64_t lost = 0;     ///< records for which the sink threw
    std::string failure;   ///< the first of these; or a sign that another client has taken the records
  };

  /// Opens the library, which stays open until the process ends. If AMANDA_CUPTI is set, it names the library, and no
  /// other is tried. Otherwise it is the first of: a copy that the process has loaded; the first of `candidates` that
  /// exists; the toolkit's (CUDA_HOME, CUDA_PATH, /usr/local/cuda); the one that the loader finds.
  ///
  /// Throws `Error` that lists the libraries that were tried, or gives the reason why one is refused: record layouts
  /// are known from CUDA 11.8 to CUDA 13.
  static CuptiApi& load(const std::vector<std::string>& candidates);

  virtual ~CuptiApi() = default;

  /// The library's file.
  virtual const std::string& path() const = 0;
  /// CUPTI_API_VERSION of the library: 130001 for CUDA 13.0.
  virtual uint32_t version() const = 0;

  /// Collects from now on. `sink` must live until stop(). Times are those of the steady clock, in nanoseconds.
  ///
  /// Throws `Error`, and collects nothing, if there is no GPU to be traced or another profiler holds CUPTI. A client
  /// without a name, as torch.profiler's, may be there and idle: if it is not idle, counts() shows traces of it.
  virtual void start(RecordSink& sink, Limits limits) = 0;
  /// Delivers the finished work of the device. Throws `Error`.
  virtual void flush() = 0;
  /// Delivers everything and ends the collection. The sink is not called any more, even if this throws `Error`.
  virtual void stop() = 0;

  /// Calls that this thread makes from now on, until pop(), belong to `run`. Throws `Error`.
  virtual void push(uint64_t run) = 0;
  /// Ends the last push() of this thread. Throws `Error`.
  virtual void pop() = 0;

  /// Counts of the last collection. On any thread.
  virtual Counts counts() const = 0;
};

}  // namespace amanda::tools
