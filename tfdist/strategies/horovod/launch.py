"""Starts ranks that find each other through Horovod's rendezvous server; needs no TensorFlow."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.cluster.machines import Location, Machine
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
    with _variables(["localhost"] * len(tasks), LOOPBACK) as own:
        interface = {"HOROVOD_GLOO_IFACE": _loopback()}
        yield [{**variables, **interface} for variables in own]


@contextlib.contextmanager
def of_group(host: str, ranks: Sequence[Location]) -> Iterator[list[dict[str, str]]]:
    """The variables for one group of an elastic job; runs Horovod's rendezvous server.

    Args:
        host: the address of this machine.
        ranks: where each rank is.

    Raises:
        ImportError: in one line, where Horovod is not installed.
        OSError: in one line, for an IPv6 address.
    """
    _check_version(host)
    with _variables([_name(rank.machine) for rank in ranks], host) as own:
        yield [{**one, **_on(rank.interface)} for one, rank in zip(own, ranks)]


@contextlib.contextmanager
def across(machines: Sequence[Machine]) -> Iterator[list[dict[str, str]]]:
    """The variables of the ranks on all machines; runs Horovod's rendezvous server on the first.

    Args:
        machines: the machines, in the order of the ranks; this is the first one.

    Raises:
        ImportError: in one line, where Horovod is not installed.
        OSError: in one line, for an IPv6 address.
    """
    _check_version(machines[0].host)
    # Several launchers may be on one machine. Horovod must not take their ranks as one machine's.
    places = [place for place, machine in enumerate(machines) for _ in machine.ports]
    with _variables(list(map(_name, places)), machines[0].host) as own:
        yield [
            {**variables, **_on(machines[place].interface)} for variables, place in zip(own, places)
        ]


def _name(machine: int) -> str:
    return f"machine-{machine}"


def _on(interface: str) -> dict[str, str]:
    return {"HOROVOD_GLOO_IFACE": interface} if interface else {}


def _check_version(host: str) -> None:
    if ":" in host:
        raise OSError(
            "Horovod's rendezvous server knows IPv4 addresses only. "
            f"Received: {host} for the machine with rank 0"
        )


@contextlib.contextmanager
def _variables(hosts: Sequence[str], address: str) -> Iterator[list[dict[str, str]]]:
    """Runs the server.

    Args:
        hosts: the name of each rank's machine.
        address: where the server listens.
    """
    try:
        from horovod.runner.common.util.hosts import SlotInfo
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise ImportError(
            "Horovod cannot be imported: install it with `python scripts/install_horovod.py` in a "
            f"checkout of tfdist, or choose the strategy multi_worker. Received: {error}"
        ) from error
    slots = [SlotInfo(**place) for place in _places(hosts)]
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


def _places(hosts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The place of each rank: among all, on its machine, and among those with that place there.

    Args:
        hosts: the name of each rank's machine.
    """
    counts, before = collections.Counter(hosts), collections.Counter[str]()
    for rank, host in enumerate(hosts):
        local = before[host]
        before[host] += 1
        others = [other for other, count in counts.items() if count > local]
        yield {
            "hostname": host,
            "rank": rank,
            "size": len(hosts),
            "local_rank": local,
            "local_size": counts[host],
            "cross_rank": others.index(host),
            "cross_size": len(others),
        }


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")
