#include "cupti_profiler/cupti_profiler.h"

#include <fmt/format.h>
#include <unistd.h>

namespace amanda::tools {
namespace {

using Bracket = OperatorRuns::Bracket;

OperatorPhase phase_of(const OpContext& context) {
  if (context.is_backward()) return OperatorPhase::kBackward;
  const auto* phase = context.get<std::string>("cupti_profiler.phase");
  if (phase && *phase == "optimizer") return OperatorPhase::kOptimizer;
  return context.is_recompute() ? OperatorPhase::kRecompute : OperatorPhase::kForward;
}

ProfiledOperator place_of(const OpContext& context) {
  const std::string forward_name = context.op().ns + "::" + context.op().name;
  return {.name = context.is_backward() ? context.backward_op()->name : forward_name,
          .forward_name = forward_name,
          .module_path = context.module_path(),
          .source = context.source(),
          .phase = phase_of(context),
          .id = context.op_id(),
          .backward_id = context.backward_op_id()};
}

// Adds up the known sizes.
int64_t bytes_of(const ValueInfo& operand) {
  if (operand.bytes != kUnknown) return operand.bytes;
  int64_t bytes = 0;
  for (const ValueInfo& element : operand.elements) bytes += bytes_of(element);
  return bytes;
}

int64_t bytes_of(const Values& values) {
  const Backend& backend = values.call().backend();
  int64_t bytes = 0;
  for (size_t i = 0; i < values.size(); ++i) bytes += bytes_of(backend.describe(values[i]));
  return bytes;
}

}  // namespace

// ---- what was measured ----------------------------------------------------------------------------------------------

KernelProfile::KernelProfile(const CuptiProfilerOptions& options)
    : kernels_(std::make_shared<KernelCollection>(options.max_events)),
      runs_(std::make_shared<OperatorRuns>(options.probe, options.max_events, kernels_)) {}

// A scope may still be open, for instance at the interpreter's end; CUPTI continues, and runs may keep kernels_ alive.
KernelProfile::~KernelProfile() {
  if (!collecting_) return;
  runs_->tell_kernels(false);
  if (process_ == getpid()) {
    warn(failure_of([&] { kernels_->stop(); }));
  } else {
    kernels_->abandon();
  }
}

std::string KernelProfile::gpu_status() const {
  std::lock_guard lock(mutex_);
  return gpu_status_;
}

std::vector<std::string> KernelProfile::notes() const {
  std::vector<std::string> notes;
  const auto note = [&](uint64_t count, const char* what) {
    if (count) notes.push_back(fmt::format("{} {}", count, what));
  };
  const CuptiApi::Counts cupti = kernels_->cupti_counts();
  const Correlation::Counts correlation = kernels_->correlation_counts();
  note(cupti.dropped, "records were dropped by CUPTI: there was no buffer for them");
  note(cupti.lost, "records could not be kept");
  note(cupti.unread, "buffers of records could not be read to their end");
  note(correlation.outside, "activities of the device were caused outside operators");
  note(correlation.unmatched, "activities of the device have no cause among the records: it is not known or was lost");
  note(correlation.untimed, "activities of the device have no times: tables count them, with 0 ns");
  note(kernels_->dropped_events(), "later activities of the device are in no trace; tables count them");
  note(runs_->dropped_events(), "later operator runs are in no trace; tables count them");
  note(runs_->unheard(), "operator runs have no bytes: another profiler was told of allocations");
  if (const std::string failure = kernels_->failure(); !failure.empty()) notes.push_back(failure);
  return notes;
}

void KernelProfile::reset() {
  synchronize();
  if (collecting_) warn(failure_of([&] { kernels_->flush(); }));
  runs_->reset();
  kernels_->reset();
}

// Log, and wait for the device, without the mutex: both may let other Python threads run, which may lock it.
void KernelProfile::enter(const CuptiProfilerOptions& options) {
  const std::string before = gpu_status();
  const std::string status = begin(options);
  if (!status.empty() && status != before) log_warning("[cupti_profiler] " + status);
}

std::string KernelProfile::begin(const CuptiProfilerOptions& options) {
  std::lock_guard lock(mutex_);
  if (process_ != getpid()) forget_parent();
  if (entries_++ > 0 || !options.gpu) return gpu_status_;
  try {
    const FrameworkProbe& probe = options.probe;
    if (const char* other = probe.other_profiler ? probe.other_profiler() : nullptr) {
      throw Error(fmt::format("[cupti] {} is on, and only one profiler can collect kernels; end it first", other));
    }
    kernels_->start(options.candidates);
    collecting_ = true;
    gpu_status_.clear();
    runs_->tell_kernels(true);
  } catch (const std::exception& error) {
    gpu_status_ = fmt::format("no GPU kernels are collected, operators are timed on the host: {}", error.what());
  }
  return gpu_status_;
}

void KernelProfile::exit() {
  synchronize();
  warn(end());
}

std::string KernelProfile::end() {
  std::lock_guard lock(mutex_);
  const bool last = --entries_ == 0;
  if (!collecting_) return "";
  if (!last) return failure_of([&] { kernels_->flush(); });
  collecting_ = false;
  runs_->tell_kernels(false);
  return failure_of([&] { kernels_->stop(); });
}

void KernelProfile::forget_parent() {
  process_ = getpid();
  entries_ = 0;
  collecting_ = false;
  runs_->tell_kernels(false);
  kernels_->abandon();
}

// The wait throws the errors of kernels.
void KernelProfile::synchronize() {
  const auto wait = runs_->probe().synchronize;
  if (collecting_ && wait) warn(failure_of(wait));
}

template <class Step>
std::string KernelProfile::failure_of(const Step& step) {
  try {
    step();
    return "";
  } catch (const std::exception& error) {
    kernels_->note(error.what());
    return error.what();
  }
}

void KernelProfile::warn(const std::string& failure) {
  if (!failure.empty()) log_warning("[cupti_profiler] kernels may be missing: " + failure);
}

// ---- the tool -------------------------------------------------------------------------------------------------------

CuptiProfiler::CuptiProfiler(CuptiProfilerOptions options)
    : Tool("cupti_profiler"), options_(std::move(options)), profile_(std::make_shared<KernelProfile>(options_)) {
  const auto look = [this](OpContext& context) { analyze(context); };
  add_inst_for_op(look, {.ops = options_.ops, .nested = options_.nested});
  if (options_.backward) add_inst_for_op(look, {.backward = true, .ops = options_.ops, .nested = options_.nested});
}

void CuptiProfiler::on_enter(Scope&) { profile_->enter(options_); }

void CuptiProfiler::on_exit(Scope&, const std::exception_ptr&) { profile_->exit(); }

void CuptiProfiler::analyze(OpContext& context) {
  const std::shared_ptr<OperatorRuns>& runs = profile_->runs();
  const bool weigh = options_.operand_bytes;
  const auto site = std::make_shared<OperatorRuns::Site>(runs->tree().index_of(place_of(context)));
  const auto before = [runs, weigh, site](Values& values) {
    auto& bracket = values.local<Bracket>();
    if (weigh) bracket.input_bytes = bytes_of(values);
    bracket.begin(runs, *site);
  };
  const auto after = [weigh](Values& values) {
    auto& bracket = values.local<Bracket>();
    bracket.stop();
    bracket.end(weigh ? bracket.input_bytes + bytes_of(values) : 0);
  };
  const auto options = [weigh](Positions ActionOptions::*operands) {
    ActionOptions made{.kind = RoutineKind::kObserve, .with_run = false, .with_operators = false};
    made.*operands = weigh ? Positions() : Positions::none();
    return made;
  };
  if (context.is_backward()) {
    context.insert_before_backward_op(before, options(&ActionOptions::grad_outputs));
    context.insert_after_backward_op(after, options(&ActionOptions::grad_inputs));
  } else {
    context.insert_before_op(before, options(&ActionOptions::inputs));
    context.insert_after_op(after, options(&ActionOptions::outputs));
  }
}

}  // namespace amanda::tools
