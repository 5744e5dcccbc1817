"""Language models, fine-tuned the way Hugging Face's libraries do it."""

from __future__ import annotations

import tempfile
from typing import Any

import accelerate
import accelerate.state
import peft
import torch
import transformers
from library import left_of

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 99}


def language_model() -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, attention_dropout=0.1)
    return transformers.LlamaForCausalLM(config)


def train(model: Any, **arguments: Any) -> dict[str, Any]:
    examples = [{"input_ids": row, "labels": row} for row in torch.randint(0, 99, (8, 7))]
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                folder,
                max_steps=2,
                per_device_train_batch_size=4,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                **arguments,
            ),
            train_dataset=examples,
        )
        trainer.train()
    losses = [entry["train_loss"] for entry in trainer.state.log_history if "train_loss" in entry]
    return {"losses": losses, **left_of(model, trainer.optimizer)}


def peft_lora() -> dict[str, Any]:
    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(language_model(), config)
    left = train(model)
    merged = model.merge_and_unload()
    return {**left, "merged": merged(torch.arange(6)[None]).logits}


def peft_dora_and_ia3() -> dict[str, Any]:
    ids = torch.randint(0, 99, (2, 7))
    dora = peft.LoraConfig(r=2, use_dora=True, target_modules=["q_proj"], task_type="CAUSAL_LM")
    left = {}
    for config in (
        dora,
        peft.IA3Config(task_type="CAUSAL_LM"),
        peft.PromptTuningConfig("CAUSAL_LM", num_virtual_tokens=3),
    ):
        model = peft.get_peft_model(language_model(), config)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        left[type(config).__name__] = left_of(model, optimizer)
    return left


def trainer_with_checkpointing() -> dict[str, Any]:
    options = {"use_reentrant": False}
    return train(language_model(), activation_checkpointing=True, activation_checkpointing_kwargs=options)


def trainer_with_reentrant_checkpointing() -> dict[str, Any]:
    model = language_model()
    model.enable_input_require_grads()
    return train(model, activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": True})


def accelerate_offload() -> dict[str, Any]:
    """Weights are on the CPU or on the disk, and in the model only while their module runs."""
    model = language_model()
    ids = torch.randint(0, 99, (2, 7))
    model(ids, labels=ids).loss.backward()
    left = left_of(model)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        left["offloaded"] = accelerate.cpu_offload(model, torch.device("cpu"))(ids).logits
        places = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "lm_head": "disk"}
        places["model.rotary_emb"] = "cpu"
        dispatched = accelerate.dispatch_model(language_model(), places, main_device="cpu", offload_dir=folder)
        left["dispatched"] = dispatched(ids).logits
    return left


def accelerate_training() -> dict[str, Any]:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # a process has one: a Trainer's was here
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    batches = torch.utils.data.DataLoader(torch.randint(0, 99, (4, 2, 7)), batch_size=None)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(input_ids=batch, labels=batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return left_of(accelerator.unwrap_model(model), optimizer)


def generation() -> dict[str, Any]:
    model = language_model().eval()
    ids = torch.randint(3, 99, (2, 5))
    manners = {
        "sampled": {"do_sample": True, "top_k": 5},
        "beams": {"num_beams": 3},
        "static cache": {"do_sample": False, "cache_implementation": "static"},
    }
    common = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "pad_token_id": 0}
    left = {name: model.generate(ids, **common, **options) for name, options in manners.items()}
    model(ids, labels=ids).loss.backward()
    return {**left, **left_of(model)}


PROGRAMS = [
    peft_lora,
    peft_dora_and_ia3,
    trainer_with_checkpointing,
    trainer_with_reentrant_checkpointing,
    accelerate_offload,
    accelerate_training,
    generation,
]
