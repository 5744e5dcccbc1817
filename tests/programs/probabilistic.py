"""Gaussian processes, normalizing flows, differential equations, diffusion."""

from __future__ import annotations

from typing import Any

import diffusers
import diffusers.training_utils
import gpytorch
import pyro
import pyro.distributions as distributions
import pyro.infer
import pyro.infer.autoguide
import pyro.optim
import torch
import torchdiffeq
import zuko
from library import left_of
from torch import nn


class Regression(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_exact() -> dict[str, Any]:
    left = {}
    # By Cholesky, and by conjugate gradients with Lanczos.
    for name, size in (("cholesky", 800), ("conjugate gradients", 1)):
        x = torch.linspace(0, 1, 24)
        y = torch.sin(x * 6) + torch.randn(24) * 0.2
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = Regression(x, y, likelihood)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        with gpytorch.settings.max_cholesky_size(size):
            model.train()
            for _ in range(2):
                optimizer.zero_grad()
                (-marginal(model(x), y)).backward()
                optimizer.step()
            model.eval()
            likelihood.eval()
            with torch.no_grad(), gpytorch.settings.fast_pred_var():
                prediction = likelihood(model(torch.linspace(0, 1, 5)))
                left[name] = [prediction.mean, prediction.variance, left_of(model, optimizer)]
    return left


def zuko_flows() -> dict[str, Any]:
    left = {}
    for flow in (
        zuko.flows.NSF(2, context=3, transforms=2, hidden_features=(8, 8)),
        zuko.flows.CNF(2, context=3, hidden_features=(8,)),
    ):
        optimizer = torch.optim.Adam(flow.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            x, context = torch.randn(8, 2), torch.randn(8, 3)
            (-flow(context).log_prob(x).mean()).backward()
            optimizer.step()
        left[type(flow).__name__] = [flow(context[0]).rsample((4,)), left_of(flow, optimizer)]
    return left


class Dynamics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, _: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layers(y**3)


def pyro_inference() -> dict[str, Any]:
    """Stochastic variational inference, and Hamiltonian Monte Carlo."""
    pyro.clear_param_store()
    x = torch.randn(12, 2)
    y = x.sum(-1) + torch.randn(12) * 0.1

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        weight = pyro.sample("weight", distributions.Normal(torch.zeros(2), torch.ones(2)).to_event(1))
        scale = pyro.sample("scale", distributions.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", distributions.Normal(x @ weight, scale), obs=y)

    guide = pyro.infer.autoguide.AutoNormal(model)
    inference = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO())
    losses = [inference.step(x, y) for _ in range(2)]
    kernel = pyro.infer.NUTS(model, max_tree_depth=2)
    chain = pyro.infer.MCMC(kernel, num_samples=2, warmup_steps=1, disable_progbar=True)
    chain.run(x, y)
    parameters = {name: value.detach() for name, value in pyro.get_param_store().items()}
    return {"losses": losses, "samples": chain.get_samples(), **parameters}


def torchdiffeq_adjoint() -> dict[str, Any]:
    left = {}
    for solve in (torchdiffeq.odeint, torchdiffeq.odeint_adjoint):
        model = Dynamics()
        start = torch.randn(4, 2, requires_grad=True)
        path = solve(model, start, torch.linspace(0, 1, 4), method="dopri5", rtol=1e-3)
        path.square().mean().backward()
        left[solve.__name__] = [path.detach(), start.grad, left_of(model)]
    return left


def diffusers_unet() -> dict[str, Any]:
    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    model.enable_gradient_checkpointing()
    scheduler = diffusers.DDPMScheduler(100)
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    averages = diffusers.training_utils.EMAModel(model.parameters())
    for _ in range(2):
        images, noise = torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)
        steps = torch.randint(0, 100, (2,))
        loss = (model(scheduler.add_noise(images, noise, steps), steps).sample - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averages.step(model.parameters())
    pipeline = diffusers.DDPMPipeline(model, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    sampled = pipeline(batch_size=1, num_inference_steps=2, output_type="np").images
    return {"sampled": torch.from_numpy(sampled), "ema": averages.shadow_params, **left_of(model, optimizer)}


PROGRAMS = [gpytorch_exact, zuko_flows, pyro_inference, torchdiffeq_adjoint, diffusers_unet]
