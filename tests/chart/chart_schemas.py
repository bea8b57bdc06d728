"""Validates objects against the OpenAPI schemas of a Kubernetes version; unknown fields are errors.

Files come from scripts/chart-schemas. Knows nothing of the chart.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "kube" / "schemas"
VERSIONS = ("v1.34.4", "v1.36.3")
_KINDS = "x-kubernetes-group-version-kind"


@cache
def validators(version: str) -> dict[tuple[str, str], Draft202012Validator]:
    """By (apiVersion, kind)."""
    found: dict[tuple[str, str], Draft202012Validator] = {}
    files = sorted((FOLDER / version).glob("*.json"))
    assert files, f"no schemas of Kubernetes {version}: run scripts/chart-schemas"
    for path in files:
        components = json.loads(path.read_text())["components"]
        for name, schema in components["schemas"].items():
            _close(schema)
            for kind in schema.get(_KINDS, ()):
                api = "/".join(part for part in (kind["group"], kind["version"]) if part)
                whole = {"$ref": f"#/components/schemas/{name}", "components": components}
                found[api, kind["kind"]] = Draft202012Validator(whole)
    return found


def _close(schema: dict[str, Any]) -> None:
    """The API server prunes or refuses what it does not know; here it is always refused."""
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)


def problems(one: dict[str, Any], version: str) -> list[str]:
    """What the schema refuses, each with its path."""
    validator = validators(version).get((one["apiVersion"], one["kind"]))
    if validator is None:
        return [f"Kubernetes {version} has no {one['apiVersion']} {one['kind']}"]
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(one)]
