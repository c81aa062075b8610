"""Forming a group leaves Python's logging as it was."""

import logging

from absl import logging as absl_logging

from tfdist.compat import groups


def test_what_is_silenced_gives_the_root_logger_no_handler(monkeypatch, capsys):
    monkeypatch.setattr(logging.root, "handlers", [])
    with groups._silenced():
        absl_logging.warning("not for people")
    assert logging.root.handlers == []
    assert capsys.readouterr().err == ""
