#include "rematerialization/rematerializer.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "amanda/error.h"
#include "amanda/own_results.h"
#include "amanda/torch.h"
#include "clock.h"

namespace amanda::tools::rematerialization {
namespace {

constexpr size_t kSmall = 64;  // bytes that are not worth losing the values that are computed from them: numbers

const c10::IValue& ivalue_or_none(amanda::Value value) {
  static const c10::IValue none;
  return value.ref ? pytorch::ivalue(value) : none;
}
const c10::IValue& operand(Values& values, size_t position) {
  return ivalue_or_none(values.call().get(Side::kInputs, position));
}
std::vector<at::Tensor> results_at(Values& values, size_t position) {
  return tensors_of(ivalue_or_none(values.call().get(Side::kOutputs, position)));
}

c10::Storage copy_of(const c10::Storage& storage) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  c10::Storage copy(c10::Storage::use_byte_size_t(), storage.nbytes(), allocator->allocate(storage.nbytes()),
                    allocator);
  std::memcpy(copy.mutable_data(), storage.data(), storage.nbytes());
  return copy;
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

thread_local int recomputing = 0;  // allocations are the tool's, not the program's

struct Recomputing : NoCopy {
  Recomputing() { ++recomputing; }
  ~Recomputing() { --recomputing; }
};

}  // namespace

// ---- what operators do ---------------------------------------------------------------------------------------------

Site* Rematerializer::add_site(OpContext& context) {
  std::optional<Site> site = site_of(context);
  if (!site) return nullptr;
  const std::lock_guard lock(mutex_);
  return &sites_.emplace_back(*std::move(site));
}

// The state of the program is read here: routines before the operator run in it.
void Rematerializer::before(Site& site, Values& values) {
  if (must_tell_.load(std::memory_order_relaxed)) check_budget();
  Run& run = values.local<Run>();
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  run.recorded = c10::GradMode::is_enabled() && !keys.excluded_.has(c10::DispatchKey::AutogradFunctionality);
  run.trains = !site.running_statistics.empty() &&
               (site.training ? operand(values, *site.training).toBool() : site.always_trains);
  if (!run.recorded && !run.trains) return;
  const std::lock_guard lock(mutex_);
  if (run.trains) will_write(values, site.running_statistics);
  if (!run.recorded) return;
  run.outer = std::exchange(running_, &site);
  run.keys = keys;
  run.autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  run.start = now_ns();
}

void Rematerializer::before_write(Site& site, Values& values) {
  if (must_tell_.load(std::memory_order_relaxed)) check_budget();
  const std::lock_guard lock(mutex_);
  will_write(values, site.written);
  if (!site.random) return;
  for (size_t position : site.written) {
    for (const at::Tensor& tensor : tensors_of(operand(values, position))) {
      if (is_plain(tensor)) value_of(tensor)->kept_because = kRandom;
    }
  }
}

void Rematerializer::after(Site& site, Values& values) {
  Run& run = values.local<Run>();
  const int64_t end = now_ns();
  if (!run.recorded) return;
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < values.call().size(Side::kOutputs); ++i) {
    for (at::Tensor& tensor : results_at(values, i)) results.push_back(std::move(tensor));
  }
  const bool differentiable =
      std::any_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.requires_grad(); });
  const std::lock_guard lock(mutex_);
  running_ = run.outer;
  if (!differentiable) return;
  ++clock_;
  run.taken = end - run.start;
  const char* because = site.kept_because;
  if (!because && !has_own_results(values)) because = kReplaced;
  if (!because) because = record(site, values, results, run);
  if (because) keep(results, site, because);
}

void Rematerializer::keep(const std::vector<at::Tensor>& results, Site& site, const char* because) {
  for (const at::Tensor& result : results) {
    if (!is_plain(result)) continue;
    Value& value = *value_of(result);
    if (value.call && because != kInPlace) continue;  // it returned what another operator made
    value.call = nullptr;
    value.site = &site;
    value.kept_because = because;
  }
}

