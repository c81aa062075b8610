"""A damaged record is refused with one error before anything runs, whatever the damage is."""

import random

import pytest

from tests.replay.test_log import EVENTS, HEADER
from tfdist.cli.main import main
from tfdist.replay.log import Writer, read


def bytes_of_a_record(folder):
    path = folder / "whole.log"
    writer = Writer(str(path), HEADER)
    for event in EVENTS:
        writer.write(event)
    return path.read_bytes()


def flipped(data, dice):
    place = dice.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :]


def overwritten(data, dice):
    place, text = dice.randrange(len(data)), dice.choice([b"null", b"-1", b"1e999", b"[]", b'""'])
    return data[:place] + text + data[place + len(text) :]


def truncated(data, dice):
    return data[: dice.randrange(len(data))]


def without_a_part(data, dice):
    first, last = sorted(dice.randrange(len(data)) for _ in range(2))
    return data[:first] + data[last:]


def with_a_line(change):
    def mutate(data, dice):
        lines = data.splitlines(keepends=True)
        change(lines, dice.randrange(len(lines)), dice)
        return b"".join(lines)

    return mutate


def _drop(lines, place, dice):
    del lines[place]


def _repeat(lines, place, dice):
    lines.insert(dice.randrange(len(lines)), lines[place])


def _swap(lines, place, dice):
    other = dice.randrange(len(lines))
    lines[place], lines[other] = lines[other], lines[place]


def _replace_a_value(lines, place, dice):
    values = [b"null", b"-7", b"7", b"9" * 5000, b"0.5", b"NaN", b'"x"', b"[]", b"{}", b"true"]
    parts = lines[place].rstrip(b"\n").split(b",")
    parts[dice.randrange(len(parts))] = dice.choice([*values, b"[" * 20000])
    lines[place] = b",".join(parts) + b"\n"


MUTATIONS = [
    flipped,
    overwritten,
    truncated,
    without_a_part,
    with_a_line(_drop),
    with_a_line(_repeat),
    with_a_line(_swap),
    with_a_line(_replace_a_value),
]
REFUSED = ("The record is damaged. ", "This is no record of tfdist. ", "This tfdist reads records")


def mutants(data, count, seed=20):
    dice = random.Random(seed)
    for number in range(count):
        yield MUTATIONS[number % len(MUTATIONS)](data, dice)


@pytest.mark.parametrize("count", [800, pytest.param(20000, marks=pytest.mark.full)])
def test_it_is_refused_with_its_own_error_or_read(tmp_path, count):
    data = bytes_of_a_record(tmp_path)
    path = tmp_path / "run.log"
    refused = 0
    for mutant in mutants(data, count):
        path.write_bytes(mutant)
        try:
            read(str(path))
        except ValueError as error:
            assert str(error).startswith(REFUSED), (mutant, error)
            assert str(path) in str(error) and len(str(error).splitlines()) == 1
            refused += 1
    assert refused > count / 2  # the others are cut off at the end of a line, or still possible


def test_the_command_says_so_in_one_line_and_starts_nothing(tmp_path, capsys):
    data = bytes_of_a_record(tmp_path)
    path = tmp_path / "run.log"
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('the script was started')")
    refused = 0
    for mutant in mutants(data, 80):
        path.write_bytes(mutant)
        try:
            read(str(path))
        except ValueError:
            assert main(["replay", str(path), str(script)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(tuple(f"tfdist replay: {text}" for text in REFUSED))
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (1, (b'"workers":2', b'"workers":0')),
        (1, (b'"ps":1', b'"ps":"1"')),
        (1, (b'"threads":"1"', b'"threads":1')),
        (1, (b'"options":{', b'"options":[],"o":{')),
        (2, (b"[2,1]", b'"[2,1]"')),
        (3, (b"[0.1,", b"[")),
        (4, (b'"update",1', b'"update",2')),  # there is no worker 2
        (4, (b",3,4,", b",4,4,")),  # read after it was written
        (4, (b",3,4,", b",3,9,")),
        (4, (b"[[1,3,0", b"[[7,3,0")),
        (4, (b"[[1,3,0,", b"[[1,-3,0,")),
        (4, (b"0badf00d", b"badf00d")),
        (5, (b"null", b"0.5")),
        (8, (b"[0]", b"[1]")),
    ],
)
def test_what_cannot_be_true_is_named_with_its_line(tmp_path, line, change):
    lines = bytes_of_a_record(tmp_path).splitlines(keepends=True)
    assert change[0] in lines[line - 1], lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(*change, 1)
    path = tmp_path / "run.log"
    path.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=rf"damaged.* Received: .*run\.log, line {line}$"):
        read(str(path))
