"""Seam: authority rides into the engine with the request.

Opens ``vllm.v1.engine.input_processor.InputProcessor.process_inputs`` (wrapped: stamps
``extra_args["retire"]`` and ``cache_salt``) and ``vllm.entrypoints.generate.beam_search.online.
BeamSearchOnlineMixin.beam_search`` (wrapped: refused for a scope). No upstream hook exists for
either. Tested with vLLM 0.26.0 and 0.32.0. 0.32 processes raw prompts on a thread of the renderer,
which does not know the running publication: there the request is stamped when it comes back to the
task. Must never decide a version: the running publication has the tag.
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
        InputProcessor.__init__ = _tagging_later(InputProcessor.__init__)  # type: ignore[method-assign]
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
    for_ids = getattr(params, "prompt_logprob_token_ids", None)  # 0.32
    if params.prompt_logprobs is not None or for_ids is not None:
        name = "prompt_logprobs" if for_ids is None else "prompt_logprob_token_ids"
        raise ValueError(
            f"{name} must be absent in a request with x-retire-scope (echo with logprobs "
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
        return _tagged(original(self, request_id, *args, **kwargs), request_id, mode)

    setattr(process_inputs, _MARK, True)
    return process_inputs


def _tagged(request: Any, request_id: str, mode: str) -> Any:
    """The request with the tag of the publication that runs, if one does."""
    publication = CURRENT.get()
    tag = publication.tag if publication is not None else None
    stamp(request, tag, mode)
    if publication is not None and tag is not None:
        publication.expected_choices = request.sampling_params.n
        publication.expected_id = request_id
    return request


def _tagging_later(original: Any) -> Any:
    mode = numerical_mode()

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        stock = getattr(self, "process_inputs_async", None)
        if stock is None:
            return

        async def process_inputs_async(request_id: str, *args: Any, **kwargs: Any) -> Any:
            request = await stock(request_id, *args, **kwargs)
            return request if _stamped(request) else _tagged(request, request_id, mode)

        self.process_inputs_async = process_inputs_async

    return init


def _stamped(request: Any) -> bool:
    """Whether it has a tag already: stamped twice, it would have a salt of its own."""
    params = request.sampling_params
    return params is not None and EXTRA_ARG in (params.extra_args or {})


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
