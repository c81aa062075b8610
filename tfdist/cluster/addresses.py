"""Addresses `host:port`: reading them, and finding ports that are free on this machine."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tfdist.arguments import shown

_ADDRESS = re.compile(r"(?P<host>\[[^\[\]]+\]|[A-Za-z0-9._-]+):(?P<port>[1-9][0-9]{0,4})")
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10000
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of an address.

    Args:
        address: "host:port"; an IPv6 host stands in brackets, as in "[::1]:2222".

    Returns:
        The host, without brackets, and the port.

    Raises:
        ValueError: when `address` is no address, or the port is not from 1 to 65535.

    Example:

    >>> from tfdist.cluster.addresses import split_address
    >>> split_address("[fe80::1]:2222")
    ('fe80::1', 2222)
    """
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or int(match["port"]) > 65535 or not _is_host(match["host"]):
        raise ValueError(
            f"An address must be host:port with a port from 1 to 65535. Received: {shown(address)}"
        )
    return match["host"].strip("[]"), int(match["port"])


def address_of(host: str, port: int) -> str:
    """The address "host:port".

    Example:

    >>> from tfdist.cluster.addresses import address_of
    >>> address_of("::1", 2222)
    '[::1]:2222'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def same_place(address: str) -> tuple[str, int]:
    """A key that is equal for all spellings of the same host and port.

    Args:
        address: "host:port". All hosts that always mean this machine (localhost, 127.0.0.1, ::1)
            have the same key, because a server listens on every interface.

    Raises:
        ValueError: when `address` is no address.

    Example:

    >>> from tfdist.cluster.addresses import same_place
    >>> same_place("127.0.0.1:2222") == same_place("LOCALHOST:2222")
    True
    """
    host, port = split_address(address)
    host = host.lower().rstrip(".")
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return ("localhost" if host in _LOOPBACK_NAMES else host), port
    number = getattr(number, "ipv4_mapped", None) or number
    local = number.is_loopback or number.is_unspecified
    return ("localhost" if local else str(number)), port


def _is_host(host: str) -> bool:
    if not host.startswith("["):
        return True
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return host.isascii() and host.isprintable()


def is_local(host: str) -> bool:
    """Whether `host` is this machine, as far as the host's addresses tell.

    Args:
        host: a name or an IP address, without port.

    Example:

    >>> from tfdist.cluster.addresses import is_local
    >>> is_local("localhost")
    True
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        # Only addresses of this machine can be bound.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def listen(port: int) -> socket.socket:
    """A socket that listens on `port` of every interface, as TensorFlow's server does.

    Once the socket is closed, the port can be bound again at once.

    Args:
        port: the port.

    Returns:
        The listening socket, which does not block.

    Raises:
        OSError: when the port is in use, or may not be bound.
    """
    if socket.has_dualstack_ipv6():
        server = socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
        )
    else:
        server = socket.create_server(("", port), backlog=1024)
    server.setblocking(False)
    return server


def is_connected_to_itself(connection: socket.socket) -> bool:
    """Whether both ends are one socket: Linux may do this while nobody listens on a port.

    Args:
        connection: a connected socket.

    Raises:
        OSError: when the socket is not connected, or no longer.
    """
    return connection.getsockname() == connection.getpeername()


def check_port_free(address: str) -> None:
    """Raises unless the port of `address` is free, as far as this machine can tell.

    Args:
        address: "host:port". Where the host is another machine, nothing is checked.

    Raises:
        OSError: in one line, when another process listens on the port, or when it may not be bound.
        ValueError: when `address` is no address.

    Example:

    >>> from tfdist.cluster.addresses import check_port_free, free_ports
    >>> check_port_free(f"localhost:{free_ports(1)[0]}")
    """
    host, port = split_address(address)
    if not is_local(host):
        return
    try:
        listen(port).close()
    except OSError as error:
        raise OSError(port_error(address, error)) from error


def port_error(address: str, error: OSError) -> str:
    """One line that says why this process cannot use the port of its own `address`."""
    port = address.rpartition(":")[2]
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} is in use by another process, perhaps one left from an earlier run: end "
            f"that process or choose another port. Received: {address}"
        )
    reason = error.strerror or error
    return f"Port {port} cannot be used on this machine: {reason}. Received: {address}"


def without_proxy(environ: Mapping[str, str], addresses: Iterable[str]) -> dict[str, str]:
    """The variables that keep TensorFlow's connections to `addresses` away from an HTTP proxy.

    Where `http_proxy` is set, gRPC sends everything through that proxy, and workers wait for each
    other without end. Set the variables before TensorFlow makes its first connection.

    Args:
        environ: the environment variables.
        addresses: "host:port" of the peers.

    Returns:
        The variables to set; no variables where there is no proxy.

    Example:

    >>> from tfdist.cluster.addresses import without_proxy
    >>> without_proxy({"http_proxy": "http://proxy:8080", "no_proxy": "x.org"}, ["a:1", "b:2"])
    {'no_grpc_proxy': 'x.org,a,b'}
    """
    if not any(environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return {}
    before = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    hosts = [*before.split(","), *(split_address(address)[0] for address in addresses)]
    return {"no_grpc_proxy": ",".join(dict.fromkeys(host for host in hosts if host))}


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports while the context is open; only a server that is told of them gets them.

    A server can bind such a port and listen at once if its socket has `SO_REUSEADDR`, as sockets of
    TensorFlow and of Python's `socket.create_server` have. Meanwhile the operating system gives the
    ports to nobody else, and another `reserved_ports` finds them taken.

    Args:
        count: the number of ports.

    Yields:
        The ports, all different.

    Raises:
        OSError: when there are not enough free ports.

    Example:

    >>> from tfdist.cluster.addresses import reserved_ports
    >>> with reserved_ports(2) as ports:
    ...     len(set(ports))
    2
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in _candidates():
            if len(ports) == count:
                break
            with contextlib.suppress(OSError):
                stack.enter_context(_reserve(port))
                ports.append(port)
        if len(ports) < count:
            raise OSError(f"This machine has no {count} free ports.")
        yield ports


def free_ports(count: int) -> list[int]:
    """Ports that are free at the moment.

    Args:
        count: the number of ports.

    Returns:
        The ports, all different. Another process may take them before they are used:
        `reserved_ports` prevents that.

    Raises:
        OSError: when there are not enough free ports.

    Example:

    >>> from tfdist.cluster.addresses import free_ports
    >>> len(free_ports(3))
    3
    """
    with reserved_ports(count) as ports:
        return ports


def _candidates() -> list[int]:
    """Ports in random order, without the range that the system uses for outgoing connections."""
    try:
        end = int(_EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = 32768
    if end <= _FIRST_PORT + 1000:  # an unusual machine: take what there is
        end = 65536
    return random.SystemRandom().sample(range(_FIRST_PORT, end), k=min(end - _FIRST_PORT, 5000))


def _reserve(port: int) -> socket.socket:
    """Binds `port` without listening. Fails if anyone has bound the port, listening or not."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.bind(("", port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        holder.close()
        raise
    return holder
