"""Checks the versions at import: too old is refused, newer than tested is warned of once."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings
from collections.abc import Mapping

from tfdist import environment

# Per package: the oldest supported release, and the first release that was not tested.
_RANGES = {"tensorflow": ((2, 20), (2, 22)), "keras": ((3, 10), (3, 16))}
_warned: set[str] = set()


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def requirement(name: str) -> str:
    """The pip requirement for a release of `name` that tfdist was tested with."""
    (oldest, end) = _RANGES[name]
    return f"{name}>={oldest[0]}.{oldest[1]},<{end[0]}.{end[1]}"


def tested(name: str) -> str:
    """The releases of `name` that tfdist was tested with, such as "2.20-2.21"."""
    oldest, (major, minor) = _RANGES[name]
    return f"{oldest[0]}.{oldest[1]}-{major}.{minor - 1}"


def check(tensorflow: str, keras: str, backend: str, strict: bool = False) -> list[str]:
    """Raises ImportError unless tfdist may run with these versions and this Keras backend.

    Args:
        tensorflow: TensorFlow's version, such as "2.21.0".
        keras: Keras' version.
        backend: the name of Keras' backend.
        strict: whether versions newer than the tested ones are refused too.

    Returns:
        One warning for each package that is newer than the tested versions.
    """
    newer = []
    for name, version in (("tensorflow", tensorflow), ("keras", keras)):
        oldest, end = _RANGES[name]
        is_newer = release(version) >= end
        if release(version) < oldest or (is_newer and strict):
            because = f" and {environment.STRICT_VERSIONS} is set" if is_newer else ""
            raise ImportError(
                f"tfdist needs {name} >= {oldest[0]}.{oldest[1]}, < {end[0]}.{end[1]}. "
                f"Received: {name} {version}{because}. Install it with "
                f"`pip install '{requirement(name)}'`."
            )
        if is_newer:
            newer.append(
                f"tfdist was tested with {name} {tested(name)}, not with {name} {version}. If it "
                f"fails: `pip install '{requirement(name)}'`"
            )
    if backend != "tensorflow":
        raise ImportError(
            "tfdist needs Keras' TensorFlow backend: set the environment variable "
            f"KERAS_BACKEND=tensorflow before importing keras. Received: backend={backend!r}"
        )
    return newer


def is_strict(environ: Mapping[str, str]) -> bool:
    """Whether the environment variables ask to refuse versions newer than the tested ones."""
    value = environ.get(environment.STRICT_VERSIONS, "").strip()
    if value not in ("", "0", "1"):
        raise ImportError(
            f"Set {environment.STRICT_VERSIONS} to 1 to refuse versions that tfdist was not tested "
            f"with, or to 0. Received: {environment.STRICT_VERSIONS}={value!r}"
        )
    return value == "1"


def installed() -> dict[str, str]:
    """The versions of TensorFlow and Keras.

    An imported package is asked for its own version. A nightly build of Keras may lie over the
    release that pip knows.
    """
    versions = {}
    for name in _RANGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        try:
            versions[name] = version or importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = __import__(name).__version__
    return versions


def check_installed() -> None:
    """Checks the installed versions; a warning points at the caller of this function's caller."""
    strict = is_strict(os.environ)
    before = installed()
    check(before["tensorflow"], before["keras"], "tensorflow", strict)  # Keras' import may fail
    import keras

    versions = installed()
    for line in check(versions["tensorflow"], versions["keras"], keras.config.backend(), strict):
        if line not in _warned:
            _warned.add(line)
            warnings.warn(line, stacklevel=3)
