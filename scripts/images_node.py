"""Run inside the vLLM image while it is built: installs the wheel of `retire` beside what is there.

What the image has stays where it will do; what it lacks comes in the locked version. Ends with an
error when torch or vLLM changed.

Usage: python3 images_node.py FOLDER   (retire-*.whl, constraints.txt)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

KEPT = ("torch", "vllm")


def canonical(name: str) -> str:
    """A distribution's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Version by name."""
    found = ((one.metadata["Name"], one.version) for one in metadata.distributions())
    return {canonical(name): version for name, version in found if name}


def constraints(present: dict[str, str], locked: str) -> list[str]:
    """Keep torch and vLLM; take the locked version of what is missing."""
    lines = [f"{name}=={present[name]}" for name in KEPT]
    for line in locked.splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", line)
        if match and canonical(match[1]) not in present:
            lines.append(f"{canonical(match[1])}=={match[2]}")
    return lines


def main(folder: Path) -> int:
    """Install, then compare."""
    before = installed()
    missing = [name for name in KEPT if name not in before]
    if missing:
        sys.exit(f"images: this is no vLLM image: it lacks {', '.join(missing)}")
    (wheel,) = folder.glob("retire-*.whl")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints(before, (folder / "constraints.txt").read_text())))
        file.flush()
        pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--break-system-packages"]
        pip += ["--disable-pip-version-check", "--root-user-action=ignore"]
        subprocess.run([*pip, "--constraint", file.name, f"{wheel}[sidecar]"], check=True)
    told = subprocess.run(
        [sys.executable, __file__, "--versions"], capture_output=True, text=True, check=True
    ).stdout
    wanted = versions(before)
    if told != wanted:
        sys.exit(f"images: the installation changed {wanted!r} to {told!r}")
    return 0


def versions(present: dict[str, str]) -> str:
    """Of what must stay, as text."""
    return "".join(f"{name}=={present.get(name)}\n" for name in KEPT)


if __name__ == "__main__":
    if sys.argv[1:] == ["--versions"]:
        sys.stdout.write(versions(installed()))
        sys.exit(0)
    sys.exit(main(Path(sys.argv[1])))
