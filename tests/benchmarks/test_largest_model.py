"""The search for the largest model, the limits of memory, and a small run of the benchmark."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.common import memory_groups, searching
from tests.benchmarks.running import ROOT, between, run

# Makes a group, goes into it, and takes so many MB.
TAKES = """
import subprocess, sys
from benchmarks.common import memory_groups
with memory_groups.made() as group:
    takes = "import pathlib, sys; from benchmarks.common import memory_groups;"
    takes += "memory_groups.join(pathlib.Path(sys.argv[1]), 2**27); bytearray(int(sys.argv[2]))"
    code = subprocess.run([sys.executable, "-c", takes, str(group), sys.argv[1]]).returncode
    print(code, memory_groups.has_killed(group))
print(group.exists())
"""


@pytest.mark.parametrize("largest", [1, 2, 7, 8, 9, 20, 100])
@pytest.mark.parametrize("guess", [1, 8, 9, 40])
def test_the_largest_size_is_found_from_any_guess(largest, guess):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= largest

    assert searching.largest(fits, guess, 50) == (largest, True)
    assert len(set(tried)) == len(tried) and min(tried) > 0


def test_where_nothing_fits_the_size_is_0():
    assert searching.largest(lambda size: False, 5, 50) == (0, True)


def test_a_good_guess_saves_trials():
    tried = []
    searching.largest(lambda size: not tried.append(size) and size <= 31, 30, 50)
    assert len(tried) <= 4


def test_a_search_that_is_too_long_ends_with_what_fits():
    assert searching.largest(lambda size: True, 8, 3) == (11, False)


needs_groups = pytest.mark.skipif(
    bool(memory_groups.reason_against()), reason=memory_groups.reason_against()
)


@needs_groups
@pytest.mark.parametrize(("taken", "seen"), [(2**20, "0 False"), (2**28, "-9 True")])
def test_a_process_that_takes_more_than_its_limit_is_killed(taken, seen):
    command = [sys.executable, "-c", TAKES, str(taken)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [seen, "False"]


FIRST = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness"]
SECOND = ["cgroup.controllers", "memory.max", "memory.swap.max"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (FIRST, ["1000", "1000", "0"]),
        (["memory.limit_in_bytes"], ["1000"]),
        (SECOND, ["", "1000", "0"]),
        (["cgroup.controllers", "memory.max"], ["", "1000"]),
    ],
)
def test_swap_does_not_help_in_either_version_of_groups(names, expected, tmp_path, monkeypatch):
    parent, own = tmp_path / "parent", tmp_path / "parent" / str(os.getpid())
    for name in names:
        (tmp_path / name).touch()

    def mkdir(path):
        # What the kernel does.
        os.mkdir(path)
        for name in (*names, "cgroup.procs"):
            (path / name).touch()

    parent.mkdir()
    monkeypatch.setattr(type(tmp_path), "mkdir", mkdir)
    memory_groups.join(parent, 1000)
    assert [(own / name).read_text() for name in names] == expected
    assert (own / "cgroup.procs").read_text() == str(os.getpid())
    assert len(list(own.iterdir())) == len(names) + 1


@pytest.mark.parametrize("marker", [None, "cgroup.controllers"])
@pytest.mark.parametrize(("count", "expected"), [(0, False), (1, True)])
def test_the_kernel_counts_whom_it_has_killed(marker, count, expected, tmp_path):
    if marker:
        (tmp_path / marker).touch()
    group = tmp_path / "parent" / "1"
    group.mkdir(parents=True)
    name = "memory.events" if marker else "memory.oom_control"
    (group / name).write_text(f"under_oom 0\noom_kill {count}\noom_group_kill 5\n")
    assert memory_groups.has_killed(tmp_path / "parent") is expected


@pytest.mark.bench
@pytest.mark.full
@needs_groups
def test_parts_of_weights_let_a_larger_model_train(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- largest_model:begin -->\n<!-- largest_model:end -->\nafter\n")
    options = ["--ranks", "2", "--modes", "none", "parameters", "--width", "1024"]
    options += ["--gibibytes", "0.5", "--launches", "6", "--kept", str(tmp_path / "kept.json")]
    printed = run("largest_model", *options, "--json", str(result), "--update", str(page))
    found = {tuple(one["job"]): one["found"] for one in json.loads(result.read_text())["jobs"]}
    none, parts = (found["multi_worker", 2, mode] for mode in ("none", "parameters"))
    assert 0 < none["layers"] < parts["layers"]
    rows = [line for line in printed.splitlines() if line.startswith("| `multi_worker` | 2 |")]
    assert len(rows) == 2
    assert printed.endswith(between(page, "largest_model"))
