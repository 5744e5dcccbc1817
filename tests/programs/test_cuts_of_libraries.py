"""GradientCuts: why nothing of a model of a library is trained."""

import contextlib

import amanda
import pytest
import torch
from amanda.tools.cuts import GradientCuts
from torch import nn

peft = pytest.importorskip("peft")


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


@pytest.mark.parametrize("is_trainable", [False, True])
def test_adapters_of_peft_that_were_loaded_for_inference(tmp_path, is_trainable):
    peft.get_peft_model(model(), peft.LoraConfig(r=2, target_modules=["0"])).save_pretrained(tmp_path)
    loaded, tool = peft.PeftModel.from_pretrained(model(), tmp_path, is_trainable=is_trainable), GradientCuts()
    with amanda.apply(tool):
        loss = loaded(torch.ones(3, 4)).square().mean()
        with contextlib.nullcontext() if is_trainable else pytest.raises(RuntimeError, match="does not require grad"):
            loss.backward()
    assert ("is_trainable=True" in tool.answer()) == (not is_trainable)
