// Rematerialization: DTR as a tool. For Python programs: only there has PyTorch hooks for all saved tensors of a
// thread.
#pragma once

#include <functional>
#include <memory>

#include "amanda/amanda.h"
#include "rematerialization/rematerializer.h"

namespace amanda::tools::rematerialization {

class Rematerialization final : public Tool {
 public:
  /// `push` and `pop`: PyTorch's saved-tensor hooks that call the rematerializer's pack() and unpack().
  Rematerialization(std::shared_ptr<Rematerializer> rematerializer, std::function<void()> push,
                    std::function<void()> pop);

  void on_enter(Scope& scope) override;
  void on_exit(Scope& scope, const std::exception_ptr& error) override;

 private:
  std::shared_ptr<Rematerializer> rematerializer_;
  std::function<void()> push_, pop_;
};

}  // namespace amanda::tools::rematerialization
