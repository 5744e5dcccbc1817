#include "base/op_types.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "amanda/base/per_thread.h"
#include "base/hash.h"

namespace amanda::pytorch {
namespace {

// SymInt, or a list or an optional of it.
bool is_symbolic(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::SymIntType) return true;
  return !type->containedTypes().empty() && is_symbolic(type->containedType(0));
}

bool is_noise(std::string_view ns, std::string_view name) {
  return ns == "profiler" || ns == "prim" || ns == "amanda" || name == "lift_fresh";
}

bool is_written_undeclared(std::string_view op, std::string_view argument) {
  return std::any_of(undeclared_writes().begin(), undeclared_writes().end(), [&](const UndeclaredWrites& one) {
    return one.op == op && std::find(one.arguments.begin(), one.arguments.end(), argument) != one.arguments.end();
  });
}

std::unique_ptr<OpRecord> make_record(OpType type, const c10::FunctionSchema& schema, c10::ArrayRef<at::Tag> tags) {
  const std::string qualified = schema.name();
  const size_t colons = qualified.find("::");
  OpInfo info;
  info.ns = colons == std::string::npos ? "" : qualified.substr(0, colons);
  info.name = colons == std::string::npos ? qualified : qualified.substr(colons + 2);
  info.overload = schema.overload_name();
  info.schema = c10::toString(schema);
  for (const c10::Argument& argument : schema.arguments()) info.inputs.push_back(argument.name());
  for (const c10::Argument& result : schema.returns()) info.outputs.push_back(result.name());

  auto record = std::make_unique<OpRecord>(OpRecord{.type = type, .info = std::move(info), .schema = schema});
  record->name_hash = fnv1a(record->info.overload, fnv1a(qualified + "."));
  // A program may define its own operators again, with another schema: that is another operator.
  if (record->info.ns != "aten") record->name_hash = fnv1a(record->info.schema, record->name_hash);
  record->noise = is_noise(record->info.ns, record->info.name);
  record->asynchronous = record->info.ns == "c10d" || record->info.ns.starts_with("_c10d_functional");
  record->writes_late = record->info.ns == "c10d" && record->info.name.ends_with('_');
  for (at::Tag tag : tags) {
    record->random |= tag == at::Tag::nondeterministic_seeded;
    record->metadata_in_place |= tag == at::Tag::inplace_view;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    record->takes_symbols |= is_symbolic(schema.arguments()[i].real_type());
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite()) {
      record->mutated.push_back(i);
    } else if (is_written_undeclared(qualified, record->info.inputs[i])) {
      record->undeclared.push_back(i);
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    std::optional<size_t> is;
    if (const c10::AliasInfo* alias = result.alias_info()) {
      for (size_t i : record->mutated) {
        if (schema.arguments()[i].alias_info()->beforeSets() == alias->beforeSets()) is = i;
      }
      for (size_t i = 0; !is && i < schema.arguments().size(); ++i) {
        const c10::AliasInfo* viewed = schema.arguments()[i].alias_info();
        if (viewed && !viewed->isWrite()) record->viewed = i;  // no operator of the dispatcher has two
      }
    }
    record->result_mutated.push_back(is);
  }
  return record;
}

}  // namespace

const std::vector<UndeclaredWrites>& undeclared_writes() {
  static const auto* list = [] {
    const std::vector<std::string_view> statistics{"running_mean", "running_var"};
    return new std::vector<UndeclaredWrites>{
        {"aten::batch_norm", statistics},
        {"aten::_batch_norm_impl_index", statistics},
        {"aten::native_batch_norm", statistics},
        {"aten::cudnn_batch_norm", statistics},
        {"aten::miopen_batch_norm", statistics},
        {"aten::batch_norm_update_stats", statistics},
        {"aten::batch_norm_gather_stats", statistics},
        {"aten::batch_norm_gather_stats_with_counts", statistics},
        {"aten::instance_norm", statistics},
        {"fsdp::all_gather_copy_in", {"all_gather_output"}},
    };
  }();
  return *list;
}

const OpRecord& OpTypes::of(const c10::OperatorHandle& op) {
  struct Known {
    const c10::FunctionSchema* schema = nullptr;
    const OpRecord* record = nullptr;
    uint64_t epoch = 0;
  };
  using Table = std::array<Known, 512>;
  Table& table = per_thread<Table>();

  const c10::FunctionSchema* schema = &op.schema();
  Known& known = table[(reinterpret_cast<uintptr_t>(schema) >> 4) % table.size()];
  const uint64_t epoch = epoch_.load(std::memory_order_acquire);
  if (known.schema == schema && known.epoch == epoch) return *known.record;
  known = {schema, &add(*schema, op), epoch};
  return *known.record;
}

const OpRecord& OpTypes::add(const c10::FunctionSchema& schema, const c10::OperatorHandle& op) {
  std::lock_guard lock(mutex_);
  const OpRecord*& record = by_address_[&schema];
  if (!record) {
    records_.push_back(make_record(static_cast<OpType>(records_.size()), schema, op.getTags()));
    record = records_.back().get();
  }
  return *record;
}

const OpRecord& OpTypes::python_function(const std::string& name) {
  std::lock_guard lock(mutex_);
  const OpRecord*& record = functions_[name];
  if (!record) {
    c10::FunctionSchema schema("autograd::" + name, "", {}, {}, /*is_vararg=*/true, /*is_varret=*/true);
    records_.push_back(make_record(static_cast<OpType>(records_.size()), schema, {}));
    record = records_.back().get();
  }
  return *record;
}

const OpRecord& OpTypes::of(OpType type) const {
  std::lock_guard lock(mutex_);
  return *records_.at(type);
}

void OpTypes::forget(const c10::OperatorHandle& op) {
  std::lock_guard lock(mutex_);
  by_address_.erase(&op.schema());
  ++epoch_;
}

OpTypes& op_types() {
  static auto* types = new OpTypes;
  return *types;
}

}  // namespace amanda::pytorch
