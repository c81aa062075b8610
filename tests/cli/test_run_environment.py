"""What each rank finds in its environment, and what the command line refuses."""

import json
import os
import socket
import subprocess
import sys
from importlib import metadata

import pytest

from tests.cli.launching import messages, python_path
from tfdist.cluster import Cluster, choose_strategy, describe
from tfdist.cluster.addresses import free_ports
from tfdist.launcher import ranks

SHOWS = 'note(f"environ-{rank}", json.dumps(dict(os.environ)))'
FAULTS = """
import resource, threading

def steps():
    for _ in range(5):
        kept = [b"x" * 40_000_000 for _ in range(4)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(2):
    before = faults()
    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
print(faults() - before)
"""


def environments(launcher, *options, count=2, environ=None):
    finished = launcher.run(SHOWS, *options, count=count, environ=environ)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(launcher.note(f"environ-{rank}")) for rank in range(count)]


def test_each_rank_finds_its_cluster(launcher):
    found = environments(launcher, count=3)
    clusters = [Cluster.from_environment(environ) for environ in found]
    assert len({cluster.workers for cluster in clusters}) == 1
    assert [cluster.rank for cluster in clusters] == [0, 1, 2]
    assert choose_strategy(found[0], 1, horovod_installed=True)[0] == "multi_worker"


def test_the_ports_are_still_free_for_the_ranks_and_for_nobody_else(launcher):
    body = """
    import socket
    port = int(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][rank].split(":")[1])
    with socket.socket() as other:
        try:
            other.bind(("", port))
        except OSError as error:
            note(f"other-{rank}", "refused")
    with socket.create_server(("", port)):
        note(f"server-{rank}", "listens")
    """
    assert launcher.run(body).returncode == 0
    for rank in range(2):
        assert launcher.note(f"other-{rank}") == "refused"
        assert launcher.note(f"server-{rank}") == "listens"


def test_the_cores_are_divided(launcher):
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    for environ in environments(launcher):
        assert environ["TF_NUM_INTRAOP_THREADS"] == environ["OMP_NUM_THREADS"] == share
        assert int(environ["TF_NUM_INTEROP_THREADS"]) >= 2


def faults(environ):
    """How many pages a thread has to wait for that takes and frees 160 MB several times."""
    command = [sys.executable, "-c", FAULTS]
    return int(subprocess.run(command, env=environ, capture_output=True, check=True).stdout)


def test_the_memory_of_a_step_is_kept_for_the_next(launcher):
    for environ in environments(launcher):
        assert {name: environ[name] for name in ranks.ALLOCATOR} == ranks.ALLOCATOR
        without = {name: v for name, v in environ.items() if name not in ranks.ALLOCATOR}
        assert faults(environ) < 1000 < faults(without)


def test_what_the_user_has_set_stays(launcher):
    chosen = {"OMP_NUM_THREADS": "7", "TF_NUM_INTEROP_THREADS": "9", "PYTHONUNBUFFERED": ""}
    chosen["MALLOC_TRIM_THRESHOLD_"] = "1000"
    for environ in environments(launcher, environ=chosen):
        assert {name: environ[name] for name in chosen} == chosen
        assert environ["TF_NUM_INTRAOP_THREADS"] != "7"


def test_options_that_the_ranks_read(launcher):
    options = ("--devices-per-worker", "3", "--connect-timeout", "7.5")
    for environ in environments(launcher, *options):
        assert environ["TFDIST_DEVICES_PER_WORKER"] == "3"
        assert environ["TFDIST_CONNECT_TIMEOUT"] == "7.5"
        assert int(environ["TF_NUM_INTEROP_THREADS"]) >= 3
    assert "TFDIST_DEVICES_PER_WORKER" not in environments(launcher)[0]


def test_several_devices_per_rank_are_refused_for_horovod(launcher):
    finished = launcher.run("", "--strategy", "horovod", "--devices-per-worker", "2")
    assert finished.returncode == 2
    assert b"no --devices-per-worker. Received: 2" in finished.stderr


def test_the_place_in_another_launcher_is_forgotten(launcher):
    outer = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "4",
        "TF_CONFIG": "{",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    for rank, environ in enumerate(environments(launcher, environ=outer)):
        launch = describe(environ)
        assert (launch.launcher, launch.rank, launch.size) == ("TF_CONFIG", rank, 2)


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("4,6,7", 2, ["4", "6"]),
        ("5", 2, ["5", "5"]),
        ("-1", 2, ["-1", "-1"]),
        ("", 2, ["", ""]),
    ],
)
def test_gpus_are_divided(visible, count, expected):
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    with ranks.environments("multi_worker", count, environ) as found:
        assert [environ["CUDA_VISIBLE_DEVICES"] for environ in found] == expected


def test_under_horovod_the_script_chooses_the_gpu():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with ranks.environments("horovod", 2, environ) as found:
        assert [environ["CUDA_VISIBLE_DEVICES"] for environ in found] == ["0,1", "0,1"]


def test_a_proxy_is_not_between_the_ranks():
    with ranks.environments("multi_worker", 2, {"http_proxy": "http://p:1"}) as found:
        assert all(environ["no_grpc_proxy"] == "127.0.0.1" for environ in found)


