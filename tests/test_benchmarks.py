"""The benchmark scripts run and write what they promise; no time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import readme

ROOT = Path(__file__).resolve().parents[1]
TINY = ["--replicas", "2", "--variables", "2", "--rounds", "1", "--round-seconds", "0.001"]


def run_step_overhead(*options: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ROOT / "benchmarks" / "step_overhead.py"), *TINY, *options]
    process = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What one run prints, and the JSON and README files that it writes."""
    folder = tmp_path_factory.mktemp("step_overhead")
    readme = folder / "README.md"
    readme.write_text("# Title\n<!-- overhead:begin -->\nold\n<!-- overhead:end -->\nrest\n")
    result = folder / "result.json"
    files = ["--json", str(result), "--update-readme", str(readme)]
    printed = run_step_overhead("--steps-per-execution", "1", "2", *files)
    return printed, json.loads(result.read_text()), readme.read_text()


def test_step_overhead_prints_a_table_with_the_versions(outputs):
    printed, _, _ = outputs
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2
    assert {len(row) for row in rows} == {3 + 3 * 3}
    for name in ("python", "tensorflow", "keras", "tfdist", "CPUs"):
        assert name in printed.splitlines()[0]


def test_step_overhead_writes_every_quantity_of_both_strategies(outputs):
    _, result, _ = outputs
    both, looped = result["cells"]
    assert (both["replicas"], both["variables"], both["steps_per_execution"]) == (2, 2, 1)
    for measured in (both["plain"], both["tfdist"], looped["tfdist"]):
        assert measured["step_seconds"] > 0
        assert measured["trace_seconds"] > 0
        assert measured["peak_bytes"] > 0


def test_step_overhead_says_where_the_peer_crashes(outputs):
    printed, result, _ = outputs
    crashes = "error" in result["cells"][1]["plain"]
    assert ("| crashes |" in printed) == crashes


def test_step_overhead_replaces_only_its_part_of_the_readme(outputs):
    printed, _, content = outputs
    expected = f"# Title\n<!-- overhead:begin -->\n{printed}<!-- overhead:end -->\nrest\n"
    assert content == expected


def test_step_overhead_measures_unknown_batch_shapes():
    assert "unknown batch shape" in run_step_overhead("--dynamic", "--steps-per-execution", "1")


@pytest.mark.parametrize("content", ["", "<!-- t:end --> <!-- t:begin -->", "<!-- t:begin -->"])
def test_readme_without_the_markers_is_refused(content, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(content)
    with pytest.raises(ValueError, match="needs one <!-- t:begin -->.*Received: path="):
        readme.update(path, "t", "text")
    assert path.read_text() == content
