"""The machines of a job, and the places of its ranks on them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import ipaddress
import json
import socket
import struct
from collections.abc import Iterator, Sequence

from tfdist.cluster.addresses import address_of
from tfdist.cluster.config import Cluster
from tfdist.cluster.places import LOOPBACK, own_gpus

_SIOCGIFADDR = 0x8915  # netdevice(7)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine offers to a job.

    Attributes:
        host: its address, as other machines reach it.
        interface: the network interface that has this address; "" where it is not known.
        ports: a free port for each rank that it starts, and then for each reducer.
        gpus: its GPUs, as CUDA_VISIBLE_DEVICES names them.
        reducers: the number of reducers.
    """

    host: str
    interface: str
    ports: tuple[int, ...]
    gpus: tuple[str, ...]
    reducers: int = 0

    @property
    def ranks(self) -> int:
        """The number of its ranks."""
        return len(self.ports) - self.reducers

    def kind(self, place: int) -> str:
        """The job of its process number `place`, as in TF_CONFIG."""
        return "worker" if place < self.ranks else "reducer"

    def address(self, place: int) -> str:
        """The address "host:port" of its process number `place`."""
        return address_of(self.host, self.ports[place])


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a rank of an elastic job is.

    Attributes:
        machine: the number of its machine; the launcher on machine 0 says who is in the group.
        interface: as in `Machine`.
    """

    machine: int
    interface: str


@contextlib.contextmanager
def clustered_across(machines: Sequence[Machine]) -> Iterator[list[dict[str, str]]]:
    """The variables of the ranks and reducers on all machines, with TF_CONFIG.

    Args:
        machines: the machines, in the order of the ranks.
    """
    places = [(machine, place) for machine in machines for place in range(len(machine.ports))]
    jobs: dict[str, tuple[str, ...]] = {}
    tasks = []
    for machine, place in places:
        kind = machine.kind(place)
        known = jobs.get(kind, ())
        tasks.append({"type": kind, "index": len(known)})
        jobs[kind] = (*known, machine.address(place))
    config = json.loads(Cluster(jobs, "worker", 0).to_tf_config())
    yield [
        {
            "TF_CONFIG": json.dumps(config | {"task": task}),
            **own_gpus((machine.kind(place), place), max(1, machine.ranks), list(machine.gpus)),
        }
        for task, (machine, place) in zip(tasks, places)
    ]


def interface_of(host: str) -> str:
    """The network interface of this machine that has the IPv4 address `host`; "" for none.

    Example:

    >>> from tfdist.cluster.machines import interface_of
    >>> interface_of("127.0.0.1")
    'lo'
    """
    if ipaddress.ip_address(host).is_loopback:
        host = LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == host:
                    return name
    return ""