def test_horovods_variables_are_those_of_horovodrun(launcher):
    found = environments(launcher, "--strategy", "horovod", "--connect-timeout", "7.5")
    for rank, environ in enumerate(found):
        set_here = {name: value for name, value in environ.items() if name.startswith("HOROVOD_")}
        assert int(set_here.pop("HOROVOD_GLOO_RENDEZVOUS_PORT")) > 0
        assert set_here == {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "8",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": "2",
        }
        assert choose_strategy(environ, 1, horovod_installed=True)[0] == "horovod"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs two loopback addresses")
def test_horovods_rendezvous_listens_on_the_loopback_device_only():
    pytest.importorskip("horovod.runner", reason="make horovod")
    with ranks.environments("horovod", 2, {}) as found:
        port = int(found[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):  # a server on all interfaces would accept
            socket.create_connection(("127.0.0.2", port), timeout=5)


def test_without_horovod_it_is_said_how_to_get_it(launcher, tmp_path):
    (tmp_path / "horovod.py").write_text("raise ImportError('built for another TensorFlow')")
    finished = launcher.run(
        "", "--strategy", "horovod", environ={"PYTHONPATH": python_path(tmp_path)}
    )
    assert finished.returncode == 2
    (line,) = messages(finished)
    assert "Horovod cannot be imported: install it with `python scripts/install_horovod.py`" in line
    assert "built for another TensorFlow" in line


# --- arguments ------------------------------------------------------------------------------------


def test_the_scripts_arguments_are_passed_verbatim(launcher):
    arguments = ["-n", "3", "--strategy", "x", "--", "-m", "a b", "", "*", "--help", "--timeout=1"]
    finished = launcher.run("print(json.dumps(sys.argv[2:]))", arguments=arguments, count=1)
    assert json.loads(finished.stdout) == arguments


def test_a_module_is_started_by_its_name(launcher, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    finished = subprocess.run(
        [sys.executable, "-m", "tfdist", "run", "-n", "1", "-m", "package.train", "-m", "x"],
        env=launcher.environment(PYTHONPATH=python_path(tmp_path)),
        capture_output=True,
        check=True,
    )
    assert finished.stdout == b"__main__ package ['-m', 'x']\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.py"], "tfdist run: Missing option '-n'"),
        (["run", "-n", "2"], "tfdist run: Missing argument 'SCRIPT"),
        (["run", "-n", "0", "x.py"], "tfdist run: Invalid value for '-n'"),
        (["run", "-n", "99999999", "x.py"], "99999999 is not in the range 0<=x<=1024"),
        (["run", "-n", "2", "--ps", "1025", "x.py"], "1025 is not in the range 1<=x<=1024"),
        (
            ["run", "-n", "2", "--connect-timeout", "1e30", "x.py"],
            "at most 1,000,000 seconds. Received: '1e30'",
        ),
        (["run", "-n", "2", "missing.py"], "tfdist run: there is no such script. Received: 'mis"),
        (["run", "-n", "2", "--strategy", "x", "x.py"], "tfdist run: .*'multi_worker', 'horovod'"),
        (["run", "-n", "2", "--timeout", "0", "x.py"], "a number of seconds > 0. Received: '0'"),
        (["run", "-n", "2", "--timeout", "nan", "x.py"], "a number of seconds > 0. .*'nan'"),
        (["run", "-n", "2", "--log-dir", "/proc/x", __file__], "tfdist run: .*/proc/x"),
        (["run", "-n", "2", "--ps", "0", "x.py"], "tfdist run: Invalid value for '--ps'"),
        (["run", "-n", "1", "--ps", "1", __file__], "at least 2. Received: -n 1"),
        (["run", "-n", "1", "--strategy", "parameter_server", __file__], "the chief and the work"),
        (
            ["run", "-n", "2", "--ps", "1", "--strategy", "horovod", __file__],
            "leave out --ps or --strategy. Received: --ps 1 --strategy horovod",
        ),
        (
            ["run", "-n", "2", "--ps", "1", "--strategy", "multi_worker", __file__],
            "--ps is for the strategy parameter_server",
        ),
        (
            ["run", "-n", "2", "--ps", "1", "--devices-per-worker", "3", __file__],
            "no --devices-per-worker. Received: 3",
        ),
        (["train"], "tfdist: No such command 'train'"),
        (["--nonsense"], "tfdist: No such option"),
    ],
)
def test_an_error_is_one_line(arguments, message, capsys):
    from tfdist.cli.main import main

    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(shown.err)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["run", "-h"]])
def test_help_has_an_example(arguments, capsys):
    from tfdist.cli.main import main

    assert main(arguments) == 0
    assert "tfdist run -n 2 train.py --epochs 3" in capsys.readouterr().out


def test_the_command_is_installed():
    from tfdist.cli.main import main

    (command,) = metadata.entry_points(group="console_scripts", name="tfdist")
    assert command.load() is main


def test_ports_that_are_taken_meanwhile_are_not_given_twice():
    with ranks.environments("multi_worker", 3, {}) as first:
        taken = {
            address for environ in first for address in Cluster.from_environment(environ).workers
        }
        for _ in range(5):
            assert not taken & {f"127.0.0.1:{port}" for port in free_ports(50)}
