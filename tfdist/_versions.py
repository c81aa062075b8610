"""Refuses, at import, versions and backends that tfdist was not tested with."""

from __future__ import annotations

import importlib.metadata

_TENSORFLOW = ((2, 20), (2, 22))
_KERAS = ((3, 10), (3, 16))


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check(tensorflow: str, keras: str, backend: str) -> None:
    """Raises ImportError unless the versions and the Keras backend are supported.

    Args:
        tensorflow: TensorFlow's version, such as "2.21.0".
        keras: Keras' version.
        backend: the name of Keras' backend.
    """
    for name, version, (oldest, end) in (
        ("tensorflow", tensorflow, _TENSORFLOW),
        ("keras", keras, _KERAS),
    ):
        if not oldest <= release(version) < end:
            raise ImportError(
                f"tfdist needs {name} >= {oldest[0]}.{oldest[1]}, < {end[0]}.{end[1]}. "
                f"Received: {name} {version}. Install it with "
                f"`pip install '{name}>={oldest[0]}.{oldest[1]},<{end[0]}.{end[1]}'`."
            )
    if backend != "tensorflow":
        raise ImportError(
            "tfdist needs Keras' TensorFlow backend: set the environment variable "
            f"KERAS_BACKEND=tensorflow before importing keras. Received: backend={backend!r}"
        )


def check_installed() -> None:
    """Checks what is installed, before anything of it is imported but Keras' configuration."""
    versions = {}
    for name in ("tensorflow", "keras"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            module = __import__(name)
            versions[name] = module.__version__
    import keras

    check(versions["tensorflow"], versions["keras"], keras.config.backend())
