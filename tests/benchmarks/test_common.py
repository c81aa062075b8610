"""What the benchmarks share: turns, tables, processes and the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.common import machine, options, runner, tables


def test_systems_take_turns_forwards_and_backwards():
    turns = [name for _, name in runner.in_turn(["a", "b", "c"], 3)]
    assert "".join(turns) == "abccbaabc"


def test_a_table_has_columns_of_text_and_of_numbers():
    rows = [["x", "1", "2"], ["y", "3", "4"]]
    assert tables.table(["name", "m", "n"], rows) == [
        "| name | m | n |",
        "|---|---:|---:|",
        "| x | 1 | 2 |",
        "| y | 3 | 4 |",
    ]
    assert tables.table(["a", "b", "c"], rows, "tnt")[1] == "|---|---:|---|"


def test_without_rows_there_is_no_table():
    assert tables.table(["name", "m"], []) == []


def test_figures_stand_before_their_spread():
    values = [1.0, 2.0, 3.0, 4.0, 50.0]
    assert tables.with_range(values, ".1f") == "3.0 (1.0–50.0)"
    assert tables.with_range(values[:1], ".1f") == f"{values[0]:.1f}"
    assert tables.with_quartiles(values, ".1f") == "3.0 (1.5–27.0)"
    assert tables.with_quartiles([2.0], ".2f") == "2.00"


def test_an_interval_leaves_out_what_is_improbable():
    values = [float(value) for value in range(1, 11)]
    # Of 1,024 series of ten rounds, 2 · (1 + 10) have at most one on one side of the median.
    assert tables.with_interval(values, ".1f") == "5.5 (2.0–9.0)"
    assert tables.with_interval(values[:5], ".0f") == "3 (1–5)"
    assert tables.with_interval([2.0], ".0f") == "2 (2–2)"
    assert tables.interval(range(100)) == (39, 60)
    assert [tables.outside_each_side(count) for count in (5, 8, 9, 12, 20)] == [0, 0, 1, 2, 5]


def test_versions_are_those_that_are_installed():
    text = machine.measured_with("TensorFlow", "Keras")
    assert text.startswith(f"Python {sys.version.split()[0]}, TensorFlow 2.")
    assert text.endswith(f", {machine.cores()} cores")


@pytest.mark.parametrize(
    ("given", "made_by"),
    [
        ([], "--update"),
        (["--update", "--rounds", "20"], "--rounds 20 --update"),
        (["--ranks", "2", "4", "--update", "page.md"], "--ranks 2 4 --update"),
        (
            ["--json", "file", "--systems", "horovod, elastic"],
            "--systems 'horovod, elastic' --update",
        ),
    ],
)
def test_a_table_says_with_which_options_it_was_made(given, made_by, monkeypatch):
    assert options.made_by("watching", given) == f"python -m benchmarks.watching {made_by}"
    monkeypatch.setattr(sys, "argv", ["watching.py", *given])
    assert options.made_by("watching").endswith(f"watching {made_by}")


@pytest.fixture
def module(tmp_path):
    """Makes a module of the benchmarks out of code, and gives what `runner` needs to find it."""

    def make(code: str) -> tuple[str, Path]:
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "benchmarks" / "made_up.py").write_text(code)
        return "made_up", tmp_path

    return make


def test_the_last_line_that_a_process_prints_is_its_result(module):
    name, folder = module("import sys; print('note'); print('[1, %s]' % sys.argv[1])")
    assert runner.printed(name, 2, folders=[folder]) == [1, 2]


def test_a_process_that_fails_is_told_with_its_error(module):
    name, folder = module("raise ValueError('no such thing')")
    with pytest.raises(RuntimeError, match="made_up.* failed:(.|\n)*ValueError: no such thing"):
        runner.printed(name, folders=[folder])


def test_what_is_written_comes_from_the_process_that_was_started():
    def start(command: list[str]) -> None:
        assert command[1:3] == ["-m", "benchmarks.made_up"] and command[4:] == ["--rounds", "2"]
        Path(command[3]).write_text(json.dumps({"seconds": 1.5}))

    assert runner.written("made_up", "--rounds", 2, start=start) == {"seconds": 1.5}
