"""Workers and reducers that `horovodrun` has started: they tell each other their addresses."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import urllib.error
import urllib.request

from tfdist import environment
from tfdist.arguments import shown
from tfdist.cluster import Cluster, Launch
from tfdist.cluster.addresses import address_of, reserved_ports, same_place
from tfdist.cluster.peers import connect_timeout, listed

# Where `horovodrun` keeps what its processes want to know of each other: an HTTP server that stores
# what is PUT, and gives it to whoever GETs it.
_HOST, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_OWN_NAME = "HOROVOD_HOSTNAME"
_ELASTIC = "HOROVOD_ELASTIC"
_HERE = "localhost:1"  # like every name of this machine that others cannot use
_SCOPE = "tfdist_reducers"
_PAUSE = 0.1

_open = contextlib.ExitStack()


def cluster_with_reducers(launch: Launch) -> Cluster:
    """The cluster, once all processes have told their addresses.

    The last ranks are the reducers. From here on the process is one of a cluster of TF_CONFIG, and
    the variables of `horovodrun` number the ranks that train.

    Args:
        launch: how this process was started.

    Raises:
        ValueError: when it was not started by `horovodrun`, when too few ranks would be left or
            Horovod is initialized, and when hosts cannot reach one another.
        ConnectionError: when `horovodrun` cannot be reached.
        TimeoutError: when other processes have not told their addresses in time.
    """
    reducers = _checked(launch)
    assert launch.rank is not None
    (port,) = _open.enter_context(reserved_ports(1))
    own = address_of(os.environ[_OWN_NAME], port)
    addresses = _told(launch.rank, launch.size, own)
    workers = launch.size - reducers
    jobs = {"worker": tuple(addresses[:workers]), "reducer": tuple(addresses[workers:])}
    if launch.rank < workers:
        cluster = Cluster(jobs, "worker", launch.rank)
    else:
        cluster = Cluster(jobs, "reducer", launch.rank - workers)
    os.environ["TF_CONFIG"] = cluster.to_tf_config()
    if cluster.rank is not None:
        os.environ.update(HOROVOD_RANK=str(cluster.rank), HOROVOD_SIZE=str(cluster.size))
    return cluster


def _checked(launch: Launch) -> int:
    """The number of reducers."""
    text = os.environ[environment.REDUCERS]
    received = f"Received: {environment.REDUCERS}={shown(text)}"
    if launch.launcher != "Horovod" or any(n not in os.environ for n in (_HOST, _PORT, _OWN_NAME)):
        raise ValueError(
            f"{environment.REDUCERS} is for processes that `horovodrun --gloo` has started: unset "
            "it. Under `mpirun` and others start `tfdist run` on each machine, with --reducers and "
            "--rendezvous; with TF_CONFIG give it a job `reducer`. "
            f"{received}, started by {launch.launcher}"
        )
    if _ELASTIC in os.environ:
        raise ValueError(
            f"Reducers are for jobs whose ranks stay the same. Leave out {environment.REDUCERS}, "
            f"or --min-np and --host-discovery-script. {received}"
        )
    hvd = sys.modules.get("horovod.tensorflow")
    if hvd is not None and hvd.is_initialized():
        raise ValueError(
            "Reducers take no part in operations of Horovod, which would wait for them: leave out "
            f"`horovod.init()`. {received}, and Horovod is initialized"
        )
    most = launch.size - 2
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= most):
        raise ValueError(
            f"{environment.REDUCERS} must be how many of the ranks, the last ones, only sum: at "
            f"least 1, and two ranks must be left. {received} with {launch.size} ranks"
        )
    return int(text)


def _told(rank: int, size: int, own: str) -> list[str]:
    """The addresses of all processes, in the order of their ranks."""
    timeout = connect_timeout()
    end = time.monotonic() + timeout
    _request(rank, own)
    found: dict[int, str] = {}
    while missing := _ask(size, found):
        if time.monotonic() >= end:
            raise TimeoutError(
                f"Of {size} ranks, {listed(missing)} did not make a strategy within {timeout:g} s. "
                "All ranks must run the same script, and make their strategy in it; or set "
                f"{environment.CONNECT_TIMEOUT} to wait longer."
            )
        time.sleep(_PAUSE)
    addresses = [found[other] for other in range(size)]
    here = [same_place(address)[0] == same_place(_HERE)[0] for address in addresses]
    if any(here) and not all(here):
        raise ValueError(
            "Other hosts cannot reach this one by such a name. Name each host in `horovodrun -H` "
            f"as the others know it. Received: {listed(addresses)}"
        )
    return addresses


def _ask(size: int, found: dict[int, str]) -> list[str]:
    """Adds what has been told since; the names of the ranks that have told nothing yet."""
    for other in range(size):
        if other not in found:
            with contextlib.suppress(KeyError):
                found[other] = _request(other)
    return [f"rank {other}" for other in range(size) if other not in found]


def _request(rank: int, address: str | None = None) -> str:
    """Tells the address of a rank, or asks for it; KeyError if nobody has told it yet."""
    url = f"http://{os.environ[_HOST]}:{os.environ[_PORT]}/{_SCOPE}/{rank}"
    data = None if address is None else address.encode()
    request = urllib.request.Request(url, data, method="GET" if data is None else "PUT")
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with straight.open(request, timeout=connect_timeout()) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise KeyError(rank) from None
        raise
    except OSError as error:
        raise ConnectionError(
            f"The rendezvous of `horovodrun` cannot be reached: {error}. Received: "
            f"{_HOST}={os.environ[_HOST]!r}, {_PORT}={os.environ[_PORT]!r}"
        ) from error
