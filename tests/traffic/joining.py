"""How a program on one of the hosts of `tests.traffic.network` finds those on the others."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import time
from collections.abc import Sequence

PORT = 3456


def join(
    backend: str,
    rank: int,
    folder: pathlib.Path,
    addresses: Sequence[str],
    interface: str = "eth0",
) -> None:
    """Sets the environment variables from which `tfdist.Strategy(backend)` learns its place.

    Args:
        backend: "multi_worker" or "horovod".
        rank: the number of this host.
        folder: where the ranks, which share a file system, leave word for each other.
        addresses: of all hosts; as often as the host has ranks, one after the other.
        interface: of the network that connects them.
    """
    if backend == "multi_worker":
        _join_multi_worker(rank, addresses)
    else:
        _join_horovod(rank, folder, addresses, interface)


def _join_multi_worker(rank: int, addresses: Sequence[str]) -> None:
    # A port for each, as the addresses may be of one machine.
    workers = [f"{address}:{PORT + number}" for number, address in enumerate(addresses)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )


def _join_horovod(
    rank: int, folder: pathlib.Path, addresses: Sequence[str], interface: str
) -> None:
    """Rank 0 serves the rendezvous, where all ranks meet."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    counts = collections.Counter(addresses)
    hosts = parse_hosts(",".join(f"{address}:{count}" for address, count in counts.items()))
    slots = get_host_assignments(hosts, len(addresses))
    port_file = folder / "rendezvous"
    if rank == 0:
        server = RendezvousServer()
        port = server.start()
        server.init(slots)
        port_file.with_suffix(".partial").write_text(str(port))
        port_file.with_suffix(".partial").rename(port_file)
    while not port_file.exists():
        time.sleep(0.05)
    slot = slots[rank]
    os.environ.update(
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE=interface,
        HOROVOD_GLOO_RENDEZVOUS_ADDR=addresses[0],
        HOROVOD_GLOO_RENDEZVOUS_PORT=port_file.read_text(),
        HOROVOD_HOSTNAME=slot.hostname,
        HOROVOD_RANK=str(slot.rank),
        HOROVOD_SIZE=str(slot.size),
        HOROVOD_LOCAL_RANK=str(slot.local_rank),
        HOROVOD_LOCAL_SIZE=str(slot.local_size),
        HOROVOD_CROSS_RANK=str(slot.cross_rank),
        HOROVOD_CROSS_SIZE=str(slot.cross_size),
    )
