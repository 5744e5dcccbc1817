#include "rematerialization/site.h"

#include <algorithm>
#include <utility>

#include "amanda/op_context.h"

namespace amanda::tools::rematerialization {

std::optional<Site> site_of(OpContext& context) {
  const OpInfo& info = context.op();
  Site site{.op = info.ns + "::" + info.name};
  site.handle = c10::Dispatcher::singleton().findSchema({site.op, info.overload});
  // Composite operators consist of others that are seen, too. A view shares its input's storage, so it is its value.
  if (!site.handle || site.handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return std::nullopt;
  const c10::FunctionSchema& schema = site.handle->schema();
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  };
  if (std::any_of(schema.returns().begin(), schema.returns().end(), is_view)) return std::nullopt;
  site.module_path = context.module_path();
  const bool is_batch_norm = info.name.find("batch_norm") != std::string::npos;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool is_statistic = is_batch_norm && (argument.name() == "running_mean" || argument.name() == "running_var");
    if (is_statistic) {
      site.running_statistics.push_back(i);
    } else if (argument.alias_info() && argument.alias_info()->isWrite()) {
      site.written.push_back(i);
    }
    if (is_batch_norm && argument.name() == "training") site.training = i;
    if (argument.name() == "dropout_p") site.dropout = i;
  }
  site.always_trains = info.name.find("with_update") != std::string::npos;
  site.random = site.handle->hasTag(at::Tag::nondeterministic_seeded);
  if (!site.written.empty()) {
    site.kept_because = kInPlace;
  } else if (site.random && !site.dropout) {
    site.kept_because = kRandom;
  } else if (info.ns != "aten") {
    site.kept_because = kForeign;
  } else if (info.name.find("empty") != std::string::npos) {
    site.kept_because = kUninitialized;
  }
  return site;
}

}  // namespace amanda::tools::rematerialization
