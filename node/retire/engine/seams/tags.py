"""Seam: authority rides into the engine with the request.

Opens ``vllm.v1.engine.input_processor.InputProcessor.process_inputs`` (wrapped: stamps
``extra_args["retire"]`` and ``cache_salt``) and ``vllm.entrypoints.generate.beam_search.online.
BeamSearchOnlineMixin.beam_search`` (wrapped: refused for a scope). No upstream hook exists for
either. Tested with vLLM 0.26.0. Must never decide a version: the running publication has the tag.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from retire.engine.publication import CURRENT
from retire.engine.seams import endpoint
from retire.engine.tag import EXTRA_ARG

if TYPE_CHECKING:
    from retire.engine.tag import Tag

SALT: Final = "retire:"  # every cache salt of ours begins so; clients may not use it
_MARK: Final = "__retire_seam__"


def install() -> None:
    """Wrap both symbols, and require the endpoint plugin; a second call changes nothing."""
    from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin
    from vllm.v1.engine.input_processor import InputProcessor

    endpoint.install()  # a tag only means something where the gates are
    if not hasattr(InputProcessor.process_inputs, _MARK):
        InputProcessor.process_inputs = _tagging(InputProcessor.process_inputs)  # type: ignore[method-assign]
    if not hasattr(BeamSearchOnlineMixin.beam_search, _MARK):
        BeamSearchOnlineMixin.beam_search = _refusing(BeamSearchOnlineMixin.beam_search)  # type: ignore[method-assign]


def installed() -> bool:
    """Whether the seam is in place in this process."""
    from vllm.v1.engine.input_processor import InputProcessor

    return hasattr(InputProcessor.process_inputs, _MARK)


def numerical_mode() -> str:
    """``bi`` when the engine computes batch-invariantly, else ``std``: part of every cache salt."""
    from vllm import envs

    return "bi" if envs.VLLM_BATCH_INVARIANT else "std"


def cache_salt(tenant: str, mode: str, user_salt: str | None) -> str:
    """Tenant and numerical mode, never the epoch: versions of one scope share their prefix."""
    return f"{SALT}{tenant}:{mode}" + (f":{user_salt}" if user_salt else "")


def stamp(request: Any, tag: Tag | None, mode: str) -> None:
    """Put ``tag`` on an EngineCoreRequest; whatever a client put under our names is gone.

    Raises ValueError (HTTP 400) for a request that cannot act for a scope.
    """
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    if params is not None and extra and EXTRA_ARG in extra:
        params.extra_args = extra = {k: v for k, v in extra.items() if k != EXTRA_ARG} or None
    if tag is None:
        if request.cache_salt and request.cache_salt.startswith(SALT):
            raise ValueError(f'cache_salt must not begin with "{SALT}"; choose another')
        return
    if params is None:
        raise ValueError("x-retire-scope is for generation only; leave it out for this request")
    _check_fenceable(request, params)
    params.extra_args = {**(extra or {}), EXTRA_ARG: tag.to_wire()}
    request.cache_salt = cache_salt(tag.key.tenant, mode, request.cache_salt)


def _check_fenceable(request: Any, params: Any) -> None:
    if params.prompt_logprobs is not None:
        raise ValueError(
            "prompt_logprobs must be absent in a request with x-retire-scope (echo with logprobs "
            "asks for them too): an inherited prefix is not computed, so it has none, and a step "
            "that was given up leaves half of them"
        )
    if request.resumable:
        raise ValueError(
            "x-retire-scope must be absent for input that is streamed: its session outlives a "
            "version"
        )


def _tagging(original: Any) -> Any:
    mode = numerical_mode()

    @functools.wraps(original)
    def process_inputs(self: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        request = original(self, request_id, *args, **kwargs)
        publication = CURRENT.get()
        tag = publication.tag if publication is not None else None
        stamp(request, tag, mode)
        if publication is not None and tag is not None:
            publication.expected_choices = request.sampling_params.n
            publication.expected_id = request_id
        return request

    setattr(process_inputs, _MARK, True)
    return process_inputs


def _refusing(original: Any) -> Any:
    @functools.wraps(original)
    def beam_search(self: Any, *args: Any, **kwargs: Any) -> Any:
        publication = CURRENT.get()
        if publication is not None and publication.tag is not None:
            raise ValueError(
                "use_beam_search must be absent or false in a request with x-retire-scope: "
                "its beams are requests that carry no version"
            )
        return original(self, *args, **kwargs)

    setattr(beam_search, _MARK, True)
    return beam_search
