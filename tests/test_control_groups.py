"""What Linux lets a process use."""

import pytest

from tfdist import control_groups


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
    assert control_groups.memory_limit(*second) == 4_000_000_000
    assert control_groups.core_limit(*second) == 1.5


def test_limits_of_the_first_version(first):
    assert control_groups.memory_limit(*first) == 2_000_000_000
    assert control_groups.core_limit(*first) == 0.5


def test_no_limit(tmp_path):
    assert control_groups.memory_limit(tmp_path / "none", tmp_path) is None
    assert control_groups.core_limit(tmp_path / "none", tmp_path) is None


def test_the_largest_number_of_the_first_version_means_no_limit(first):
    _, groups = first
    write(groups / "memory" / "box", memory__limit_in_bytes=str(2**63 - 4096))
    write(groups / "cpu" / "box", cpu__cfs_quota_us="-1")
    assert control_groups.memory_limit(*first) is None
    assert control_groups.core_limit(*first) is None


def test_max_means_no_limit(second):
    _, groups = second
    for folder in (groups / "job", groups / "job" / "step"):
        write(folder, memory__max="max", cpu__max="max 100000")
    assert control_groups.memory_limit(*second) is None
    assert control_groups.core_limit(*second) is None


@pytest.mark.parametrize(("available", "free"), [(5, 5 * 1024), (10**9, 6_500)])
def test_what_a_group_has_left_is_free(second, tmp_path, available, free):
    own, groups = second
    write(groups / "job", memory__max="10000", memory__current="4000")
    write(groups / "job", memory__stat="anon 3000\ninactive_file 500")
    memory = tmp_path / "meminfo"
    memory.write_text(f"MemAvailable: {available} kB\n")
    assert control_groups.free_memory(own, groups, memory) == free


def test_files_of_the_first_version_count_as_free(first, tmp_path):
    own, groups = first
    write(groups / "memory" / "box", memory__usage_in_bytes="1500000000")
    write(groups / "memory" / "box", memory__stat="cache 9\ntotal_inactive_file 100000000")
    assert control_groups.free_memory(own, groups, tmp_path / "none") == 600_000_000


def test_a_limit_of_which_nobody_knows_what_is_used_does_not_count(first, tmp_path):
    assert control_groups.free_memory(*first, tmp_path / "none") is None


def test_a_group_over_its_limit_has_nothing_left(first, tmp_path):
    own, groups = first
    write(groups / "memory" / "box", memory__usage_in_bytes="2500000000")
    assert control_groups.free_memory(own, groups, tmp_path / "none") == 0


def test_memory_is_not_known_without_linux(tmp_path):
    assert control_groups.free_memory(*[tmp_path / "none"] * 3) is None


def test_this_machine_has_memory():
    free, total = control_groups.free_memory(), control_groups.memory_of_host()["MemTotal"]
    assert 0 < free < total
