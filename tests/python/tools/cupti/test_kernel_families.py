"""A kernel's family, by names as CUPTI gives them."""

import pytest
from amanda.tools.cupti_profiler.kernel_families import family_of

KERNELS = {
    "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, true, true>(int, int)": "implicit GEMM",
    "volta_scudnn_128x64_relu_interior_nn_v1": "implicit GEMM",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16": "implicit GEMM",
    "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4>(T1::Params)": "implicit GEMM",
    "sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc": "implicit GEMM",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::WinogradDataParams)": "Winograd",
    "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*)": "FFT",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)": "flash attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1": "flash attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)": "efficient attention",
    "ampere_sgemm_128x64_tn": "matrix product",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT": "matrix product",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(Params)": "matrix product",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)": "pointwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(ReduceOp)": "reduction",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*)": "softmax",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": "normalization",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)": "normalization",
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int, float const*)": "pooling",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>(T)": "optimizer",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4>(float*)": "copy",
    "void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(T)": "indexing",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "collective",
    "triton_poi_fused_add_relu_0": "Triton",
    "my_kernel": "other",
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_family_of_a_kernel(name):
    assert family_of(name) == KERNELS[name]
