"""What each process of a job of sharding.py runs for PyTorch; rank 0 writes what all measured."""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.process import begin_peak, resident, sent_here


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--sharding", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    return parser.parse_args()


def chain(layers: int, width: int) -> torch.nn.Sequential:
    """Dense layers and their activations."""
    pairs = [(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(layers)]
    return torch.nn.Sequential(*[part for pair in pairs for part in pair])


def built(sharding: str, layers: int, width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model and Adam, divided among the ranks as PyTorch does it."""
    model: torch.nn.Module = chain(layers, width)
    if sharding in ("gradients", "parameters"):
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, reshard_after_forward=sharding == "parameters")
        fully_shard(model)
        return model, torch.optim.Adam(model.parameters())
    model = DistributedDataParallel(model)
    if sharding == "optimizer":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    return model, torch.optim.Adam(model.parameters())


def main() -> None:
    """Measures the peak memory above an idle process, bytes and seconds of a step."""
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    torch.ones(64, 64) @ torch.ones(64, 64)
    gc.collect()
    idle = resident("VmRSS")
    begin_peak()
    torch.manual_seed(0)
    model, optimizer = built(arguments.sharding, arguments.layers, arguments.width)
    making = resident("VmHWM") - idle
    x = torch.randn(arguments.batch // ranks, arguments.width)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x).backward()
            optimizer.step()

    train(2)
    begin_peak()
    dist.barrier()
    sent, start = sent_here(), time.perf_counter()
    train(arguments.steps)
    seconds = time.perf_counter() - start
    dist.barrier()
    sent = sent_here() - sent
    peaks = torch.tensor([resident("VmHWM") - idle, making])
    dist.all_reduce(peaks, dist.ReduceOp.MAX)
    peak, making = peaks.tolist()
    found = {
        "parameters": arguments.layers * (arguments.width + 1) * arguments.width,
        "peak": peak,
        "making": making,
        "sent": sent / arguments.steps / ranks,
        "seconds": seconds / arguments.steps,
    }
    if rank == 0:
        arguments.path.write_text(json.dumps(found))
    dist.barrier()  # rank 0 must not end first: it serves the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
