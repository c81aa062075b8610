"""The secret by which the launchers of a job know each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfdist.environment import SECRET, SECRET_FILE

_FEWEST = 16
_HOW = (
    "Write one secret, as with `openssl rand -hex 32 > secret`, put it on every machine, and name "
    f"the file: `--secret-file secret`, or the environment variable {SECRET_FILE}. Or put the "
    f"secret itself into {SECRET}. It is never part of a command line, which all users can read"
)


def read(file: str | None, environ: Mapping[str, str]) -> bytes:
    """The secret.

    Args:
        file: the path of a file that contains it; None for what the environment says.
        environ: the environment variables.

    Raises:
        ValueError: when there is no secret, or a short one.
        OSError: when the file cannot be read.

    Example:

    >>> from tfdist.rendezvous import secret
    >>> secret.read(None, {"TFDIST_SECRET": "0123456789abcdef"})
    b'0123456789abcdef'
    """
    path = file or environ.get(SECRET_FILE)
    found = Path(path).read_text() if path else environ.get(SECRET, "")
    found = found.strip()
    if not found:
        raise ValueError(f"{_HOW}. Received: no secret")
    if len(found) < _FEWEST:
        raise ValueError(
            f"The secret must have at least {_FEWEST} characters. {_HOW}. "
            f"Received: a secret of {len(found)} characters"
        )
    return found.encode()
