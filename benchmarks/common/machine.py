"""What figures were measured with: versions and the machine."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = {"TensorFlow": "tensorflow", "Keras": "keras", "Horovod": "horovod", "tfdist": "tfdist"}

# Vector instructions by their names in Linux, the widest first. TensorFlow's speed depends on them,
# and processors of the same name may have different ones.
VECTORS = ("avx512f", "avx2", "avx")


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def versions(*names: str) -> dict[str, str]:
    """The versions of Python, of these packages of `PACKAGES`, and of tfdist."""
    return {
        "Python": platform.python_version(),
        **{name: version(PACKAGES[name]) for name in (*names, "tfdist")},
    }


def measured_with(*names: str) -> str:
    """These versions and the number of cores, in words."""
    used = ", ".join(f"{name} {number}" for name, number in versions(*names).items())
    return f"{used}, {cores()} cores"


def facts() -> dict[str, Any]:
    """Facts about this machine that step times depend on, apart from versions."""
    processor = Path("/proc/cpuinfo").read_text()
    named = re.search(r"^model name\s*: (.*)$", processor, re.M)
    return {
        "cores": cores(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": named[1] if named else "unknown processor",
        "vectors": next((name for name in VECTORS if name in processor.split()), ""),
    }
