"""Tries TensorFlow, Keras or Horovod and says what it found, for `tfdist doctor`.

`tfdist doctor` runs this file's text in a separate process, where an import may fail or crash
without harm. This file uses nothing of tfdist.
"""

import json
import sys


def tensorflow() -> dict:
    """The version and the devices."""
    import tensorflow as tf

    devices = {kind: len(tf.config.list_physical_devices(kind)) for kind in ("CPU", "GPU")}
    return {"version": tf.__version__, "devices": devices}


def keras() -> dict:
    """The version and the backend."""
    import keras

    return {"version": keras.__version__, "backend": keras.config.backend()}


def server() -> dict:
    """Whether TensorFlow's server starts, as in each process of a job with parameter servers."""
    import tensorflow as tf

    tf.distribute.Server.create_local_server()
    return {"started": True}


def horovod() -> dict:
    """The version, how Horovod was built, and for which TensorFlow."""
    import importlib.util
    import pathlib

    spec = importlib.util.find_spec("horovod")
    if spec is None:
        return {"missing": True}
    import horovod as package

    found = {"version": package.__version__}
    try:
        metadata = pathlib.Path(package.__path__[0]) / "metadata.json"
        found["built_for"] = json.loads(metadata.read_text())["tensorflow"]
    except (OSError, ValueError, KeyError):
        found["built_for"] = None
    print("probe:", json.dumps({"horovod": found}), flush=True)  # if the next import crashes
    import horovod.tensorflow as hvd

    for part in ("gloo", "mpi", "nccl"):
        found[part] = bool(getattr(hvd, f"{part}_built")())
    return found


_PROBES = {"tensorflow": tensorflow, "keras": keras, "server": server, "horovod": horovod}


def main(names: list) -> None:
    """Prints one line for each of `names`."""
    for name in names:
        try:
            found = _PROBES[name]()
        except BaseException as error:
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            if name != "horovod" and isinstance(error, ModuleNotFoundError):
                found["missing"] = error.name == name
        print("probe:", json.dumps({name: found}), flush=True)


main(sys.argv[1:])
