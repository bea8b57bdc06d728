"""A small client of the API server: paths in, plain JSON objects out.

For the harness and for tests that want to see what the server says, status code and message. Owns
the connection. Must never know what an object means; must not be used by the product.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from typing import TYPE_CHECKING, Any, Final

import httpx
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Object = dict[str, Any]
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)


class ApiError(Exception):
    """The server refused; ``code`` is the HTTP status, ``reason`` Kubernetes' word for it."""

    def __init__(self, status: Object) -> None:
        self.code: int = status.get("code", 0)
        self.reason: str = status.get("reason", "")
        self.message: str = status.get("message", "")
        self.causes: list[Object] = (status.get("details") or {}).get("causes") or []
        super().__init__(f"{self.code} {self.reason}: {self.message}")


def refusal(response: httpx.Response) -> ApiError:
    """What a response that is no success says; a proxy's plain text as well."""
    try:
        status = json.loads(response.content)
    except ValueError:
        status = None
    if not isinstance(status, dict) or "message" not in status:
        status = {"message": response.text[:500]}
    return ApiError({"code": response.status_code, **status})


class Api:
    """Calls of one user, as a kubeconfig names it. Thread-safe, as its httpx client is."""

    def __init__(self, kubeconfig: Path) -> None:
        self.server, self.tls, headers = connection(kubeconfig)
        limits = httpx.Limits(max_connections=50)
        self._http = httpx.Client(
            base_url=self.server, verify=self.tls, headers=headers, timeout=_TIMEOUT, limits=limits
        )

    def close(self) -> None:
        """Ends its connections."""
        self._http.close()

    def call(self, method: str, path: str, body: Object | None = None, **params: Any) -> Object:
        """One request; ApiError unless it succeeds."""
        return self._send(method, path, body, "application/json", params)

    def get(self, path: str, **params: Any) -> Object:
        """One object, or a list."""
        return self.call("GET", path, **params)

    def create(self, path: str, body: Object, **params: Any) -> Object:
        """POST to a collection."""
        return self.call("POST", path, body, **params)

    def replace(self, path: str, body: Object, **params: Any) -> Object:
        """PUT; a resourceVersion in the body makes it a compare-and-set."""
        return self.call("PUT", path, body, **params)

    def merge(self, path: str, body: Object, **params: Any) -> Object:
        """A JSON merge patch."""
        return self._send("PATCH", path, body, MERGE, params)

    def patch(self, path: str, operations: list[Object], **params: Any) -> Object:
        """A JSON patch."""
        return self._send("PATCH", path, operations, JSON_PATCH, params)

    def apply(self, path: str, body: Object, manager: str = "e2e", *, force: bool = True) -> Object:
        """Server-side apply."""
        params = {"fieldManager": manager, "force": str(force).lower()}
        return self._send("PATCH", path, body, APPLY, params)

    def delete(self, path: str, **params: Any) -> Object:
        """DELETE."""
        return self.call("DELETE", path, **params)

    def exists(self, path: str) -> bool:
        """Whether GET finds it."""
        try:
            self.get(path)
        except ApiError as error:
            if error.code == httpx.codes.NOT_FOUND:
                return False
            raise
        return True

    def ready(self) -> bool:
        """Whether the server says so; no exception while it does not answer."""
        try:
            return self._http.get("/readyz", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    def text(self, path: str) -> str:
        """What is no object: metrics, logs."""
        response = self._http.get(path)
        if not response.is_success:
            raise refusal(response)
        return response.text

    def watch(self, path: str, **params: Any) -> Iterator[Object]:
        """Events of a collection until the server ends the watch."""
        params = {"watch": "true", **params}
        with self._http.stream("GET", path, params=params, timeout=None) as response:
            if not response.is_success:
                response.read()
                raise refusal(response)
            for line in response.iter_lines():
                yield json.loads(line)

    def _send(
        self, method: str, path: str, body: Any, content_type: str, params: dict[str, Any]
    ) -> Object:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": content_type}
        response = self._http.request(method, path, content=content, headers=headers, params=params)
        if not response.is_success:
            raise refusal(response)
        return response.json()


def connection(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """Server, TLS and headers of the current context; files or inline, certificate or token."""
    config = yaml.safe_load(kubeconfig.read_text())
    name = config["current-context"]
    context = next(one["context"] for one in config["contexts"] if one["name"] == name)
    cluster = next(o["cluster"] for o in config["clusters"] if o["name"] == context["cluster"])
    user = next(o["user"] for o in config["users"] if o["name"] == context["user"])
    headers = {"authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return cluster["server"], tls_context(cluster, user, kubeconfig.parent), headers


def tls_context(cluster: Object, user: Object, folder: Path) -> ssl.SSLContext:
    """Verifies the server by the cluster's CA; shows the user's certificate, if it has one."""
    ca = _material(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=ca.decode() or None)
    if cert := _material(user, "client-certificate", folder):
        with tempfile.NamedTemporaryFile(suffix=".pem") as both:  # ssl takes it from files only
            both.write(cert + b"\n" + _material(user, "client-key", folder))
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _material(entry: Object, key: str, folder: Path) -> bytes:
    """PEM that an entry names or holds; empty when it has none."""
    if f"{key}-data" in entry:
        return base64.b64decode(entry[f"{key}-data"])
    return (folder / entry[key]).read_bytes() if key in entry else b""
