"""The pages that list what is in the code list all of it, and nothing that is not there."""

import re

from tests.docs import sources

# Not in the package: what reads or sets these is outside of it.
_ELSEWHERE = {"HOROVOD_WITH_MPI"}


def variables_of_the_code():
    prefixes = "TFDIST|TF|HOROVOD|SLURM|OMPI|MPI|PMI|PMIX|MALLOC|OMP|CUDA|KERAS|PYTHON"
    found = sources.names(rf"(?:{prefixes})_[A-Z_]*[A-Z]|MALLOC_[A-Z_]+_|PYTHONUNBUFFERED")
    return found | sources.names("no_grpc_proxy|(?:grpc|https?|no)_proxy")


def variables_of_the_page():
    cells = [row[0] for row in sources.table_rows("environment_variables.md")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_all_environment_variables_are_on_their_page():
    code, page = variables_of_the_code(), variables_of_the_page()
    assert {"TFDIST_REPLAY", "SLURM_PROCID", "MALLOC_MMAP_MAX_", "no_grpc_proxy"} <= code
    assert sorted(code - page) == []
    assert sorted(page - code - _ELSEWHERE) == []


def test_all_messages_of_the_troubleshooting_page_are_in_the_code():
    cells = [row[0] for row in sources.table_rows("troubleshooting.md")]
    messages = [text for cell in cells for text in re.findall(r"^`(.*)`$", cell)]
    assert len(messages) > 30
    assert [text for text in messages if not sources.message(text)] == []


def test_a_message_that_nobody_prints_is_found():
    assert sources.message("There is no device … here")
    assert not sources.message("here … There is no device")
    assert not sources.message("There is no gadget")


def test_the_map_of_the_code_has_every_room():
    rooms = [row[0].strip("`") for row in sources.table_rows("architecture.md")]
    folders = {path.parent.relative_to(sources.PACKAGE).parts[0] for path in sources.folders()}
    assert set(rooms) - {"single files", "options.py"} == folders


def test_the_map_of_the_code_names_files_that_exist():
    page = (sources.DOCS / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", page)
    assert len(named) > 10
    assert [name for name in named if not exists(name)] == []


def exists(name):
    return (sources.PACKAGE / name).exists() or (sources.ROOT / name).exists()


def test_entries_of_the_changelog_name_their_issues():
    entries = (sources.ROOT / "CHANGELOG.md").read_text().split("\n- ")[1:]
    named = {}
    for entry in entries:
        for number in re.findall(r"\(issue\s+(\d+)\)\.$", entry, re.M):
            named.setdefault(number, []).append(entry)
    assert set(named) == {"25", "26", "27"}
    of_issue = {"25": "LocalSGD(steps, after)", "26": "sharding=", "27": "tfdist plan"}
    for number, feature in of_issue.items():
        assert any(feature in entry for entry in named[number])
