// The op AmandaTap and its kernel, registered with TensorFlow's C interface.
#include "kernel.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <mutex>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "errors.h"
#include "kernel_call.h"
#include "runs.h"

namespace amanda::tensorflow {
namespace {

class Kernel {
 public:
  explicit Kernel(TF_OpKernelConstruction* node) {
    c_api().TF_OpKernelConstruction_GetAttrInt64(node, "node", &number_, status_here());
    check_status("reading 'node' of an AmandaTap");
    int32_t count = 0, unused = 0;
    c_api().TF_OpKernelConstruction_GetAttrSize(node, "Tout", &count, &unused, status_here());
    check_status("reading 'Tout' of an AmandaTap");
    types_.resize(count);
    c_api().TF_OpKernelConstruction_GetAttrTypeList(node, "Tout", types_.data(), count, status_here());
    check_status("reading 'Tout' of an AmandaTap");
    node_ = TapNode::find(number_);
    if (!node_) {
      throw Error(
          "[tensorflow] this graph holds nodes of a tool's that are gone, or of another process; build it again, or "
          "export it outside the tool's scope");
    }
    if (node_->results().size() != types_.size()) {
      throw Error(fmt::format("[tensorflow] a tap with {} results is in a node with {}", node_->results().size(),
                              types_.size()));
    }
  }

  void compute(TF_OpKernelContext* context) const {
    KernelCall call(*node_, types_, context);
    RunStatePtr state;
    if (node_->tap().shares_run()) {
      state = run_state(node_->shared_op(),
                        {c_api().TF_GetStepId(context), c_api().TF_GetFrameId(context), c_api().TF_GetIterId(context)});
    }
    Engine::run(node_->tap(), call, nullptr, state.get());
    call.emit();
  }

 private:
  int64_t number_ = 0;
  std::vector<DataType> types_;
  std::shared_ptr<const TapNode> node_;
};

void* create(TF_OpKernelConstruction* node) {
  try {
    return new Kernel(node);
  } catch (const std::exception& error) {
    c_api().TF_SetStatus(status_here(), kUnknownError, error.what());
    c_api().TF_OpKernelConstruction_Failure(node, status_here());
    return nullptr;
  }
}

void compute(void* kernel, TF_OpKernelContext* context) {
  try {
    static_cast<const Kernel*>(kernel)->compute(context);
  } catch (abi::__forced_unwind&) {  // the thread ends
    throw;
  } catch (...) {
    const std::string text = keep_error(std::current_exception(), c_api().TF_GetStepId(context));
    c_api().TF_SetStatus(status_here(), kUnknownError, text.c_str());
    c_api().TF_OpKernelContext_Failure(context, status_here());
  }
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void set_unknown_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  c_api().TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void register_with(const CApi& api) {
  TF_OpDefinitionBuilder* op = api.TF_NewOpDefinitionBuilder("AmandaTap");
  for (const char* attribute : {"Tin: list(type) >= 0", "Tout: list(type) >= 0", "node: int"}) {
    api.TF_OpDefinitionBuilderAddAttr(op, attribute);
  }
  api.TF_OpDefinitionBuilderAddInput(op, "args: Tin");
  api.TF_OpDefinitionBuilderAddOutput(op, "results: Tout");
  api.TF_OpDefinitionBuilderSetIsStateful(op, true);  // each one runs, as often as its graph
  api.TF_OpDefinitionBuilderSetShapeInferenceFunction(op, &set_unknown_shape);
  api.TF_RegisterOpDefinition(op, status_here());
  check_status("TF_RegisterOpDefinition");
  TF_KernelBuilder* kernel = api.TF_NewKernelBuilder("AmandaTap", "CPU", &create, &compute, &destroy);
  api.TF_RegisterKernelBuilder("AmandaTap", kernel, status_here());
  check_status("TF_RegisterKernelBuilder");
}

}  // namespace

void register_op() {
  static std::once_flag once;
  const CApi* api = find_c_api();
  if (api && api->missing.empty()) std::call_once(once, [&] { register_with(*api); });
}

namespace {
// tf.load_op_library() asks for the ops that are registered while it loads the library.
[[gnu::constructor]] void on_load() {
  try {
    register_op();
  } catch (const std::exception&) {  // library_path() says why
  }
}
}  // namespace

}  // namespace amanda::tensorflow
