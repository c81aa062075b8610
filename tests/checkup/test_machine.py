"""What a rank runs on, and the limits of its control groups."""

import os
import socket

import pytest

from tfdist.checkup import machine


def write(folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in settings.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def second(tmp_path):
    """The second version of control groups: a group in a group."""
    own, groups = tmp_path / "own", tmp_path / "groups"
    own.write_text("0::/job/step\n")
    write(groups / "job", memory__max="4000000000", cpu__max="150000 100000")
    write(groups / "job" / "step", memory__max="5000000000", cpu__max="200000 100000")
    return own, groups


@pytest.fixture
def first(tmp_path):
    """The first version: a folder for each controller."""
    own, groups = tmp_path / "own", tmp_path / "groups"
    own.write_text("5:cpu,cpuacct:/box\n4:memory:/box\n1:name=systemd:/box\n")
    write(groups / "memory" / "box", memory__limit_in_bytes="2000000000")
    write(groups / "memory", memory__limit_in_bytes=str(2**63 - 4096))
    write(groups / "cpu" / "box", cpu__cfs_quota_us="50000")
    return own, groups


def test_the_strictest_limit_around_a_process_counts(second):
    assert machine.memory_limit(*second) == 4_000_000_000
    assert machine.core_limit(*second) == 1.5


def test_limits_of_the_first_version(first):
    assert machine.memory_limit(*first) == 2_000_000_000
    assert machine.core_limit(*first) == 0.5


def test_no_limit(tmp_path):
    assert machine.memory_limit(tmp_path / "none", tmp_path) is None
    assert machine.core_limit(tmp_path / "none", tmp_path) is None


def test_what_is_left_of_a_limit(second):
    _, groups = second
    write(groups / "job", memory__current="3000000000", memory__stat="anon 1\ninactive_file 500")
    assert machine.memory_left(*second) == 1_000_000_500
    write(groups / "job" / "step", memory__current="4900000000")
    assert machine.memory_left(*second) == 100_000_000


def test_what_is_left_of_a_limit_of_the_first_version(first):
    _, groups = first
    assert machine.memory_left(*first) is None  # what is used is not known
    stat = "inactive_file 1\ntotal_inactive_file 300"
    write(groups / "memory" / "box", memory__usage_in_bytes="2500000000", memory__stat=stat)
    assert machine.memory_left(*first) == 0


def test_the_largest_number_of_the_first_version_means_no_limit(first):
    _, groups = first
    write(groups / "memory" / "box", memory__limit_in_bytes=str(2**63 - 4096))
    write(groups / "cpu" / "box", cpu__cfs_quota_us="-1")
    assert machine.memory_limit(*first) is None
    assert machine.core_limit(*first) is None


def test_max_means_no_limit(second):
    _, groups = second
    for folder in (groups / "job", groups / "job" / "step"):
        write(folder, memory__max="max", cpu__max="max 100000")
    assert machine.memory_limit(*second) is None
    assert machine.core_limit(*second) is None


def test_the_facts_are_of_this_machine():
    facts = machine.facts_of("rank 0", {"Python": "3"}, [], "CPU:0")
    assert facts.host == socket.gethostname()
    assert facts.cores == len(os.sched_getaffinity(0))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts.memory_bytes == pytest.approx(total, rel=0.01)
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.place == machine.facts_of("rank 1", {}, [], "CPU:0").place
