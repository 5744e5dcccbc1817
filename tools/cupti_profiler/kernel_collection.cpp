#include "cupti_profiler/kernel_collection.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "amanda/error.h"
#include "amanda/log.h"
#include "cupti_profiler/operator_tree.h"

namespace amanda::tools {
namespace {

CuptiApi::Counts operator+(CuptiApi::Counts a, const CuptiApi::Counts& b) {
  a.buffers += b.buffers, a.records += b.records, a.dropped += b.dropped, a.unread += b.unread;
  a.lost += b.lost;
  if (a.failure.empty()) a.failure = b.failure;
  return a;
}

}  // namespace

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 && text ? text.get() : name;
}

KernelCollection::~KernelCollection() {
  if (!collecting_) return;
  try {
    stop();
  } catch (const std::exception& error) {
    log_warning(fmt::format("[cupti_profiler] kernels may be missing: {}", error.what()));
  }
}

void KernelCollection::start(const std::vector<std::string>& candidates) {
  CuptiApi& cupti = CuptiApi::load(candidates);
  cupti.start(*this, {});
  cupti_ = &cupti;
  collecting_ = true;
}

void KernelCollection::flush() {
  cupti_.load()->flush();
  std::lock_guard lock(mutex_);
  correlation_->settle();
}

void KernelCollection::stop() {
  CuptiApi& cupti = *cupti_;
  collecting_ = false;
  std::exception_ptr failed;
  try {
    cupti.stop();
  } catch (const Error&) {
    failed = std::current_exception();
  }
  const CuptiApi::Counts counts = cupti.counts();
  std::lock_guard lock(mutex_);
  correlation_->finish();
  ended_ = ended_ + counts;
  if (failed) std::rethrow_exception(failed);
}

bool KernelCollection::push(uint64_t run) noexcept {
  try {
    cupti_.load()->push(run);
    return true;
  } catch (const Error& error) {
    note(error.what());
    return false;
  }
}

void KernelCollection::pop() noexcept {
  try {
    cupti_.load()->pop();
  } catch (const Error& error) {
    note(error.what());
  }
}

void KernelCollection::on(const ExternalId& id) {
  std::lock_guard lock(mutex_);
  correlation_->add(id);
}

void KernelCollection::on(const ApiCall& call) {
  std::lock_guard lock(mutex_);
  correlation_->add(call);
}

void KernelCollection::on(const Activity& activity) {
  std::lock_guard lock(mutex_);
  correlation_->add(activity);
}

// The mutex is held: Correlation calls it.
void KernelCollection::take(const Attribution& known) {
  const Activity& activity = known.activity;
  const uint32_t node = known.run ? node_of(*known.run) : 0;
  KernelTotals& totals = totals_[{node, activity.kind, activity.name}];
  const int64_t duration = activity.duration_ns();
  if (totals.count == 0) {
    totals.node = node, totals.name = activity.name, totals.kind = activity.kind;
    totals.shortest_ns = totals.longest_ns = duration;
  }
  ++totals.count;
  totals.total_ns += duration;
  totals.shortest_ns = std::min(totals.shortest_ns, duration);
  totals.longest_ns = std::max(totals.longest_ns, duration);
  totals.bytes += activity.bytes;
  if (events_.size() < max_events_) {
    events_.push_back(known);
  } else {
    ++dropped_events_;
  }
}

void KernelCollection::note(const std::string& failure) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = failure;
}

std::vector<KernelTotals> KernelCollection::totals() const {
  std::lock_guard lock(mutex_);
  std::vector<KernelTotals> totals;
  for (const auto& [key, kernel] : totals_) totals.push_back(kernel);
  return totals;
}

std::vector<Attribution> KernelCollection::events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

uint64_t KernelCollection::dropped_events() const {
  std::lock_guard lock(mutex_);
  return dropped_events_;
}

Correlation::Counts KernelCollection::correlation_counts() const {
  std::lock_guard lock(mutex_);
  return correlation_->counts();
}

CuptiApi::Counts KernelCollection::cupti_counts() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

std::string KernelCollection::failure() const {
  std::lock_guard lock(mutex_);
  return failure_.empty() ? ended_.failure : failure_;
}

std::string KernelCollection::library() const {
  const CuptiApi* cupti = cupti_;
  return cupti ? cupti->path() : "";
}

void KernelCollection::reset() {
  std::lock_guard lock(mutex_);
  correlation_->finish();
  totals_.clear();
  events_.clear();
  dropped_events_ = 0;
  correlation_->reset_counts();
  ended_ = {};
  failure_.clear();
}

}  // namespace amanda::tools
