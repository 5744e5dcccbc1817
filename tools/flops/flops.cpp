#include "flops/flops.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "amanda/base/leaked.h"
#include "compiled_operators.h"
#include "flops/counter.h"
#include "flops/torch_operators.h"

namespace amanda::tools {
namespace {

// The operators that consist of operators with a formula. A replacement does not show these.
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

size_t next_index() {
  static std::atomic<size_t> made{0};
  return made++;
}

OpInfo type_of(const std::string& name) {
  const size_t colons = name.find("::");
  return {name.substr(0, colons), name.substr(colons + 2), "", {}, {}, ""};
}

/// Those that are open, by thread. A thread that ends leaves its scopes when its own variables may be gone.
struct Open {
  Mutex mutex;
  std::map<std::thread::id, std::vector<Flops*>> tools;

  std::vector<Flops*> here() {
    const std::lock_guard lock(mutex);
    const auto found = tools.find(std::this_thread::get_id());
    return found == tools.end() ? std::vector<Flops*>() : found->second;
  }
};

}  // namespace

// A dependent tool lists the uncounted operators: it sees the outermost operators, after they were counted.
Flops::Flops(FlopsOptions options) : Tool("flops"), index_(next_index()) {
  const size_t index = index_;
  counter_ = std::make_unique<FlopCounter>(index, options, counts_);
  gradients_ = std::make_unique<UncountedGradients>(counts_);
  depends_on(*counter_);
  depends_on(*gradients_);
  if (!options.uncounted) {
    // So that leaving a scope can name what did not run.
    add_inst_for_op([](OpContext&) {}, {.ops = OpFilter(kComposite), .optional = true});
    list_custom_functions();
    return;
  }
  add_inst_for_op([index, counts = counts_, bilinear = counter_->bilinear()](OpContext& context) {
    const OpInfo& op = context.op();
    if (bilinear->knows(op.ns)) return bilinear->list_uncounted(context);
    if (is_compiled(context) || is_view(op)) return;
    const std::string name = op.ns + "::" + op.name;
    FlopCounts::Tally& tally = counts->uncounted_tally(name, !is_torch_namespace(op.ns) || is_composite(name));
    context.insert_after_op(
        [index, counts, &tally](Values&) {
          if (!std::exchange(FlopCounter::counted_inside(index), false)) tally.add(0);
        },
        {.outputs = Positions::none()});
  });
  list_custom_functions();
}

Flops::~Flops() = default;

// The operators inside the node of a torch.autograd.Function are not shown. A checkpoint's node runs its region again,
// whose operators are.
void Flops::list_custom_functions() {
  add_inst_for_op(
      [counts = counts_](OpContext& context) {
        const std::string& node = context.backward_op()->name;
        if (node != "AccumulateGrad" && node != "CheckpointFunctionBackward")
          FlopCounter::list_backward(context, counts);
      },
      {.backward = true, .ops = {"autograd::*"}, .optional = true});
}

void Flops::on_enter(Scope&) {
  Open& open = leaked<Open>();
  const std::lock_guard lock(open.mutex);
  open.tools[std::this_thread::get_id()].push_back(this);
}

void Flops::on_exit(Scope&, const std::exception_ptr&) {
  Open& open = leaked<Open>();
  const std::lock_guard lock(open.mutex);
  const auto here = open.tools.find(std::this_thread::get_id());
  if (here == open.tools.end()) return;
  const auto found = std::find(here->second.rbegin(), here->second.rend(), this);
  if (found != here->second.rend()) here->second.erase(std::next(found).base());
  if (here->second.empty()) open.tools.erase(here);
}

bool Flops::is_open() { return !leaked<Open>().here().empty(); }

void Flops::count_in_replacement(const std::string& kernel, const std::string& module_path, int64_t flops) {
  std::vector<Flops*> open = leaked<Open>().here();
  std::sort(open.begin(), open.end());
  open.erase(std::unique(open.begin(), open.end()), open.end());  // a tool may be in several scopes
  for (Flops* tool : open) {
    if (!tool->counts(kernel, module_path)) continue;
    tool->counts_->tally(kernel, module_path, false).add(flops);
    FlopCounter::counted_inside(tool->index_) = true;
  }
}

bool Flops::counts(const std::string& kernel, const std::string& module_path) const {
  const std::lock_guard lock(mutex_);
  return std::all_of(narrowed_.begin(), narrowed_.end(), [&](const auto& narrowed) {
    return narrowed.first.matches(type_of(kernel)) && narrowed.second.matches(module_path);
  });
}

std::vector<std::string> Flops::operators() { return FlopCounter::torch_types(); }

void Flops::narrow(const OpFilter& ops, const ModuleFilter& modules) {
  const auto matches = [&](const std::string& type) { return ops.matches(type_of(type)); };
  // "linear" is meant as PyTorch's own, though quantized::linear has that name, too.
  const bool names_composite = std::any_of(kComposite.begin(), kComposite.end(), matches);
  const std::vector<std::string> of_graphs = counter_->bilinear()->types(), of_torch = FlopCounter::torch_types();
  const bool counts_any = std::any_of(of_graphs.begin(), of_graphs.end(), matches) ||
                          std::any_of(of_torch.begin(), of_torch.end(), [&](const std::string& type) {
                            return !(names_composite && !type.starts_with("aten::")) && matches(type);
                          });
  if (!counts_any) {
    throw std::invalid_argument(
        "[flops] narrow: nothing is counted in these operators themselves; what is counted often runs inside others, "
        "as addmm does in linear: give its name, such as addmm, mm, bmm or convolution, or modules=");
  }
  Tool::narrow(ops, modules);
  counter_->narrow(ops, modules);
  gradients_->narrow(ops, modules);
  const std::lock_guard lock(mutex_);
  narrowed_.emplace_back(ops, modules);
}

}  // namespace amanda::tools
