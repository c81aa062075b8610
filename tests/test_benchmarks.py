"""The benchmark scripts run and write what they promise; no time is asserted."""

from __future__ import annotations

import argparse
import json
import os
import statistics

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import codecs_cell, pages, step_overhead, step_overhead_cell
from tests.benchmarks.running import between, run
from tests.traffic import network
from tfdist.compression import DGC
from tfdist.strategies.horovod.backend import is_installed
from tfdist.watch import status

# One process of pytest-xdist makes the run that these tests share.
shares_run = pytest.mark.xdist_group("step_overhead")
TINY = ["--replicas", "2", "--variables", "2", "--rounds", "1", "--round-seconds", "0.001"]


def run_step_overhead(*options: str) -> str:
    return run("step_overhead", *TINY, *options)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What one run prints, and the JSON file and the page that it writes."""
    folder = tmp_path_factory.mktemp("step_overhead")
    page = folder / "page.md"
    page.write_text("# Title\n<!-- overhead:begin -->\nold\n<!-- overhead:end -->\nrest\n")
    result = folder / "result.json"
    files = ["--json", str(result), "--update", str(page)]
    printed = run_step_overhead("--steps-per-execution", "1", "2", *files)
    return printed, json.loads(result.read_text()), page.read_text()


@pytest.mark.full
@shares_run
def test_step_overhead_prints_a_table_with_the_versions(outputs):
    printed, _, _ = outputs
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2
    assert {len(row) for row in rows} == {3 + 3 * 3}
    for name in ("Python", "TensorFlow", "Keras", "tfdist", "cores"):
        assert name in printed.splitlines()[0]


@pytest.mark.full
@pytest.mark.parametrize(("option", "called"), [("--timeline", "Timeline"), ("--watch", "report")])
def test_the_price_of_seeing_is_printed(option, called):
    (line,) = run_step_overhead(option).splitlines()
    assert line.startswith("2 replicas, 2 variables: a step of ")
    assert f"us more with a {called}, which is " in line
    assert ("an epoch's end takes" in line) == (option == "--watch")


def test_the_price_of_an_epochs_end_is_printed_in_steps():
    ends = {"fit": [0.001, 0.002, 0.001], "watched": [0.005, 0.009, 0.008]}
    text = step_overhead._epoch_ends_text({"epoch_ends": ends}, ("fit", "watched"))
    assert "takes 7.00 ms more (median of 3), which is under 1 % of an epoch" in text
    assert text.endswith("of more than 35 steps of 20 ms")


@pytest.mark.parametrize("name", ["fit", "watched"])
def test_each_end_of_an_epoch_writes_what_that_of_a_watched_run_writes(name, tmp_path, monkeypatch):
    monkeypatch.setattr(status, "SECONDS", 0.0)
    cell = argparse.Namespace(replicas=2, variables=2, steps_per_execution=1, optimizer="sgd")
    cell.dynamic = False
    strategy = step_overhead_cell.make_strategy(name, cell.replicas)
    fit = step_overhead_cell.InFit(strategy, name, cell, str(tmp_path))
    ends = step_overhead_cell.compare_epoch_ends({name: fit})[name]
    assert len(ends) == 20 and min(ends) > 0
    if name == "fit":
        assert not list(tmp_path.iterdir())
        return
    assert "Epoch 25 of 25 is done" in (tmp_path / "report.html").read_text()
    (path,) = tmp_path.glob("ranks/events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    assert {event.step for event in events if event.summary.value} == set(range(25))
    assert (tmp_path / str(os.getpid())).exists()  # what `tfdist run --watch` reads


@pytest.mark.full
@shares_run
def test_step_overhead_writes_every_quantity_of_both_strategies(outputs):
    _, result, _ = outputs
    both, looped = result["cells"]
    assert (both["replicas"], both["variables"], both["steps_per_execution"]) == (2, 2, 1)
    for measured in (both["plain"], both["tfdist"], looped["tfdist"]):
        assert measured["step_seconds"] > 0
        assert measured["trace_seconds"] > 0
        assert measured["peak_bytes"] > 0


@pytest.mark.full
@shares_run
def test_the_table_of_step_overhead_is_what_was_measured(outputs):
    printed, result, _ = outputs
    lines = [line.strip("| ") for line in printed.splitlines() if line.startswith("|")]
    quantities = (("step_seconds", 1e3), ("trace_seconds", 1.0), ("peak_bytes", 1e-6))
    for line, cell in zip(lines[2:], result["cells"], strict=True):
        texts = line.split(" | ")
        assert texts[:3] == ["2", "2", str(cell["steps_per_execution"])]
        for place, (quantity, factor) in enumerate(quantities):
            plain, ours, ratio = texts[3 + 3 * place : 6 + 3 * place]
            assert float(ours) == pytest.approx(cell["tfdist"][quantity] * factor, rel=0.01)
            if "error" in cell["plain"]:
                assert (plain, ratio) == ("crashes", "–")
                assert cell["plain"]["error"] in printed
            else:
                assert float(plain) == pytest.approx(cell["plain"][quantity] * factor, rel=0.01)
                expected = cell["tfdist"][quantity] / cell["plain"][quantity]
                assert float(ratio) == pytest.approx(expected, abs=0.01)


@pytest.mark.full
@shares_run
def test_step_overhead_replaces_only_its_part_of_the_page(outputs):
    printed, _, content = outputs
    expected = f"# Title\n<!-- overhead:begin -->\n{printed}<!-- overhead:end -->\nrest\n"
    assert content == expected


@pytest.mark.full
def test_step_overhead_measures_unknown_batch_shapes():
    assert "unknown batch shape" in run_step_overhead("--dynamic", "--steps-per-execution", "1")


@pytest.mark.parametrize("content", ["", "<!-- t:end --> <!-- t:begin -->", "<!-- t:begin -->"])
def test_page_without_the_markers_is_refused(content, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(content)
    with pytest.raises(ValueError, match="needs one <!-- t:begin -->.*Received: path="):
        pages.update(path, "t", "text")
    assert path.read_text() == content


@pytest.mark.full
@pytest.mark.skipif(not is_installed(), reason="make horovod")
def test_exchange_measures_all_systems_in_each_block(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- exchange:begin -->\n<!-- exchange:end -->\nafter\n")
    options = ["--tensors", "1", "3", "--rounds", "2", "--blocks", "1", "--megabytes", "1"]
    printed = run("exchange", *options, "--json", str(result), "--update", str(page))
    (block,) = json.loads(result.read_text())
    assert list(block) == ["1", "3"]
    for by_system in block.values():
        assert len(by_system) == 5
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in by_system.values())
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")]
    assert [row[0].strip() for row in rows] == ["tensors", "---", "1", "3"]
    assert {len(row) for row in rows} == {1 + 5 + 3}
    for name in ("Python", "TensorFlow", "Horovod", "tfdist"):
        assert f"{name} " in printed
    assert printed.endswith(between(page, "exchange"))


@pytest.mark.full
def test_updates_of_a_parameter_server_are_counted_beside_tensorflows(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(
        "before\n<!-- parameter-server:begin -->\n<!-- parameter-server:end -->\nafter\n"
    )
    options = ["--layers", "1", "--workers", "1", "--policies", "InverseLR", "--jobs", "1"]
    options += ["--updates", "80", "--json", str(result), "--update", str(page)]
    printed = run("parameter_server", *options)
    measured = json.loads(result.read_text())
    assert [row["optimizer"] for row in measured] == ["sgd", "adam"]
    for row in measured:
        assert list(row["systems"]) == ["TensorFlow", "InverseLR"]
        for system in row["systems"].values():
            assert list(system) == ["updates", "chief"]
            assert all(len(rounds) == 3 and min(rounds) > 0 for rounds in system.values())
    assert printed.endswith(between(page, "parameter-server"))


@pytest.mark.full
def test_snapshots_are_measured_by_writer(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- snapshots:begin -->\n<!-- snapshots:end -->\nafter\n")
    options = ["--layers", "1", "--servers", "2", "--snapshots", "2"]
    printed = run("snapshots", *options, "--json", str(result), "--update", str(page))
    measured = json.loads(result.read_text())
    assert [row["writer"] for row in measured] == ["chief", "servers"]
    for row in measured:
        assert row["bytes"] > 3 * 4 * 1024**2
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0
    assert printed.endswith(between(page, "snapshots"))


@pytest.mark.full
def test_a_slow_rank_is_measured_with_even_and_balanced_parts(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- balance:begin -->\n<!-- balance:end -->\nafter\n")
    options = ["--engines", "multi_worker", "--steps", "25", "--jobs", "1", "--batch", "48"]
    printed = run("balance", *options, "--json", str(result), "--update", str(page))
    measured = json.loads(result.read_text())
    (parts,) = measured.values()
    even, balanced = parts["even"], parts["balanced"]
    assert len(even["seconds"]) == len(balanced["seconds"]) == 13
    # A rank's 16 samples take 96 ms, its balanced ones 42 ms or more.
    assert min(even["seconds"]) >= 0.096
    assert min(balanced["seconds"]) < 0.096
    assert even["follows"] == [None]
    assert printed.endswith(between(page, "balance"))


@pytest.mark.full
def test_synchronous_steps_are_measured_by_policy(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- backup-workers:begin -->\n<!-- backup-workers:end -->\nafter\n")
    policies = ["Synchronous()", "Synchronous(parts_per_worker=2, backup=True)"]
    policies.append("Synchronous(drop=1)")
    options = ["--workers", "2", "--steps", "6", "--jobs", "1", "--policies", *policies]
    printed = run("backup_workers", *options, "--json", str(result), "--update", str(page))
    measured = json.loads(result.read_text())
    assert list(measured) == policies
    for found in measured.values():
        assert len(found["seconds"]) == 6 and min(found["seconds"]) > 0
    # The slow worker's 32 samples take 640 ms; of 16 it has one part, or none that counts.
    even, *others = (statistics.median(found["seconds"]) for found in measured.values())
    assert even >= 0.64 > max(others)
    assert measured[policies[0]]["redundant"] == [0]
    assert [found["dropped"] for found in measured.values()] == [[0], [0], [1]]
    assert printed.endswith(between(page, "backup-workers"))


@pytest.mark.full
def test_safety_nets_are_measured_by_strategy(tmp_path):
    result = tmp_path / "result.json"
    options = ["--layers", "2", "--width", "20", "--strategies", "multi_worker"]
    printed = run("safety_nets", *options, "--json", str(result))
    plain, compressed = json.loads(result.read_text()).values()
    assert (len(plain["nets"]), len(compressed["nets"])) == (7, 2)
    for measured in (plain, compressed):
        assert measured["step"] > 0
        assert all(cost["seconds"] > 0 for cost in measured["nets"].values())
    asked = compressed["nets"]["checks, a callback that may save alone, but does not"]
    assert asked["bytes"] < 4 * 800
    # A rank's residual and accumulated gradients.
    assert compressed["nets"]["save, once"]["bytes"] >= 2 * 4 * 800
    assert "TensorFlow 2." in printed


@pytest.mark.full
def test_the_checksum_of_the_data_is_measured():
    launcher = ("-m", "tfdist", "run", "-n", "2", "--strategy", "multi_worker")
    printed = run("agreement", "--batches", "20", "--rounds", "1", launcher=launcher)
    assert "of processor time\nratio " in printed
    assert "description of the model: " in printed


@pytest.mark.full
def test_traffic_counts_the_bytes_of_both(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- operations:begin -->\n<!-- operations:end -->\nafter\n")
    options = ["--strategies", "multi_worker", "--ranks", "2"]
    printed = run("traffic", *options, "--json", str(result), "--update", str(page))
    ((strategy, ranks, sent),) = json.loads(result.read_text())
    assert (strategy, ranks, sent["stated"]) == ("multi_worker", 2, 250_000 / 8 + 4)
    assert 1e6 < sent["engine"]
    assert sent["stated"] < sent["tfdist"]
    assert printed.endswith(between(page, "operations"))


@pytest.mark.full
@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_links_compares_all_exchanges_with_the_engines(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- links:begin -->\n<!-- links:end -->\nafter\n")
    options = ["--backends", "multi_worker", "--rates", "1gbit", "--rounds", "2", "--matrices", "2"]
    printed = run("links", *options, "--json", str(result), "--update", str(page))
    ((backend, rate, times),) = json.loads(result.read_text())
    assert (backend, rate) == ("multi_worker", "1gbit")
    assert next(iter(times)) == "TensorFlow"
    assert all(len(seconds) == 2 for seconds in times.values())
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")]
    assert [float(row[3]) for row in rows[2:3]] == [1.0]
    assert printed.endswith(between(page, "links"))


@pytest.mark.full
def test_codecs_measures_times_memory_and_payloads(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- codecs:begin -->\n<!-- codecs:end -->\nafter\n")
    options = ["--systems", "powersgd", "--elements", "20000", "--tensors", "2"]
    options += ["--rounds", "2", "--json", str(result), "--update", str(page)]
    printed = run("codecs", *options)
    (cell,) = json.loads(result.read_text())["cells"]
    assert len(cell["seconds"]) == 2 and min(cell["seconds"]) > 0
    assert cell["extra_bytes"] > 0
    assert cell["payload_bytes"] == 2 * 4 * 4 * (100 + 100)
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")]
    assert [row[0].strip() for row in rows] == ["compressor", "---", "powersgd"]
    assert {len(row) for row in rows} == {7}
    assert page.read_text() == (
        f"before\n<!-- codecs:begin -->\n{printed}<!-- codecs:end -->\nafter\n"
    )


@pytest.mark.full
def test_payloads_measures_what_is_gathered(tmp_path):
    result = tmp_path / "result.json"
    options = ["--systems", "topk", "int8", "--elements", "20000", "--tensors", "2"]
    printed = run("payloads", *options, "--rounds", "3", "--json", str(result))
    assert set(json.loads(result.read_text())) == {"topk", "int8"}
    assert "| topk | " in printed


@pytest.mark.full
@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_collectives_are_measured_beside_the_engines_own(tmp_path):
    result = tmp_path / "result.json"
    options = ["--backends", "multi_worker", "--ranks", "2", "--size", "80000", "--rounds", "2"]
    printed = run("collectives", *options, "--json", str(result))
    ((backend, ranks, times),) = json.loads(result.read_text())
    assert (backend, ranks) == ("multi_worker", 2)
    assert {name: sorted(systems) for name, systems in times.items()} == {
        "sum": ["engine", "tfdist"],
        "gather": ["engine", "tfdist"],
        "sum of a part": ["tfdist"],
    }
    assert "| `multi_worker` | 2 |" in printed


def test_codecs_decodes_as_many_payloads_as_replicas_send():
    gradients = codecs_cell.make_all_gradients(600, 2)
    one, _ = codecs_cell.make_call("int8", gradients)
    two, payload = codecs_cell.make_call(f"int8{codecs_cell.TWICE}", gradients)
    assert payload == codecs_cell.make_call("int8", gradients)[1]
    for once, twice in zip(one()[0], two()[0]):
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)


def test_codecs_decodes_whole_gradients_with_the_state_of_the_last_call():
    gradients = codecs_cell.make_all_gradients(600, 2)
    assert [tuple(gradient.shape) for gradient in gradients[True]] == [(15, 20)] * 2
    call, payload = codecs_cell.make_call("dgc", gradients)
    totals, _ = call()
    assert payload == 2 * DGC(0.01).wire_bytes(tf.TensorSpec([300], tf.float32))
    for total, gradient in zip(totals, gradients[False]):
        sent = total.numpy() != 0.0
        assert np.flatnonzero(sent).tolist() == np.sort(np.argsort(-np.abs(gradient))[:3]).tolist()
        np.testing.assert_array_equal(total[sent], gradient[sent])
    # With momentum 0.9, what was not sent has grown to 1 + 1.9 times the gradient.
    (second, _), _ = call()
    sent = second.numpy() != 0.0
    np.testing.assert_allclose(second[sent], 2.9 * gradients[False][0][sent], rtol=1e-5)


@pytest.mark.full
def test_convergence_trains_with_and_without_error_feedback(tmp_path):
    page, result, picture = (tmp_path / name for name in ("page.md", "result.json", "picture.png"))
    page.write_text("before\n<!-- convergence:begin -->\n<!-- convergence:end -->\nafter\n")
    options = ["--quick", "--tasks", "digits", "--compressors", "topk 1 %", "--plot", str(picture)]
    printed = run("convergence", *options, "--json", str(result), "--update", str(page))
    cells = json.loads(result.read_text())
    assert [cell["error_feedback"] for cell in cells] == [False, True]
    assert cells[0]["runs"][0]["losses"] != cells[1]["runs"][0]["losses"]
    for cell in cells:
        (run_of_seed,) = cell["runs"]
        steps, losses = zip(*run_of_seed["losses"])
        assert list(steps) == list(range(10, 101, 10))
        assert losses[-1] < 0.5 * losses[0]
        assert run_of_seed["metric"] > 50
        assert 50 < run_of_seed["model_bytes"] / run_of_seed["bytes_per_step"] < 80
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")]
    assert [row[:2] for row in rows[2:]] == [[" topk 1 % ", "  "], [" topk 1 % ", " yes "]]
    assert {len(row) for row in rows} == {3 + 3}
    assert picture.read_bytes().startswith(b"\x89PNG")
    expected = f"before\n<!-- convergence:begin -->\n{printed}<!-- convergence:end -->\nafter\n"
    assert page.read_text() == expected
