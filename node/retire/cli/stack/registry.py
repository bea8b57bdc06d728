"""The embedded registry as a child of the stack: ``python -m retire.cli.stack.registry FOLDER``.

Runs one Valkey, prints its log, ends when it ends; restarting is the supervisor's. Must never be
imported.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from retire.protocol.errors import RetireError
from retire.registry.embedded import EmbeddedServer

POLL_S = 0.2


def follow(path: Path, position: int) -> int:
    """Print what was appended to the log since ``position``; the new position."""
    with path.open("rb") as log:
        log.seek(position)
        text = log.read()
    whole = text[: text.rfind(b"\n") + 1]
    sys.stdout.buffer.write(whole)
    sys.stdout.flush()
    return position + len(whole)


def run(folder: Path) -> int:
    """Until SIGTERM (0) or until the server ends by itself (1)."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server = EmbeddedServer(folder, restart=False)
    position = server.log_path.stat().st_size if server.log_path.exists() else 0
    with server:
        while server.pid is not None and not stop.wait(POLL_S):
            position = follow(server.log_path, position)
    follow(server.log_path, position)
    return 0 if stop.is_set() else 1


if __name__ == "__main__":
    try:
        sys.exit(run(Path(sys.argv[1])))
    except RetireError as error:
        sys.exit(str(error))
