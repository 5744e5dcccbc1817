#include "dispatch/typed_kernels.h"

#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/adaptive_avg_pool2d_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/chunk_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/conv1d_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/dropout_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/flatten_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/max_pool2d_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/resolve_conj_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/to_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>

#include "base/op_types.h"
#include "dispatch/call_recorder.h"
#include "dispatch/fallback.h"
#include "dispatch/place_table.h"
#include "forward/typed_call.h"

namespace amanda::pytorch {
namespace {

template <class... Op>
struct OpList {};

// The operators that models call most, and the cheap ones that these call inside, for tools that ask for nested
// operators.
using TypedOps = OpList<
    // matrix products, convolutions, attention
    at::_ops::linear, at::_ops::matmul, at::_ops::mm, at::_ops::bmm, at::_ops::addmm, at::_ops::baddbmm,
    at::_ops::conv1d, at::_ops::conv2d, at::_ops::scaled_dot_product_attention,
    // pointwise
    at::_ops::add_Tensor, at::_ops::sub_Tensor, at::_ops::mul_Tensor, at::_ops::div_Tensor, at::_ops::pow_Tensor_Scalar,
    at::_ops::relu, at::_ops::gelu, at::_ops::silu, at::_ops::tanh, at::_ops::sigmoid, at::_ops::exp, at::_ops::neg,
    at::_ops::rsqrt, at::_ops::sin, at::_ops::cos, at::_ops::where_self, at::_ops::masked_fill_Scalar,
    at::_ops::dropout, at::_ops::add__Tensor, at::_ops::mul__Tensor, at::_ops::relu_, at::_ops::copy_,
    // norms, reductions, pooling, loss
    at::_ops::layer_norm, at::_ops::batch_norm, at::_ops::softmax_int, at::_ops::log_softmax_int, at::_ops::sum,
    at::_ops::sum_dim_IntList, at::_ops::mean, at::_ops::mean_dim, at::_ops::max_pool2d, at::_ops::adaptive_avg_pool2d,
    at::_ops::cross_entropy_loss,
    // views and copies
    at::_ops::view, at::_ops::reshape, at::_ops::transpose_int, at::_ops::permute, at::_ops::t, at::_ops::expand,
    at::_ops::select_int, at::_ops::slice_Tensor, at::_ops::unsqueeze, at::_ops::squeeze_dim,
    at::_ops::flatten_using_ints, at::_ops::split_Tensor, at::_ops::chunk, at::_ops::unbind_int, at::_ops::detach,
    at::_ops::cat, at::_ops::clone, at::_ops::contiguous, at::_ops::to_dtype, at::_ops::embedding,
    // inner operators
    at::_ops::as_strided, at::_ops::resolve_conj, at::_ops::empty_memory_format, at::_ops::empty_strided,
    at::_ops::empty_like, at::_ops::_to_copy, at::_ops::_unsafe_view, at::_ops::_reshape_alias, at::_ops::fill__Scalar,
    at::_ops::bernoulli__float, at::_ops::mul_Scalar, at::_ops::div__Scalar, at::_ops::div__Tensor>;

template <class Op, class Signature = typename Op::schema>
struct Typed;

template <class Op, class Result, class... Args>
struct Typed<Op, Result(Args...)> {
  using Handle = c10::TypedOperatorHandle<Result(Args...)>;
  static inline const Handle* handle = nullptr;
  static inline const OpRecord* record = nullptr;

  static bool find() {
    if (handle) return true;
    const auto found = c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name});
    if (!found) return false;
    handle = new Handle(found->template typed<Result(Args...)>());  // operators of aten are never deregistered
    record = &op_types().of(*found);
    return true;
  }

  template <KeyRole kRole>
  [[gnu::hot]] static Result run(c10::DispatchKeySet key_set, Args... args) {
    const c10::DispatchKeySet rest = below(kRole, key_set);
    const TensorsAmong<std::remove_cvref_t<Args>...> tensors(args...);
    Way way;
    find_way(way, kRole, *record, rest, (is_symbolic(args) || ...), tensors.all());
    if (way.kind == Way::Kind::kBelow) {
      const Inside inside(way);
      return handle->redispatch(rest, std::forward<Args>(args)...);
    }
    return way.kind == Way::Kind::kKnown ? run_known(way, rest, tensors.all(), std::forward<Args>(args)...)
                                         : run_observed<kRole>(way, rest, tensors.all(), std::forward<Args>(args)...);
  }

  // Apart from run_observed(): less code to bring into the caches.
  [[gnu::hot]] static C10_NOINLINE Result run_known(Way& way, c10::DispatchKeySet rest,
                                                    c10::ArrayRef<OperandTensor> tensors, Args... args) {
    TypedCall<Result, Args...> call(*record, *handle, rest, tensors, args...);
    if (!observe_known(way, call)) return call.take_result();
    const Inside inside(way);
    return handle->redispatch(rest, std::forward<Args>(args)...);
  }

  template <KeyRole kRole>
  static C10_NOINLINE Result run_observed(const Way& way, c10::DispatchKeySet rest,
                                          c10::ArrayRef<OperandTensor> tensors, Args... args) {
    TypedCall<Result, Args...> call(*record, *handle, rest, tensors, args...);
    call.begin_at(way.raw);
    if (is_observed(call, rest)) {
      CurrentScopes held;
      if (ScopeStack* scopes = observers(kRole, held)) {
        observe(*scopes, call);
        learn_place(way, call);
        return call.take_result();
      }
    } else if (run_recorded(call)) {
      return call.take_result();
    }
    return handle->redispatch(rest, std::forward<Args>(args)...);
  }

  template <KeyRole kRole>
  static c10::KernelFunction kernel() {
    constexpr auto* function = &run<kRole>;
    return c10::KernelFunction::makeFromUnboxedFunction(
        c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(function)>, &run<kRole>>());
  }
};

template <class... Op>
void each(OpList<Op...>, KeyRole role,
          const std::function<void(const c10::OperatorHandle&, const c10::KernelFunction&)>& install) {
  auto one = [&]<class T>(Typed<T>) {
    if (!Typed<T>::find()) return;
    install(*Typed<T>::handle, role == KeyRole::kAll ? Typed<T>::template kernel<KeyRole::kAll>()
                                                     : Typed<T>::template kernel<KeyRole::kFilter>());
  };
  (one(Typed<Op>()), ...);
}

}  // namespace

void each_typed_kernel(KeyRole role,
                       const std::function<void(const c10::OperatorHandle&, const c10::KernelFunction&)>& install) {
  each(TypedOps(), role, install);
}

size_t count_typed_kernels() {
  size_t count = 0;
  each_typed_kernel(KeyRole::kAll, [&](const c10::OperatorHandle&, const c10::KernelFunction&) { ++count; });
  return count;
}

}  // namespace amanda::pytorch
