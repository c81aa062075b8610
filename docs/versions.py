"""The documentation of each release and of `main`, in one site: `make docs-versions`.

sphinx-polyversion checks out each tag `v*` and `main`, builds its pages with the code beside them,
and tells `conf.py` which other versions there are. The site opens at the newest release, or at
`main` while there is none.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx_polyversion.api import apply_overrides
from sphinx_polyversion.driver import DefaultDriver
from sphinx_polyversion.environment import Environment
from sphinx_polyversion.git import Git, GitRef, GitRefType, file_predicate
from sphinx_polyversion.sphinx import CommandBuilder, Placeholder

DOCS = Path("docs")
OUTPUT_DIR = "docs/_build/versions"
MOCK = False
SEQUENTIAL = True


def listed(driver: DefaultDriver, built: GitRef, _: Environment) -> dict[str, str | list[str]]:
    """What `conf.py` gets for a version: its name, and those of all, the newest first."""
    versions = sorted(driver.targets, key=lambda ref: ref.date, reverse=True)
    return {"version_of_pages": built.name, "versions_of_pages": [ref.name for ref in versions]}


def opened_first(driver: DefaultDriver) -> dict[str, GitRef]:
    """What the template of the first page is filled with."""
    releases = [ref for ref in driver.builds if ref.type_ == GitRefType.TAG]
    return {"first": max(releases or driver.builds, key=lambda ref: ref.date)}


apply_overrides(globals())
root = Git.root(Path(__file__).parent)
sphinx = [sys.executable, "-m", "sphinx", "-q", "-b", "html"]
DefaultDriver(
    root,
    OUTPUT_DIR,
    vcs=Git(branch_regex="main", tag_regex=r"v\d.*", predicate=file_predicate([DOCS])),
    builder=CommandBuilder(DOCS, [*sphinx, Placeholder.SOURCE_DIR, Placeholder.OUTPUT_DIR]),
    env=Environment.factory(),
    data_factory=listed,
    root_data_factory=opened_first,
    template_dir=root / DOCS / "templates" / "site",
).run(MOCK, SEQUENTIAL)
