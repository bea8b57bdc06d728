"""Where the Kubernetes binaries are, and what to do when one is missing.

Looked for in this order: the folder named by ``KUBEBUILDER_ASSETS`` (control plane and kubectl, as
setup-envtest lays them out), ``.cache/kube/bin`` (made by ``scripts/kube-tools``), the PATH. Must
never build or download anything: that is the script's work.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUILT: Final = ROOT / ".cache" / "kube" / "bin"
CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager")
CLIENTS: Final = ("kubectl", "helm")


class BinaryMissing(Exception):
    """A binary is nowhere; the message says how to get it."""


def folders() -> list[Path]:
    """Every folder that may hold one, first choice first."""
    named = os.environ.get("KUBEBUILDER_ASSETS", "")
    return [Path(named), BUILT] if named else [BUILT]


def binary(name: str) -> Path:
    """The executable; BinaryMissing when there is none."""
    for folder in folders():
        if os.access(folder / name, os.X_OK):
            return folder / name
    if found := shutil.which(name):
        return Path(found)
    places = ", ".join(str(folder) for folder in folders())
    raise BinaryMissing(f"{name} is not in {places} or on the PATH: run scripts/kube-tools")


def search_path() -> str:
    """A PATH on which children find kubectl, helm and the rest first."""
    return os.pathsep.join([*map(str, folders()), os.environ.get("PATH", "")])
