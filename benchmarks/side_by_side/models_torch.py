"""The models of `work.py` for PyTorch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.side_by_side import work


def build(name: str) -> nn.Module:
    """A model that gives logits, with the classes on the last axis."""
    task = work.WORKS[name]
    model = _MODELS[task.model](task)
    # The same initial weights as in Keras. PyTorch's own are smaller and lead to another loss.
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return model


def _mlp(task: work.Work) -> nn.Module:
    sizes = (*task.shape, *work.MLP_UNITS)
    hidden = [
        layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], task.classes))


def _convolved(inputs: int, width: int, kernel: int, stride: int) -> nn.Module:
    padding = kernel // 2
    convolution = nn.Conv2d(inputs, width, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class _ResidualBlock(nn.Module):
    """A residual block. Where a stage begins, the shortcut is a convolution."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.first = _convolved(inputs, width, 3, stride)
        self.second = _convolved(width, width, 3, 1)
        self.shortcut = _convolved(inputs, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + self.shortcut(x))


class _ChannelsFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.movedim(-1, 1)


def _cnn(task: work.Work) -> nn.Module:
    width = work.CNN_WIDTHS[0]
    layers = [_ChannelsFirst(), _convolved(task.shape[-1], width, 3, 1), nn.ReLU()]
    for stage, own in enumerate(work.CNN_WIDTHS):
        for block in range(work.CNN_BLOCKS):
            layers.append(_ResidualBlock(width, own, 2 if stage and not block else 1))
            width = own
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, nn.Linear(width, task.classes))


class _Transformer(nn.Module):
    """Blocks that normalize before attention and before the two dense layers; no positions."""

    def __init__(self, task: work.Work):
        super().__init__()
        self.embedding = nn.Embedding(task.tokens, work.WIDTH)
        block = nn.TransformerEncoderLayer(
            work.WIDTH, work.HEADS, 4 * work.WIDTH, 0.0, batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(work.WIDTH)
        self.blocks = nn.TransformerEncoder(block, work.BLOCKS, norm, enable_nested_tensor=False)
        self.logits = nn.Linear(work.WIDTH, task.classes)
        mask = nn.Transformer.generate_square_subsequent_mask(work.CONTEXT)
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.blocks(self.embedding(x), self.mask, is_causal=True))


class _Embedding(nn.Module):
    def __init__(self, task: work.Work):
        super().__init__()
        self.embedding = nn.Embedding(task.tokens, work.EMBEDDING_WIDTH)
        self.hidden = nn.Linear(work.EMBEDDING_WIDTH, work.EMBEDDING_UNITS)
        self.logits = nn.Linear(work.EMBEDDING_UNITS, task.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(torch.relu(self.hidden(self.embedding(x).mean(dim=1))))


class _Variables(nn.Module):
    """A model of many vectors. Their gradients together cost no more than copies."""

    def __init__(self, count: int, task: work.Work):
        super().__init__()
        size = work.IN_VARIABLES // count
        self.vectors = nn.ParameterList(torch.zeros(size) for _ in range(count))
        self.classes = task.classes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.cat(tuple(self.vectors)).reshape(-1, self.classes).mean(dim=0)


_MODELS: dict[str, Callable[[work.Work], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _Transformer,
    "embedding": _Embedding,
    **{f"variables-{count}": functools.partial(_Variables, count) for count in work.VARIABLES},
}
