"""The file of a record, without any training."""

import json

import pytest

from tfdist.cli.main import main
from tfdist.replay.events import End, Exhausted, Fit, Header, Run, Used, Weights
from tfdist.replay.log import Writer, read

HEADER = Header(2, 1, {"staleness": "[]"}, "1", {"tfdist": "0"})
USED = Used("update", 1, 3, 4, 0, 0.1, 7, [[1, 3, 0, "0badf00d"]])
WEIGHTS = Weights(12, [[0.1, float("inf")], []])
EVENTS = [
    Fit([["a/kernel", [2, 1], "float32"], ["a/none", [0, 3], "float32"]]),
    Run(0, 3, WEIGHTS),
    USED,
    USED._replace(action="dropped", factor=None, staleness=1),
    Exhausted(),
    Run(1, 5, WEIGHTS),
    USED._replace(action="kept", factor=None, read=5, version=5, staleness=0, anew=[0]),
    End(None, WEIGHTS),
    Fit([]),
    End("KeyboardInterrupt", None),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.log"
    writer = Writer(str(path), HEADER)
    for event in EVENTS:
        writer.write(event)
    return path  # the writer is not closed, as in a process that is killed


def test_what_was_written_is_read(path):
    log = read(str(path))
    assert log.header == HEADER
    first, second = log.fits
    assert (first.fit, first.end) == (EVENTS[0], EVENTS[7])
    assert [run.run for run in first.runs] == [EVENTS[1], EVENTS[5]]
    assert [run.used for run in first.runs] == [EVENTS[2:4], EVENTS[6:7]]
    assert [run.exhausted for run in first.runs] == [True, False]
    assert (second.fit, second.runs, second.end) == (EVENTS[8], [], EVENTS[9])
    assert first.is_whole and not second.is_whole


def test_an_update_takes_a_few_bytes(path):
    line, *_ = (line for line in path.read_bytes().splitlines() if line.startswith(b'["update"'))
    assert len(line) < 64


def test_whole_lines_before_a_cut_are_read(path):
    lines = path.read_bytes().splitlines(keepends=True)
    begun = lines[:4]
    for end in range(len(lines[4])):
        path.write_bytes(b"".join(begun) + lines[4][:end])
        (fit,) = read(str(path)).fits
        assert [run.used for run in fit.runs] == [EVENTS[2:3]]
        assert not fit.is_whole


@pytest.mark.parametrize("damage", [b"{}\n", b"\xff\n", b'["update",1]\n', b'["what"]\n', b"\n"])
def test_a_damaged_line_is_named(path, damage):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], damage, *lines[4:]]))
    with pytest.raises(ValueError, match=r"damaged.* Received: .*run\.log, line 4$"):
        read(str(path))


def test_a_file_without_its_beginning_is_damaged(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match="line 2$"):
        read(str(path))


@pytest.mark.parametrize("text", ["", "epoch,loss\n0,1.5\n", "[1]\n", '{"format": 1}\n'])
def test_other_files_are_no_record(path, capsys, text):
    path.write_text(text)
    with pytest.raises(ValueError, match="no record of tfdist.*Received: .*run.log"):
        read(str(path))
    assert main(["replay", str(path), __file__]) == 2
    assert "This is no record of tfdist" in capsys.readouterr().err


def test_a_later_format_is_not_guessed(path):
    first, *others = path.read_text().splitlines(keepends=True)
    header = {**json.loads(first), "tfdist record": 2}
    path.write_text("".join([json.dumps(header) + "\n", *others]))
    with pytest.raises(ValueError, match="format 1.* Received: .*run.log of format 2"):
        read(str(path))


def test_the_record_of_the_run_before_is_kept(path):
    before = path.read_bytes()
    Writer(str(path), HEADER)
    assert (path.parent / "run.log.before").read_bytes() == before
    assert read(str(path)).fits == []


def test_a_script_that_is_not_there(path, capsys):
    assert main(["replay", str(path), "absent.py"]) == 2
    assert "there is no such script. Received: 'absent.py'" in capsys.readouterr().err
