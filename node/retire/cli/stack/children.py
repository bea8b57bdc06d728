"""What the stack consists of: argv, environment and probe of registry, sidecar and engine. Pure.

Must never start a process or read the environment: everything comes in as arguments.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from retire.cli.stack import probes
from retire.cli.stack.device import names_option
from retire.cli.stack.supervisor import ChildSpec, OnExit
from retire.protocol.errors import InvalidField

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from retire.cli.stack.device import EngineDefaults
    from retire.cli.stack.layout import Layout

PLUGINS: Final = "retire,retire_api"
OURS: Final = ("--model", "--host", "--port", "--scheduler-cls", "--uds")
AUTH: Final = ("none", "static", "tokenreview")
SIDECAR_READY_S: Final = 20.0  # it retries until the registry answers
ENGINE_READY_S: Final = 1800.0  # a large model's weights may come from a network disk


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What ``retire serve`` was asked for."""

    model: str
    host: str
    port: int
    log_format: str  # plain | json
    tenant_quota: int | None  # pinned blocks a tenant may hold; None: unlimited
    registry_url: str | None  # None: an embedded Valkey
    auth: str = "none"  # none | static | tokenreview: how a bearer token becomes a tenant
    tokens_file: Path | None = None  # digests of tokens, for static
    page_port: int | None = None  # of the live page and its probes, on loopback; None: none
    engine_args: tuple[str, ...] = ()
    engine_env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option in OURS:
            if names_option(self.engine_args, option):
                raise InvalidField(f"-- {option}", option, "left to retire serve's own options")
        if self.tenant_quota is not None and self.tenant_quota < 0:
            raise InvalidField("--tenant-quota", self.tenant_quota, "blocks, 0 or more")
        if self.auth not in AUTH:
            raise InvalidField("--auth", self.auth, f"one of {', '.join(AUTH)}")
        if (self.auth == "static") != (self.tokens_file is not None):
            raise InvalidField("--tokens-file", self.tokens_file, "a file with --auth static alone")
        if self.tokens_file is not None and not self.tokens_file.is_file():
            raise InvalidField("--tokens-file", str(self.tokens_file), "a file of tokens as JSON")

    @property
    def url(self) -> str:
        """Where a client on this host finds the API."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def page_url(self) -> str | None:
        """Where a browser on this host finds the live page."""
        return None if self.page_port is None else f"http://127.0.0.1:{self.page_port}"


def specs(options: StackOptions, layout: Layout, defaults: EngineDefaults) -> list[ChildSpec]:
    """The children in start order."""
    children = [sidecar(options, layout), engine(options, layout, defaults)]
    if options.registry_url is None:
        children.insert(0, registry(layout))
    return children


def registry(layout: Layout) -> ChildSpec:
    """An embedded Valkey. Restarted: the node's lease bridges a short absence."""
    return ChildSpec(
        name="registry",
        argv=(sys.executable, "-m", "retire.cli.stack.registry", str(layout.registry_data)),
        probe=probes.registry_answers(layout.registry_socket),
    )


def sidecar(options: StackOptions, layout: Layout) -> ChildSpec:
    """Versions, lease, mailbox. Restarted: streams hold until its lease is back.

    Ready with its lease: a registry that cannot be reached is told before the model is loaded.
    """
    env = {
        "RETIRE_REGISTRY_URL": options.registry_url or f"unix://{layout.registry_socket}",
        "RETIRE_RUN_DIR": str(layout.run),
        "RETIRE_SOCKET": str(layout.sidecar_socket),
        "RETIRE_MAILBOX": str(layout.mailbox),
        "RETIRE_TERM_FILE": str(layout.term_file),
        "RETIRE_LOG_FORMAT": options.log_format,
        "RETIRE_AUTH": options.auth,
        "RETIRE_TOKENS_FILE": str(options.tokens_file.absolute()) if options.tokens_file else "",
    }
    if options.page_port is not None:
        env["RETIRE_HTTP_LISTEN"] = f"127.0.0.1:{options.page_port}"
    if options.tenant_quota is not None:
        env["RETIRE_PIN_QUOTA_BLOCKS"] = str(options.tenant_quota)
    return ChildSpec(
        name="sidecar",
        argv=(sys.executable, "-m", "retire.sidecar.main"),
        env=env,
        probe=probes.sidecar_ready(layout.sidecar_socket),
        ready_timeout_s=SIDECAR_READY_S,
    )


def engine(options: StackOptions, layout: Layout, defaults: EngineDefaults) -> ChildSpec:
    """vLLM with our plugin. Its end is the stack's: the model and every stream went with it."""
    argv = (
        *(sys.executable, "-m", "retire.engine.serve"),
        *("--model", options.model, "--host", options.host, "--port", str(options.port)),
        *defaults.args,
        *options.engine_args,
    )
    env = {
        **defaults.env,
        **options.engine_env,
        "VLLM_PLUGINS": PLUGINS,
        "VLLM_NO_USAGE_STATS": "1",
        "RETIRE_MAILBOX": str(layout.mailbox),
        "RETIRE_SIDECAR": f"unix:{layout.sidecar_socket}",
        "RETIRE_LOG_FORMAT": options.log_format,
        "RETIRE_AUTH": options.auth,
    }
    return ChildSpec(
        name="engine",
        argv=argv,
        env=env,
        probe=probes.engine_ready(options.url, layout.sidecar_socket),
        on_exit=OnExit.STOP_ALL,
        grace_s=5.0,
        ready_timeout_s=ENGINE_READY_S,
    )
