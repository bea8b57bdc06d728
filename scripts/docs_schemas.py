"""Pages of the reference that are made from schemas: OpenAPI, node.proto, the CRD.

Owns how a schema becomes tables. Must never say anything that its schema does not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from retire.engine import openapi

ROOT = Path(__file__).resolve().parents[1]
PROTO = ROOT / "node" / "retire" / "sidecar" / "node.proto"
CRD = ROOT / "crds" / "servingscopes.yaml"
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]
_MESSAGES, _SERVICES, _FIELDS, _METHODS = 4, 6, 2, 2  # field numbers of descriptor.proto


# --- HTTP ----------------------------------------------------------------------------------------


def http(table: Table, made: str) -> str:
    """Routes, headers, bodies and errors of the OpenAPI document."""
    document = openapi.document()
    parts = document["components"]
    routes = table(("route", "does", "body", "answers"), _routes(document["paths"]))
    headers = table(
        ("header or path part", "form", "meaning"),
        ((f"`{p['name']}`", form(p["schema"]), p["description"]) for p in _parameters(parts)),
    )
    errors = table(
        ("status", "codes", "when"),
        (
            (name.removeprefix("Error"), _codes(answer), answer["description"])
            for name, answer in parts["responses"].items()
        ),
    )
    about = (
        "The same as a document for tools: [openapi.json](../openapi.json); every server answers "
        f"it at `{openapi.PATH}`. What the routes mean: [HTTP API](../http-api.md).\n\n"
    )
    schemas = "\n".join(_schema(table, name, one) for name, one in parts["schemas"].items())
    return (
        f"# HTTP\n\n{made}{about}{routes}\n## Headers\n\n{headers}\n## Errors\n\n{errors}\n"
        f"## Schemas\n\n{schemas}"
    )


def _parameters(parts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from parts["parameters"].values()


def _routes(paths: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for path, item in paths.items():
        for method in item.keys() - {"parameters"}:
            one = item[method]
            body = one.get("requestBody", {}).get("content", {})
            answers = ", ".join(one["responses"])
            wanted = ", ".join(form(kind["schema"]) for kind in body.values())
            yield f"`{method.upper()} {path}`", one["summary"], wanted, answers


def _codes(answer: dict[str, Any]) -> str:
    schema = answer["content"]["application/json"]["schema"]
    codes = schema["properties"]["error"]["properties"]["code"]["enum"]
    return ", ".join(f"`{code}`" for code in codes)


def _schema(table: Table, name: str, schema: dict[str, Any]) -> str:
    about = f"{schema['description']}\n\n" if "description" in schema else ""
    if "properties" not in schema:
        return f"### {name}\n\n{about}{form(schema)}\n"
    needed = set(schema.get("required", ()))
    rows = (
        (f"`{key}`", "yes" if key in needed else "", form(one), one.get("description", ""))
        for key, one in schema["properties"].items()
    )
    return f"### {name}\n\n{about}{table(('field', 'required', 'form', 'meaning'), rows)}"


def form(schema: dict[str, Any]) -> str:
    """A schema in a few words; a reference is a link to its heading on the same page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(form(one) for one in schema[key])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kinds = schema.get("type", "any")
    text = " or ".join(kinds) if isinstance(kinds, list) else kinds
    if "items" in schema:
        text += f" of {form(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        text += f" of {form(schema['additionalProperties'])}"
    limits = [f"{key} {schema[key]}" for key in ("minimum", "exclusiveMinimum") if key in schema]
    limits += [f"{key} {schema[key]}" for key in ("maximum", "maxLength") if key in schema]
    limits += [f"`{schema['pattern']}`"] if "pattern" in schema else []
    return f"{text} ({', '.join(limits)})" if limits else text


# --- gRPC ----------------------------------------------------------------------------------------


