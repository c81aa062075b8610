"""PyTorch's DistributedDataParallel over Gloo.

Options: "hook", a communication hook's name; "single" for one device without any exchange.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.side_by_side import fitting_torch, models_torch, recording, work


def distributed(model: torch.nn.Module, hook: str | None) -> DistributedDataParallel:
    """The model with a hook. PowerSGD begins as early as it can, because PowerSGD is timed."""
    if hook == "powersgd":
        # With more buckets Gloo aborts ("op.preamble.length <= op.nbytes"). A bucket's second
        # collective starts when its first has ended, so the order may differ between ranks.
        parallel = DistributedDataParallel(model, bucket_cap_mb=1024)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2
        )
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return parallel
    parallel = DistributedDataParallel(model)
    if hook == "fp16":
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return parallel


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    recording.join_torch(arguments)
    torch.manual_seed(work.SEED)
    model: torch.nn.Module = models_torch.build(arguments.work)
    rank, ranks = 0, 1
    if not arguments.options.get("single"):
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        model = distributed(model, arguments.options.get("hook"))
    fitting_torch.fit(model, arguments, rank, ranks)
    if ranks > 1:
        dist.barrier()  # rank 0 must not end first: it serves the others
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