const char* Rematerializer::record(Site& site, Values& values, const std::vector<at::Tensor>& results, Run& run) {
  recording_ = true;
  auto call = std::make_shared<Call>();
  call->site = &site;
  call->keys = run.keys;
  call->autocast_dtype = run.autocast_dtype;
  call->trains = run.trains;
  call->cost = options_.cost(run.taken);
  const char* refusal = nullptr;
  for (size_t i = 0; i < values.num_inputs(); ++i) {
    const c10::IValue& argument = ivalue_or_none(values.input(i));
    if (site.random && site.dropout == i && argument.toDouble() != 0) return kRandom;
    if (call->updates(i)) {
      call->arguments.push_back(map_tensors(argument, [](const at::Tensor& tensor) { return tensor.variable_data(); }));
      continue;
    }
    call->arguments.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
      if (!is_plain(tensor)) refusal = kNotPlain;
      if (refusal) return tensor;
      for (const at::Tensor& result : results) {
        if (is_plain(result) && result.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
          refusal = kAliases;
          return tensor;
        }
      }
      const ValuePtr value = value_of(tensor);
      value->last_use = clock_;
      call->inputs.push_back({value, Outline(tensor), version_of(tensor), value->writes, tensor.requires_grad()});
      if (!value->call && value->bytes <= kSmall) call->inputs.back().pin = value->pinned();
      return call->inputs.back().outline.tensor();
    }));
    if (refusal) return refusal;
  }
  for (const Operand& input : call->inputs) {
    if (input.value->call) input.value->uses.push_back(call);
  }
  for (size_t i = 0; i < values.call().size(Side::kOutputs); ++i) {
    size_t member = 0;
    for (const at::Tensor& result : results_at(values, i)) {
      const size_t index = member++;
      if (!is_plain(result)) continue;
      const ValuePtr value = value_of(result);
      value->call = call;
      value->site = &site;
      value->kept_because = nullptr;
      value->last_use = clock_;
      call->outputs.push_back({i, index, value});
    }
  }
  return nullptr;
}

ValuePtr Rematerializer::value_of(const at::Tensor& tensor) {
  const auto found = values_.find(tensor.storage().unsafeGetStorageImpl());
  return found != values_.end() ? found->second : new_value(tensor.storage());
}

ValuePtr Rematerializer::new_value(const c10::Storage& storage) {
  if (values_.size() >= sweep_at_) sweep();
  auto value = std::make_shared<Value>(storage, outside_);
  value->kept_because = kOutside;
  value->last_use = clock_;
  values_[value->key] = value;
  return value;
}

// A value keeps the memory of its storage object from being used for another one, so the keys are unique.
void Rematerializer::sweep() {
  std::erase_if(values_, [](const auto& entry) { return !entry.second->alive(); });
  sweep_at_ = std::max<size_t>(1024, 2 * values_.size());
}

// The inputs from which evicted values are computed stay as they are: the program's storage becomes another value.
void Rematerializer::will_write(Values& values, const std::vector<size_t>& positions) {
  for (size_t position : positions) {
    for (const at::Tensor& tensor : tensors_of(operand(values, position))) will_write(tensor);
  }
}

void Rematerializer::will_write(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const auto found = values_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == values_.end()) return;
  const ValuePtr value = found->second;
  const std::shared_ptr<Pin> pin = value->pin.lock();
  if (value->needed && (pin || value->call)) {
    if (value->held) let_go(*value);
    // As without the tool, autograd reads the written values, if the write did not count as a change.
    if (value->saved > 0) value->changed = tensor.storage();
    values_.erase(value->key);
    value->key = nullptr;
    value->moved = true;
    value->memory.reset();
    if (pin) {
      pin->memory = copy_of(pin->memory);
      move_to(value, pin->memory);
    }
    new_value(tensor.storage())->kept_because = kInPlace;
    return;
  }
  ++value->writes;
  value->call = nullptr;
  if (value->kept_because != kRandom) value->kept_because = kInPlace;
}

// ---- what autograd saves -------------------------------------------------------------------------------------------

Saved Rematerializer::pack(const at::Tensor& tensor) {
  Saved saved;
  saved.version = version_of(tensor);
  const std::lock_guard lock(mutex_);
  ++saved_;
  // A leaf that requires a gradient is kept as the object that it is: the program may give it other data.
  if (!is_plain(tensor) || (tensor.is_leaf() && tensor.requires_grad())) {
    saved.kept = tensor.is_leaf() ? tensor : tensor.detach();
    return saved;
  }
  saved.value = value_of(tensor);
  saved.outline = Outline(tensor);
  if (saved.value->saved++ == 0) hold(*saved.value, tensor.storage());
  return saved;
}

