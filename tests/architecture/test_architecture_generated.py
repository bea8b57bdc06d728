"""Generated code is committed; here it is generated again and compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VIRTUAL = "retire/sidecar/pb"  # protoc's name of the folder, so that imports come out absolute


def generate(proto: Path, out: Path) -> dict[str, str]:
    """What `make proto` writes, by file name."""
    options = [f"-I{VIRTUAL}={proto.parent}"]
    options += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", *options, f"{VIRTUAL}/{proto.name}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return {path.name: path.read_text() for path in (out / VIRTUAL).iterdir()}


def committed(root: Path) -> dict[str, str]:
    """The generated files of the repository."""
    folder = root / "node" / VIRTUAL
    return {path.name: path.read_text() for path in folder.glob("node_pb2*")}


def test_protobuf_code_is_fresh(root: Path, tmp_path: Path):
    """The committed files are what node.proto gives; `make proto` when not."""
    fresh = generate(root / "node/retire/sidecar/node.proto", tmp_path)
    assert set(fresh) == {"node_pb2.py", "node_pb2.pyi", "node_pb2_grpc.py"}
    stale = [name for name, text in fresh.items() if committed(root).get(name) != text]
    assert stale == [], "run `make proto`"


def test_a_changed_proto_would_be_seen(root: Path, tmp_path: Path):
    """Control: one more field, and the committed code is stale."""
    text = (root / "node/retire/sidecar/node.proto").read_text()
    changed = tmp_path / "in" / "node.proto"
    changed.parent.mkdir()
    changed.write_text(text.replace("uint32 term = 1;", "uint32 term = 1;\n  bool odd = 90;", 1))
    (tmp_path / "out").mkdir()
    assert generate(changed, tmp_path / "out") != committed(root)
