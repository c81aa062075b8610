"""The image of the examples without Docker: what the Dockerfile does, below a folder."""

import json
import re
import shlex
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "examples" / "kubernetes" / "Dockerfile"

# The releases with which tfdist was tested, as the Makefile asks for them.
PINS_OF_MAKE = re.search(r"^PINS \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)[1]
PINS = shlex.split(PINS_OF_MAKE)


def instructions():
    """The instructions of the Dockerfile, each with what follows in its line."""
    lines = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
    parted = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(instruction, rest) for instruction, _, rest in parted]


def make(root, run):
    """Makes the image for CPUs from the checkout, but for what Docker alone can do.

    Args:
        root: the folder that is the root of the image's files.
        run: called with the text of each `RUN`, and with the folder in which it runs.

    Returns:
        The folder in which the image starts, its entry point, and the arguments of that.

    Raises:
        ValueError: for an instruction that is not known here.
    """
    folder, command = root, {}
    for instruction, rest in instructions():
        if instruction == "WORKDIR":
            folder = root / rest.lstrip("/")
            folder.mkdir(parents=True)
        elif instruction == "COPY":
            *names, target = rest.split()
            _copy([ROOT / name for name in names], folder / target)
        elif instruction == "RUN":
            run(rest, folder)
        elif instruction in ("ENTRYPOINT", "CMD"):
            command[instruction] = json.loads(rest)
        elif instruction not in ("FROM", "ARG", "USER", "ENV"):
            raise ValueError(f"an instruction is new here: add it. Received: {instruction}")
    return folder, command["ENTRYPOINT"], command["CMD"]


def _copy(sources, target):
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
