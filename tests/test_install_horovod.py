"""What scripts/install_horovod.py decides and says; nothing is built here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts import install_horovod
from scripts.install_horovod import Failure

WHEEL = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@pytest.fixture(autouse=True)
def _own_places(monkeypatch, tmp_path):
    """A cache and a log of the test's own, and none of Horovod's variables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(install_horovod, "LOG", tmp_path / "install-horovod.log")
    for name in ("HOROVOD_WITH_MPI", "HOROVOD_JOBS", "CXX", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def commands(monkeypatch):
    """The commands that would have been run; pip's `wheel` leaves a wheel behind."""
    given = []

    def run(what, *arguments, env=None):
        given.append(" ".join(arguments))
        if "--wheel-dir" in arguments:
            folder = Path(arguments[arguments.index("--wheel-dir") + 1])
            (folder / WHEEL).write_text("new")

    monkeypatch.setattr(install_horovod, "run", run)
    monkeypatch.setattr(install_horovod, "missing", lambda mpi: [])
    monkeypatch.setattr(install_horovod, "installed_from", lambda *folders: False)
    return given


def keep_wheel(mpi: bool = False) -> Path:
    folder = install_horovod.wheel_folder(install_horovod.tensorflow_name(), mpi)
    folder.mkdir(parents=True)
    (folder / WHEEL).write_text("kept")
    return folder


def test_each_tensorflow_choice_of_mpi_and_cmake_file_has_its_own_wheel(monkeypatch, tmp_path):
    folders = {
        install_horovod.wheel_folder(tensorflow, mpi)
        for tensorflow in ("tensorflow-2.20.0", "tensorflow-2.21.0", "tensorflow-cpu-2.21.0")
        for mpi in (False, True)
    }
    other = tmp_path / "other.cmake"
    other.write_text("set(another 1)")
    monkeypatch.setattr(install_horovod, "CMAKE_LINES", other)
    folders.add(install_horovod.wheel_folder("tensorflow-2.21.0", mpi=False))
    assert len(folders) == 7
    assert {folder.parent for folder in folders} == {tmp_path / "cache" / "tfdist" / "horovod"}


def test_recognizes_where_the_installed_horovod_came_from(monkeypatch, tmp_path):
    gloo, mpi = (install_horovod.wheel_folder("tensorflow-2.21.0+x", mpi) for mpi in (False, True))
    information = tmp_path / "site" / "horovod-0.28.1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    monkeypatch.syspath_prepend(str(information.parent))
    assert not install_horovod.installed_from(gloo, mpi), "installed by hand"
    (information / "direct_url.json").write_text(json.dumps({"url": (gloo / WHEEL).as_uri()}))
    assert install_horovod.installed_from(gloo, mpi)
    assert not install_horovod.installed_from(mpi)


def test_names_what_is_missing_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler, make, mpi = install_horovod.missing(mpi=True)
    assert "C++ compiler" in compiler and "apt install g++" in compiler
    assert "apt install make" in make
    assert "mpicxx" in mpi and "apt install libopenmpi-dev openmpi-bin" in mpi
    assert len(install_horovod.missing(mpi=False)) == 2
    for program in ("clang++", "make"):
        (tmp_path / program).touch(mode=0o755)
    assert install_horovod.missing(mpi=False) == []


def test_missing_programs_are_told_before_anything_is_built(monkeypatch, commands):
    monkeypatch.setattr(install_horovod, "missing", lambda mpi: ["a C++ compiler"])
    with pytest.raises(Failure, match=r"did not find:\n  a C\+\+ compiler"):
        install_horovod.main()
    assert not [command for command in commands if "wheel" in command]


def test_missing_tensorflow_is_told(monkeypatch, commands):
    monkeypatch.setattr(install_horovod, "tensorflow_name", lambda: "")
    with pytest.raises(Failure, match="has no TensorFlow"):
        install_horovod.main()
    assert commands == []


def test_the_build_finds_its_headers(tmp_path):
    """Also a check of TensorFlow: that it has the folders and the header that moved."""
    environment = install_horovod.build_environment(False, tmp_path / "shim")
    shim, *external = [Path(flag.removeprefix("-I")) for flag in environment["CXXFLAGS"].split()]
    assert len(external) == 2 and all(folder.is_dir() for folder in external)
    header = shim / "tensorflow" / "compiler" / "xla" / "client" / "xla_builder.h"
    assert header.read_text() == '#include "xla/hlo/builder/xla_builder.h"\n'
    include = external[0].parents[1]
    assert (include / "xla" / "hlo" / "builder" / "xla_builder.h").is_file()


def test_the_build_leaves_out_what_is_not_needed(tmp_path):
    environment = install_horovod.build_environment(False, tmp_path)
    toolchain = Path(environment["CMAKE_TOOLCHAIN_FILE"]).read_text()
    included = re.fullmatch(r'set\(CMAKE_PROJECT_horovod_INCLUDE "(.+)"\)\n', toolchain)
    assert included and Path(included[1]) == install_horovod.CMAKE_LINES
    assert install_horovod.CMAKE_LINES.is_file()


def test_the_build_depends_on_no_other_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setenv("MAKEFLAGS", "-n --jobserver-auth=3,4 -- VENV=x")
    monkeypatch.setenv("CXXFLAGS", "-g0")
    gloo = install_horovod.build_environment(False, tmp_path / "gloo")
    assert "HOROVOD_GPU_OPERATIONS" not in gloo
    assert gloo["MAKEFLAGS"].removeprefix("-j").isdigit()
    assert gloo["CXXFLAGS"].startswith("-g0 -I")
    assert gloo["HOROVOD_WITHOUT_MPI"] == "1" and "HOROVOD_WITH_MPI" not in gloo
    monkeypatch.setenv("HOROVOD_JOBS", "3")
    mpi = install_horovod.build_environment(True, tmp_path / "mpi")
    assert mpi["MAKEFLAGS"] == "-j3"
    assert mpi["HOROVOD_WITH_MPI"] == "1" and "HOROVOD_WITHOUT_MPI" not in mpi


def test_a_failed_command_says_its_errors_and_where_the_log_is():
    code = "print('x\\n' * 5000 + 'a.cc:1:2: fatal error: no b.h\\n' + 'y' * 5000); exit(3)"
    with pytest.raises(Failure) as raised:
        install_horovod.run("The build", "-c", code)
    assert str(raised.value).splitlines() == [
        "The build failed:",
        "  a.cc:1:2: fatal error: no b.h",
        f"The whole log: {install_horovod.LOG}",
    ]
    assert len(install_horovod.LOG.read_text().splitlines()) > 5000
    with pytest.raises(Failure) as raised:
        install_horovod.run("The second", "-c", "import sys; sys.exit('last words')")
    assert str(raised.value).splitlines()[1:-1] == ["  last words"]


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        ("CMake Error at CMakeLists.txt:5 (message):", True),
        ("gmake[2]: *** [build.make:443: mpi_ops.cc.o] Error 1", True),
        ("c++: fatal error: Killed signal terminated program cc1plus", True),
        ("/usr/bin/ld: cannot find -lmpi", True),
        ("ImportError: libmpi.so.40: cannot open shared object file", True),
        ("ERROR: No matching distribution found for cmake<4", True),
        ("c++ -Werror -o horovod/common/errors.o", False),
        ("except ImportError as error:", False),
        ('  "ERROR: Can not execute `setup.py`', False),
    ],
)
def test_lines_that_tell_of_an_error(line, tells):
    assert install_horovod.error_lines(f"{line}\nend", 1) == [line.strip() if tells else "end"]


