"""The commands that the pages show, and that `tfdist plan --explain` recommends, are accepted."""

import re
import shlex

import click
import pytest

from tests.docs import sources
from tfdist.cli.main import cli
from tfdist.plan import decisions

PAGES = [sources.ROOT / "README.md", *sorted(sources.DOCS.glob("*.md"))]
_COMMAND = re.compile(r"\btfdist (run|plan|test|doctor|replay)\b(.*)")


def commands_of(text):
    """The subcommands in a text of lines, each with what follows in its line."""
    for line in text.replace("\\\n", " ").splitlines():
        found = _COMMAND.search(line)
        if found and not found[2].startswith(":"):  # else the command has printed it
            yield found[1], found[2]


def shown():
    """Pages, and the commands in their blocks for the shell."""
    for path in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.S | re.M):
            yield from ((path.name, *found) for found in commands_of(block))


def options_of(subcommand, rest):
    """What the parser makes of a command; nothing is started."""
    words = shlex.split(rest.split(" :")[0], comments=True)
    return cli.commands[subcommand].make_context(f"tfdist {subcommand}", words).params


def test_pages_show_commands():
    assert len(list(shown())) > 30


@pytest.mark.parametrize(
    ("page", "subcommand", "rest"),
    [pytest.param(*one, id=f"{one[0]}: {one[1]}{one[2]}") for one in dict.fromkeys(shown())],
)
def test_a_command_is_accepted(page, subcommand, rest):
    found = options_of(subcommand, rest)
    if subcommand == "plan":
        assert found["bandwidth"] or found["cluster"] or found["explain"]


@pytest.mark.parametrize(
    "decision", [one for one in decisions.DECISIONS if one.code.startswith("tfdist ")]
)
def test_a_recommended_command_is_accepted(decision):
    ((subcommand, rest),) = commands_of(decision.code)
    options_of(subcommand, rest)


def test_the_decisions_have_a_command():
    assert any(one.code.startswith("tfdist ") for one in decisions.DECISIONS)


@pytest.mark.parametrize("rest", [" --min 2 --max 8 train.py", " -n 2 --mim 2 train.py"])
def test_a_command_with_a_mistake_is_not_accepted(rest):
    with pytest.raises(click.UsageError):
        options_of("run", rest)
