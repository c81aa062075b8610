"""What each process of a job of sharding.py runs for PyTorch; rank 0 writes what all measured."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.process import begin_peak, resident, sent_here
from benchmarks.side_by_side.models_torch import build
from benchmarks.side_by_side.recording import join_torch
from benchmarks.side_by_side.work import WORKS


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--sharding", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+")
    return parser.parse_args()


def chain(layers: int, width: int) -> torch.nn.Sequential:
    """Dense layers and their activations."""
    pairs = [(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(layers)]
    return torch.nn.Sequential(*[part for pair in pairs for part in pair])


def shared_parts(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that are divided one by one: all of a chain; a Transformer's blocks and tables."""
    kinds = torch.nn.TransformerEncoderLayer, torch.nn.Embedding, torch.nn.Linear
    found: list[torch.nn.Module] = []
    for layer in model.children():
        found += [layer] if isinstance(layer, kinds) else shared_parts(layer)
    return found


def built(model: torch.nn.Module, sharding: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model and Adam, divided among the ranks as PyTorch does it."""
    if sharding in ("gradients", "parameters"):
        for layer in shared_parts(model):
            fully_shard(layer, reshard_after_forward=sharding == "parameters")
        fully_shard(model)
        return model, torch.optim.Adam(model.parameters())
    model = DistributedDataParallel(model)
    if sharding == "optimizer":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    return model, torch.optim.Adam(model.parameters())


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a Transformer."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def words(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts, and for each word the next one."""
    return tuple(torch.from_numpy(part[:batch]).long() for part in WORKS["words"].samples(batch))


def main() -> None:
    """Measures the peak memory above an idle process, bytes and seconds of a step."""
    arguments = parse_arguments()
    interface = "lo"
    if arguments.host:
        interface = "eth0"
        place = {"rank": arguments.host[0], "addresses": arguments.host[2:], "interface": interface}
        join_torch(argparse.Namespace(**place))
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    torch.ones(64, 64) @ torch.ones(64, 64)
    gc.collect()
    idle = resident("VmRSS")
    begin_peak()
    torch.manual_seed(0)
    batch = arguments.batch // ranks
    if arguments.model == "words":
        whole, (x, y), loss = build("words"), words(batch), cross_entropy
    else:
        whole, loss = chain(arguments.layers, arguments.width), mse_loss
        x = y = torch.randn(batch, arguments.width)
    parameters = sum(parameter.numel() for parameter in whole.parameters())
    model, optimizer = built(whole, arguments.sharding)
    making = resident("VmHWM") - idle

    def train(steps: int) -> list[float]:
        ends = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            ends.append(time.perf_counter())
        return ends

    train(2)
    begin_peak()
    dist.barrier()
    sent = sent_here(interface)
    ends = train(arguments.steps)
    dist.barrier()
    sent = sent_here(interface) - sent
    peaks = torch.tensor([resident("VmHWM") - idle, making])
    dist.all_reduce(peaks, dist.ReduceOp.MAX)
    peak, making = peaks.tolist()
    found = {
        "parameters": parameters,
        "peak": peak,
        "making": making,
        "sent": sent / arguments.steps / (1 if arguments.host else ranks),
        "seconds": statistics.median(end - start for start, end in itertools.pairwise(ends)),
    }
    if rank == 0:
        arguments.path.write_text(json.dumps(found))
    dist.barrier()  # rank 0 must not end first: it serves the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
