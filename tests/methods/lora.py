"""A small transformer and tasks for LoRA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import cuber

Data = list[tuple[Tensor, Tensor]]


def vit(seed: int = 0) -> Any:
    """Return a ViT for images of 8 x 8 with 48 features and two layers."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)


def loss_fn(output: Any, target: Tensor) -> Tensor:
    return functional.cross_entropy(output if isinstance(output, Tensor) else output.logits, target)


def tasks(count: int = 3, samples: int = 64) -> list[Data]:
    """Return tasks of two classes of images with noise in three directions, in batches of 16."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(count):
        centers = torch.randn(2, 1, 8, 8, generator=generator)
        y = torch.arange(samples) % 2
        noise = torch.randn(samples, 3, generator=generator) @ torch.randn(3, 64, generator=generator)
        x = centers[y] + 0.3 * noise.reshape(samples, 1, 8, 8)
        made.append(list(zip(x.split(16), y.split(16), strict=True)))
    return made


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def train(learner: cuber.Method, model: nn.Module, data: Data, optimizer: torch.optim.Optimizer) -> None:
    """Train one epoch."""
    for x, y in data:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    learner.end_epoch()


def learn(learner: cuber.Method, data: Data, make_optimizer: Any = adamw, epochs: int = 3) -> None:
    """Learn one task."""
    learner.begin_task(data, loss_fn)
    optimizer = learner.wrap(make_optimizer(learner.parameters()))
    for _ in range(epochs):
        train(learner, learner.model, data, optimizer)
    learner.end_task(data)
