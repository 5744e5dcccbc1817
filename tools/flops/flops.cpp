#include "flops/flops.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "flops/counter.h"
#include "flops/torch_operators.h"

namespace amanda::tools {
namespace {

// The operators that consist of operators with a formula. Compiled functions do not show these; nor does a replacement.
const std::vector<std::string> kComposite = {"aten::linear",
                                             "aten::matmul",
                                             "aten::einsum",
                                             "aten::bilinear",
                                             "aten::conv1d",
                                             "aten::conv2d",
                                             "aten::conv3d",
                                             "aten::conv_transpose1d",
                                             "aten::conv_transpose2d",
                                             "aten::conv_transpose3d",
                                             "aten::scaled_dot_product_attention"};

bool is_composite(const std::string& name) {
  return std::find(kComposite.begin(), kComposite.end(), name) != kComposite.end();
}

bool is_view(const OpInfo& op) {
  const size_t returns = op.schema.rfind("->");
  return returns != std::string::npos && op.schema.find("(a)", returns) != std::string::npos;
}

}  // namespace

// A dependent tool lists the uncounted operators: it sees the outermost operators, after they were counted.
Flops::Flops(FlopsOptions options) : Tool("flops") {
  static std::atomic<size_t> made{0};
  const size_t index = made++;
  counter_ = std::make_unique<FlopCounter>(index, options.cpu_attention, counts_);
  gradients_ = std::make_unique<UncountedGradients>(counts_);
  depends_on(*counter_);
  depends_on(*gradients_);
  if (!options.uncounted) {
    add_inst_for_op([counts = counts_](OpContext& context) { counts->compiled().leaves_out(context); },
                    {.ops = OpFilter(kComposite), .optional = true});
    return;
  }
  add_inst_for_op([index, counts = counts_, bilinear = counter_->bilinear()](OpContext& context) {
    const OpInfo& op = context.op();
    if (op.ns == "tensorflow") return bilinear->list_uncounted(context);
    if (counts->compiled().leaves_out(context) || is_view(op)) return;
    const std::string name = op.ns + "::" + op.name;
    FlopCounts::Place& place = counts->uncounted_place(name, !is_torch_namespace(op.ns) || is_composite(name));
    context.insert_after_op(
        [index, counts, &place](Values&) {
          if (!std::exchange(FlopCounter::counted_inside(index), false)) place.add(0);
        },
        {.outputs = Positions::none()});
  });
}

Flops::~Flops() = default;

std::vector<std::string> Flops::operators() { return FlopCounter::types(); }

void Flops::narrow(const OpFilter& ops, const ModuleFilter& modules) {
  const auto matches = [&](const std::string& type) {
    const size_t colons = type.find("::");
    return ops.matches({type.substr(0, colons), type.substr(colons + 2), "", {}, {}, ""});
  };
  // "linear" is meant as PyTorch's own, though quantized::linear has that name, too.
  const bool names_composite = std::any_of(kComposite.begin(), kComposite.end(), matches);
  const std::vector<std::string> counted = FlopCounter::types();
  const bool counts_any = std::any_of(counted.begin(), counted.end(), [&](const std::string& type) {
    const bool is_other = !type.starts_with("aten::") && !type.starts_with("tensorflow::");
    return !(names_composite && is_other) && matches(type);
  });
  if (!counts_any) {
    throw std::invalid_argument(
        "[flops] narrow: nothing is counted in these operators themselves; what is counted often runs inside others, "
        "as addmm does in linear: give its name, such as addmm, mm, bmm or convolution, or modules=");
  }
  Tool::narrow(ops, modules);
  counter_->narrow(ops, modules);
  gradients_->narrow(ops, modules);
}

}  // namespace amanda::tools
