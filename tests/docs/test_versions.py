"""`make docs-versions`: a site with the pages of each release and of `main`."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.docs import sources

pytest.importorskip("sphinx_polyversion", reason="make docs installs what builds the pages")
pytestmark = pytest.mark.full

GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]


def commit(repository, version):
    """A release: a folder that is imported as tfdist, and a page."""
    (repository / "tfdist" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (repository / "docs" / "index.md").write_text(f"# Pages of {version}\n")
    subprocess.run([*GIT, "add", "."], cwd=repository, check=True)
    subprocess.run([*GIT, "commit", "-q", "-m", version], cwd=repository, check=True)


def test_each_version_has_its_pages_and_a_list_of_all(tmp_path):
    (tmp_path / "tfdist").mkdir()
    (tmp_path / "docs").mkdir()
    shutil.copytree(sources.ROOT / "docs" / "templates", tmp_path / "docs" / "templates")
    for name in ("conf.py", "versions.py"):
        shutil.copy(sources.ROOT / "docs" / name, tmp_path / "docs")
    subprocess.run([*GIT, "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    commit(tmp_path, "1.0")
    subprocess.run([*GIT, "tag", "v1.0"], cwd=tmp_path, check=True)
    commit(tmp_path, "1.1")

    subprocess.run([sys.executable, "docs/versions.py"], cwd=tmp_path, check=True)

    site = tmp_path / "docs" / "_build" / "versions"
    for name, version, other in (("v1.0", "1.0", "main"), ("main", "1.1", "v1.0")):
        page = (site / name / "index.html").read_text()
        assert f"Pages of {version}" in page and f"tfdist {version}" in page
        assert (site / name / "search.html").exists()
        assert version in (site / name / "searchindex.js").read_text()
        assert re.search(rf'href="\.\./{other}/index\.html">{other}<', page)
    assert "v1.0/index.html" in (site / "index.html").read_text()
