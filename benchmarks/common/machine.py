"""What a figure was measured with: versions and the machine."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = {"TensorFlow": "tensorflow", "Keras": "keras", "Horovod": "horovod", "tfdist": "tfdist"}

# Vector instructions, the widest first, as Linux calls them. How fast TensorFlow multiplies depends
# on them, and processors of the same name differ.
VECTORS = ("avx512f", "avx2", "avx")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def versions(*names: str) -> dict[str, str]:
    """Of Python, of these of `PACKAGES`, and of tfdist."""
    return {
        "Python": platform.python_version(),
        **{name: version(PACKAGES[name]) for name in (*names, "tfdist")},
    }


def measured_with(*names: str) -> str:
    """The same in words, with the number of cores."""
    used = ", ".join(f"{name} {number}" for name, number in versions(*names).items())
    return f"{used}, {cores()} cores"


def facts() -> dict[str, Any]:
    """What step times depend on here, apart from the systems' versions."""
    processor = Path("/proc/cpuinfo").read_text()
    named = re.search(r"^model name\s*: (.*)$", processor, re.M)
    return {
        "cores": cores(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": named[1] if named else "unknown processor",
        "vectors": next((name for name in VECTORS if name in processor.split()), ""),
    }
