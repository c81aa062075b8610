"""Waits until all workers are there, before TensorFlow's own server starts.

TensorFlow waits for missing peers too, but for an hour, and without saying which ones are missing.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Sequence

from tfdist import environment
from tfdist.arguments import check_instance, shown
from tfdist.cluster.addresses import listen, port_error, split_address
from tfdist.cluster.reaching import Peer, names_of_missing
from tfdist.limits import MOST_SECONDS

DEFAULT_TIMEOUT = 60.0

_MOST_NAMED = 8


def wait_for_peers(
    addresses: Sequence[str], rank: int, timeout: float | None = None, *, reducers: int = 0
) -> None:
    """Returns when every worker has been reached; raises when some are missing for too long.

    All workers call this before they start TensorFlow's server. Meanwhile each worker listens on
    its own port and connects to the ports of the others. Nothing is sent, so a peer that already
    runs TensorFlow's server counts too. Afterwards the own port is free for TensorFlow's server.

    Args:
        addresses: the workers' addresses "host:port", in the order of their ranks.
        rank: the place of this process in `addresses`.
        timeout: seconds to wait. None for the environment variable TFDIST_CONNECT_TIMEOUT, which
            is 60 where it is not set.
        reducers: how many of `addresses`, the last ones, are those of reducers.

    Raises:
        TimeoutError: in one line, with the rank and address of each peer that is missing.
        OSError: in one line, when the own port is in use.
        ValueError: when `timeout` or TFDIST_CONNECT_TIMEOUT is no positive number, and when
            `rank`, `reducers` or an address is not valid.

    Example:

    >>> from tfdist.cluster import wait_for_peers
    >>> from tfdist.cluster.addresses import free_ports
    >>> wait_for_peers([f"localhost:{free_ports(1)[0]}"], rank=0)  # nobody to wait for
    """
    timeout = connect_timeout(timeout)
    check_instance("addresses", addresses, Sequence, "list of addresses")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(addresses):
        raise ValueError(
            f"`rank` must be the place of this worker among {len(addresses)}. Received: "
            f"rank={shown(rank)}"
        )
    if (
        isinstance(reducers, bool)
        or not isinstance(reducers, int)
        or (not 0 <= reducers < len(addresses))
    ):
        raise ValueError(
            f"`reducers` must be how many of {len(addresses)} addresses are those of reducers, and "
            f"one must be a worker's. Received: reducers={shown(reducers)}"
        )
    names = _names(len(addresses) - reducers, reducers) if reducers else None
    missing = missing_peers(addresses, rank, timeout, names)
    if missing:
        workers = "Workers " if len(missing) > 1 else "Worker "
        subject = listed(missing) if reducers else workers + listed(missing)
        own = names[rank] if names else f"worker {rank}"
        everyone = "workers and reducers" if reducers else "workers"
        raise TimeoutError(
            f"{subject} could not be reached within {timeout:g} s by {own} ({addresses[rank]}), "
            f"which is one of {len(addresses)}. Start all {everyone}, "
            f"check their addresses and the firewalls between them, or set "
            f"{environment.CONNECT_TIMEOUT} to "
            f"wait longer. Received: addresses={shortened(addresses)}"
        )


def _names(workers: int, reducers: int) -> list[str]:
    """What the processes are called where some are reducers."""
    return [
        *(f"worker {number}" for number in range(workers)),
        *(f"reducer {number}" for number in range(reducers)),
    ]


def missing_peers(
    addresses: Sequence[str], rank: int, timeout: float, names: Sequence[str] | None = None
) -> list[str]:
    """Waits for all peers, as `wait_for_peers` does, and tells which ones are missing.

    Args:
        addresses: the addresses "host:port" of all processes.
        rank: the place of this process in `addresses`.
        timeout: seconds to wait.
        names: the names of the processes; None for their places in `addresses`.

    Returns:
        The name, address and problem of each peer that could not be reached.

    Raises:
        OSError: in one line, when the own port is in use.
        ValueError: when an address is not valid.

    Example:

    >>> from tfdist.cluster.addresses import free_ports
    >>> from tfdist.cluster.peers import missing_peers
    >>> own = f"localhost:{free_ports(1)[0]}"
    >>> missing_peers([own, "localhost:1"], 0, timeout=0.1, names=["chief", "ps 0"])
    ['ps 0 (localhost:1: connection refused)']
    """
    names = names or [str(place) for place in range(len(addresses))]
    peers = [Peer(n, a, *split_address(a)) for n, a in zip(names, addresses)]
    del peers[rank]
    _, port = split_address(addresses[rank])
    try:
        server = listen(port)
    except OSError as error:
        raise OSError(port_error(addresses[rank], error)) from error
    with server, selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        return names_of_missing(peers, selector, timeout)


def connect_timeout(timeout: float | None = None) -> float:
    """The seconds to wait for peers.

    Args:
        timeout: what the caller wants; None for TFDIST_CONNECT_TIMEOUT, or else 60.

    Returns:
        The number of seconds.

    Raises:
        ValueError: when the number is not positive, or more than 1,000,000.

    Example:

    >>> from tfdist.cluster.peers import connect_timeout
    >>> connect_timeout(5)
    5.0
    """
    name = "timeout"
    given: float | str = timeout if timeout is not None else DEFAULT_TIMEOUT
    if timeout is None and os.environ.get(environment.CONNECT_TIMEOUT):
        name, given = environment.CONNECT_TIMEOUT, os.environ[environment.CONNECT_TIMEOUT]
    try:
        seconds = float(given)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if isinstance(given, bool) or not 0 < seconds <= MOST_SECONDS:
        raise ValueError(
            f"{name} must be a number of seconds > 0, {MOST_SECONDS:,.0f} at most. "
            f"Received: {name}={shown(given)}"
        )
    return seconds


def listed(names: Sequence[str]) -> str:
    """Names for a message: the first names, and the number of further names.

    Example:

    >>> from tfdist.cluster.peers import listed
    >>> listed(["ps 0", "ps 1"])
    'ps 0, ps 1'
    """
    shown = [*names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        shown.append(f"{len(names) - _MOST_NAMED} more")
    return ", ".join(shown)


def shortened(addresses: Sequence[str]) -> str:
    """Addresses for a message: only the first addresses.

    Example:

    >>> from tfdist.cluster.peers import shortened
    >>> shortened(["a:2222"])
    "['a:2222']"
    """
    shown = list(addresses[:_MOST_NAMED])
    return f"{shown[:-1]} and more" if len(addresses) > _MOST_NAMED else f"{shown}"
