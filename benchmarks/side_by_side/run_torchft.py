"""torchft's local SGD and DiLoCo over Gloo.

Options: "algorithm", and "local" with the number of "steps" of a round.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

from benchmarks.side_by_side import fitting_torch, models_torch, recording, work
from tests.traffic import joining

# Of a quorum and of an exchange. On a slow link an exchange takes half a minute.
DEADLINE = datetime.timedelta(minutes=10)
# Of rank 0, where all meet.
LIGHTHOUSE_PORT = joining.PORT + 1


@contextlib.contextmanager
def managed(arguments: argparse.Namespace, state: Any) -> Iterator[Manager]:
    """A manager of replicas: each host is one, and all take part in each round.

    Args:
        arguments: the command line.
        state: has `load_state_dict` and `state_dict`.
    """
    addresses, rank = arguments.addresses, arguments.rank
    with contextlib.ExitStack() as stack:
        if rank == 0:
            server = LighthouseServer(bind=f"[::]:{LIGHTHOUSE_PORT}", min_replicas=len(addresses))
            stack.callback(server.shutdown)
        # Each replica has a store; the other one's comes there, too.
        store = dist.TCPStore(addresses[rank], 0, is_master=True, wait_for_workers=False)
        manager = Manager(
            pg=ProcessGroupGloo(timeout=DEADLINE),
            load_state_dict=state.load_state_dict,
            state_dict=state.state_dict,
            min_replica_size=len(addresses),
            use_async_quorum=False,
            timeout=DEADLINE,
            quorum_timeout=DEADLINE,
            connect_timeout=DEADLINE,
            rank=0,
            world_size=1,
            store_addr=addresses[rank],
            store_port=store.port,
            lighthouse_addr=f"http://{addresses[0]}:{LIGHTHOUSE_PORT}",
            replica_id=str(rank),
            hostname=addresses[rank],
            init_sync=False,  # all begin with the same seed
        )
        stack.callback(manager.shutdown)
        yield manager


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    recording.join_torch(arguments)
    torch.manual_seed(work.SEED)
    model = models_torch.build(arguments.work)
    inner = fitting_torch.optimizer(model, arguments)
    steps = arguments.options["local"]["steps"]
    with managed(arguments, model) as manager:
        if arguments.options["algorithm"] == "diloco":
            outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            rounds = DiLoCo(manager, [model], inner, outer, sync_every=steps)
        else:
            rounds = LocalSGD(manager, model, inner, sync_every=steps)
        place = (arguments.rank, arguments.ranks)
        with rounds:
            fitting_torch.fit(model, arguments, *place, inner, ("torch", "torchft"))


if __name__ == "__main__":
    main()
