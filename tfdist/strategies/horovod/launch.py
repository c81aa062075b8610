"""Starts ranks that find each other through Horovod's rendezvous server; needs no TensorFlow."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence

from tfdist.cluster.machines import Machine
from tfdist.cluster.places import LOOPBACK


@contextlib.contextmanager
def environments(
    tasks: Sequence[tuple[str, int]], environ: Mapping[str, str]
) -> Iterator[list[dict[str, str]]]:
    """Runs Horovod's rendezvous server, and tells each rank its place and the server's address.

    Args:
        tasks: one task for each rank.
        environ: the environment variables that all ranks share; not used here.

    Yields:
        The environments, in the order of `tasks`.

    Raises:
        ImportError: in one line, where Horovod is not installed.
    """
    with _variables([("localhost", len(tasks))], LOOPBACK) as own:
        interface = {"HOROVOD_GLOO_IFACE": _loopback()}
        yield [{**variables, **interface} for variables in own]


def of_group(count: int) -> contextlib.AbstractContextManager[list[dict[str, str]]]:
    """The variables of so many ranks on this machine, for one group of an elastic job."""
    return environments([("worker", rank) for rank in range(count)], {})


@contextlib.contextmanager
def across(machines: Sequence[Machine]) -> Iterator[list[dict[str, str]]]:
    """The variables of the ranks on all machines; runs Horovod's rendezvous server on the first.

    Args:
        machines: the machines, in the order of the ranks; this is the first one.

    Raises:
        ImportError: in one line, where Horovod is not installed.
        OSError: in one line, for an IPv6 address.
    """
    if ":" in machines[0].host:
        raise OSError(
            "Horovod's rendezvous server knows IPv4 addresses only. "
            f"Received: {machines[0].host} for the machine with rank 0"
        )
    # Several launchers may be on one machine. Horovod must not take their ranks as one machine's.
    hosts = [(f"machine-{place}", len(machine.ports)) for place, machine in enumerate(machines)]
    interfaces = [machine.interface for machine in machines for _ in machine.ports]
    with _variables(hosts, machines[0].host) as own:
        yield [
            {**variables, **({"HOROVOD_GLOO_IFACE": interface} if interface else {})}
            for variables, interface in zip(own, interfaces)
        ]


@contextlib.contextmanager
def _variables(hosts: Sequence[tuple[str, int]], address: str) -> Iterator[list[dict[str, str]]]:
    """Runs the server.

    Args:
        hosts: the names of hosts, and how many ranks each has.
        address: where the server listens.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise ImportError(
            "Horovod cannot be imported: install it with `make horovod` in a checkout of tfdist, "
            f"or choose the strategy multi_worker. Received: {error}"
        ) from error
    listed = ",".join(f"{name}:{ranks}" for name, ranks in hosts)
    slots = get_host_assignments(parse_hosts(listed), sum(ranks for _, ranks in hosts))
    # `RendezvousServer` of the same module would listen on all interfaces.
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, verbose=0)
    server.daemon_threads = True  # whoever is slow to ask does not hold up the end
    server.init(slots)
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield [
            {
                **common,
                "HOROVOD_HOSTNAME": slot.hostname,
                "HOROVOD_RANK": str(slot.rank),
                "HOROVOD_SIZE": str(slot.size),
                "HOROVOD_LOCAL_RANK": str(slot.local_rank),
                "HOROVOD_LOCAL_SIZE": str(slot.local_size),
                "HOROVOD_CROSS_RANK": str(slot.cross_rank),
                "HOROVOD_CROSS_SIZE": str(slot.cross_size),
            }
            for slot in slots
        ]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")
