"""Training loops that libraries run, and what they wrap around a model."""

from __future__ import annotations

import copy
from typing import Any

import fastai.learner
import fastai.losses
import fastai.torch_core
import opacus
import pytorch_lightning as lightning
import torch
import torchmetrics
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from library import left_of
from torch import nn
from torch.nn import functional as F


def examples(count: int = 12, classes: int = 4) -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.randn(count, 1, 8, 8), torch.randint(0, classes, (count,)))


def convnet() -> nn.Sequential:
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)]
    return nn.Sequential(*layers)


class Lightning(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.BatchNorm2d(1), convnet(), nn.Dropout(0.1))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=4)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        self.accuracy(self.model(images), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def lightning_fit() -> dict[str, Any]:
    module = Lightning()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
        callbacks=[lightning.callbacks.StochasticWeightAveraging(0.01, swa_epoch_start=1)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(examples(), batch_size=4)
    trainer.fit(module, loader, loader)
    return {"metrics": dict(trainer.callback_metrics), **left_of(module, trainer.optimizers[0])}


def fastai_learner() -> dict[str, Any]:
    """Its tensors are subclasses, with __torch_function__."""
    data = [(fastai.torch_core.TensorImage(x), fastai.torch_core.TensorCategory(y)) for x, y in examples()]
    loaders = DataLoaders(DataLoader(data, bs=4), DataLoader(data, bs=4), device=torch.device("cpu"))
    learner = fastai.learner.Learner(
        loaders, convnet(), fastai.losses.CrossEntropyLossFlat(), metrics=fastai.learner.AvgMetric(error_rate)
    )
    learner.remove_cb(fastai.learner.Recorder)  # prints
    learner.fit(1)
    predictions, labels = learner.get_preds()
    return {"predictions": predictions, "labels": labels, **left_of(learner.model, learner.opt)}


def error_rate(prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(dim=-1) != label).float().mean()


def opacus_private() -> dict[str, Any]:
    """Per-sample gradients: from hooks on modules, from torch.func, and by ghost clipping."""
    left = {}
    for mode in ("hooks", "functorch", "ghost"):
        model, loader = convnet(), torch.utils.data.DataLoader(examples(), batch_size=4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        criterion = nn.CrossEntropyLoss()
        made = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=criterion,
            noise_multiplier=1.1,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
        private, optimizer, *criteria, loader = made
        criterion = criteria[0] if criteria else criterion
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(private(images), labels).backward()
            optimizer.step()
        left[mode] = left_of(model, optimizer)
    return left


def averaged_weights() -> dict[str, Any]:
    model = nn.Sequential(nn.BatchNorm2d(1), convnet())
    loader = torch.utils.data.DataLoader(examples(), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    swa = torch.optim.swa_utils.AveragedModel(model)
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    schedule = torch.optim.swa_utils.SWALR(optimizer, 0.05)
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        swa.update_parameters(model)
        ema.update_parameters(model)
        schedule.step()
    torch.optim.swa_utils.update_bn(loader, swa)
    copied = copy.deepcopy(swa)
    return {"swa": left_of(swa), "ema": left_of(ema), "copy": left_of(copied), **left_of(model, optimizer)}


def mixed_precision() -> dict[str, Any]:
    model = convnet()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for images, labels in torch.utils.data.DataLoader(examples(), batch_size=4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return {"scale": scaler.get_scale(), **left_of(model, optimizer)}


def every_optimizer() -> dict[str, Any]:
    left = {}
    images, labels = examples().tensors
    for kind in (torch.optim.LBFGS, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Rprop, torch.optim.Muon):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))
        optimizer = kind(model.parameters(), lr=0.1)

        def loss(model: nn.Module = model) -> torch.Tensor:
            model.zero_grad()
            value = F.cross_entropy(model(images), labels)
            value.backward()
            return value

        for _ in range(2):
            optimizer.step(loss)
        left[kind.__name__] = left_of(model, optimizer)
    return left


PROGRAMS = [
    lightning_fit,
    fastai_learner,
    opacus_private,
    averaged_weights,
    mixed_precision,
    every_optimizer,
]
