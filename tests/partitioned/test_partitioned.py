"""Training with a `variable_partitioner`, on real servers in a process of its own."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

_DEADLINE = 600
_ROOT = pathlib.Path(__file__).resolve().parents[2]
# A network of its own, where nobody else sends.
_ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def _can_be_alone():
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*_ALONE, "true"], capture_output=True, check=False).returncode == 0


def _run(folder, *names, alone=False):
    command = [*(_ALONE if alone else []), sys.executable, "-m", "tests.partitioned.job"]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    with open(folder / "output", "w") as output:
        done = subprocess.run(
            [*command, str(folder), *names],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_DEADLINE,
            check=False,
        )
    assert done.returncode == 0, (folder / "output").read_text()[-5000:]
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    names = ["equality", "files", "refusal"]
    alone = _can_be_alone()
    return _run(
        tmp_path_factory.mktemp("partitioned"), *names, *["traffic"][: int(alone)], alone=alone
    )


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("more"), "initial", "large")


pytestmark = pytest.mark.xdist_group("partitioned")


def _check_equality(results):
    for name, differences in results.items():
        assert differences["weights"] <= 1e-6, name
        assert differences["state"] <= 1e-5, name
        assert differences["history"] <= 1e-5, name


def test_synchronous_training_equals_one_device(results):
    _check_equality(results["equality"])


def test_the_optimizers_state_is_beside_the_parts(results):
    table = results["files"]["table"]
    assert [device.split("/")[3] for device in table] == ["task:0", "task:1", "task:0"]
    assert results["files"]["slots"] == [table, table]
    assert results["files"]["small"] == ["table/embeddings"]


def test_no_update_is_lost(results):
    assert results["files"]["updates"] == 8


@pytest.mark.parametrize(("name", "parts"), [("fixed", 2), ("whole", 1), ("none", 1)])
def test_what_was_saved_is_loaded_with_any_partitioner(results, name, parts):
    loaded = results["files"]["loaded"][name]
    assert loaded["parts"] == parts
    assert loaded["weights"] == [0.0, 0.0, 0.0]
    assert loaded["state"] == [0.0, 0.0]
    assert loaded["evaluate"] <= 1e-6
    assert loaded["predict"] <= 1e-6


@pytest.mark.full
def test_parts_begin_with_the_values_of_one_device(more):
    assert len(more["initial"]) == 12 * 4 + 1
    assert all(parts == 3 for _, parts in more["initial"].values())
    assert [name for name, (same, _) in more["initial"].items() if not same] == []


@pytest.mark.full
def test_a_large_table_equals_one_device(more):
    assert set(more["large"]["equality"]) == {"sgd", "adamw"}
    _check_equality(more["large"]["equality"])


@pytest.mark.full
def test_plain_sgd_visits_only_the_rows_of_the_gradient(more):
    # Others update the whole table, piece by piece.
    assert more["large"]["divided"] == {"sgd": False, "adamw": True}


@pytest.mark.full
def test_a_large_table_is_saved_and_loaded_in_chunks(more):
    number, largest = more["large"]["sizes"]
    # The table and two slots, read for four files and written for as many loads.
    assert number > 3 * 4 * (9001 * 4 * 4 // 4096)
    assert largest <= 4096
    for name in ("fixed", "whole", "none"):
        loaded = more["large"]["files"]["loaded"][name]
        assert loaded["weights"] == [0.0, 0.0, 0.0], name
        assert loaded["state"] == [0.0, 0.0], name
        assert max(loaded["evaluate"], loaded["predict"]) <= 1e-6, name
    assert more["large"]["files"]["resumed_updates"] == 12
    assert more["large"]["bfloat16"] == [0.0, 0.0]


def test_training_resumes_with_another_partitioner(results):
    assert results["files"]["resumed"] == 1
    assert results["files"]["resumed_updates"] == 12


def test_an_optimizer_that_looks_at_whole_variables_is_refused_before_training(results):
    message, updates = results["refusal"]
    assert "Received: optimizer Adafactor, partitioned ['table/embeddings'" in message
    assert updates == 0


def test_only_the_rows_of_a_batch_travel(results):
    _check_traffic(results.get("traffic"))


@pytest.mark.full
def test_only_the_rows_of_a_batch_travel_with_other_optimizers_and_parts(tmp_path):
    results = _run(tmp_path, "more_traffic", alone=True) if _can_be_alone() else {}
    _check_traffic(results.get("more_traffic"))


def _check_traffic(traffic):
    if traffic is None:
        pytest.skip("a network of its own needs root and the programs unshare and ip")
    sent = dict(traffic)
    table = sent.pop("table")
    assert sent and max(sent.values()) < table / 20, traffic


@pytest.mark.full
@pytest.mark.parametrize("check", ["sparse_equality", "dense_equality"])
def test_all_optimizers_equal_one_device(tmp_path, check):
    _check_equality(_run(tmp_path, check)[check])


@pytest.mark.full
def test_all_optimizers_of_a_large_table_equal_one_device(tmp_path):
    sparse, dense = _run(tmp_path, "large_equality")["large_equality"]
    assert len(sparse) == len(dense) == 12
    _check_equality(sparse)
    _check_equality(dense)


@pytest.mark.full
def test_options_that_look_at_gradients_train(tmp_path):
    results = _run(tmp_path, "options")["options"]
    assert results["compensated"][2] == 12
    assert results["accumulated"][2] == 6
    assert results["compressed"][2] == 12
    assert 6 < results["mixed_float16"][2] <= 12  # loss scaling skips those that overflow
    for first, last, _ in results.values():
        assert last < first
