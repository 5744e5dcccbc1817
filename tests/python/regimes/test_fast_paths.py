"""PyTorch's fast paths stay the ones it takes: the same kernels run, as often, as PyTorch itself counts them."""

from collections import Counter

import amanda
import pytest
import torch
import torch.nn.functional as F
from unharmed import TOOLS, reusable, run

nn = torch.nn

lstm = reusable(nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2))
gru = reusable(nn.GRU(4, 5))
encoder = reusable(
    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=True)
)
attention = reusable(nn.MultiheadAttention(8, 2, batch_first=True))
decoder = reusable(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True))


def inference(make, *inputs, **kwargs):
    with torch.inference_mode():
        return make().eval()(*inputs, **kwargs)


def trained(make, *inputs):
    model = make().train()
    result = model(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    result.sum().backward()
    return result, [parameter.grad for parameter in model.parameters()]


def padded():
    return torch.tensor([[False, False, True], [False, False, False]])


PROGRAMS = {
    "LSTM, trained": lambda: trained(lstm, torch.randn(2, 3, 4)),
    "LSTM": lambda: inference(lstm, torch.randn(2, 3, 4)),
    "LSTM of packed sequences": lambda: (
        inference(
            lstm, nn.utils.rnn.pack_padded_sequence(torch.randn(2, 3, 4), torch.tensor([3, 2]), batch_first=True)
        )[0].data
    ),
    "GRU, trained": lambda: trained(gru, torch.randn(3, 2, 4)),
    "TransformerEncoder": lambda: inference(encoder, torch.randn(2, 3, 8)),
    "TransformerEncoder, padded": lambda: inference(encoder, torch.randn(2, 3, 8), src_key_padding_mask=padded()),
    "TransformerEncoder, trained": lambda: trained(encoder, torch.randn(2, 3, 8)),
    "TransformerDecoderLayer": lambda: inference(decoder, torch.randn(2, 3, 8), torch.randn(2, 3, 8)),
    "MultiheadAttention": lambda: inference(attention, *[torch.randn(2, 3, 8)] * 3, need_weights=False),
    "MultiheadAttention, self": lambda: inference(attention, *[ATTENDED] * 3, need_weights=False),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*torch.randn(3, 2, 2, 4, 8), is_causal=True),
    "flash": lambda: flash(),
    "AdamW, fused": lambda: fused(),
}
ATTENDED = torch.ones(2, 3, 8)
FAST = {
    "TransformerEncoder": "aten::_transformer_encoder_layer_fwd",
    "TransformerEncoder, padded": "aten::_transformer_encoder_layer_fwd",
    "MultiheadAttention, self": "aten::_native_multi_head_attention",
    "LSTM": "aten::mkldnn_rnn_layer",
    "flash": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "AdamW, fused": "aten::_fused_adamw_",
}


def flash():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(*torch.randn(3, 2, 2, 4, 8))


def fused():
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.AdamW([w], fused=True)
    w.square().sum().backward()
    optimizer.step()
    return w


def counted(program):
    """What ran, by torch.profiler's own account."""
    torch.manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        program()
    return Counter(event.name for event in profile.events() if not event.name.startswith(("Profiler", "Optimizer.")))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "tool", ["look", *(pytest.param(name, marks=pytest.mark.slow) for name in ("look at some", "look inside"))]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_kernels_run(name, tool):
    program = PROGRAMS[name]
    program()
    vanilla, result = counted(program), run(program)
    if name in FAST:
        assert FAST[name] in vanilla
    with amanda.apply(TOOLS[tool]()):
        first = counted(program)
        assert first == vanilla or (tool == "look inside" and first > vanilla)  # what may be edited gets one trial run
        for _ in range(2):
            assert run(program) == result
            assert counted(program) == vanilla
    assert counted(program) == vanilla


def test_a_fast_path_is_one_operator_to_a_tool(recorder):
    tool = recorder()
    with amanda.apply(tool):
        inference(encoder, torch.ones(2, 3, 8))
    assert tool.ran.count("_transformer_encoder_layer_fwd") == 2
