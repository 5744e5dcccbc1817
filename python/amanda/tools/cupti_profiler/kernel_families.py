"""The algorithm family of a GPU kernel, by its name."""

from __future__ import annotations

import functools
import re
from typing import Final

FAMILIES: Final[tuple[tuple[str, str], ...]] = (
    ("collective", r"nccl"),
    ("Triton", r"^triton_"),
    ("flash attention", r"flash_?(fwd|bwd|attn|attention)|_flash_(fprop|bprop)|sdpa|fmha_v\d|flash::"),
    ("efficient attention", r"fmha_cutlass|mem_?eff|efficient_attention"),
    ("Winograd", r"winograd"),
    ("FFT", r"(^|[^a-z])(c|r|d)?fft|fft_?(2d|1d|3d|r2c|c2r|c2c)|_fft|flip_filter"),
    ("depthwise convolution", r"depthwise|conv_dw|_dw_conv|grouped_direct"),
    (
        "implicit GEMM",
        r"implicit|scudnn|hcudnn|(fprop|dgrad|wgrad).*(gemm|mma|cutlass|engine)|(gemm|mma|cutlass|cudnn|conv).*"
        r"(fprop|dgrad|wgrad)|convolve|(^|[^a-z])conv(olution)?\d?d?_",
    ),
    ("matrix product", r"gemm|gemv|nvjet|xmma|wgmma|cutlass|splitk|cublas|(^|::)dot_kernel|s\d+_gemm|bmm"),
    ("softmax", r"soft_?max"),
    ("normalization", r"(batch|layer|group|instance|rms)_?norm|norm_(fwd|bwd|fprop|bprop)|bn_(fw|bw)|welford"),
    ("pooling", r"pool"),
    ("loss", r"nll_?loss|cross_?entropy|mse_|bce_"),
    ("optimizer", r"multi_tensor|fused_?(adam|sgd|adagrad)|foreach"),
    ("indexing", r"index|gather|scatter|embedding|take_|masked_(fill|select)"),
    ("sort", r"sort|topk|radix|kthvalue|median|unique"),
    ("random numbers", r"distribution|philox|dropout|bernoulli|randperm|curand"),
    ("copy", r"catarray|copy|transpose|permute|nchwtonhwc|nhwctonchw|pad|memcpy"),
    ("reduction", r"reduce|cumsum|scan|norm_kernel"),
    ("fill", r"fill|memset|zero_"),
    ("pointwise", r"element_?wise|vectorized|unrolled|pointwise|activation|gelu|relu|sigmoid|_kernel_cuda"),
)
"""The first pattern that matches the kernel's name in lower case determines its family."""

OTHER: Final = "other"


@functools.lru_cache(maxsize=4096)
def family_of(kernel: str) -> str:
    """The family of a kernel by its demangled name: `OTHER` if no pattern matches.

    >>> family_of("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16")
    'implicit GEMM'
    """
    name = kernel.lower()
    return next((family for family, pattern in FAMILIES if re.search(pattern, name)), OTHER)
