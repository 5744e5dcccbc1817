// PyTorch as the core sees it.
#pragma once

#include "amanda/driver/backend.h"
#include "amanda/torch.h"

namespace amanda::pytorch {

class TorchBackend final : public Backend {
 public:
  std::string_view name_space() const override;
  Capabilities capabilities() const override;
  const OpInfo& info(OpType type) const override;
  void switch_to(ScopeStack* scopes) override;
  void expect(const std::vector<std::string>& patterns) override;
  void await_call(uint64_t entry, bool elsewhere) override;
  AwaitedCall end_await_call(uint64_t entry) override;
  void* begin_routines(RoutineMode mode) override;
  void end_routines(void* token) noexcept override;
  bool is_programs(const std::exception_ptr& error) const override;
  std::string refusal(OpSite& site, const ActionInfo& action, size_t position) const override;
  ValueInfo describe(Value value) const override;
  std::string parameter_name(Value value) const override;
  std::vector<std::string> parameter_names(Value list) const override;
};

/// Claims two dispatch keys and attaches the driver to the core. Later calls do nothing. Throws `Error` if no two keys
/// are free.
void attach();

}  // namespace amanda::pytorch
