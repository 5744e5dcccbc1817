"""Training loops and generation that compile their models, the way libraries do it."""

from __future__ import annotations

from typing import Any

import accelerate
import accelerate.state
import peft
import pytorch_lightning as lightning
import torch
import transformers
from finetuning import language_model, train
from library import left_of
from torch.nn import functional as F
from training import convnet, examples

BACKEND = "aot_eager"


def trainer_compiled() -> dict[str, Any]:
    return train(language_model(), torch_compile=True, torch_compile_backend=BACKEND)


def lora_compiled() -> dict[str, Any]:
    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(language_model(), config)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    compiled = torch.compile(model, backend=BACKEND)
    ids = torch.randint(0, 99, (2, 7))
    for _ in range(2):
        optimizer.zero_grad()
        compiled(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return left_of(model, optimizer)


def accelerate_compiled() -> dict[str, Any]:
    """Each decoder layer is compiled by itself: both run the same code."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    plugin = accelerate.utils.TorchDynamoPlugin(backend=BACKEND, use_regional_compilation=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", dynamo_plugin=plugin)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    for batch in torch.randint(0, 99, (2, 2, 7)):
        accelerator.backward(prepared(input_ids=batch, labels=batch).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return left_of(model, optimizer)


class Lightning(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.compile(convnet(), backend=BACKEND)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.01)


def lightning_compiled() -> dict[str, Any]:
    module = Lightning()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(examples(), batch_size=4))
    return left_of(module, trainer.optimizers[0])


def generation_with_a_static_cache() -> dict[str, Any]:
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        vocab_size=99,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.forward = torch.compile(model.forward, backend=BACKEND, fullgraph=True)
    ids = torch.randint(3, 99, (2, 5))
    common = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5, "pad_token_id": 0, "eos_token_id": None}
    return {
        "greedy": model.generate(ids, do_sample=False, cache_implementation="static", **common),
        "sampled": model.generate(ids, do_sample=True, cache_implementation="static", **common),
    }


PROGRAMS = [
    trainer_compiled,
    lora_compiled,
    accelerate_compiled,
    lightning_compiled,
    generation_with_a_static_cache,
]
