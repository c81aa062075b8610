"""Starts ranks that find each other through Horovod's rendezvous server; needs no TensorFlow."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence

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
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise ImportError(
            "Horovod cannot be imported: install it with `make horovod` in a checkout of tfdist, "
            f"or choose the strategy multi_worker. Received: {error}"
        ) from error
    slots = get_host_assignments(parse_hosts(f"localhost:{len(tasks)}"), len(tasks))
    # `RendezvousServer` of the same module would listen on all interfaces.
    server = RendezvousHTTPServer((LOOPBACK, 0), RendezvousHandler, verbose=0)
    server.init(slots)
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": _loopback(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK,
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