def described() -> FileDescriptorProto:
    """node.proto with its comments, by protoc itself."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = [f"-I{PROTO.parent}", "--include_source_info", f"--descriptor_set_out={out}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, str(PROTO)]
        subprocess.run(command, check=True, capture_output=True)
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def grpc(table: Table, made: str) -> str:
    """Calls, then messages."""
    file = described()
    said = {
        tuple(place.path): f"{place.leading_comments} {place.trailing_comments}".strip()
        for place in file.source_code_info.location
    }
    (service,) = file.service
    calls = table(
        ("call", "takes", "answers", "meaning"),
        (
            (
                f"`{m.name}`",
                _streamed(m.client_streaming, m.input_type),
                _streamed(m.server_streaming, m.output_type),
                said.get((_SERVICES, 0, _METHODS, i), ""),
            )
            for i, m in enumerate(service.method)
        ),
    )
    messages = [
        _message(table, one, said, (_MESSAGES, i)) for i, one in enumerate(file.message_type)
    ]
    about = (
        f"Service `{file.package}.{service.name}` of the sidecar: over TCP (mutual TLS in "
        "Kubernetes) to the operator, over an owner-only Unix socket to the engine.\n\n"
    )
    return f"# gRPC\n\n{made}{about}{calls}\n## Messages\n\n" + "\n".join(messages)


def _message(
    table: Table, one: DescriptorProto, said: dict[tuple[int, ...], str], path: tuple[int, ...]
) -> str:
    about = said.get(path, "")
    head = f"### {one.name}\n\n" + (" ".join(about.split()) + "\n\n" if about else "")
    entries = {f"{one.name}.{inner.name}": inner for inner in one.nested_type}
    rows = [
        (
            f"`{field.name}`", str(field.number), _type(field, entries),
            " ".join(said.get((*path, _FIELDS, i), "").split()),
        )
        for i, field in enumerate(one.field)
    ]  # fmt: skip
    body = table(("field", "number", "type", "meaning"), rows) if rows else "Empty.\n"
    return head + body


def _type(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    known = next((e for name, e in entries.items() if field.type_name.endswith(name)), None)
    if known is not None:  # a map is a repeated message of key and value
        return f"map of {_type(known.field[0], {})} to {_type(known.field[1], {})}"
    name = _link(field.type_name) or field.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _link(type_name: str) -> str:
    name = type_name.rpartition(".")[2]
    return f"[{name}](#{name.lower()})" if name else ""


def _streamed(stream: bool, type_name: str) -> str:
    return f"stream of {_link(type_name)}" if stream else _link(type_name)


# --- CRD -----------------------------------------------------------------------------------------


def crd(table: Table, made: str) -> str:
    """Fields, rules and columns of the kind."""
    document = yaml.safe_load(CRD.read_text())
    spec, (version,) = document["spec"], document["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = spec["names"]
    short = ", ".join(f"`{name}`" for name in names["shortNames"])
    about = (
        f"`{spec['group']}/{version['name']}`, kind `{names['kind']}`, {spec['scope'].lower()}; "
        f"short name {short}.\n\n"
    )
    parts = [
        f"## {part}\n\n"
        + table(
            ("field", "form", "default", "meaning"),
            _fields(schema["properties"][part], ""),
        )
        for part in ("spec", "status")
    ]
    rules = table(("where", "rule", "message"), _rules(schema, ""))
    columns = table(
        ("column", "from", "meaning"),
        (
            (c["name"], f"`{c['jsonPath']}`", c.get("description", ""))
            for c in version["additionalPrinterColumns"]
        ),
    )
    whole = f"# ServingScope\n\n{made}{about}" + "\n".join(parts)
    return f"{whole}\n## Rules\n\nChecked by the API server.\n\n{rules}\n## Columns\n\n{columns}"


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    needed = set(schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        place = f"{path}{name}"
        default = f"`{one['default']}`" if "default" in one else ""
        mark = ", required" if name in needed else ""
        yield f"`{place}`", form(one) + mark, default, " ".join(one.get("description", "").split())
        yield from _fields(one, f"{place}.")
        yield from _fields(one.get("items", {}), f"{place}[].")


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        text = " ".join(rule["rule"].split())
        yield (
            f"`{path or '.'}`",
            f"`{text}`",
            rule.get("message", rule.get("messageExpression", "")),
        )
    for name, one in schema.get("properties", {}).items():
        yield from _rules(one, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
