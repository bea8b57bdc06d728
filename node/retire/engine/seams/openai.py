"""Seam: vLLM's OpenAI errors and command line, wherever a release keeps them.

Both moved between 0.26.0 and 0.32.0; what they are did not. Tested on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from retire.engine.seams.compat import Symbol, resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ENTRYPOINTS: Final = "vllm.entrypoints"
ERROR_RESPONSE: Final = Symbol(
    f"{_ENTRYPOINTS}.openai.engine.protocol",
    "ErrorResponse",
    moved=f"{_ENTRYPOINTS}.serve.engine.protocol",
)
CREATE_ERROR_RESPONSE: Final = Symbol(
    f"{_ENTRYPOINTS}.serve.utils.error_response",
    "create_error_response",
    ("message", "err_type", "status_code", "param"),
    moved=f"{_ENTRYPOINTS}.serve.exception_handling.error_response",
)
MAKE_ARG_PARSER: Final = Symbol(
    f"{_ENTRYPOINTS}.openai.cli_args", "make_arg_parser", moved=f"{_ENTRYPOINTS}.launchers.cli_args"
)
SYMBOLS: Final = (ERROR_RESPONSE, CREATE_ERROR_RESPONSE)  # the command line is its own probe


def error_response_class() -> type[Any]:
    """The model of ``{"error": ...}``, which handlers return instead of raising."""
    return resolve(ERROR_RESPONSE)


def create_error_response(error: Exception) -> Any:
    """What vLLM's own exception handler would have answered; an ErrorResponse."""
    return resolve(CREATE_ERROR_RESPONSE)(error)


def arg_parser() -> Callable[[Any], Any]:
    """What puts the server's arguments into a parser. Imports all of the server."""
    return resolve(MAKE_ARG_PARSER)
