"""PyTorch's DistributedDataParallel over Gloo; the option "hook" names a communication hook."""

from __future__ import annotations

import os
from importlib.metadata import version

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.side_by_side import models_torch, recording, work


def register(model: DistributedDataParallel, hook: str | None) -> None:
    """Sets the hook; PowerSGD begins as early as it can, since that is what is timed."""
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    recording.join_torch(arguments)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(work.SEED)
    dist.init_process_group("gloo")
    task = work.WORKS[arguments.work]
    model = DistributedDataParallel(models_torch.build(arguments.work))
    register(model, arguments.options.get("hook"))
    optimizer = torch.optim.SGD(model.parameters(), lr=work.LEARNING_RATE, momentum=work.MOMENTUM)
    x, y = map(torch.from_numpy, task.share(dist.get_rank(), dist.get_world_size()))
    recorder = recording.Recorder(arguments, {"torch": version("torch")})
    for step in range(recorder.steps):
        own = slice(step % work.BATCHES * task.batch, (step % work.BATCHES + 1) * task.batch)
        optimizer.zero_grad()
        logits = model(x[own]).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(logits, y[own].flatten().long())
        loss.backward()
        optimizer.step()
        recorder.step_done(loss.item())
    dist.barrier()  # rank 0 serves the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
