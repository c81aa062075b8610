"""PyTorch's `PostLocalSGDOptimizer` over Gloo.

Options: "local", with the number of "steps" of a round. There are rounds from the first step on.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.side_by_side import fitting_torch, models_torch, recording, work


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    recording.join_torch(arguments)
    torch.manual_seed(work.SEED)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(models_torch.build(arguments.work))
    # A host has one rank, so there is nobody to average the gradients of each step with.
    state = post_localSGD_hook.PostLocalSGDState(
        None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False
    )
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    steps = arguments.options["local"]["steps"]
    averager = PeriodicModelAverager(period=steps, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(fitting_torch.optimizer(model, arguments), averager)
    fitting_torch.fit(model, arguments, rank, ranks, optimizer)
    dist.barrier()  # rank 0 must not end first: it serves the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