at::Tensor Rematerializer::unpack(const Saved& saved) {
  const uint32_t version = saved.value ? saved.outline.version() : version_of(saved.kept);
  if (version != saved.version) {
    const at::Tensor& tensor = saved.value ? saved.outline.tensor() : saved.kept;
    std::string sizes;
    for (int64_t size : tensor.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    throw std::runtime_error(
        fmt::format("one of the variables needed for gradient computation has been modified by an inplace operation: "
                    "[{} [{}]] is at version {}; expected version {} instead.",
                    tensor.toString(), sizes, version, saved.version));
  }
  if (!saved.value) return saved.kept;
  const std::lock_guard lock(mutex_);
  if (std::exchange(recording_, false)) forget_calls();
  saved.value->last_use = ++clock_;
  return saved.outline.in(saved.value->changed ? saved.value->changed : materialize(saved.value));
}

void Rematerializer::release(Saved& saved) {
  const std::lock_guard lock(mutex_);
  if (!saved.value) {
    const bool plain = is_plain(saved.kept);
    kept_[{&outside_, plain ? kOutside : kNotPlain}].add(plain ? saved.kept.nbytes() : 0);
  } else if (--saved.value->saved == 0) {
    if (!saved.value->call) kept_[{saved.value->site, saved.value->kept_because}].add(saved.value->bytes);
    if (saved.value->held) let_go(*saved.value);
    saved.value->changed = {};
    is_here(*saved.value);
    if (!saved.value->alive()) values_.erase(saved.value->key);
  }
  saved.value.reset();
  if (--saved_ == 0) end_pass();
}

void Rematerializer::hold(Value& value, c10::Storage memory) {
  value.held = std::move(memory);
  value.held_at = held_.size();
  held_.push_back(&value);
}

void Rematerializer::let_go(Value& value) {
  held_.back()->held_at = value.held_at;
  std::swap(held_[*value.held_at], held_.back());
  held_.pop_back();
  value.held_at.reset();
  value.held = {};
}

// A backward pass has begun. Results that no graph has saved, such as the loss, would keep all calls that lead to them,
// and the memory that is pinned for these calls.
void Rematerializer::forget_calls() {
  for (auto& [key, value] : values_) {
    if (value->saved > 0 || value->needed) continue;
    value->call = nullptr;
    value->kept_because = kOutside;
  }
}

// No graph needs values any more: the next pass begins with the memory that is alive now.
void Rematerializer::end_pass() {
  must_tell_ = overran_;
  if (!overran_) plain_needed_ = 0;
  running_ = nullptr;
  values_.clear();
}

// ---- eviction ------------------------------------------------------------------------------------------------------

// With a budget of `plain_needed_` nothing is evicted, and nothing computed again, in any run of the program. The
// memory that is alive then does not depend on times.
void Rematerializer::make_room(size_t bytes) {
  if (const size_t plain = live() + bytes + evicted_; recomputing == 0 && plain > options_.budget) {
    raise(plain_needed_, plain);
  }
  if (live() + bytes <= options_.budget) return;
  const std::lock_guard lock(mutex_);
  sweep();
  while (live() + bytes > options_.budget) {
    Value* value = least_valuable();
    if (!value) {
      if (live() + bytes <= (overran_ ? needed_ : options_.budget)) return;
      overran_ = true;
      needed_ = live() + bytes;
      needed_for_ = running_ ? running_->op + (running_->module_path.empty() ? "" : " in " + running_->module_path)
                             : "a backward operator";
      return;
    }
    evict(*value);
  }
}

// Only the tool has a value's storage if its own reference is the only one. Values that the program holds, that an
// operator is working on, or that other values are computed from, have more.
Value* Rematerializer::least_valuable() {
  while (true) {
    Value* best = nullptr;
    double lowest = std::numeric_limits<double>::infinity();
    for (Value* value : held_) {
      if (!value->call || value->call->repeatable == Call::Repeatable::kNo || value->bytes == 0) continue;
      if (value->held.use_count() != 1) continue;
      const double its = score(options_.heuristic, *value, clock_);
      if (its < lowest) std::tie(lowest, best) = std::pair(its, value);
    }
    if (!best || secure(best->call)) return best;
  }
}

void Rematerializer::evict(Value& value) {
  value.evicted = true;
  evicted_ += value.bytes;
  ++value.site->evicted;
  value.site->evicted_bytes += static_cast<int64_t>(value.bytes);
  let_go(value);
}

// It is alive, or no graph needs it any more.
void Rematerializer::is_here(Value& value) {
  if (std::exchange(value.evicted, false)) evicted_ -= value.bytes;
}

// ---- rematerialization ---------------------------------------------------------------------------------------------

void Rematerializer::move_to(const ValuePtr& value, const c10::Storage& memory) {
  if (value->key) values_.erase(value->key);
  value->memory = memory.getWeakStorageImpl();
  value->key = memory.unsafeGetStorageImpl();
  value->moved = true;
  is_here(*value);
  values_[value->key] = value;
}

// Depth first, without recursion: chains of evicted values are as long as models are deep.
c10::Storage Rematerializer::materialize(const ValuePtr& wanted) {
  struct Frame {
    ValuePtr value;
    std::vector<c10::Storage> inputs;  // held here, they cannot be evicted
  };
  const Recomputing now;
  std::vector<Frame> frames;
  frames.push_back({wanted, {}});
  while (true) {
    Frame& frame = frames.back();
    c10::Storage memory = frame.value->lock();
    if (!memory) {
      const std::shared_ptr<Call> call = frame.value->call;
      TORCH_INTERNAL_ASSERT(call, "an evicted value has no operator");
      ValuePtr missing;
      while (!missing && frame.inputs.size() < call->inputs.size()) {
        const Operand& input = call->inputs[frame.inputs.size()];
        if (c10::Storage there = input.value->lock()) {
          if (!input.unchanged()) {
            throw Error(
                fmt::format("[rematerialization] an input of {} was changed in place where the tool does not see it, "
                            "and its result "
                            "cannot be computed again: keep such changes inside the scope, or do them after backward",
                            call->site->op));
          }
          frame.inputs.push_back(std::move(there));
        } else {
          missing = input.value;
        }
      }
      if (missing) {
        frames.push_back({missing, {}});
        continue;
      }
      memory = run_again(*call, frame.inputs, frame.value);
    }
    frames.pop_back();
    if (frames.empty()) return memory;
    frames.back().inputs.push_back(std::move(memory));
  }
}

c10::Storage Rematerializer::run_again(Call& call, const std::vector<c10::Storage>& memory, const ValuePtr& wanted) {
  ++clock_;
  for (const Operand& input : call.inputs) input.value->last_use = clock_;
  const torch::jit::Stack stack = call.run(memory);
  c10::Storage found;
  for (const Call::Output& output : call.outputs) {
    const ValuePtr value = output.value.lock();
    if (!value || value->alive() || (value->saved == 0 && value != wanted)) continue;
    const c10::Storage made = tensors_of(stack[output.position])[output.member].storage();
    TORCH_INTERNAL_ASSERT(made.nbytes() == value->bytes, call.site->op, " made a result of another size");
    move_to(value, made);
    value->last_use = clock_;
    if (value->saved > 0) hold(*value, made);
    if (value == wanted) found = made;
  }
  return found;
}

// ---- results -------------------------------------------------------------------------------------------------------

void Rematerializer::check_budget() {
  const std::lock_guard lock(mutex_);
  if (!overran_) return;
  overran_ = must_tell_ = false;
  const size_t works = plain_needed_.exchange(0);
  const std::string less = needed_ < works ? fmt::format("; less may work, from {} on", needed_) : "";
  throw Error(fmt::format(
      "[rematerialization] a budget of {} bytes is too small: {} needed {} with everything evicted that can be. "
      "The pass ran over the budget, and is right. A budget that works for it in every run, as nothing is evicted, is "
      "{} bytes{}",
      options_.budget, needed_for_, needed_, works, less));
}

void Rematerializer::forget_overrun() {
  const std::lock_guard lock(mutex_);
  plain_needed_ = 0;
  overran_ = must_tell_ = false;
}

std::vector<Rematerializer::Row> Rematerializer::rows() {
  const std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const Site& site : sites_) {
    if (site.evicted == 0 && site.recomputed == 0) continue;
    rows.push_back(
        {site.op, site.module_path, "", 0, 0, site.evicted, site.evicted_bytes, site.recomputed, site.recompute_ns});
  }
  for (const auto& [key, kept] : kept_) {
    rows.push_back({key.first->op, key.first->module_path, key.second, kept.count, kept.bytes, 0, 0, 0, 0});
  }
  return rows;
}

void Rematerializer::reset() {
  const std::lock_guard lock(mutex_);
  for (Site& site : sites_) site.evicted = site.evicted_bytes = site.recomputed = site.recompute_ns = 0;
  kept_.clear();
  compiled_.reset();
  reset_peak();
}

}  // namespace amanda::tools::rematerialization
