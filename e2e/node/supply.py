"""Contents of one pod's volumes and environment: from the watched collections and TokenRequest.

Owns the pod's service account tokens. Must never write a file.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.node.world import World

Object = dict[str, Any]
_DEFAULT_LIFE_S: Final = 3600
_RENEW_AT: Final = 0.8  # of a token's life, as the kubelet


@dataclass(frozen=True, slots=True)
class Token:
    """A bound token, and when to ask for another on the loop's clock."""

    value: str
    renew_at_s: float


class PodSupply:
    """Everything that ``volumes.Supply`` and ``environment.Sources`` ask of one pod's namespace."""

    def __init__(self, world: World, pod: Object) -> None:
        self._world = world
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]
        self._tokens: dict[str, Token] = {}

    def config_map(self, name: str) -> Object | None:
        """By name."""
        return self._world.get("config_maps", self._namespace, name)

    def secret(self, name: str) -> Object | None:
        """By name."""
        return self._world.get("secrets", self._namespace, name)

    def token(self, source: Object) -> str | None:
        """As ``renew`` got it."""
        found = self._tokens.get(_key(source))
        return None if found is None else found.value

    def claim_folder(self, name: str) -> Path | None:
        """Where the bound volume of a claim lies."""
        claim = self._world.get("claims", self._namespace, name)
        if claim is None or claim["status"].get("phase") != "Bound":
            return None
        folder = self._world.claims / claim["spec"]["volumeName"]
        return folder if folder.is_dir() else None

    async def renew(self) -> None:
        """Ask for the tokens that the pod's volumes want and that are old or missing."""
        now_s = asyncio.get_running_loop().time()
        for source in token_sources(self._pod):
            held = self._tokens.get(_key(source))
            if held is None or held.renew_at_s < now_s:
                life_s = source.get("expirationSeconds", _DEFAULT_LIFE_S)
                value = await self._request(source, life_s)
                self._tokens[_key(source)] = Token(value, now_s + _RENEW_AT * life_s)

    async def _request(self, source: Object, life_s: int) -> str:
        """A token bound to the pod: it is void when the pod is gone."""
        metadata = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName", "default")
        bound = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        spec = {"expirationSeconds": life_s, "boundObjectRef": bound}
        if audience := source.get("audience"):
            spec["audiences"] = [audience]
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        answer = await self._world.api.call("POST", path, {"spec": spec})
        return answer["status"]["token"]


def token_sources(pod: Object) -> list[Object]:
    """Every serviceAccountToken source of a pod's volumes."""
    return [
        source["serviceAccountToken"]
        for volume in pod["spec"].get("volumes", [])
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]


def _key(source: Object) -> str:
    return json.dumps(source, sort_keys=True)
