"""A process that waits to become a rank: it imports what each rank needs, and runs a script then.

python tfdist/launcher/spare.py SCRIPT|-m MODULE [ARGS]...

What `tfdist run --spares` starts, by its path, so that nothing is imported from another place than
in other ranks. The process waits until the launcher sends it anything over the connection that
ranks of an elastic job have; see `tfdist.elastic.link`.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys

# These take almost all of the time that a rank needs before it begins.
_IMPORTED = ("tensorflow", "keras", "tfdist", "tfdist.strategies.elastic")


def main() -> None:
    """Waits for the launcher, and runs the script as Python would."""
    first, *rest = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if first == "-m" else os.path.dirname(os.path.realpath(first))
    for name in _IMPORTED:
        importlib.import_module(name)
    from tfdist.elastic import membership

    membership.wait_to_be_called()
    if first == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [first, *rest]
        runpy.run_path(os.path.abspath(first), run_name="__main__")


if __name__ == "__main__":
    main()
