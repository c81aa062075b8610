"""The loop of training that all systems on PyTorch use."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Any

import torch

from benchmarks.side_by_side import recording, work


def optimizer(model: torch.nn.Module, arguments: argparse.Namespace) -> torch.optim.Optimizer:
    """The optimizer of a work."""
    learning_rate = work.WORKS[arguments.work].learning_rate
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=work.MOMENTUM)


def fit(
    model: torch.nn.Module,
    arguments: argparse.Namespace,
    rank: int,
    ranks: int,
    stepping: Any = None,
    packages: tuple[str, ...] = ("torch",),
) -> None:
    """Trains for the recorder's steps.

    Args:
        model: the model.
        arguments: the command line.
        rank: of this process.
        ranks: how many share each global batch.
        stepping: has `zero_grad` and `step`; None for the optimizer of the work.
        packages: whose versions the result depends on.
    """
    stepping = stepping or optimizer(model, arguments)
    batch, task = arguments.batch, work.WORKS[arguments.work]
    x, y = map(torch.from_numpy, task.share(batch, rank, ranks))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    versions = {name: version(name) for name in packages}
    recorder = recording.Recorder(arguments, versions, parameters)
    for step in range(recorder.steps):
        first = step * batch % len(x)
        own = slice(first, first + batch)
        stepping.zero_grad()
        logits = model(x[own]).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(logits, y[own].flatten().long())
        loss.backward()
        stepping.step()
        recorder.step_done(loss.item())
