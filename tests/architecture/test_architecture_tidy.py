"""Sizes, names and places: the house rules that a machine can check."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"}
# Written in two parts, so that this file does not break its own rule.
FOREIGN = "/".join(("", "work", ""))
FOREIGN_PATHS = re.compile("(?<![A-Za-z0-9_.-])(" + FOREIGN + r"|\.libr" + "ary/)")


def functions(source: str) -> list[tuple[str, int]]:
    """Name and length in lines of every function."""
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_files_stay_small(sources: list[Path], root: Path):
    """At most 400 lines each; the median of the packages under 150."""
    lengths = {path: len(path.read_text().splitlines()) for path in sources}
    packages = [n for path, n in lengths.items() if root / "tests" not in path.parents and n]
    print(f"files: {len(packages)}, median {statistics.median(packages)}, max {max(packages)}")
    assert {str(path): n for path, n in lengths.items() if n > FILE_LINES_MAX} == {}
    assert statistics.median(packages) < 150


def test_functions_stay_small(sources: list[Path], root: Path):
    """At most 60 lines each; the median of the packages under 10."""
    long: dict[str, int] = {}
    lengths: list[int] = []
    for path in sources:
        found = functions(path.read_text())
        long |= {f"{path}:{name}": n for name, n in found if n > FUNCTION_LINES_MAX}
        if root / "tests" not in path.parents:
            lengths += [n for _, n in found]
    print(f"functions: {len(lengths)}, median {statistics.median(lengths)}, max {max(lengths)}")
    assert long == {}
    assert statistics.median(lengths) < 10


def test_a_long_function_would_be_seen():
    """Control: the measure counts from the def to the last line, nested ones too."""
    source = "def f():\n    def g():\n" + "        pass\n" * 61
    assert functions(source) == [("f", 63), ("g", 62)]


def test_no_module_is_called_after_nothing(sources: list[Path], root: Path):
    """A module's or package's name says what it holds."""
    names = {path: path.relative_to(root).with_suffix("").parts for path in sources}
    assert [path for path, parts in names.items() if FORBIDDEN_NAMES & set(parts)] == []


def test_source_roots_are_no_packages(files: list[Path], root: Path):
    """No __init__.py in operator/, node/, e2e/ or under tests/: it would shadow modules."""
    inits = {path.parent for path in files if path.name == "__init__.py"}
    assert not inits & {root, root / "operator", root / "node", root / "e2e", root / "scripts"}
    assert not [folder for folder in inits if root / "tests" in (folder, *folder.parents)]


def test_test_files_have_names_of_their_own(files: list[Path], root: Path):
    """Under importmode importlib two test modules of one name confuse reports and caches."""
    names = [path.name for path in files if path.name.startswith("test_") and path.suffix == ".py"]
    assert sorted(names) == sorted(set(names))
    misplaced = [path for path in files if path.name.startswith("test_") and path.suffix == ".py"]
    assert [path for path in misplaced if root / "tests" not in path.parents] == []


def test_every_test_says_what_must_hold(files: list[Path], root: Path):
    """Each test function opens with a docstring."""
    silent = [
        f"{path}:{node.name}"
        for path in files
        if root / "tests" in path.parents and path.name.startswith("test_") and path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_modules_open_with_a_docstring(sources: list[Path]):
    """Every module that holds code says what it owns."""
    trees = {path: ast.parse(path.read_text()) for path in sources}
    assert [path for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def undocumented(script: str) -> set[str]:
    """KEYS[n] and ARGV[n] that a script uses and its header does not name; all when it has none."""
    header, closed, body = script.removeprefix("--[[").partition("]]")
    if not script.startswith("--[[") or not closed:
        return {"header"}
    pattern = r"(?:KEYS|ARGV)\[\d+\]"
    return set(re.findall(pattern, body)) - set(re.findall(pattern, header))


def test_every_lua_script_opens_with_its_contract(files: list[Path]):
    """A block comment that names every key and argument, and what comes back."""
    scripts = [path for path in files if path.suffix == ".lua"]
    assert scripts, "the registry's scripts must be found"
    for path in scripts:
        text = path.read_text()
        assert undocumented(text) == set(), path
        assert "eturns" in text.partition("]]")[0] or path.stem == "prelude", path


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        ("return KEYS[1]", {"header"}),
        ("--[[ open", {"header"}),
        ("--[[ KEYS[1] meta ]] return ARGV[2] .. KEYS[1]", {"ARGV[2]"}),
        ("--[[ KEYS[1] meta ]] return KEYS[1]", set()),
    ],
)
def test_an_undocumented_argument_would_be_seen(script: str, missing: set[str]):
    """Control of the rule above."""
    assert undocumented(script) == missing


def test_no_file_names_a_path_of_the_machine_it_was_written_on(files: list[Path]):
    """The repository speaks to whoever clones it."""
    guilty = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        guilty += [f"{path}: {match[0]}" for match in FOREIGN_PATHS.finditer(text)]
    assert guilty == []


@pytest.mark.parametrize(("text", "caught"), [(f"see {FOREIGN}x", 1), (f"net{FOREIGN}x", 0)])
def test_such_a_path_would_be_seen(text: str, caught: int):
    """Control: the path itself, and a harmless neighbour."""
    assert len(FOREIGN_PATHS.findall(text)) == caught
