"""A small Kubernetes API server for the sidecar's tests: one Lease, and TokenReview, over HTTP.

A real socket and real HTTP; e2e has the real API server.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LEASE = "/apis/coordination.k8s.io/v1/namespaces/retire/leases/retire-term"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


class KubeServer:
    """Answers by ``term`` and ``tokens`` (token -> status of its review); counts what is asked."""

    def __init__(self, folder: Path) -> None:
        self.term: int | None = None  # None: there is no Lease
        self.tokens: dict[str, dict[str, Any]] = {}
        self.fail_with = 0  # an HTTP status for everything
        self.reviews: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.account = folder / "account"
        self.account.mkdir()
        self.account_token("first")
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    def account_token(self, token: str) -> None:
        (self.account / "token").write_text(token)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def env(self) -> dict[str, str]:
        """What points a sidecar here."""
        return {"RETIRE_KUBE_API": self.url, "RETIRE_KUBE_ACCOUNT": str(self.account)}

    def start(self) -> KubeServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Nothing listens any more; ``start`` listens on the same port again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if self.fail_with:
            return self.fail_with, {"kind": "Status", "message": "planted"}
        if (method, path) == ("GET", LEASE) and self.term is not None:
            return 200, {"kind": "Lease", "spec": {"leaseTransitions": self.term}}
        if (method, path) == ("POST", REVIEWS):
            self.reviews.append(body["spec"])
            status = self.tokens.get(body["spec"]["token"], {"authenticated": False})
            return 201, {"kind": "TokenReview", "status": status}
        return 404, {"kind": "Status", "message": "not found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply(None)

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                self._reply(json.loads(self.rfile.read(size)))

            def _reply(self, body: Any) -> None:
                if outer._server is None:  # gone: a kept-alive connection ends without an answer
                    self.close_connection = True
                    return
                outer.authorizations.append(self.headers.get("authorization") or "")
                status, answer = outer.answer(self.command, self.path, body)
                encoded = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        return Handler


def account_of(namespace: str, name: str, *audiences: str) -> dict[str, Any]:
    """The status of a review that accepts a service account's token."""
    user = {"username": f"system:serviceaccount:{namespace}:{name}"}
    found: dict[str, Any] = {"authenticated": True, "user": user}
    return {**found, "audiences": [*audiences]} if audiences else found
