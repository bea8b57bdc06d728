"""A real Prometheus: scrapes what it is told to, answers queries, knows the chart's rules.

For tests and ``make observe``. Owns the process; must never look into our own.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import yaml

from bench.observatory import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts" / "retire" / "rules" / "retire.yaml"
SCRAPE_S = 1
READY_S = 60.0


class Refused(Exception):
    """Prometheus does not accept an expression; the text is what it says of it."""


class Prometheus:
    """One process below ``folder``. ``targets``: address -> labels."""

    def __init__(self, folder: Path, targets: Mapping[str, Mapping[str, str]]) -> None:
        self.folder, self.port = folder, free_port()
        self.at_s: float | None = None  # queries look at this time; None: now
        self._targets = targets
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self.port}"
        self._http = httpx.Client(base_url=self.url, timeout=30)

    def __enter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        shutil.copy(RULES, self.folder / "rules.yml")
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--enable-feature=exemplar-storage",
                ],
                stdout=log,
                stderr=log,
            )
        until(self._ready, READY_S, (self.folder / "log").read_text)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self._http.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query's series. Raises Refused when the expression is not one."""
        when = {} if self.at_s is None else {"time": self.at_s}
        return self._data("/api/v1/query", query=expression, **when)["result"]

    def value(self, expression: str) -> float:
        """Of the only series."""
        (series,) = self.query(expression)
        return float(series["value"][1])

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """Exemplars of the last minutes."""
        now = time.time()
        found = self._data("/api/v1/query_exemplars", query=expression, start=now - 600, end=now)
        return [one for series in found for one in series["exemplars"]]

    def freeze(self) -> None:
        """From now on every query looks at this moment: what was scraped may end."""
        self.at_s = time.time()

    def rounds(self, count: int) -> None:
        """Wait until every target was scraped so many times more."""
        began = time.time()
        ages = f"count(timestamp(up) > {began + (count - 1) * SCRAPE_S})"
        until(lambda: self._count(ages) == len(self._targets), READY_S, lambda: self.query("up"))
        time.sleep(SCRAPE_S)  # rules are evaluated beside the scrapes

    def _count(self, expression: str) -> float:
        return sum(float(series["value"][1]) for series in self.query(expression))

    def _data(self, path: str, **params: Any) -> Any:
        answer = self._http.get(path, params=params).json()
        if answer["status"] != "success":
            raise Refused(answer["error"])
        return answer["data"]

    def _ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _config(self) -> dict[str, Any]:
        return {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {
                    "job_name": "retire",
                    "static_configs": [
                        {"targets": [address], "labels": dict(labels)}
                        for address, labels in self._targets.items()
                    ],
                }
            ],
        }


def until(condition: Callable[[], bool], timeout_s: float, why: Callable[[], object] = str) -> None:
    """Wait for a condition; AssertionError with what ``why`` shows when it does not come true."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"not true within {timeout_s:g} s: {why()}"
        time.sleep(0.2)
