"""Seam: a server that names our plugin serves with it, or not at all.

Wraps ``vllm.plugins.load_endpoint_plugins``: vLLM only logs an endpoint plugin that fails to load,
and skips one that ``VLLM_PLUGINS`` does not list; it would then serve scopes as plain requests,
ungated. Tested with vLLM 0.26.0. Must never decide anything but whether to serve.
"""

from __future__ import annotations

import functools
from typing import Any, Final

PLUGIN: Final = "retire_api"
_MARK: Final = "__retire_seam__"


def install() -> None:
    """Wrap the loader; a second call changes nothing."""
    from vllm import plugins

    if not hasattr(plugins.load_endpoint_plugins, _MARK):
        plugins.load_endpoint_plugins = _requiring(plugins.load_endpoint_plugins)


def _requiring(original: Any) -> Any:
    @functools.wraps(original)
    def load_endpoint_plugins(supported_tasks: Any = None) -> list[Any]:
        loaded = original(supported_tasks)
        generates = supported_tasks is None or "generate" in supported_tasks
        if generates and all(plugin.name != PLUGIN for plugin in loaded):
            raise SystemExit(
                f"retire: refusing to serve: endpoint plugin {PLUGIN} is not loaded, so nothing "
                "would be gated; VLLM_PLUGINS must list retire and retire_api, and the log above "
                "says why it failed if it did"
            )
        return loaded

    setattr(load_endpoint_plugins, _MARK, True)
    return load_endpoint_plugins
