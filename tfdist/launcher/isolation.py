"""A network of the job's own, for `tfdist run --isolate`.

The servers of a job listen on all interfaces, and accept everyone: TensorFlow's server has no
option for either. A new network namespace of Linux has only one interface, the loopback device, and
nobody outside can reach it. Where users may make namespaces, this works without root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys

# <sched.h>, <linux/sockios.h> and <linux/if.h>
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def enter() -> None:
    """Moves this process, and all that it starts from now on, into a network of its own.

    Call it while this process has only one thread. User and group stay the same.

    Raises:
        OSError: in one line, where there are no namespaces or the user may not make them.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(
            f"A network of the job's own needs Linux: leave out --isolate. Received: {sys.platform}"
        )
    try:
        _enter()
    except OSError as error:
        raise OSError(
            "This user may not make a network of the job's own here (in containers, and where user "
            "namespaces are restricted): leave out --isolate and close the machine's ports "
            f"otherwise, see docs/security.md. Received: {error}"
        ) from error


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_CLONE_NEWNET)  # enough for root, who thus keeps all rights to files
    except PermissionError:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _switch_on_loopback()


def _unshare(flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "unshare"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "unshare")
    if library.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _switch_on_loopback() -> None:
    import fcntl  # exists only on Unix

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP) + bytes(22))
