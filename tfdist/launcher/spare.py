"""A process that waits to become a rank: it imports what each rank needs, and runs a script then.

python -m tfdist.launcher.spare SCRIPT|-m MODULE [ARGS]...

What `tfdist run --spares` starts. The process waits until the launcher sends it anything over the
connection that ranks of an elastic job have; see `tfdist.elastic.link`.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys

from tfdist.environment import ELASTIC

# These take almost all of the time that a rank needs before it begins.
_IMPORTED = ("tensorflow", "keras", "tfdist", "tfdist.strategies.elastic")


def main() -> None:
    """Waits for the launcher, and runs the script as Python would."""
    for name in _IMPORTED:
        importlib.import_module(name)
    if not _is_called():
        sys.exit("The launcher of this job has ended, so this process ends too.")
    first, *rest = sys.argv[1:]
    if first == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        runpy.run_path(os.path.abspath(first), run_name="__main__")


def _is_called() -> bool:
    """Waits for the launcher. Returns whether it has sent something, which stays to be read."""
    descriptor = int(os.environ[ELASTIC].partition(":")[0])
    with socket.socket(fileno=os.dup(descriptor)) as link:
        return bool(link.recv(1, socket.MSG_PEEK))


if __name__ == "__main__":
    main()
