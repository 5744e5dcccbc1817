#include "flops/torch_operators.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <span>
#include <sstream>
#include <string_view>

#include "flops/formulas.h"

namespace amanda::tools {
namespace {

using Counted = std::optional<int64_t>;

// The sizes of a tensor. Empty if it is not a tensor, if a size is unknown, or if it has fewer dimensions.
std::optional<IntVector> known_sizes(const ValueInfo& info, size_t least_dimensions) {
  if (info.kind != ValueKind::kTensor || !info.sizes || info.sizes->size() < least_dimensions) return std::nullopt;
  for (const int64_t size : *info.sizes) {
    if (size == kUnknown) return std::nullopt;
  }
  return info.sizes;
}
std::optional<IntVector> input_sizes(const SizedRun& run, size_t i, size_t least_dimensions) {
  return known_sizes(run.inputs[i], least_dimensions);
}
int64_t from_end(Sizes sizes, size_t i) { return sizes[sizes.size() - i]; }

// a: (..., m, k), b: (..., k, n)
Counted matmul_of(const SizedRun& run) {
  const auto a = input_sizes(run, 0, 2), b = input_sizes(run, 1, 2);
  return a && b ? Counted(matmul_flops(*a, *b)) : std::nullopt;
}

// Two matrix products, with one sum.
Counted two_matmuls(const SizedRun& run) {
  const Counted first = matmul_of(run), second = matmul_of({.inputs = {run.inputs[2], run.inputs[3]}});
  return first && second ? Counted(*first + *second) : std::nullopt;
}

Counted matmuls_of_lists(const SizedRun& run) {
  const auto &left = run.inputs[0].elements, &right = run.inputs[1].elements;
  if (left.size() != right.size()) return std::nullopt;
  int64_t flops = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const Counted one = matmul_of({.inputs = {left[i], right[i]}});
    if (!one) return std::nullopt;
    flops += *one;
  }
  return flops;
}

// (m, k) or (g, m, k), times (k, n) or (g, k, n): where only one has groups, they divide the other one's rows or
// columns.
Counted grouped_matmul(const SizedRun& run) {
  const auto a = input_sizes(run, 0, 2), b = input_sizes(run, 1, 2);
  if (!a || !b || a->size() > 3 || b->size() > 3) return std::nullopt;
  const int64_t groups = a->size() == 3 && b->size() == 3 ? (*a)[0] : 1;
  return 2 * groups * from_end(*a, 2) * from_end(*a, 1) * from_end(*b, 1);
}

// The first operand is a matrix or vector whose elements are each multiplied once.
Counted each_element_once(const SizedRun& run) {
  const auto a = input_sizes(run, 0, 1);
  return a ? Counted(2 * product(*a)) : std::nullopt;
}

// x: (..., k); the result: (..., n). The weight may be packed, so that it does not show its sizes.
Counted linear_of(const SizedRun& run) {
  const auto x = input_sizes(run, 0, 1), y = known_sizes(run.result, 1);
  return x && y ? Counted(2 * product(*x) * y->end()[-1]) : std::nullopt;
}

// The first operand, a matrix, is compressed. The second one: (k, n).
Counted by_second_operand(const SizedRun& run) {
  const auto b = input_sizes(run, 0, 2), y = known_sizes(run.result, 1);
  return b && y ? Counted(2 * product(*y) * (*b)[0]) : std::nullopt;
}

template <bool kTransposed>
Counted convolution_of(const SizedRun& run) {
  const auto input = input_sizes(run, 0, 3), weight = input_sizes(run, 1, 3), output = known_sizes(run.result, 3);
  if (!input || !weight || !output) return std::nullopt;
  return convolution_flops(*input, *weight, *output, kTransposed);
}

// The weight is packed: the driver describes the sizes that it had before.
template <bool kTransposed>
Counted packed_convolution(const SizedRun& run) {
  const auto input = input_sizes(run, 0, 3), output = known_sizes(run.result, 3);
  const std::optional<IntVector>& weight = run.inputs[1].sizes;
  if (!input || !output || !weight) return std::nullopt;
  return convolution_flops(*input, *weight, *output, kTransposed);
}

// Time first: the input is (time, batch, channels), the weight (width, channels, filters).
Counted convolution_over_time(const SizedRun& run) {
  const auto weight = input_sizes(run, 1, 3), output = known_sizes(run.result, 3);
  return weight && output ? Counted(2 * (*output)[0] * (*output)[1] * product(*weight)) : std::nullopt;
}

// Coefficients: (m, n), times n of anything.
Counted linear_combination(const SizedRun& run) {
  const auto terms = input_sizes(run, 0, 1), coefficients = input_sizes(run, 1, 2);
  return terms && coefficients ? Counted(2 * product(*terms) * (*coefficients)[0]) : std::nullopt;
}

// (time, batch, features), in either order, or (steps of all sequences, features): how many vectors.
Counted rows_of(const SizedRun& run) {
  const auto input = input_sizes(run, 0, 2);
  return input ? Counted(product(Sizes(*input).first(input->size() - 1))) : std::nullopt;
}

// Each vector is multiplied by each matrix once: of all layers, directions and projections. Biases are no matrices.
Counted by_matrices(const SizedRun& run, std::span<const ValueInfo> weights) {
  const Counted rows = rows_of(run);
  if (!rows) return std::nullopt;
  int64_t elements = 0;
  for (const ValueInfo& weight : weights) {
    const auto sizes = known_sizes(weight, 0);
    if (!sizes) return std::nullopt;
    if (sizes->size() == 2) elements += product(*sizes);
  }
  return 2 * *rows * elements;
}
Counted recurrent(const SizedRun& run) { return by_matrices(run, run.inputs[1].elements); }
Counted recurrent_layer(const SizedRun& run) { return by_matrices(run, std::span(run.inputs).subspan(1)); }

// The weights are packed: layers and directions are those of the states, (layers * directions, batch, hidden).
template <int64_t kGates>
Counted packed_recurrent(const SizedRun& run) {
  const ValueInfo* found = &run.inputs[1];
  // For a packed sequence, the sizes of its steps come first.
  if (found->kind == ValueKind::kTensor && found->sizes && found->sizes->size() < 3) found = &run.inputs[2];
  if (found->kind == ValueKind::kTensors && !found->elements.empty()) found = &found->elements[0];
  const auto states = known_sizes(*found, 3);
  const auto input = input_sizes(run, 0, 2), output = known_sizes(run.result, 2);
  const Counted rows = rows_of(run);
  if (!states || !input || !output || !rows) return std::nullopt;
  const int64_t hidden = (*states)[2], all = output->end()[-1];
  if (hidden <= 0 || all <= 0) return std::nullopt;
  const int64_t directions = all / hidden, layers = (*states)[0] / directions;
  const int64_t columns = directions * ((input->end()[-1] + hidden) + (layers - 1) * (all + hidden));
  return 2 * *rows * kGates * hidden * columns;
}

// (batch, features) and the state, (batch, hidden); the result is the new state.
template <int64_t kGates>
Counted packed_cell(const SizedRun& run) {
  const auto input = input_sizes(run, 0, 1), state = known_sizes(run.result, 1);
  if (!input || !state) return std::nullopt;
  return 2 * kGates * product(*state) * (input->end()[-1] + state->end()[-1]);
}

// Query, key, value: (batch, length, heads, size). Ragged batches have three dimensions, and do not show their lengths.
Counted attention_heads_last(const SizedRun& run) {
  const auto query = input_sizes(run, 0, 4), value = input_sizes(run, 2, 4);
  if (!query || !value || query->size() != 4 || value->size() != 4) return std::nullopt;
  const auto heads_first = [](const IntVector& sizes) { return IntVector{sizes[0], sizes[2], sizes[1], sizes[3]}; };
  return attention_flops(heads_first(*query), heads_first(*value));
}
Counted attention_heads_first(const SizedRun& run) {
  const auto query = input_sizes(run, 0, 4), value = input_sizes(run, 2, 4);
  if (!query || !value || query->size() != 4 || value->size() != 4) return std::nullopt;
  return attention_flops(*query, *value);
}

using Table = std::map<std::string, TorchOperator>;

void add(Table& table, const std::string& ns, const std::vector<std::string>& names, const TorchOperator& op) {
  for (const std::string& name : names) table[ns + "::" + name] = op;
}

// The names in a text, between white space.
std::vector<std::string> names_in(const char* text) {
  std::istringstream names(text);
  return {std::istream_iterator<std::string>(names), {}};
}

void add_products(Table& table) {
  add(table, "aten", {"_addmm_activation", "addbmm", "addbmm_", "addmm_", "baddbmm_"}, {matmul_of, {1, 2}, true});
  add(table, "aten", {"_int_mm", "_scaled_mm_v2", "hspmm"}, {matmul_of, {0, 1}});
  add(table, "aten", {"sspaddmm"}, {matmul_of, {1, 2}});
  add(table, "aten", {"_grouped_mm"}, {grouped_matmul, {0, 1}, true});
  add(table, "aten", {"_scaled_grouped_mm", "_scaled_grouped_mm_v2"}, {grouped_matmul, {0, 1}});
  add(table, "aten", {"_foreach_mm"}, {matmuls_of_lists, {0, 1}});
  add(table, "_native", {"_foreach_mm_native_0"}, {matmuls_of_lists, {0, 1}});
  add(table, "aten", {"mv"}, {each_element_once, {0, 1}, true});
  add(table, "aten", {"addmv", "addmv_"}, {each_element_once, {1, 2}, true});
  add(table, "aten", {"dot", "vdot"}, {each_element_once, {0, 1}, true});
  add(table, "aten", {"_compute_linear_combination"}, {linear_combination, {0, 1}});
  add(table, "quantized", {"matmul"}, {matmul_of, {0, 1}});
  add(table, "inductor", {"_mm_plus_mm"}, {two_matmuls, {0, 1, 2, 3}});
}

void add_linear_layers(Table& table) {
  add(table, "aten", {"mkldnn_linear"}, {linear_of, {0, 1}, true});
  add(table, "aten",
      {"_dyn_quant_matmul_4bit", "_mixed_dtypes_linear", "_sparse_semi_structured_linear", "_weight_int4pack_mm",
       "_weight_int4pack_mm_for_cpu", "_weight_int4pack_mm_with_scales_and_zeros", "_weight_int8pack_mm",
       "_wrapped_quantized_linear_prepacked", "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation",
       "fbgemm_linear_int8_weight", "fbgemm_linear_int8_weight_fp32_activation"},
      {linear_of, {0}});
  add(table, "quantized",
      {"int4mm_packed_weight_cpu", "linear", "linear_dynamic", "linear_dynamic_fp16",
       "linear_dynamic_fp16_unpacked_weight", "linear_leaky_relu", "linear_relu", "linear_relu_dynamic",
       "linear_relu_dynamic_fp16", "linear_tanh", "linear_with_input_q_dq_qweight_dq_output_fp32",
       "linear_with_input_q_dq_qweight_dq_relu_output_fp32"},
      {linear_of, {0}});
  add(table, "_quantized",
      {"_wrapped_quantized_linear_prepacked", "linear", "linear_dynamic", "wrapped_fbgemm_linear_fp16_weight",
       "wrapped_quantized_linear"},
      {linear_of, {0}});
  add(table, "onednn", {"linear_dynamic_fp16", "linear_relu_dynamic_fp16", "qlinear_pointwise"}, {linear_of, {0}});
  add(table, "sparse", {"qlinear", "qlinear_dynamic", "qlinear_relu", "qlinear_relu_dynamic"}, {linear_of, {0}});
  add(table, "mkl", {"_mkl_linear"}, {linear_of, {0}});
  add(table, "mkldnn", {"_linear_pointwise"}, {linear_of, {0}});
  add(table, "aten", {"_cslt_sparse_mm"}, {by_second_operand, {1}});
  add(table, "aten", {"_sparse_semi_structured_mm"}, {by_second_operand, {2}});
  add(table, "aten", {"_sparse_semi_structured_addmm"}, {by_second_operand, {3}});
}

// The last ones are called inside convolution, where they are not counted again.
void add_convolutions(Table& table) {
  add(table, "aten",
      {"_conv_depthwise2d", "_mps_convolution", "_nnpack_spatial_convolution", "_slow_conv2d_forward",
       "conv_depthwise3d", "cudnn_convolution", "cudnn_convolution_add_relu", "cudnn_convolution_relu",
       "miopen_convolution", "miopen_convolution_add_relu", "miopen_convolution_relu", "miopen_depthwise_convolution",
       "mkldnn_convolution", "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d"},
      {convolution_of<false>, {0, 1}, true});
  add(table, "aten",
      {"_mps_convolution_transpose", "cudnn_convolution_transpose", "miopen_convolution_transpose",
       "slow_conv_transpose2d", "slow_conv_transpose3d"},
      {convolution_of<true>, {0, 1}, true});
  add(table, "aten", {"conv_tbc"}, {convolution_over_time, {0, 1}, true});
  add(table, "onednn", {"qconv1d_pointwise", "qconv2d_pointwise", "qconv3d_pointwise", "qconv_pointwise"},
      {convolution_of<false>, {0, 3}});
  // Some overloads have another operand between input and weight, and the weight is in the order of its library.
  add(table, "mkldnn", {"_convolution_pointwise", "_convolution_pointwise_", "_convolution_transpose_pointwise"}, {});
  add(table, "mkldnn_prepacked", {"conv2d_run"}, {});
  add(table, "quantized",
      {"conv1d", "conv1d_dynamic", "conv1d_relu", "conv2d", "conv2d_dynamic", "conv2d_relu", "conv3d", "conv3d_dynamic",
       "conv3d_relu"},
      {packed_convolution<false>, {0, 1}});
  add(table, "quantized", {"conv2d_add", "conv2d_add_relu"}, {packed_convolution<false>, {0, 2}});
  add(table, "quantized",
      {"conv_transpose1d", "conv_transpose1d_dynamic", "conv_transpose2d", "conv_transpose2d_dynamic",
       "conv_transpose3d", "conv_transpose3d_dynamic"},
      {packed_convolution<true>, {0, 1}});
  add(table, "_quantized", {"conv2d", "conv2d_relu", "conv3d", "conv3d_relu"}, {packed_convolution<false>, {0, 1}});
  add(table, "_quantized", {"conv_transpose1d", "conv_transpose2d"}, {packed_convolution<true>, {0, 1}});
}

void add_recurrent_layers(Table& table) {
  add(table, "aten", {"mkldnn_rnn_layer"}, {recurrent_layer, {0, 1, 2}});
  add(table, "aten", {"_cudnn_rnn", "miopen_rnn"}, {recurrent, {0, 1}});
  add(table, "aten", {"_lstm_mps"}, {recurrent, {0, 2}});
  add(table, "quantized", {"quantized_gru_cell_dynamic"}, {packed_cell<3>, {0}});
  add(table, "quantized", {"quantized_lstm_cell_dynamic"}, {packed_cell<4>, {0}});
  add(table, "quantized", {"quantized_rnn_relu_cell_dynamic", "quantized_rnn_tanh_cell_dynamic"},
      {packed_cell<1>, {0}});
  add(table, "aten", {"quantized_lstm"}, {packed_recurrent<4>, {0, 1, 2}});
  add(table, "aten", {"quantized_gru"}, {packed_recurrent<3>, {0, 1, 2}});
}

void add_attention(Table& table) {
  add(table, "aten", {"_flash_attention_forward", "_efficient_attention_forward"}, {attention_heads_last, {0, 1, 2}});
  add(table, "aten",
      {"_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_fused_attention_overrideable",
       "_triton_scaled_dot_attention"},
      {attention_heads_first, {0, 1, 2}});
  add(table, "aten", {"_flash_attention_forward_no_dropout_inplace"}, {attention_heads_last, {1, 2, 3}});
  add(table, "aten", {"_cudnn_attention_forward"}, {});
}

// Called by themselves. Autograd calls them inside backward operators, which are counted or listed themselves.
void add_gradients(Table& table) {
  add(table, "aten", names_in(R"(
      _convolution_double_backward _cudnn_attention_backward _cudnn_rnn_backward _efficient_attention_backward
      _flash_attention_backward _scaled_dot_product_cudnn_attention_backward
      _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
      _scaled_dot_product_flash_attention_for_cpu_backward
      _scaled_dot_product_fused_attention_overrideable_backward _slow_conv2d_backward
      _sparse_mm_reduce_impl_backward conv_tbc_backward convolution_backward_overrideable linear_backward
      lstm_mps_backward matmul_backward miopen_rnn_backward mkldnn_linear_backward mkldnn_linear_backward_input
      mkldnn_linear_backward_weights mkldnn_rnn_layer_backward mps_convolution_backward
      mps_convolution_transpose_backward)"),
      {});
}

// Solvers, factorizations and transforms, whose operations are not products of matrices or depend on the data.
void add_algorithms(Table& table) {
  add(table, "aten", names_in(R"(
      _cholesky_solve_helper _cslt_sparse_mm_search _fft_c2c _fft_c2r _fft_r2c _linalg_det _linalg_eigh
      _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _sparse_mm_reduce_impl _sparse_sparse_matmul
      _spsolve addr addr_ cholesky cholesky_inverse geqrf linalg_cholesky_ex linalg_eig
      linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu
      linalg_lu_factor_ex linalg_lu_solve linalg_qr linalg_solve_triangular ormqr sparse_sampled_addmm
      triangular_solve)"),
      {});
  add(table, "prims", {"fft_c2c", "fft_c2r", "fft_r2c", "svd"}, {});
  add(table, "symm_mem", {"_async_input_mm"}, {});
}

const Table& table() {
  static const Table all = [] {
    Table made;
    add_products(made);
    add_linear_layers(made);
    add_convolutions(made);
    add_recurrent_layers(made);
    add_attention(made);
    add_gradients(made);
    add_algorithms(made);
    return made;
  }();
  return all;
}

}  // namespace

