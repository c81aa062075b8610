"""Makes the environments of the peers: FOLDER-tf with Horovod, FOLDER-torch with PyTorch, torchft.

The peers are installed only for the benchmark, in environments of their own, with the same Python,
TensorFlow and numpy as tfdist's. An existing environment is left as it is.

    python benchmarks/side_by_side/install_peers.py .venv-peers
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# 2.13 is the version that both PyPI's index and a machine with PyTorch's CPU build have.
TORCH = "torch==2.13.0"
TORCHFT = "torchft==0.2.0"


def install(folder: Path, *requirements: str) -> Path:
    """The Python of an environment with these packages; makes the environment if it is missing."""
    python = folder / "bin" / "python"
    note = folder / ".installed"
    wanted = "\n".join(requirements)
    if not note.exists() or note.read_text() != wanted:
        print(f"Installing {', '.join(requirements)} into {folder}", flush=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)
        note.write_text(wanted)
    return python


def main() -> None:
    """Installs what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="the beginning of both folders' names")
    parser.add_argument("--only", nargs="+", choices=("tf", "torch"), default=("tf", "torch"))
    arguments = parser.parse_args()
    shared = [f"{name}=={version(name)}" for name in ("numpy", "scikit-learn")]
    if "tf" in arguments.only:
        same = [f"{name}=={version(name)}" for name in ("tensorflow", "keras", "tf_keras")]
        python = install(Path(f"{arguments.folder}-tf"), *same, *shared)
        subprocess.run([python, ROOT / "scripts" / "install_horovod.py"], check=True)
    if "torch" in arguments.only:
        install(Path(f"{arguments.folder}-torch"), TORCH, TORCHFT, *shared)


if __name__ == "__main__":
    sys.exit(main())