def test_does_nothing_when_installed(monkeypatch, commands, capsys):
    monkeypatch.setattr(install_horovod, "installed_from", lambda *folders: True)
    install_horovod.main()
    assert commands == []
    assert "is installed" in capsys.readouterr().out


@pytest.mark.parametrize("asked", ["0", "1"])
def test_mpi_is_accepted_for_gloo_but_not_gloo_for_mpi(asked, monkeypatch, commands):
    monkeypatch.setenv("HOROVOD_WITH_MPI", asked)
    accepted = []
    monkeypatch.setattr(install_horovod, "installed_from", lambda *given: accepted.extend(given))
    install_horovod.main()
    kinds = {folder.name.split("-")[-2] for folder in accepted}
    assert kinds == ({"mpi"} if asked == "1" else {"gloo", "mpi"})


def test_builds_keeps_and_installs_the_wheel(commands):
    install_horovod.main()
    folder = install_horovod.wheel_folder(install_horovod.tensorflow_name(), mpi=False)
    assert [path.name for path in folder.iterdir()] == [WHEEL]
    needs, build_needs, build, install, check = commands
    assert "cloudpickle" in needs and "cmake" in build_needs
    assert "--no-build-isolation" in build and "--no-cache-dir" in build
    assert build.endswith("horovod==0.28.1")
    assert install.endswith(str(folder / WHEEL))
    assert "mpi_built" in check


def test_installs_the_kept_wheel_without_a_build(commands):
    folder = keep_wheel()
    install_horovod.main()
    assert [c for c in commands if str(folder / WHEEL) in c]
    assert not [c for c in commands if "--wheel-dir" in c]


def test_a_kept_wheel_that_does_not_work_is_removed_and_built_anew(monkeypatch, commands):
    folder = keep_wheel()
    record = install_horovod.run

    def run(what, *arguments, env=None):
        record(what, *arguments, env=env)
        if arguments[0] == "-c" and (folder / WHEEL).read_text() == "kept":
            raise Failure("ImportError: libmpi.so.40")

    monkeypatch.setattr(install_horovod, "run", run)
    install_horovod.main()
    assert (folder / WHEEL).read_text() == "new"
    order = ["uninstall", "--wheel-dir", "--force-reinstall"]
    assert [o for c in commands[2:] for o in order if o in c] == order
