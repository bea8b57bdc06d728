from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Version(_message.Message):
    __slots__ = ("term", "epoch")
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    term: int
    epoch: int
    def __init__(self, term: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ScopeKey(_message.Message):
    __slots__ = ("tenant", "scope")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    scope: str
    def __init__(self, tenant: _Optional[str] = ..., scope: _Optional[str] = ...) -> None: ...

class SlotRef(_message.Message):
    __slots__ = ("index", "tenure", "stamp")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TENURE_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    index: int
    tenure: int
    stamp: int
    def __init__(self, index: _Optional[int] = ..., tenure: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class Contract(_message.Message):
    __slots__ = ("equivalence", "inherit", "tier", "ttl_s", "fence_bound_ms")
    EQUIVALENCE_FIELD_NUMBER: _ClassVar[int]
    INHERIT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    FENCE_BOUND_MS_FIELD_NUMBER: _ClassVar[int]
    equivalence: str
    inherit: str
    tier: str
    ttl_s: float
    fence_bound_ms: float
    def __init__(self, equivalence: _Optional[str] = ..., inherit: _Optional[str] = ..., tier: _Optional[str] = ..., ttl_s: _Optional[float] = ..., fence_bound_ms: _Optional[float] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("key", "version", "parent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    version: Version
    parent: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., parent: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("version", "slot", "created", "generation", "paused", "policy")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    version: Version
    slot: SlotRef
    created: bool
    generation: int
    paused: bool
    policy: str
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., slot: _Optional[_Union[SlotRef, _Mapping]] = ..., created: _Optional[bool] = ..., generation: _Optional[int] = ..., paused: _Optional[bool] = ..., policy: _Optional[str] = ...) -> None: ...

class SupersedeRequest(_message.Message):
    __slots__ = ("key", "expected", "contract", "idempotency_key", "body_digest", "traceparent", "driver")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    expected: Version
    contract: Contract
    idempotency_key: str
    body_digest: bytes
    traceparent: str
    driver: bool
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., expected: _Optional[_Union[Version, _Mapping]] = ..., contract: _Optional[_Union[Contract, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., body_digest: _Optional[bytes] = ..., traceparent: _Optional[str] = ..., driver: _Optional[bool] = ...) -> None: ...

class TransitionEvent(_message.Message):
    __slots__ = ("committed", "unpublishable", "fenced")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    UNPUBLISHABLE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    committed: Committed
    unpublishable: Unpublishable
    fenced: Fenced
    def __init__(self, committed: _Optional[_Union[Committed, _Mapping]] = ..., unpublishable: _Optional[_Union[Unpublishable, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("to", "replayed", "ms", "slot", "generation", "receipt_json")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_JSON_FIELD_NUMBER: _ClassVar[int]
    to: Version
    replayed: bool
    ms: float
    slot: SlotRef
    generation: int
    receipt_json: str
    def __init__(self, to: _Optional[_Union[Version, _Mapping]] = ..., replayed: _Optional[bool] = ..., ms: _Optional[float] = ..., slot: _Optional[_Union[SlotRef, _Mapping]] = ..., generation: _Optional[int] = ..., receipt_json: _Optional[str] = ..., **kwargs) -> None: ...

class GateResult(_message.Message):
    __slots__ = ("gate", "outcome", "ms")
    GATE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    gate: str
    outcome: str
    ms: float
    def __init__(self, gate: _Optional[str] = ..., outcome: _Optional[str] = ..., ms: _Optional[float] = ...) -> None: ...

class Unpublishable(_message.Message):
    __slots__ = ("gates", "ms")
    GATES_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    gates: _containers.RepeatedCompositeFieldContainer[GateResult]
    ms: float
    def __init__(self, gates: _Optional[_Iterable[_Union[GateResult, _Mapping]]] = ..., ms: _Optional[float] = ...) -> None: ...

class Participant(_message.Message):
    __slots__ = ("node", "boot_id", "pp_rank", "tp_rank", "kv_group", "frontier_tokens", "closed")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PP_RANK_FIELD_NUMBER: _ClassVar[int]
    TP_RANK_FIELD_NUMBER: _ClassVar[int]
    KV_GROUP_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    node: str
    boot_id: str
    pp_rank: int
    tp_rank: int
    kv_group: int
    frontier_tokens: int
    closed: bool
    def __init__(self, node: _Optional[str] = ..., boot_id: _Optional[str] = ..., pp_rank: _Optional[int] = ..., tp_rank: _Optional[int] = ..., kv_group: _Optional[int] = ..., frontier_tokens: _Optional[int] = ..., closed: _Optional[bool] = ...) -> None: ...

class RetiredRequest(_message.Message):
    __slots__ = ("request_id", "state", "prompt_tokens", "frontier_tokens", "last_published_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_PUBLISHED_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: str
    prompt_tokens: int
    frontier_tokens: int
    last_published_index: int
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., frontier_tokens: _Optional[int] = ..., last_published_index: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("participants", "requests", "residual_ms", "pinned_blocks", "quota_left", "ms", "missing", "branch", "predicted_ms", "tier", "host_refused")
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_MS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_LEFT_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_MS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    HOST_REFUSED_FIELD_NUMBER: _ClassVar[int]
    participants: _containers.RepeatedCompositeFieldContainer[Participant]
    requests: _containers.RepeatedCompositeFieldContainer[RetiredRequest]
    residual_ms: float
    pinned_blocks: int
    quota_left: int
    ms: float
    missing: _containers.RepeatedScalarFieldContainer[str]
    branch: str
    predicted_ms: float
    tier: str
    host_refused: str
    def __init__(self, participants: _Optional[_Iterable[_Union[Participant, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[RetiredRequest, _Mapping]]] = ..., residual_ms: _Optional[float] = ..., pinned_blocks: _Optional[int] = ..., quota_left: _Optional[int] = ..., ms: _Optional[float] = ..., missing: _Optional[_Iterable[str]] = ..., branch: _Optional[str] = ..., predicted_ms: _Optional[float] = ..., tier: _Optional[str] = ..., host_refused: _Optional[str] = ...) -> None: ...

class ScopeRequest(_message.Message):
    __slots__ = ("key", "expected", "idempotency_key", "body_digest", "traceparent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    expected: Version
    idempotency_key: str
    body_digest: bytes
    traceparent: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., expected: _Optional[_Union[Version, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., body_digest: _Optional[bytes] = ..., traceparent: _Optional[str] = ...) -> None: ...

class TransitionReply(_message.Message):
    __slots__ = ("to", "receipt_json", "replayed")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_JSON_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    to: Version
    receipt_json: str
    replayed: bool
    def __init__(self, to: _Optional[_Union[Version, _Mapping]] = ..., receipt_json: _Optional[str] = ..., replayed: _Optional[bool] = ..., **kwargs) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ScopeView(_message.Message):
    __slots__ = ("key", "version", "phase", "paused", "cancelled", "pinned_blocks", "nodes", "requests", "receipts_json", "policy", "parent", "generation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_JSON_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    version: Version
    phase: str
    paused: bool
    cancelled: bool
    pinned_blocks: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    requests: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    receipts_json: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    parent: str
    generation: int
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., phase: _Optional[str] = ..., paused: _Optional[bool] = ..., cancelled: _Optional[bool] = ..., pinned_blocks: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., requests: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., receipts_json: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., parent: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("request_id", "state", "prompt_tokens", "output_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: str
    prompt_tokens: int
    output_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("scopes",)
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    scopes: _containers.RepeatedCompositeFieldContainer[ScopeView]
    def __init__(self, scopes: _Optional[_Iterable[_Union[ScopeView, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("tenant", "after")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    after: int
    def __init__(self, tenant: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class TransitionRecord(_message.Message):
    __slots__ = ("sequence", "key", "kind", "to", "receipt_json", "at_unix_s", "idempotency_key")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_JSON_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    key: ScopeKey
    kind: str
    to: Version
    receipt_json: str
    at_unix_s: float
    idempotency_key: str
    def __init__(self, sequence: _Optional[int] = ..., key: _Optional[_Union[ScopeKey, _Mapping]] = ..., kind: _Optional[str] = ..., to: _Optional[_Union[Version, _Mapping]] = ..., receipt_json: _Optional[str] = ..., at_unix_s: _Optional[float] = ..., idempotency_key: _Optional[str] = ..., **kwargs) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("key", "to", "receipt_json", "idempotency_key")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    to: Version
    receipt_json: str
    idempotency_key: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., to: _Optional[_Union[Version, _Mapping]] = ..., receipt_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("node", "boot_id", "term", "incarnation", "lease", "lease_left_ms", "gates", "scopes", "slots_free", "ready", "not_ready_reason", "pinned_blocks", "publish_lease_s", "sequences", "registry_lost", "engines")
    class SequencesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_LEASE_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_LOST_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    node: str
    boot_id: str
    term: int
    incarnation: str
    lease: str
    lease_left_ms: float
    gates: int
    scopes: int
    slots_free: int
    ready: bool
    not_ready_reason: str
    pinned_blocks: int
    publish_lease_s: float
    sequences: _containers.ScalarMap[str, int]
    registry_lost: str
    engines: _containers.RepeatedCompositeFieldContainer[EngineView]
    def __init__(self, node: _Optional[str] = ..., boot_id: _Optional[str] = ..., term: _Optional[int] = ..., incarnation: _Optional[str] = ..., lease: _Optional[str] = ..., lease_left_ms: _Optional[float] = ..., gates: _Optional[int] = ..., scopes: _Optional[int] = ..., slots_free: _Optional[int] = ..., ready: _Optional[bool] = ..., not_ready_reason: _Optional[str] = ..., pinned_blocks: _Optional[int] = ..., publish_lease_s: _Optional[float] = ..., sequences: _Optional[_Mapping[str, int]] = ..., registry_lost: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[EngineView, _Mapping]]] = ...) -> None: ...

class EngineView(_message.Message):
    __slots__ = ("engine_boot_id", "model", "fingerprint", "block_size", "num_blocks", "gates")
    ENGINE_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    engine_boot_id: str
    model: str
    fingerprint: str
    block_size: int
    num_blocks: int
    gates: int
    def __init__(self, engine_boot_id: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., gates: _Optional[int] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("key", "version", "request_json", "traceparent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    version: Version
    request_json: bytes
    traceparent: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., request_json: _Optional[bytes] = ..., traceparent: _Optional[str] = ...) -> None: ...

class WarmReply(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "node")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    node: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class AuthenticateRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class AuthenticateReply(_message.Message):
    __slots__ = ("tenant", "subject", "cache_s")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CACHE_S_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    subject: str
    cache_s: float
    def __init__(self, tenant: _Optional[str] = ..., subject: _Optional[str] = ..., cache_s: _Optional[float] = ...) -> None: ...

class GateReport(_message.Message):
    __slots__ = ("hello", "switch_ack", "fence", "inspect", "warm")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SWITCH_ACK_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    switch_ack: SwitchAck
    fence: FenceReply
    inspect: InspectReply
    warm: WarmDone
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., switch_ack: _Optional[_Union[SwitchAck, _Mapping]] = ..., fence: _Optional[_Union[FenceReply, _Mapping]] = ..., inspect: _Optional[_Union[InspectReply, _Mapping]] = ..., warm: _Optional[_Union[WarmDone, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("gate", "pid", "engine_boot_id", "vllm_version", "model", "fingerprint", "block_size", "num_blocks", "scopes", "seams_error")
    GATE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    SEAMS_ERROR_FIELD_NUMBER: _ClassVar[int]
    gate: str
    pid: int
    engine_boot_id: str
    vllm_version: str
    model: str
    fingerprint: str
    block_size: int
    num_blocks: int
    scopes: _containers.RepeatedCompositeFieldContainer[ScopeKey]
    seams_error: str
    def __init__(self, gate: _Optional[str] = ..., pid: _Optional[int] = ..., engine_boot_id: _Optional[str] = ..., vllm_version: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., scopes: _Optional[_Iterable[_Union[ScopeKey, _Mapping]]] = ..., seams_error: _Optional[str] = ...) -> None: ...

class SwitchAck(_message.Message):
    __slots__ = ("command", "last_published_index")
    class LastPublishedIndexEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LAST_PUBLISHED_INDEX_FIELD_NUMBER: _ClassVar[int]
    command: int
    last_published_index: _containers.ScalarMap[str, int]
    def __init__(self, command: _Optional[int] = ..., last_published_index: _Optional[_Mapping[str, int]] = ...) -> None: ...

class FenceReply(_message.Message):
    __slots__ = ("command", "fenced", "error")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    command: int
    fenced: Fenced
    error: str
    def __init__(self, command: _Optional[int] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class InspectReply(_message.Message):
    __slots__ = ("command", "requests", "pinned_blocks", "error")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    command: int
    requests: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    pinned_blocks: int
    error: str
    def __init__(self, command: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., pinned_blocks: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class WarmDone(_message.Message):
    __slots__ = ("command", "prompt_tokens", "cached_tokens", "error")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    command: int
    prompt_tokens: int
    cached_tokens: int
    error: str
    def __init__(self, command: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class GateCommand(_message.Message):
    __slots__ = ("command", "welcome", "switch", "fence", "inspect", "quota", "warm")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    command: int
    welcome: Welcome
    switch: Switch
    fence: Fence
    inspect: Inspect
    quota: Quota
    warm: Warm
    def __init__(self, command: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., switch: _Optional[_Union[Switch, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., inspect: _Optional[_Union[Inspect, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., warm: _Optional[_Union[Warm, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node", "publish_lease_s", "lane")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_LEASE_S_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    node: str
    publish_lease_s: float
    lane: str
    def __init__(self, node: _Optional[str] = ..., publish_lease_s: _Optional[float] = ..., lane: _Optional[str] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("key", "to", "slot_index", "kind")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SLOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    to: Version
    slot_index: int
    kind: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., to: _Optional[_Union[Version, _Mapping]] = ..., slot_index: _Optional[int] = ..., kind: _Optional[str] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("key", "to", "contract", "terminal", "traceparent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    to: Version
    contract: Contract
    terminal: bool
    traceparent: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., to: _Optional[_Union[Version, _Mapping]] = ..., contract: _Optional[_Union[Contract, _Mapping]] = ..., terminal: _Optional[bool] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Inspect(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ...) -> None: ...

class Warm(_message.Message):
    __slots__ = ("key", "version", "request_json", "traceparent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    key: ScopeKey
    version: Version
    request_json: bytes
    traceparent: str
    def __init__(self, key: _Optional[_Union[ScopeKey, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., request_json: _Optional[bytes] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("tenant", "blocks")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    blocks: int
    def __init__(self, tenant: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...
