// The runtime as the core sees it: two backends, since a graph's values are symbols when tools look at them.
#pragma once

#include "amanda/driver/backend.h"

namespace amanda::reference {

class Driver final : public Backend {
 public:
  static Driver& eager();
  static Driver& graph();

  std::string_view name_space() const override { return name_space_; }
  Capabilities capabilities() const override { return capabilities_; }
  const OpInfo& info(OpType type) const override;
  void switch_to(ScopeStack* scopes) override;
  void* begin_routines(RoutineMode mode) override;
  void end_routines(void* token) noexcept override;
  std::string refusal(OpSite& site, const ActionInfo& action, size_t position) const override;
  ValueInfo describe(Value value) const override;

 private:
  Driver(std::string_view name_space, Capabilities capabilities, const Backend* same_ids_as = nullptr);

  std::string_view name_space_;
  Capabilities capabilities_;
};

}  // namespace amanda::reference
