"""`tfdist doctor` finds what is wrong and says it in lines, whatever fails on the way."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.launching import python_path
from tests.cluster.test_environments import kubeflow, open_mpi, srun
from tfdist.cli import private
from tfdist.cli.doctor import as_text
from tfdist.cli.examination import examine, probe
from tfdist.cluster.addresses import listen, reserved_ports

HEALTHY = {
    "tensorflow": {"version": "2.21.0", "devices": {"CPU": 1, "GPU": 0}},
    "keras": {"version": "3.15.1", "backend": "tensorflow"},
    "horovod": {
        "version": "0.28.1",
        "built_for": "2.21.0",
        "gloo": True,
        "mpi": False,
        "nccl": False,
    },
    "server": {"started": True},
}
NO_HOROVOD = HEALTHY | {"horovod": {"missing": True}}


def available(report):
    return [name for name, found in report.strategies.items() if found["available"]]


def worker(address, index=0):
    task = {"type": "worker", "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": [address, "a:1"]}, "task": task})}


# --- what follows from what was found -------------------------------------------------------------


def test_a_healthy_machine_has_no_problems():
    report = examine({}, HEALTHY)
    assert report.problems == []
    assert available(report) == ["mirrored", "multi_worker", "horovod", "parameter_server"]
    assert report.auto["strategy"] == "mirrored"
    assert report.launch == {"launcher": "python", "rank": 0, "size": 1}
    text = as_text(report)
    assert "tensorflow        2.21.0" in text
    assert "horovod           0.28.1, built with gloo\n" in text
    assert "parameter_server  yes, with `tfdist run -n 3 --ps 1 SCRIPT`\n" in text
    assert '"auto" means mirrored here: this is one process with 1 local device' in text
    assert text.endswith("Problems\n  none")


def test_the_secret_of_a_rendezvous_is_not_shown():
    report = examine({"TFDIST_SECRET": "known to all launchers", "TFDIST_PORT_BASE": "2"}, HEALTHY)
    text = as_text(report) + str(report)
    assert "TFDIST_SECRET=(not shown)" in text and "known to all" not in text
    assert "TFDIST_PORT_BASE=2" in text


def test_missing_horovod_is_no_problem_where_nobody_wants_it():
    report = examine({}, NO_HOROVOD)
    assert report.problems == []
    assert available(report) == ["mirrored", "multi_worker", "parameter_server"]
    assert "install_horovod.py" in report.strategies["horovod"]["reason"]
    assert "horovod           not found" in as_text(report)


@pytest.mark.parametrize(
    ("environ", "found", "problem"),
    [
        ({}, {"tensorflow": {"missing": True, "error": "x"}}, "TensorFlow is not installed: `pip"),
        ({}, {"tensorflow": {"error": "ImportError: x"}}, "TensorFlow cannot be imported. Rec"),
        ({}, {"keras": {"missing": True, "error": "x"}}, "Keras is not installed: `pip install k"),
        ({}, {"keras": {"error": "ValueError: x"}}, "Keras cannot be imported. Received: ValueE"),
        ({}, {"tensorflow": {"version": "2.19.1"}}, "tfdist needs tensorflow >= 2.20, < 2.22."),
        ({}, {"keras": {"version": "3.9.0"}}, "tfdist needs keras >= 3.10, < 3.16. Received"),
        ({}, {"keras": {"version": "3.15.1", "backend": "jax"}}, "KERAS_BACKEND=tensorflow"),
        ({"TF_CONFIG": "{"}, {}, "TF_CONFIG is not JSON"),
        ({"HOROVOD_RANK": "0"}, {}, "HOROVOD_SIZE must be set"),
        (open_mpi(0, 2), {}, "Horovod was built without MPI.*HOROVOD_WITH_MPI=1 python scr"),
        (open_mpi(0, 2), {"horovod": {"missing": True}}, "Open MPI .* Horovod is not installed"),
        (
            {},
            {"horovod": {"version": "0.28.1", "built_for": "2.20.0", "error": "symbol"}},
            "Horovod cannot be imported: .*install_horovod.py.* symbol .built for TensorFlow 2.20",
        ),
    ],
)
def test_a_problem_is_one_line(environ, found, problem):
    report = examine(environ, HEALTHY | found)
    assert len(report.problems) == 1
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(report.problems[0])
    assert len(report.problems[0].splitlines()) == 1
    assert report.problems[0] in as_text(report)


@pytest.mark.parametrize("tensorflow", [{"missing": True, "error": "x"}, {"version": "2.19.1"}])
def test_what_fails_for_the_same_reason_is_no_other_problem(tensorflow):
    error = {"error": "ModuleNotFoundError: No module named 'tensorflow'"}
    found = {"tensorflow": tensorflow, "horovod": {**HEALTHY["horovod"], **error}}
    if "missing" in tensorflow:
        found["keras"] = error
    assert len(examine({}, HEALTHY | found).problems) == 1


def test_without_tensorflow_nothing_runs():
    report = examine({}, HEALTHY | {"tensorflow": {"missing": True, "error": "x"}})
    assert available(report) == []
    assert report.versions["tensorflow"] is None


def test_a_broken_tf_config_keeps_the_workers_apart():
    report = examine({"TF_CONFIG": "[]"}, HEALTHY)
    assert available(report) == ["mirrored", "horovod"]
    assert report.auto == {}


def test_under_mpi_a_horovod_without_mpi_cannot_run():
    report = examine(open_mpi(0, 2), HEALTHY)
    assert available(report) == ["mirrored", "multi_worker", "parameter_server"]
    assert report.strategies["horovod"]["reason"] == report.problems[0]
    built = {"horovod": HEALTHY["horovod"] | {"mpi": True}}
    report = examine(open_mpi(0, 2), HEALTHY | built)
    assert (report.problems, report.auto["strategy"]) == ([], "horovod")


def test_a_port_in_use_is_a_problem():
    with reserved_ports(1) as (port,):
        environ = worker(f"localhost:{port}")
        assert examine(environ, HEALTHY).problems == []
        with listen(port):
            report = examine(environ, HEALTHY)
        assert f"Port {port} is in use by another process" in report.problems[0]
        assert available(report) == ["mirrored", "horovod"]


def servers(port, job="chief", **jobs):
    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"], **jobs}
    cluster = {name: addresses for name, addresses in cluster.items() if addresses}
    cluster[job] = [f"localhost:{port}"]
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})}


@pytest.mark.parametrize("job", ["chief", "worker", "ps"])
def test_a_cluster_with_parameter_servers_is_checked(job):
    with reserved_ports(1) as (port,):
        report = examine(servers(port, job), HEALTHY)
        assert report.problems == [] and "parameter_server" in available(report)
        assert report.auto["strategy"] == "parameter_server"
        assert "parameter_server  yes\n" in as_text(report)
        with listen(port):
            report = examine(servers(port, job), HEALTHY)
    assert len(report.problems) == 1 and f"Port {port} is in use" in report.problems[0]
    assert report.strategies["parameter_server"]["reason"] == report.problems[0]


def test_a_cluster_without_a_part_that_parameter_servers_need_is_a_problem():
    with reserved_ports(1) as (port,):
        report = examine(servers(port, "ps", chief=[]), HEALTHY)
    assert "needs a `chief`" in report.problems[0] and len(report.problems) == 1
    assert report.strategies["parameter_server"]["reason"] == report.problems[0]
    # One without any parameter server is for another strategy.
    with reserved_ports(1) as (port,):
        report = examine(worker(f"localhost:{port}"), HEALTHY)
    assert report.problems == []
    assert "needs a `chief`" in report.strategies["parameter_server"]["reason"]


def test_a_mistake_in_a_tf_config_that_horovod_does_not_read_keeps_parameter_servers_away():
    environ = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "TF_CONFIG": "{"}
    report = examine(environ, HEALTHY)
    assert report.problems == []
    assert "TF_CONFIG is not JSON" in report.strategies["parameter_server"]["reason"]


def test_a_server_that_does_not_start_is_a_problem():
    report = examine({}, HEALTHY | {"server": {"error": "UnknownError: no socket"}})
    assert available(report) == ["mirrored", "multi_worker", "horovod"]
    assert "TensorFlow's server does not start" in report.problems[0]
    assert "no socket" in report.problems[0] and len(report.problems) == 1


@pytest.mark.parametrize(
    ("environ", "devices", "name", "launcher"),
    [
        (kubeflow("worker", 1, worker=2), {"CPU": 1}, "multi_worker", "TF_CONFIG"),
        (kubeflow("evaluator", 0, worker=2, chief=1, ps=1), {"CPU": 1}, "mirrored", "TF_CONFIG"),
        (srun(1), {"CPU": 1}, "multi_worker", "Slurm"),
        ({}, {"CPU": 1, "GPU": 4}, "mirrored", "python"),
        ({"TFDIST_DEVICES_PER_WORKER": "3"}, {"CPU": 1}, "mirrored", "python"),
    ],
)
def test_the_automatic_choice_is_explained(environ, devices, name, launcher):
    tensorflow = {"version": "2.21.0", "devices": devices}
    report = examine(environ, HEALTHY | {"tensorflow": tensorflow})
    assert report.auto["strategy"] == name and report.launch["launcher"] == launcher
    assert report.problems == []
    if "GPU" in devices:
        assert "4 local devices" in report.auto["reason"]
    if "TFDIST_DEVICES_PER_WORKER" in environ:
        assert "3 local devices" in report.auto["reason"]


def test_the_variables_that_are_read_are_shown():
    environ = {**srun(1), "OMP_NUM_THREADS": "2", "HOME": "/root", "TFDIST_CONNECT_TIMEOUT": "5"}
    report = examine(environ, HEALTHY)
    assert report.environment["SLURM_STEP_NODELIST"] == "gnode[10,20]"
    assert report.environment["TFDIST_CONNECT_TIMEOUT"] == "5"
    assert "HOME" not in report.environment
    assert "  OMP_NUM_THREADS=2\n" in as_text(report)


# --- imports that fail ----------------------------------------------------------------------------

WORKS = """
__version__ = "2.21.0"
class distribute:
    class Server:
        create_local_server = staticmethod(lambda: None)
