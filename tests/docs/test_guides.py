"""The scripts in the guides run as they stand; what a page continues is appended to its script."""

import re
import runpy
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdist
from tests.callbacks import starting

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "compression.md",
    "from_horovod.md",
    "from_tf_distribute.md",
    "multi_process.md",
    "parameter_server.md",
)


def scripts(page):
    """The page's Python blocks by their first line, such as "train.py" or "train.py, before"."""
    found = {}
    for block in re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.M):
        title = re.match(r"# (.*)", block).group(1)
        name = title.removesuffix(", continued")
        assert (name in found) == (name != title), f"{page}: {title}"
        found[name] = found.get(name, "") + block
    return found


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script of a page into a directory of its own, which becomes the current one."""
    monkeypatch.chdir(tmp_path)

    def write(page, name):
        path = tmp_path / name
        path.write_text(scripts(page)[name] + '\nprint("that was all")\n')
        return path

    return write


@pytest.mark.parametrize("page", PAGES)
def test_scripts_before_are_python_and_have_one_after(page):
    found = scripts(page)
    assert found
    for name, text in found.items():
        compile(text, name, "exec")
        assert name.removesuffix(", before") in found


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("from_tf_distribute.md", "mirrored.py"),
        pytest.param("from_tf_distribute.md", "loop.py", marks=pytest.mark.full),
    ],
)
def test_script_for_one_process_runs_on_four_devices(page, name, script):
    variables = runpy.run_path(str(script(page, name)), run_name="__main__")
    assert variables["strategy"].num_replicas_in_sync == 4
    assert np.isfinite(variables["model"].get_weights()[0]).all()


def untitled(path):
    """The first Python block of a page whose script has no title."""
    return re.search(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.M).group(1)


@pytest.mark.parametrize(
    "path",
    [
        DOCS.parent / "README.md",
        pytest.param(DOCS / "getting_started.md", marks=pytest.mark.full),
    ],
)
def test_the_first_script_of_a_beginner_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(untitled(path))
    variables = runpy.run_path("train.py", run_name="__main__")
    assert isinstance(variables["strategy"], tfdist.MirroredStrategy)
    assert variables["strategy"].num_replicas_in_sync == 4
    assert variables["model"].optimizer.iterations == 3 * 16


@pytest.mark.full
@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("balance.md", 0),
        ("custom_loops.md", 1),
        ("local_steps.md", 0),
        ("local_steps.md", 3),
        ("memory.md", 0),
        ("sharding.md", 0),
        ("watching.md", 0),
    ],
)
def test_the_scripts_of_one_option_run(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)[number]
    (tmp_path / "train.py").write_text(text)
    variables = runpy.run_path("train.py", run_name="__main__")
    assert variables["model"].built


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 2])  # the second one only defines a block
def test_the_scripts_of_divided_models_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "model_parallel.md").read_text()
    (tmp_path / "train.py").write_text(
        re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)[number]
    )
    model = runpy.run_path("train.py", run_name="__main__")[("pipeline", "", "model")[number]]
    assert model.optimizer.iterations > 0


@pytest.mark.full
@pytest.mark.xdist_group("horovod")
def test_script_for_horovod_runs(script, tmp_path):
    output = starting.run("horovod", script("from_horovod.md", "train.py"), cwd=tmp_path)
    (accuracy,) = re.findall(r"^test accuracy: ([\d.]+)$", output, re.M)
    assert float(accuracy) > 0.8
    assert "that was all\n" in output and "[1] that was all\n" in output
    for name in ("model.keras", "checkpoint.keras"):
        assert keras.saving.load_model(tmp_path / name).count_params() == 20 * 64 + 64 + 64 * 5 + 5


@pytest.mark.full
@pytest.mark.xdist_group("multi_worker")
def test_script_for_workers_runs(script, tmp_path):
    output = starting.run(
        "multi_worker", script("from_tf_distribute.md", "workers.py"), cwd=tmp_path
    )
    assert output.count("Epoch 3/3") == 1 and "[1] that was all\n" in output
    for name in ("model.keras", "checkpoint.keras"):
        assert keras.saving.load_model(tmp_path / name).optimizer.iterations == 3 * 16


@pytest.mark.full
@pytest.mark.xdist_group("multi_worker")
def test_script_for_several_processes_runs(script, tmp_path):
    path = script("multi_process.md", "train.py")
    path.write_text(path.read_text() + 'print("seen:", seen)\n')
    output = starting.run("multi_worker", path, cwd=tmp_path)
    assert re.findall(r"^rank .*", output, re.M) == ["rank 0 of 2 (100, 10)"]
    assert output.count("seen: 40.0\n") == 2
    assert (tmp_path / "model.keras").exists()


@pytest.mark.full
@pytest.mark.xdist_group("parameter_server_processes")
def test_script_for_a_parameter_server_runs(script, tmp_path):
    path = script("parameter_server.md", "train_ps.py")
    output = starting.run("parameter_server", path, count=3, cwd=tmp_path)
    assert output.count("Epoch 3/3") == 1
    assert re.findall(r"^(\d+) updates, staleness", output, re.M) == ["60"]
    assert output.count("that was all\n") == 1
    assert keras.saving.load_model(tmp_path / "model.keras").optimizer.iterations == 60


@pytest.mark.full
@pytest.mark.xdist_group("parameter_server_processes")
def test_script_with_an_evaluator_runs(script, tmp_path):
    path = script("parameter_server.md", "evaluated.py")
    output = starting.run("parameter_server", "--evaluator", path, count=3, cwd=tmp_path)
    assert output.count("Epoch 3/3") == 1
    assert re.search(r"^\[evaluator 0\] 10/10 - .*accuracy: ", output, re.M)
    assert "[evaluator 0] that was all\n" in output
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3
    assert list((tmp_path / "log" / "validation").iterdir())
