"""Who may import what, where import-linter's deny-lists cannot say it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

# Pure parts of the standard library. `re` parses versions, `json` writes canonical bytes.
PROTOCOL_MAY_IMPORT = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "hmac",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "struct",
    "types",
    "typing",
}

# Answers "no such module" for everything that an installed extra would bring.
BLOCKER = """
import sys
ALLOWED = set(sys.stdlib_module_names) | {"retire", "retire_operator"} | set(sys.argv[2].split())
REFUSED = set(sys.argv[3].split())

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if (REFUSED and top in REFUSED) or (not REFUSED and top not in ALLOWED):
            raise ModuleNotFoundError(f"{name} is not installed (blocked by the test)")
        return None

sys.meta_path.insert(0, Blocker())
import importlib
for name in sys.argv[1].split():
    importlib.import_module(name)
"""


def imports_of(source: str) -> set[str]:
    """Every module that a source names in an import, absolute."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def impure(source: str) -> set[str]:
    """What a protocol module imports and may not."""
    return {
        name
        for name in imports_of(source)
        if name.partition(".")[0] not in PROTOCOL_MAY_IMPORT
        and name != "retire.protocol"
        and not name.startswith("retire.protocol.")
    }


def modules(root: Path, package: str) -> list[str]:
    """Every module of a package, by name."""
    folder = root / package.replace(".", "/")
    found = [path.relative_to(root).with_suffix("") for path in folder.rglob("*.py")]
    assert found, f"no module in {folder}"
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in found)


def import_blocked(names: list[str], *, allowed: str = "", refused: str = "") -> str:
    """Import ``names`` in a process where other modules do not exist; returns its error output."""
    command = [sys.executable, "-c", BLOCKER, " ".join(names), allowed, refused]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_the_protocol_imports_nothing_but_values(root: Path):
    """An allow-list: stdlib value modules and itself. No clock, thread, IO or randomness."""
    for path in (root / "node/retire/protocol").glob("**/*.py"):
        assert not impure(path.read_text()), path


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from asyncio import sleep",
        "import retire.registry",
        "from . import versions",
    ],
)
def test_an_impure_import_would_be_seen(line: str):
    """Control of the rule above, also inside a function."""
    assert impure(f"def f():\n    {line}\n")


def test_the_protocol_needs_no_package(root: Path):
    """`pip install retire` without extras gives a working protocol and mailbox."""
    names = modules(root / "node", "retire.protocol") + modules(root / "node", "retire.mailbox")
    assert import_blocked(names) == ""


@pytest.mark.parametrize("name", ["redis", "grpc", "httpx"])
def test_the_blocker_blocks(name: str):
    """Control: an adapter's package is missing in that process."""
    assert f"{name} is not installed" in import_blocked([name])


def test_the_operator_and_the_sidecar_need_no_torch(root: Path):
    """Everything but the engine imports where torch and vLLM do not exist."""
    names = modules(root / "operator", "retire_operator")
    for package in ("client", "mailbox", "protocol", "registry", "sidecar", "telemetry"):
        names += modules(root / "node", f"retire.{package}")
    errors = import_blocked(names, refused="torch vllm transformers numpy")
    assert errors == ""


def test_only_the_engine_names_vllm(root: Path):
    """No other package imports torch or vLLM, not even inside a function."""
    for path in (root / "node/retire").rglob("*.py"):
        if root / "node/retire/engine" in path.parents:
            continue
        tops = {name.partition(".")[0] for name in imports_of(path.read_text())}
        assert not tops & {"torch", "vllm", "transformers"}, path
