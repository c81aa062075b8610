"""Builds Horovod 0.28.1 for the TensorFlow of this environment, and installs it.

`make horovod` runs it; elsewhere: `python scripts/install_horovod.py`, with the Python of the
environment that Horovod shall go into. Does nothing where that has been done already. Variables:

    HOROVOD_WITH_MPI=1  build with MPI too, not with Gloo alone
    HOROVOD_JOBS=N      compile N files at a time instead of one for each core

The built wheel is kept below ~/.cache/tfdist/horovod, in a folder for each Python, TensorFlow,
choice of MPI, and content of horovod.cmake. pip's own cache would not tell them apart, and would
install a wheel that was built for TensorFlow 2.20 beside 2.21.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

VERSION = "0.28.1"
# What Horovod imports. From Python 3.12 on, setuptools provides the distutils of `horovodrun`.
NEEDS = ["cloudpickle", "psutil", "pyyaml", "packaging", "setuptools"]
# Horovod's CMake files are too old for CMake 4, and those before 3.21 take no CMAKE_TOOLCHAIN_FILE.
BUILD_NEEDS = ["wheel", "cmake>=3.21,<4"]

# What CMake reads before Horovod's own lines.
CMAKE_LINES = Path(__file__).with_name("horovod.cmake")

PIP = ["-m", "pip", "--disable-pip-version-check"]
LOG = Path(sys.prefix) / "install-horovod.log"
# No line with a quote before the word: pip repeats a script of its own that holds such lines.
ERROR_LINE = re.compile(r"^[^\"]*(error(: \S| at | \d)|undefined reference|cannot find)", re.I)


class Failure(Exception):
    """What went wrong, in words for the user."""


def tensorflow_name() -> str:
    """The installed TensorFlow, such as "tensorflow-2.21.0"; "" without one."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return f"{name}-{metadata.version(name)}"
        except metadata.PackageNotFoundError:
            pass
    return ""


def wheel_folder(tensorflow: str, mpi: bool) -> Path:
    """Where the wheel for this Python, TensorFlow, choice of MPI and CMake file is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    kind = "mpi" if mpi else "gloo"
    own = f"{zlib.crc32(CMAKE_LINES.read_bytes()):08x}"
    return cache / "tfdist" / "horovod" / f"{VERSION}-{python}-{tensorflow}-{kind}-{own}"


def installed_from(*folders: Path) -> bool:
    """Whether the environment's Horovod came from one of these folders: pip notes down which."""
    try:
        origin = metadata.distribution("horovod").read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return False
    return any(f"/{folder.name}/" in unquote(origin) for folder in folders)


def missing(mpi: bool) -> list[str]:
    """The programs that the build needs and that are not there, with how to get them."""
    compilers = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    wanted = [("a C++ compiler", compilers, "g++"), ("make", ["make", "gmake"], "make")]
    if mpi:
        wanted.append(("MPI", ["mpicxx"], "libopenmpi-dev openmpi-bin"))
    return [
        f"{what}, looked for as {', '.join(programs)} (Debian: apt install {package})"
        for what, programs, package in wanted
        if not any(map(shutil.which, programs))
    ]


def build_environment(mpi: bool, folder: Path) -> dict[str, str]:
    """The variables of Horovod's build; puts the files that they name into `folder`.

    One is a header that TensorFlow has moved.
    """
    shim = folder / "include"
    header = shim / "tensorflow" / "compiler" / "xla" / "client" / "xla_builder.h"
    header.parent.mkdir(parents=True)
    header.write_text('#include "xla/hlo/builder/xla_builder.h"\n')
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(f'set(CMAKE_PROJECT_horovod_INCLUDE "{CMAKE_LINES.resolve()}")\n')
    # Found without an import, which takes seconds.
    spec = find_spec("tensorflow")
    assert spec is not None and spec.submodule_search_locations
    external = Path(spec.submodule_search_locations[0]) / "include" / "external"
    includes = [shim, external / "highwayhash", external / "farmhash_archive" / "src"]
    flags = [os.environ.get("CXXFLAGS", ""), *(f"-I{folder}" for folder in includes)]
    # Of Horovod's many variables only ours count, since the kept wheel's folder names no others.
    others = {name: value for name, value in os.environ.items() if name[:8] != "HOROVOD_"}
    return {
        **others,
        "CXXFLAGS": " ".join(flags).strip(),
        # Replaces what an outer make exports: its job server does not reach the make in here.
        "MAKEFLAGS": f"-j{os.environ.get('HOROVOD_JOBS') or os.cpu_count() or 1}",
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "HOROVOD_CMAKE": str(Path(sysconfig.get_path("scripts")) / "cmake"),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if mpi else "HOROVOD_WITHOUT_MPI": "1",
    }


