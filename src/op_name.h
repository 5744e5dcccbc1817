// The names of operators and operands in messages.
#pragma once

#include <fmt/format.h>

#include <string>

#include "amanda/driver/backend.h"

namespace amanda {

/// "aten::conv2d"; "ConvolutionBackward0 of aten::conv2d".
inline std::string op_name(const OpSite& site) {
  const OpInfo& forward = site.backend().info(site.forward_type());
  if (site.phase() == Phase::kForward) return fmt::format("{}::{}", forward.ns, forward.name);
  return fmt::format("{} of {}::{}", site.backend().info(site.type()).name, forward.ns, forward.name);
}

/// The operator's name with its place, in the form of OpContext::where(). For messages only: this may run the
/// framework's code.
std::string op_place(OpSite& site);

/// "input"; "grad_output".
inline const char* operand_name(Phase phase, Side side) {
  if (phase == Phase::kForward) return side == Side::kOutputs ? "output" : "input";
  return side == Side::kOutputs ? "grad_input" : "grad_output";
}

/// "input 1 (weight)"; "grad_output 0".
std::string operand_at(const OpSite& site, Side side, size_t position);

/// "it changed input 1 (weight) in place, and that stays changed". `difference`: the amount by which versions(side)
/// changed.
std::string told_change(const OpSite& site, Side side, uint64_t difference);

}  // namespace amanda
