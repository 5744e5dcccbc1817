"""The callbacks of examples/python/training_callbacks.py in real trainers: what they record is what the trainers clip to,
and training is that without them."""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import accelerate
import pytest
import pytorch_lightning as lightning
import torch
import transformers
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).parents[2] / "examples" / "python"))

import training_callbacks as recipes

CLIP = 0.05


def total(history: Any, name: str) -> dict[int, float]:
    return {row.step: row.value for row in history.rows("step") if row.tool == "scalars" and row.name == name}


def language_model() -> Any:
    transformers.set_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 99,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=1))


def trained(callbacks: list[Any]) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """The weights at the end, and what the Trainer of Transformers has logged for each step."""
    model = language_model()
    examples = [{"input_ids": row, "labels": row} for row in torch.randint(0, 99, (32, 7))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_grad_norm=CLIP,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=examples, callbacks=callbacks)
        trainer.train()
    return [each.detach().clone() for each in model.parameters()], [
        entry for entry in trainer.state.log_history if "grad_norm" in entry
    ]


def test_in_the_trainer_of_transformers(tmp_path: Path) -> None:
    callback = recipes.TransformersHistory(every=2, find_loss=True, parquet=tmp_path)
    weights, logged = trained([callback])
    history = callback.history
    assert list(total(history, "optimizer_gradient_norm")) == [0, 2]
    for step, norm in total(history, "optimizer_gradient_norm").items():
        # clip_grad_norm_ multiplies by limit / (norm + 1e-6); the Trainer logs the norm before
        assert logged[step]["grad_norm"] > CLIP
        assert norm == pytest.approx(CLIP, rel=1e-3)
    assert {row.name for row in history.rows() if row.quantity == "update_ratio"} >= {
        "model.layers.0.mlp.up_proj.weight"
    }
    assert (tmp_path / "series").exists()
    plain, _ = trained([])
    assert all(map(torch.equal, weights, plain))


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def training_step(self, batch: Any, index: int) -> Any:
        if isinstance(self.fails_at, int) and index == self.fails_at:
            raise ValueError("a broken batch")
        return self.model(batch).square().mean() * 100

    fails_at: int | None = None

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


def fitted(callbacks: list[Any], fails_at: int | None = None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module, batches = Module(), DataLoader(torch.randn(32, 4), batch_size=4)
    module.fails_at = fails_at
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        gradient_clip_val=CLIP,
        accumulate_grad_batches=2,
        callbacks=callbacks,
        **quiet,  # type: ignore[arg-type]
    )
    trainer.fit(module, batches)
    return [each.detach().clone() for each in module.parameters()]


def test_in_lightning(tmp_path: Path) -> None:
    callback = recipes.LightningHistory(every=2, find_loss=True, tensorboard=tmp_path, histograms=True)
    weights = fitted([callback])
    norms = total(callback.history, "optimizer_gradient_norm")
    assert list(norms) == [0, 2]
    assert all(math.isclose(norm, CLIP, rel_tol=1e-3) for norm in norms.values())
    assert {row.name for row in callback.history.rows() if row.quantity == "update_ratio"} >= {"model.0.weight"}
    assert all(map(torch.equal, weights, fitted([])))


def test_in_lightning_an_exception_closes_the_scope() -> None:
    callback = recipes.LightningHistory()
    with pytest.raises(ValueError, match="a broken batch"):
        fitted([callback], fails_at=5)
    assert list(total(callback.history, "optimizer_gradient_norm")) == [0, 1]
    assert "; not entered; " in repr(callback.scope)


def test_with_accelerate() -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # a process has one: a Trainer's was here
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    batches = DataLoader(torch.randint(0, 99, (8, 2, 7)), batch_size=None)  # type: ignore[arg-type]

    def loss_of(prepared: Any, batch: Any) -> Any:
        return prepared(input_ids=batch, labels=batch).loss

    history = recipes.train_with_accelerate(accelerator, model, optimizer, batches, loss_of)
    norms = total(history, "optimizer_gradient_norm")
    assert list(norms) == [0, 1, 2, 3]
    assert all(norm <= 1.0 + 1e-6 for norm in norms.values())
    assert list(total(history, "loss")) == [0, 1, 2, 3]
