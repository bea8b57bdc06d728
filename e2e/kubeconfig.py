"""Writes kubeconfig files of one cluster, one user each, with everything inline."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.certificates import KeyPair


def user_of(pair: KeyPair) -> dict[str, str]:
    """A user who has a client certificate."""
    return {
        "client-certificate-data": _inline(pair.cert),
        "client-key-data": _inline(pair.key),
    }


def write(
    path: Path, server: str, ca_file: Path, user: dict[str, str], namespace: str = ""
) -> Path:
    """One cluster, one user, one context; readable by its owner."""
    cluster = {"server": server, "certificate-authority-data": _inline(ca_file)}
    context = {"cluster": "e2e", "user": "e2e"} | ({"namespace": namespace} if namespace else {})
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": context}],
        "current-context": "e2e",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
