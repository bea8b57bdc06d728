"""Runs podman on the store of scripts/images, and commands in a container of the operator image."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "localhost/retire-operator:local"
STORE = Path(os.environ.get("RETIRE_IMAGES_DIR", ROOT / ".cache" / "images"))
# What a pod of the chart has: a read-only root, no rights, no network.
RESTRICTED = (
    *("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--network=none"),
    *("--security-opt=no-new-privileges", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"),
)


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run podman on the store of scripts/images."""
    store = ("--storage-driver", "vfs", "--root", f"{STORE}/store", "--runroot", f"{STORE}/run")
    runtime = ("--runtime", "runc", "--cgroup-manager", "cgroupfs")
    done = subprocess.run(
        ["podman", *store, *runtime, *arguments], capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True, slots=True)
class Container:
    """A running one; every command is a process of its own in it."""

    name: str

    def run(self, *command: str, env: dict[str, str] | None = None):
        """Run a command and return its outcome."""
        variables = [
            word for key, value in (env or {}).items() for word in ("-e", f"{key}={value}")
        ]
        return podman("exec", *variables, self.name, *command, check=False)

    def python(self, source: str) -> str:
        """What a line of Python prints."""
        done = self.run("python", "-c", source)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
