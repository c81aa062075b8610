"""What `tfdist doctor` finds out: what is installed, what can run here, what is wrong."""

from __future__ import annotations

import dataclasses
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tfdist
from tfdist import _versions, environment
from tfdist.cluster import (
    Cluster,
    Launch,
    check_parameter_server_cluster,
    check_port_free,
    choose_strategy,
    describe,
)
from tfdist.launcher.ranks import cores
from tfdist.strategies.backend import Obstacles
from tfdist.strategies.registry import BACKENDS

_PYTHON = ((3, 10), (3, 14))
_PROBE = Path(__file__).with_name("probe.py")
_PROBE_TIMEOUT = 120
# What each process tries. A crash of TensorFlow's server must not hide the rest: it comes last.
_PROBES = (("tensorflow", "keras", "server"), ("horovod",))

# Environment variables with these beginnings are read by tfdist, its launchers and its engines.
_PREFIXES = (
    *("TFDIST_", "TF_CONFIG", "TF_NUM_", "TF_GRPC_", "HOROVOD_", "OMPI_COMM_WORLD_", "PMI_"),
    *("SLURM_STEP_", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_JOB_ID", "SLURM_DISTRIBUTION"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "KERAS_BACKEND", "no_grpc_proxy"),
    *("MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"),
)


@dataclasses.dataclass
class Report:
    """What was found; `dataclasses.asdict` of it is what `tfdist doctor --json` prints.

    Attributes:
        versions: of Python, tfdist, TensorFlow, Keras and Horovod; None for what is missing.
        horovod: how Horovod was built: "gloo", "mpi" and "nccl", and "built_for", the version of
            TensorFlow that Horovod was built for.
        cores: the number of CPU cores that this process may use.
        devices: the number of devices of each kind.
        strategies: for each name, whether the strategy is "available"; the "reason" if it is not;
            and "how" to start a script with it, where this process alone is not enough.
        auto: the "strategy" that "auto" means here, and the "reason".
        launch: the "launcher" that started this process, its "rank" and the "size" of the job.
        environment: the variables that are read, with their values.
        notes: what users should know although it is no problem yet, in one line each.
        problems: what should be repaired, in one line each.
    """

    versions: dict[str, str | None] = dataclasses.field(default_factory=dict)
    horovod: dict[str, Any] = dataclasses.field(default_factory=dict)
    cores: int = 1
    devices: dict[str, int] = dataclasses.field(default_factory=dict)
    strategies: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    auto: dict[str, str | None] = dataclasses.field(default_factory=dict)
    launch: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


def examine(environ: Mapping[str, str], probed: Mapping[str, Mapping[str, Any]]) -> Report:
    """Puts together what is known.

    Args:
        environ: the environment variables.
        probed: what `probe` returned.

    Returns:
        The report.
    """
    read = {name: environ[name] for name in sorted(environ) if name.startswith(_PREFIXES)}
    if environment.SECRET in read:
        read[environment.SECRET] = "(not shown)"
    report = Report(cores=cores(), environment=read)
    engine = _engine(report, probed["tensorflow"], probed["keras"], environ)
    installed = "missing" not in probed["horovod"] and "error" not in probed["horovod"]
    horovod = _horovod(report, probed["horovod"], engine)
    launch, mistake = _launch(report, environ)
    if launch is not None:
        horovod = horovod or _mpi(report, launch)
    cluster = launch.cluster if launch is not None else None
    port = _own_port(report, cluster) if cluster is not None and engine is None else None
    several = cluster is not None and cluster.size > 1
    servers = engine or mistake or _servers(report, environ, probed["server"])
    alone = servers is None and not environ.get("TF_CONFIG", "").strip()
    obstacles = Obstacles(engine, mistake, port, port if several else None, horovod, servers)
    for name, backend in BACKENDS.items():
        reason = backend.obstacle(obstacles)
        needs_servers = alone and backend.launch is not None and backend.launch.has_servers
        how = "with `tfdist run -n 3 --ps 1 SCRIPT`" if needs_servers else None
        report.strategies[name] = {"available": reason is None, "reason": reason, "how": how}
    if mistake is None:
        _choose(report, environ, installed)
    return report


def _engine(
    report: Report,
    tf: Mapping[str, Any],
    keras: Mapping[str, Any],
    environ: Mapping[str, str],
) -> str | None:
    """Reports on TensorFlow and Keras. Returns why they cannot be used, or None if they can."""
    python = platform.python_version()
    report.versions = {
        "python": python,
        "tfdist": tfdist.__version__,
        "tensorflow": tf.get("version"),
        "keras": keras.get("version"),
    }
    report.devices = dict(tf.get("devices", {}))
    problems = []
    if tf.get("missing"):
        keras = {}  # Keras' import fails only because TensorFlow is missing
    if not _PYTHON[0] <= sys.version_info[:2] < _PYTHON[1]:
        problems.append(f"tfdist needs Python >= 3.10, < 3.14. Received: Python {python}")
    for name, found in (("TensorFlow", tf), ("Keras", keras)):
        if found.get("missing"):
            problems.append(f"{name} is not installed: `pip install {name.lower()}`")
        elif "error" in found:
            problems.append(f"{name} cannot be imported. Received: {found['error']}")
    if "version" in tf and "version" in keras:
        backend = keras.get("backend", "tensorflow")
        try:
            strict = _versions.is_strict(environ)
            report.notes += _versions.check(tf["version"], keras["version"], backend, strict)
        except (ImportError, ValueError) as error:
            problems.append(str(error))
    report.problems += problems
    return problems[0] if problems else None


def _horovod(report: Report, found: Mapping[str, Any], engine: str | None) -> str | None:
    """Reports on Horovod. Returns why Horovod cannot be used, or None if it can."""
    report.versions["horovod"] = found.get("version")
    if found.get("missing"):
        return (
            "Horovod is not installed: `python scripts/install_horovod.py` in a checkout of tfdist"
        )
    report.horovod = {name: found[name] for name in ("gloo", "mpi", "nccl") if name in found}
    report.horovod["built_for"] = found.get("built_for")
    if "error" not in found or engine is not None:
        return None
    problem = (
        "Horovod cannot be imported: build it again with `python scripts/install_horovod.py`. "
        f"Received: {found['error']}"
    )
    built, installed = found.get("built_for"), report.versions["tensorflow"]
    if built and built != installed:
        problem += f" (built for TensorFlow {built}, while {installed} is installed)"
    report.problems.append(problem)
    return problem


def _launch(report: Report, environ: Mapping[str, str]) -> tuple[Launch | None, str | None]:
    """How this process was started, or what is wrong with the variables that tell this."""
    try:
        launch = describe(environ)
    except ValueError as error:
        report.problems.append(str(error))
        return None, str(error)
    report.launch = {"launcher": launch.launcher, "rank": launch.rank, "size": launch.size}
    return launch, None


def _mpi(report: Report, launch: Launch) -> str | None:
    """Why Horovod cannot run under the MPI launcher that started this process; None if it can."""
    by_mpi = launch.launcher in ("Open MPI", "MPI") and launch.size > 1
    if not by_mpi or report.horovod.get("mpi") is not False:
        return None
    problem = (
        f"{launch.launcher} started this process as one of {launch.size}, but Horovod was built "
        "without MPI, so they would train apart: build it with `HOROVOD_WITH_MPI=1 python "
        "scripts/install_horovod.py`, or start the script with `tfdist run` or horovodrun"
    )
    report.problems.append(problem)
    return problem


def _own_port(report: Report, cluster: Cluster) -> str | None:
    """Why this process cannot listen on its own port of the cluster; None if it can."""
    needed = cluster.size > 1 or cluster.jobs.get("ps")
    try:
        if cluster.address is not None and needed:
            check_port_free(cluster.address)
    except OSError as error:
        report.problems.append(str(error))
        return str(error)
    return None


def _servers(report: Report, environ: Mapping[str, str], server: Mapping[str, Any]) -> str | None:
    """Why training with parameter servers is not possible here; None if it is possible."""
    if "error" in server:
        problem = (
            "TensorFlow's server does not start, without which there are no parameter servers. "
            f"Received: {server['error']}"
        )
        report.problems.append(problem)
        return problem
    cluster = None
    try:
        cluster = Cluster.from_environment(environ)
        if cluster is not None:
            check_parameter_server_cluster(cluster)
    except ValueError as error:
        if cluster is not None and cluster.jobs.get("ps"):  # no other strategy could train here
            report.problems.append(str(error))
        return str(error)
    return None


def _choose(report: Report, environ: Mapping[str, str], horovod: bool) -> None:
    virtual = environ.get(environment.DEVICES_PER_WORKER, "")
    cpus = int(virtual) if virtual.isdecimal() else 1
    try:
        name, reason = choose_strategy(environ, report.devices.get("GPU", 0) or cpus, horovod)
    except ValueError as error:
        report.problems.append(str(error))
    else:
        report.auto = {"strategy": name, "reason": reason}


def probe(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Tries TensorFlow, Keras and Horovod in separate processes, which may fail or crash.

    Args:
        environ: the environment variables of those processes.

    Returns:
        For each of "tensorflow", "keras" and "horovod": its "version" and more, or its "error", or
        `"missing": True`. For "server", the server of TensorFlow: whether it was "started", or its
        "error".
    """
    # The cluster does not matter here, and the probes must not join it.
    environ = {**environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROBE.read_text(encoding="utf-8"), *names],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for names in _PROBES
    ]
    found: dict[str, dict[str, Any]] = {}
    for names, process in zip(_PROBES, processes):
        try:
            shown, _ = process.communicate(timeout=_PROBE_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            shown, _ = process.communicate()
        for line in shown.splitlines():
            if line.startswith("probe: "):
                found.update(json.loads(line.removeprefix("probe: ")))
        if process.returncode:
            end = _ending(process.returncode)
            broken = next((name for name in names if name not in found), names[-1])
            found.setdefault(broken, {})["error"] = f"it {end}"
        for name in names:
            found.setdefault(name, {"error": "it was not tried"})
    return found


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return f"was killed, or took more than {_PROBE_TIMEOUT} s"
    if code < 0:
        return f"crashed with {signal.Signals(-code).name}"
    return f"ended the process with exit status {code}"