const TorchOperator* find_torch_operator(const std::string& name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

const std::vector<std::string>& torch_operators() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, op] : table()) all.push_back(name);
    return all;
  }();
  return names;
}

const std::vector<std::string>& operators_with_uncounted_gradients() {
  static const std::vector<std::string> names = {
      "aten::_cdist_forward",        "aten::_euclidean_dist",   "aten::_sparse_addmm", "aten::_trilinear",
      "aten::affine_grid_generator", "aten::linalg_matrix_exp", "aten::linalg_pinv"};
  return names;
}

bool is_torch_namespace(const std::string& ns) {
  static const std::vector<std::string> names = names_in(R"(
      _c10d_functional _c10d_functional_autograd _dtensor _native _quantized aten c10d c10d_functional
      debug_mode_ops debugprims export inductor inductor_prims mkl mkldnn mkldnn_prepacked onednn prim prims
      profiler quantization quantized quantized_decomposed rngprims sparse static_runtime symm_mem)");
  return std::find(names.begin(), names.end(), ns) != names.end();
}

std::string node_of(const std::string& op) {
  std::string node;
  bool starts_word = true;
  const std::string_view whole = op, end = "_forward";
  for (const char letter : whole.ends_with(end) ? whole.substr(0, whole.size() - end.size()) : whole) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter != '_') node += starts_word ? static_cast<char>(std::toupper(byte)) : letter;
    starts_word = letter == '_' || std::isdigit(byte);
  }
  return node + "Backward";
}

}  // namespace amanda::tools
