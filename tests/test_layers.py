"""How tfdist's modules depend on each other, from their imports, and how large they may be."""

from __future__ import annotations

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Low to high: a package imports from its own line and from those above it in this list.
LAYERS = (
    "arguments limits environment control_groups structures checksum _versions validation testing",
    "compression staleness cluster",
    "local",
    "compat",
    "engines",
    "options",
    "data step",
    "optimizer balance elastic memory pipeline",
    "processes callbacks watch",
    "parameter_server",
    "replay",
    "strategies",
    "plan tensor_parallel",
    "rendezvous",
    "launcher",
    "checkup",
    "cli",
)
LAYER = {package: number for number, names in enumerate(LAYERS) for package in names.split()}

# What nobody imports: it names all others for the user.
_FRONT = ("tfdist", "tfdist.__main__", "tfdist.testing.selfcheck")

MAX_LINES = 300
# A third of what there were at first. Lower the limit whenever there are fewer.
MAX_ANY = 79


@functools.cache
def sources() -> dict[str, pathlib.Path]:
    """The files of the package by the names of their modules."""
    found = {}
    for path in sorted((ROOT / "tfdist").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text(), module)


def imports_of(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules of tfdist that `tree` imports, inside functions and for types too.

    Args:
        tree: of a module.
        modules: the names of all that there are.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "tfdist"}
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"relative imports are not used here. Received: line {node.lineno}")
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "tfdist":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules else node.module for name in names}
    return found - {"tfdist"} if _only_asks_for_the_version(tree) else found


def _only_asks_for_the_version(tree):
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tfdist"
    } == {"__version__"}


def package_of(module: str) -> str:
    """The part of the name that the layers are made of; "" for tfdist itself."""
    return module.partition(".")[2].partition(".")[0]


@functools.cache
def edges() -> frozenset[tuple[str, str]]:
    """Which module imports which, those of one package left out."""
    modules = set(sources())
    return frozenset(
        (module, imported)
        for module in modules - set(_FRONT)
        for imported in imports_of(tree_of(module), modules)
        if package_of(module) != package_of(imported)
    )


def upward(pairs, layer=LAYER) -> list[tuple[str, str]]:
    """Those of `pairs`, of importing and imported module, that go to a higher layer."""
    places = {"": len(LAYERS), **layer}
    return sorted(
        (low, high) for low, high in pairs if places[package_of(low)] < places[package_of(high)]
    )


def in_cycles(pairs) -> set[str]:
    """The packages that import themselves through others."""
    direct = {}
    for module, imported in pairs:
        direct.setdefault(package_of(module), set()).add(package_of(imported))
    found = set()
    for start in direct:
        seen, todo = set(), list(direct[start])
        while todo:
            package = todo.pop()
            if package not in seen:
                seen.add(package)
                todo += direct.get(package, ())
        if start in seen:
            found.add(start)
    return found


def _packages(pair):
    return tuple(map(package_of, pair))


def _text_of_pairs(pairs):
    return ", ".join(f"{module} imports {imported}" for module, imported in sorted(pairs))


def test_every_package_has_a_layer():
    packages = {package_of(module) for module in sources()} - {"", "__main__"}
    assert packages == set(LAYER)


def test_nothing_imports_upward():
    found = upward(edges())
    assert not found, _text_of_pairs(found)


def test_packages_have_no_cycles():
    pairs = edges()
    found = in_cycles(pairs)
    within = [pair for pair in pairs if set(_packages(pair)) <= found]
    assert not found, _text_of_pairs(within)


def test_cycles_and_upward_imports_would_be_found():
    tree = ast.parse("def f():\n    from tfdist import step\n    import tfdist.cli.main")
    found = imports_of(tree, {"tfdist.step", "tfdist.cli.main"})
    assert found == {"tfdist.step", "tfdist.cli.main"}
    cycle = [("tfdist.data.a", "tfdist.step.b"), ("tfdist.step.c", "tfdist.data.d")]
    assert in_cycles(cycle) == {"data", "step"}
    assert in_cycles(cycle[:1]) == set()
    assert upward(cycle) == []
    assert upward([("tfdist.step.a", "tfdist.replay.b")]) == [("tfdist.step.a", "tfdist.replay.b")]
    # By the name of tfdist itself, everything can be reached.
    tree = ast.parse("import tfdist\ntfdist.__version__")
    assert imports_of(tree, set()) == set()
    tree = ast.parse("import tfdist\n(tfdist.__version__, tfdist.Strategy)")
    assert imports_of(tree, set()) == {"tfdist"}
    assert upward([("tfdist.cli.main", "tfdist")]) == [("tfdist.cli.main", "tfdist")]


def _lines():
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for path in sources().values()
    }


def test_modules_are_short():
    found = {name: lines for name, lines in _lines().items() if lines > MAX_LINES}
    assert not found, f"over {MAX_LINES} lines: {found}"


def arguments_of_any_type(tree: ast.Module) -> list[str]:
    """The arguments that are declared as `Any`, without more."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            a = node.args
            every = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
            found += [
                f"{node.name}({argument.arg})"
                for argument in every
                if argument is not None and _is_any(argument.annotation)
            ]
    return found


def _is_any(annotation):
    return annotation is not None and ast.unparse(annotation) in ("Any", "typing.Any")


def test_few_arguments_are_of_any_type():
    found = {module: len(arguments_of_any_type(tree_of(module))) for module in sources()}
    worst = sorted(found.items(), key=lambda item: -item[1])[:10]
    assert sum(found.values()) <= MAX_ANY, f"{sum(found.values())}, most of them in {worst}"


def test_arguments_of_any_type_are_counted():
    text = "def f(a: Any, /, b: int, *c: Any, d: typing.Any = 1, **e: list[Any]) -> Any: ..."
    assert arguments_of_any_type(ast.parse(text)) == ["f(a)", "f(d)", "f(c)"]