class config:
    list_physical_devices = staticmethod(lambda kind: [kind])
    backend = staticmethod(lambda: "tensorflow")
"""


@pytest.fixture
def modules(tmp_path):
    """Stands in for TensorFlow, Keras and Horovod; each may be replaced."""
    (tmp_path / "tensorflow.py").write_text(WORKS)
    (tmp_path / "keras.py").write_text(WORKS.replace("2.21.0", "3.15.1"))
    (tmp_path / "horovod.py").write_text("raise ModuleNotFoundError('x')")
    return tmp_path


def probe_with(modules):
    return probe({**os.environ, "PYTHONPATH": python_path(modules)})


def test_what_is_found_in_working_modules(modules):
    found = probe_with(modules)
    assert found["tensorflow"] == {"version": "2.21.0", "devices": {"CPU": 1, "GPU": 1}}
    assert found["keras"] == {"version": "3.15.1", "backend": "tensorflow"}
    assert found["server"] == {"started": True}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ImportError('first\\nsecond')", "ImportError: first second"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "crashed with SIGSEGV"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "was killed, or took more"),
        ("import os; os._exit(5)", "ended the process with exit status 5"),
    ],
)
def test_an_import_that_fails_or_crashes_is_a_line(modules, code, error):
    (modules / "tensorflow.py").write_text(code)
    found = probe_with(modules)
    assert error in found["tensorflow"]["error"]
    report = examine({}, found)
    assert "TensorFlow cannot be imported" in report.problems[0]
    assert all(len(problem.splitlines()) == 1 for problem in report.problems)


def test_a_missing_module_is_told_from_a_broken_one(modules):
    missing = "raise ModuleNotFoundError('No module named x', name={!r})"
    (modules / "tensorflow.py").write_text(missing.format("tensorflow"))
    assert probe_with(modules)["tensorflow"]["missing"]
    (modules / "tensorflow.py").write_text(missing.format("numpy"))
    assert not probe_with(modules)["tensorflow"]["missing"]


def test_a_horovod_that_crashes_is_known_by_its_version(modules):
    (modules / "horovod.py").unlink()
    package = modules / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.28.1'")
    (package / "metadata.json").write_text('{"tensorflow": "2.19.0"}')
    (package / "tensorflow.py").write_text("import os; os.kill(os.getpid(), 11)")
    report = examine({}, probe_with(modules))
    assert report.versions["horovod"] == "0.28.1"
    assert "crashed with SIGSEGV (built for TensorFlow 2.19.0" in report.problems[0]


@pytest.mark.parametrize(
    ("code", "error"),
    [("raise OSError('no socket')", "OSError: no socket"), ("os.abort()", "crashed with SIGABRT")],
)
def test_a_server_that_fails_or_crashes_hides_nothing_else(modules, code, error):
    failing = f"def fail():\n    import os\n    {code}\n" + WORKS.replace(
        "(lambda: None)", "(fail)"
    )
    (modules / "tensorflow.py").write_text(failing)
    report = examine({}, probe_with(modules))
    assert report.versions["tensorflow"] == "2.21.0" and report.versions["keras"] == "3.15.1"
    assert "TensorFlow's server does not start" in report.problems[-1]
    assert error in report.problems[-1]


# --- the command ----------------------------------------------------------------------------------


def doctor(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "tfdist", "doctor", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.job
def test_the_private_attributes_are_listed():
    from tfdist.compat import registry

    finished = doctor("--private", TF_CONFIG="{")  # which nothing looks at here
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[-1] == f"{len(registry.TOUCHES)} attributes, none with a problem"
    place = lines.index("keras.src.trainers.trainer:Trainer.compile (replaced)")
    assert lines[place + 1].startswith("    why: the optimizer must be wrapped before")
    assert lines[place + 2] == "    verified with: Keras 3.10-3.15"
    assert lines[place + 3] == '    would be replaced by: a public "compiled" event'
    assert len(lines) == 4 * len(registry.TOUCHES) + 1


@pytest.mark.full
@pytest.mark.job
def test_a_private_attribute_that_is_gone_is_marked(tmp_path):
    """Keras is the installed one, without a function."""
    (tmp_path / "sitecustomize.py").write_text(
        "import keras.src.losses.loss as loss\ndel loss.reduce_weighted_values\n"
    )
    finished = doctor("--private", "--json", PYTHONPATH=python_path(tmp_path))
    assert finished.returncode == 1
    problems = [touch for touch in json.loads(finished.stdout) if touch["problem"]]
    assert [touch["place"] for touch in problems] == [
        "keras.src.losses.loss:reduce_weighted_values"
    ]
    assert "is gone in the installed versions" in problems[0]["problem"]
    shown = private.as_text(problems).splitlines()
    assert shown[-2].startswith("!   keras.src.losses.loss:reduce_weighted_values is gone")
    assert shown[-1] == "1 attributes, 1 with a problem"


def test_newer_versions_are_noted_and_no_problem():
    newer = HEALTHY | {"keras": {"version": "3.16.0", "backend": "tensorflow"}}
    report = examine({}, newer)
    assert report.problems == [] and "mirrored" in available(report)
    assert len(report.notes) == 1 and "not with keras 3.16.0" in report.notes[0]
    assert f"Notes\n  {report.notes[0]}\nProblems\n  none" in as_text(report)
    assert "Notes" not in as_text(examine({}, HEALTHY))


@pytest.mark.parametrize(
    ("value", "problem"), [("1", "Received: keras 3.16.0 and TFDIST"), ("on", "='on'")]
)
def test_newer_versions_are_a_problem_where_they_are_refused(value, problem):
    newer = HEALTHY | {"keras": {"version": "3.16.0", "backend": "tensorflow"}}
    report = examine({"TFDIST_STRICT_VERSIONS": value}, newer)
    assert problem in report.problems[0] and available(report) == []


@pytest.mark.job
def test_the_command_prints_what_really_is_installed():
    import keras
    import tensorflow as tf

    finished = doctor("--json", TF_CONFIG="")
    report = json.loads(finished.stdout)
    assert report["versions"]["tensorflow"] == tf.__version__
    assert report["versions"]["keras"] == keras.__version__
    assert report["strategies"]["mirrored"]["available"]
    assert report["strategies"]["parameter_server"]["available"]
    assert report["problems"] == [] and finished.returncode == 0


def test_a_broken_tensorflow_is_no_traceback(modules):
    (modules / "tensorflow.py").write_text("raise ImportError('no such library')")
    finished = doctor(PYTHONPATH=python_path(modules), TF_CONFIG="{")
    assert finished.returncode == 1
    assert finished.stderr == ""
    assert "TensorFlow cannot be imported. Received: ImportError: no such lib" in finished.stdout
    assert "TF_CONFIG is not JSON" in finished.stdout