def error_lines(text: str, count: int = 10) -> list[str]:
    """The first lines of a log that tell of an error, else its last ones; none very long."""
    lines = [line.strip()[:200] for line in text.splitlines()]
    return [line for line in lines if ERROR_LINE.search(line)][:count] or lines[-count:]


def run(what: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs this Python with `arguments`, its output going to the log.

    Raises:
        Failure: when it fails, with what the log says about it.
    """
    with LOG.open("a+b") as log:
        begin = log.tell()
        command = [sys.executable, *arguments]
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=env, check=False)
        log.seek(begin)
        said = log.read().decode(errors="replace")
    if done.returncode:
        errors = "".join(f"\n  {line}" for line in error_lines(said))
        raise Failure(f"{what} failed:{errors}\nThe whole log: {LOG}")


def build(folder: Path, mpi: bool) -> None:
    """Builds the wheel and puts it into `folder`."""
    if lacking := missing(mpi):
        raise Failure("Building Horovod needs, but did not find:\n  " + "\n  ".join(lacking))
    folder.mkdir(parents=True, exist_ok=True)
    run("Installing what the build needs", *PIP, "install", *BUILD_NEEDS)
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as temporary:
        env = build_environment(mpi, Path(temporary))
        print(f"Building with {env['MAKEFLAGS']}: 2-5 minutes on 2 cores. Log: {LOG}", flush=True)
        # Not isolated, as the build asks TensorFlow for its flags. Not from or to pip's cache.
        options = "--no-build-isolation --no-deps --no-cache-dir --no-binary=horovod --verbose"
        goal = ["--wheel-dir", temporary, f"horovod=={VERSION}"]
        run("The build", *PIP, "wheel", *options.split(), *goal, env=env)
        for wheel in Path(temporary).glob("*.whl"):
            # Under another name first, so that nobody finds half a wheel.
            partial = folder / f"{wheel.name}.{os.getpid()}"
            shutil.copyfile(wheel, partial)
            partial.replace(folder / wheel.name)


def install(folder: Path, mpi: bool) -> None:
    """Installs the wheel in `folder`, and takes it out again if it does not work."""
    wheel = str(next(folder.glob("*.whl")))
    run("Installing the wheel", *PIP, "install", "--no-deps", "--force-reinstall", wheel)
    built = "(hvd.gloo_built(), hvd.mpi_built())"
    check = f"import horovod.tensorflow as hvd; assert {built} == (True, {mpi}), {built}"
    try:
        run("Importing the installed Horovod", "-c", check)
    except Failure:
        run("Removing it again", *PIP, "uninstall", "--yes", "horovod")
        raise


def main() -> None:
    """Leaves the environment with a Horovod that was built for its TensorFlow."""
    mpi = os.environ.get("HOROVOD_WITH_MPI") == "1"
    tensorflow = tensorflow_name()
    if not tensorflow:
        raise Failure(f"{sys.prefix} has no TensorFlow: `pip install .` in tfdist's checkout first")
    title = f"Horovod {VERSION} with Gloo{' and MPI' if mpi else ''} for {tensorflow}"
    folder = wheel_folder(tensorflow, mpi)
    # A build with MPI has Gloo as well, and stays when MPI is not asked for.
    if installed_from(folder, wheel_folder(tensorflow, mpi=True)):
        print(f"{title} is installed")
        return
    LOG.unlink(missing_ok=True)
    kept = any(folder.glob("*.whl"))
    print(f"Installing {title}{f' from {folder}' if kept else ''}", flush=True)
    run("Installing what Horovod needs", *PIP, "install", *NEEDS)
    if kept:
        try:
            install(folder, mpi)
            return
        except Failure as failure:
            # For example, when another MPI has been installed since.
            print(f"{failure}\nThe kept wheel does not work here, so it is built anew", flush=True)
    build(folder, mpi)
    install(folder, mpi)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as failure:
        sys.exit(str(failure))
