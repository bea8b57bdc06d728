"""The operator image, built once by scripts/images, and one container of it to look into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# importmode=importlib puts nothing there: the folder's own modules.
sys.path.insert(0, str(Path(__file__).parent))

from images_podman import IMAGE, RESTRICTED, ROOT, Container, podman


@pytest.fixture(scope="session")
def built() -> int:
    """Build it; the size in MB that the script prints."""
    done = subprocess.run(
        [ROOT / "scripts" / "images"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return int(re.findall(r"is (\d+) MB", done.stdout)[0])


@pytest.fixture(scope="session")
def container(built: int):
    """One container that waits; removed at the end."""
    assert built
    name = f"retire-images-{os.getpid()}"
    podman("run", "--detach", "--rm", "--name", name, *RESTRICTED, IMAGE, "sleep", "1800")
    yield Container(name)
    podman("rm", "--force", "--time", "0", name)
