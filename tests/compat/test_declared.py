"""Whatever tfdist uses of TensorFlow and Keras that is not public is in the table, and there."""

import ast
import inspect
from pathlib import Path

import pytest

import tfdist
from tfdist import compat
from tfdist.compat import registry
from tfdist.compat.registry import OVERRIDDEN, REPLACED, TOUCHES
from tfdist.elastic import traces

FOLDER = Path(compat.__file__).parent
REPLACEMENTS = [touch for touch in TOUCHES if touch.kind == REPLACED]


def name_of(touch):
    return f"{touch.place}-{touch.kind}"


@pytest.mark.parametrize("touch", TOUCHES, ids=name_of)
def test_the_attribute_is_there(touch):
    assert touch.problem() is None
    assert touch.why and touch.versions and touch.instead


@pytest.mark.parametrize("touch", REPLACEMENTS, ids=name_of)
def test_what_is_declared_as_replaced_is(touch):
    assert tfdist.MirroredStrategy  # whose import installs all of it
    compat.install_collectives()
    compat.leave_executors_at_once()
    assert traces.of_generation  # the same
    found = touch.get()
    found = found.fget if isinstance(found, property) else found
    assert Path(inspect.unwrap(found, stop=is_ours).__code__.co_filename).parent == FOLDER


def is_ours(function):
    return Path(function.__code__.co_filename).parent == FOLDER


def trees():
    for path in sorted(FOLDER.glob("*.py")):
        yield path.name, ast.parse(path.read_text())


def test_no_private_attribute_is_used_past_the_table():
    """On an object that is not tfdist's own there is no underscore: a touch reads and writes it."""
    overridden = {touch.name for touch in TOUCHES if touch.kind == OVERRIDDEN}
    found = []
    for file, tree in trees():
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        own |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            dunder = node.attr.endswith("__")
            if not dunder and node.attr not in own | overridden | {
                "_server_runs",
                "_rank",
                "_size",
            }:
                found.append(f"{file}:{node.lineno} {ast.unparse(node)}")
    allowed = ["optimizers.py", "self._var_key"]  # an own method of an optimizer
    found = [line for line in found if not all(part in line for part in allowed)]
    assert found == []


def test_internal_modules_are_imported_for_base_classes_only():
    """Everything else is found by its name in the table, where it can be missed in plain words."""
    bases = set()
    imported = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases |= {base.id for base in node.bases if isinstance(base, ast.Name)}
            if isinstance(node, ast.ImportFrom) and is_internal(node.module):
                imported |= {alias.name for alias in node.names}
    assert imported <= bases


def test_no_other_package_imports_internal_modules():
    for path in FOLDER.parent.rglob("*.py"):
        if path.parent == FOLDER:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(is_internal(name) for name in names), f"{path}:{node.lineno}"


def test_compat_imports_nothing_that_is_built_on_it():
    allowed = {"compat", "structures", "validation", "_versions"}
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfdist"):
                parts = node.module.split(".")
                names = {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
                assert names <= allowed, f"{file}:{node.lineno}"


def is_internal(module):
    return bool(module) and module.startswith(("keras.src", "tensorflow.python"))


def test_the_table_names_its_owners_with_a_module():
    assert all(
        touch.owner.split(".")[0].split(":")[0] in ("keras", "tensorflow") for touch in TOUCHES
    )
    assert registry.KERAS.startswith("Keras 3.10-3.") and "TensorFlow 2.20-2." in registry.BOTH
