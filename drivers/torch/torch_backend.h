// PyTorch as the core sees it.
#pragma once

#include "amanda/backend.h"
#include "amanda/torch.h"

namespace amanda::pytorch {

class TorchBackend final : public Backend {
 public:
  std::string_view name_space() const override;
  Capabilities capabilities() const override;
  const OpInfo& info(OpType type) const override;
  void switch_to(ScopeStack* scopes) override;
  void* begin_routines(RoutineMode mode) override;
  void end_routines(void* token) noexcept override;
  std::string refusal(OpSite& site, Point point, bool allow_view) const override;
};

}  // namespace amanda::pytorch
