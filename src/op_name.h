// Names of operators in messages.
#pragma once

#include <fmt/format.h>

#include "amanda/backend.h"

namespace amanda {

/// "aten::conv2d"; "ConvolutionBackward0 of aten::conv2d".
inline std::string op_name(const OpSite& site) {
  const OpInfo& forward = site.backend().info(site.forward_type());
  if (site.phase() == Phase::kForward) return fmt::format("{}::{}", forward.ns, forward.name);
  return fmt::format("{} of {}::{}", site.backend().info(site.type()).name, forward.ns, forward.name);
}

/// "input"; "grad_output".
inline const char* operand_name(Phase phase, Side side) {
  if (phase == Phase::kForward) return side == Side::kOutputs ? "output" : "input";
  return side == Side::kOutputs ? "grad_input" : "grad_output";
}

}  // namespace amanda
