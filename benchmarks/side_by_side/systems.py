"""The systems that are compared: the script, the environment and the options of each system."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.local_sgd.choices import CHOICES, STEPS

OWN, PEERS_TF, PEERS_TORCH = "own", "tf", "torch"


@dataclasses.dataclass(frozen=True)
class System:
    """How one system is run.

    Attributes:
        title: the title in tables.
        script: a module of this folder.
        environment: where the system is installed: `OWN`, `PEERS_TF` or `PEERS_TORCH`.
        options: the options of the script.
        single: whether the system runs on one host only.
        trains: False for a system that only exchanges as many bytes.
        exchanges: False for hosts that know nothing of each other.
        variables: environment variables for this system only.
    """

    title: str
    script: str
    environment: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    single: bool = False
    trains: bool = True
    exchanges: bool = True
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def floor(self) -> str | None:
        """The system that trains on one device with the same framework; None without training."""
        if not self.trains:
            return None
        if self.environment == PEERS_TORCH:
            return "torch"
        return "keras" if self.environment == OWN else "tf-keras"

    def python(self, peers: str) -> str:
        """The Python interpreter of the system.

        Args:
            peers: the beginning of the names of the folders of `install_peers.py`.
        """
        if self.environment == OWN:
            return sys.executable
        return f"{peers}-{self.environment}/bin/python"


MIXED = "mixed"
_POWERSGD = {"name": "powersgd", "rank": 4}


def _tfdist(strategy: str) -> dict[str, System]:
    options: dict[str, Mapping[str, Any] | None] = {
        "": None,
        "fp16": {"name": "fp16"},
        "topk": {"name": "topk"},
        "signsgd": {"name": "signsgd"},
        "powersgd": _POWERSGD,
        MIXED: {"*kernel": _POWERSGD, "*embeddings": _POWERSGD, "*": "fp16"},
    }
    titles = {MIXED: "powersgd, vectors in fp16"}
    return {
        f"tfdist-{strategy}{'-' if name else ''}{name}": System(
            f"tfdist `{strategy}`{', ' if name else ''}{titles.get(name, name)}",
            "run_tfdist",
            OWN,
            {"strategy": strategy, "compression": compression},
        )
        for name, compression in options.items()
    }


def _single(title: str, script: str, environment: str, **options: Any) -> System:
    return System(title, script, environment, options, single=True, exchanges=False)


COMPARED: dict[str, System] = {
    **_tfdist("horovod"),
    **_tfdist("multi_worker"),
    "horovod": System("Horovod, tf_keras", "run_tf_keras", PEERS_TF, {"engine": "horovod"}),
    "horovod-fp16": System(
        "Horovod, tf_keras, fp16", "run_tf_keras", PEERS_TF, {"engine": "horovod", "fp16": True}
    ),
    "horovod-alone": System("Horovod's all-reduce alone", "run_all_reduce", PEERS_TF, trains=False),
    "mwms": System("MultiWorkerMirrored, tf_keras", "run_mwms", PEERS_TF, {"keras": "tf_keras"}),
    "mwms-keras3": System("MultiWorkerMirrored, Keras 3", "run_mwms", PEERS_TF, {"keras": "keras"}),
    "ddp": System("PyTorch DDP", "run_torch", PEERS_TORCH),
    "ddp-fp16": System("PyTorch DDP, fp16", "run_torch", PEERS_TORCH, {"hook": "fp16"}),
    "ddp-powersgd": System(
        "PyTorch DDP, PowerSGD rank 4", "run_torch", PEERS_TORCH, {"hook": "powersgd"}
    ),
    "keras": _single("Keras 3, one device", "run_keras", OWN),
    "keras-eigen": System(
        "Keras 3, one device, without oneDNN",
        "run_keras",
        OWN,
        single=True,
        exchanges=False,
        variables={"TF_ENABLE_ONEDNN_OPTS": "0"},
    ),
    # The devices of hosts that share a machine are slower than one device alone.
    "keras-beside": System(
        "Keras 3, a device on each host, nothing exchanged", "run_keras", OWN, exchanges=False
    ),
    "keras-late": _single(
        "Keras 3, one device, update after all gradients", "run_keras", OWN, late=True
    ),
    "torch": _single("PyTorch, one device", "run_torch", PEERS_TORCH, single=True),
    "tf-keras": _single("tf_keras, one device", "run_tf_keras", PEERS_TF, engine="single"),
}

# The systems for `overlap.py`.
OVERLAP = {
    f"overlap-{name}": System(f"tfdist `{name}`", "run_overlap", OWN, {"strategy": name})
    for name in ("horovod", "multi_worker")
}

# The systems for `local_steps.py`.
LOCAL = {
    **{
        f"local-{strategy}-{key}": System(
            f"tfdist `{strategy}`, {choice.title}",
            "run_tfdist",
            OWN,
            {"strategy": strategy, "compression": choice.compression, "local": choice.local},
        )
        for strategy in ("multi_worker", "horovod")
        for key, choice in CHOICES.items()
    },
    **{
        name: System(
            f"{title}, H = {STEPS}",
            script,
            PEERS_TORCH,
            {"algorithm": algorithm, "local": {"steps": STEPS}},
        )
        for name, title, script, algorithm in (
            ("post_local_sgd", "PyTorch PostLocalSGDOptimizer", "run_post_local", "local_sgd"),
            ("torchft_local_sgd", "torchft LocalSGD", "run_torchft", "local_sgd"),
            ("torchft_diloco", "torchft DiLoCo", "run_torchft", "diloco"),
        )
    },
}
SYSTEMS = COMPARED | OVERLAP | LOCAL
