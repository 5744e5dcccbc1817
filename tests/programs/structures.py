"""Graphs, volumes and sentences: data that is no plain tensor."""

from __future__ import annotations

from typing import Any

import e3nn.nn
import monai.data
import monai.losses
import monai.networks.nets
import monai.transforms
import torch
import torch_geometric.data
import torch_geometric.nn
import torch_geometric.transforms
from e3nn import o3
from library import left_of
from torch import nn


def geometric_graphs() -> dict[str, Any]:
    left = {}
    edges = torch.randint(0, 10, (2, 30))
    graph = torch_geometric.data.Data(torch.randn(10, 4), edges, y=torch.randint(0, 3, (10,)))
    graph = torch_geometric.transforms.ToUndirected()(graph)
    batch = torch_geometric.data.Batch.from_data_list([graph, graph])
    for kind in (torch_geometric.nn.GCN, torch_geometric.nn.GAT, torch_geometric.nn.GraphSAGE):
        model = kind(4, 8, 2, 3, dropout=0.2)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch.x, batch.edge_index), batch.y).backward()
            optimizer.step()
        pooled = torch_geometric.nn.global_mean_pool(model(batch.x, batch.edge_index), batch.batch)
        left[kind.__name__] = [pooled, left_of(model, optimizer)]
    return left


def monai_segmentation() -> dict[str, Any]:
    """Its tensors are subclasses that carry metadata and pending transforms."""
    prepare = monai.transforms.Compose(
        [monai.transforms.ScaleIntensity(), monai.transforms.RandFlip(0.5), monai.transforms.Resize((16, 16))]
    )
    prepare.set_random_state(0)
    images = torch.stack([prepare(monai.data.MetaTensor(torch.randn(1, 12, 12))) for _ in range(2)])
    model = monai.networks.nets.UNet(2, 1, 2, channels=(4, 8), strides=(2,), norm="batch", dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    criterion = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
    labels = monai.data.MetaTensor(torch.randint(0, 2, (2, 1, 16, 16)))
    for _ in range(2):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    return {"images": images, **left_of(model, optimizer)}


def e3nn_equivariant() -> dict[str, Any]:
    """Tensor products that are generated and scripted."""
    irreps = o3.Irreps("2x0e+1x1o")
    product = o3.FullyConnectedTensorProduct(irreps, "0e+1o", irreps)
    gate = e3nn.nn.Gate("2x0e", [torch.tanh], "1x0e", [torch.sigmoid], "1x1o")
    linear = o3.Linear(irreps, gate.irreps_in)
    positions = torch.randn(6, 3, requires_grad=True)
    harmonics = o3.spherical_harmonics("0e+1o", positions, normalize=True)
    output = gate(linear(product(irreps.randn(6, -1), harmonics)))
    output.square().sum().backward()
    return {"output": output, "positions": positions.grad, "product": left_of(product), "linear": left_of(linear)}


PROGRAMS = [geometric_graphs, e3nn_equivariant, monai_segmentation]
