#include "unmatched_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace amanda {
namespace {

constexpr size_t kMostListed = 5;

// Operators that a program may run in the place of another one: for C++, what python/amanda/core/unmatched.py says.
struct Instead {
  std::string_view name, hint;
};
constexpr Instead kInstead[] = {
    {"linear",
     "torch::nn::Linear and torch::nn::functional::linear call addmm or matmul: .ops = "
     "amanda::pytorch::linear_like() asks for all of them"},
    {"scaled_dot_product_attention",
     "attention may be written with matmul and softmax, or be a part of "
     "_transformer_encoder_layer_fwd or _native_multi_head_attention in evaluation mode"},
    {"layer_norm", "normalization may be rms_norm, or be written with pow, mean and rsqrt"},
    {"softmax", "attention may be scaled_dot_product_attention, which has its softmax inside"},
};

// Activations of amanda.ops that have an in-place form.
constexpr std::string_view kInPlace[] = {
    "relu", "relu6", "leaky_relu", "rrelu", "elu",       "selu",     "celu",        "gelu",
    "silu", "mish",  "sigmoid",    "tanh",  "threshold", "hardtanh", "hardsigmoid", "hardswish",
};

using Patterns = std::vector<std::string>;

void add_new(Patterns& all, const Patterns& patterns) {
  for (const std::string& pattern : patterns) {
    if (std::find(all.begin(), all.end(), pattern) == all.end()) all.push_back(pattern);
  }
}

// The first few, as they are written in C++: {"linear", "conv2d", and 2 more}
std::string listed(const Patterns& patterns) {
  std::string text;
  for (size_t i = 0; i < std::min(patterns.size(), kMostListed); ++i) {
    text += fmt::format("{}\"{}\"", i ? ", " : "", patterns[i]);
  }
  if (patterns.size() > kMostListed) text += fmt::format(", and {} more", patterns.size() - kMostListed);
  return "{" + text + "}";
}

std::string operator_of(const std::string& pattern) {
  const size_t scope = pattern.rfind("::");
  const std::string name = scope == std::string::npos ? pattern : pattern.substr(scope + 2);
  return name.substr(0, name.find('.'));
}

std::string what_ran(const SeenTypes& seen) {
  if (seen.empty()) return "to list what runs: a tool without .ops sees all operators";
  std::string text;
  for (size_t i = 0; i < std::min(seen.size(), kMostListed); ++i) {
    const auto& [name, places] = seen[i];
    text += fmt::format("{}{} {}", i ? ", " : "", name.starts_with("aten::") ? name.substr(6) : name, places);
  }
  if (seen.size() > kMostListed) text += fmt::format(" and {} more", seen.size() - kMostListed);
  return "operators of other types that the scope's tools saw, by places: " + text;
}

std::string instead_of(const Patterns& patterns) {
  Patterns names;
  for (const std::string& pattern : patterns) names.push_back(operator_of(pattern));
  const auto asks = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  const bool asks_for_all = asks("addmm") && asks("matmul");
  std::string hints;
  for (const auto& [name, hint] : kInstead) {
    if (asks(name) && !(name == "linear" && asks_for_all)) hints += fmt::format("; {}", hint);
  }
  const bool acts =
      names.size() == 1 && std::find(std::begin(kInPlace), std::end(kInPlace), names[0]) != std::end(kInPlace);
  return acts ? hints + fmt::format("; in place it is {}_", names[0]) : hints;
}

std::string absent(const Tool& tool, const Patterns& ops, const Patterns& modules, const SeenTypes& seen) {
  std::string filters = ops.empty() ? "" : "ops=" + listed(ops);
  if (!modules.empty()) filters += (filters.empty() ? "" : ", ") + ("modules=" + listed(modules));
  return fmt::format("[scope] {} of tool '{}' matched nothing that ran; {}{}", filters, tool.name(), what_ran(seen),
                     instead_of(ops));
}

std::string places(const Patterns& elsewhere) {
  Patterns paths = elsewhere;
  std::erase(paths, "");
  if (paths.empty()) {
    return "outside modules only; in a LibTorch program, modules have paths while there is an "
           "amanda::pytorch::ModuleNames of the model";
  }
  std::string text = "in ";
  for (size_t i = 0; i < std::min(paths.size(), kMostListed); ++i) {
    text += fmt::format("{}\"{}\"", i ? ", " : "", paths[i]);
  }
  return paths.size() > kMostListed ? text + fmt::format(" and {} more", paths.size() - kMostListed) : text;
}

std::string elsewhere(const Unmatched& one) {
  const Patterns& ops = one.options.ops.patterns();
  return fmt::format("[scope] modules={} of tool '{}' matched nothing: {} ran {}",
                     listed(one.options.modules.patterns()), one.tool->name(),
                     ops.empty() ? "operators" : "the operators of ops=" + listed(ops), places(one.elsewhere));
}

}  // namespace

std::vector<std::string> lines_of(const std::vector<Unmatched>& unmatched, const SeenTypes& seen) {
  std::vector<std::string> lines;
  std::vector<const Tool*> told;
  for (const Unmatched& one : unmatched) {
    if (one.ops_matched) lines.push_back(elsewhere(one));
  }
  for (const Unmatched& first : unmatched) {
    if (first.ops_matched || std::find(told.begin(), told.end(), first.tool) != told.end()) continue;
    told.push_back(first.tool);
    Patterns ops, modules;
    for (const Unmatched& one : unmatched) {
      if (one.tool != first.tool || one.ops_matched) continue;
      add_new(ops, one.options.ops.patterns());
      add_new(modules, one.options.modules.patterns());
    }
    lines.push_back(absent(*first.tool, ops, modules, seen));
  }
  return lines;
}

std::string describe(const Unmatched& unmatched) { return lines_of({unmatched}, {}).front(); }

}  // namespace amanda
