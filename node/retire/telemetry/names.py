"""Every name this package puts on logs, spans, metrics and in the history, with its unit."""

from __future__ import annotations

from typing import Final, NamedTuple

LOGGER: Final = "retire"  # root of every logger of this distribution
LOGGER_SIDECAR: Final = "retire.sidecar"
LOGGER_HISTORY: Final = "retire.history"

HISTORY_ENV: Final = "RETIRE_HISTORY"  # path of the NDJSON history; unset: no history
HISTORY_DIGESTS_ENV: Final = "RETIRE_HISTORY_DIGESTS"  # 1: with digests of certified KV pages
LOG_FORMAT_ENV: Final = "RETIRE_LOG_FORMAT"  # plain | json


# --- spans -------------------------------------------------------------------------------------
# One trace a transition. Spans of inference follow OpenTelemetry's GenAI conventions; what is
# ours alone has the namespaces servingscope, fence, engine, kv, successor, gate; never gen_ai.


class SpanName(NamedTuple):
    """One kind of span: who begins it, what is its parent, when it begins and ends."""

    name: str
    kind: str  # of OpenTelemetry: INTERNAL, SERVER, CLIENT, CONSUMER
    service: str  # service.name of the process that begins it
    parent: str  # span, or where the trace context comes from; "root": a trace of its own
    meaning: str


class Attribute(NamedTuple):
    """One attribute of spans, or the name of an event within one."""

    name: str
    unit: str
    meaning: str


SERVICE_CLIENT: Final = "retire-client"
SERVICE_API: Final = "retire-api"
SERVICE_ENGINE: Final = "retire-engine"
SERVICE_SIDECAR: Final = "retire-sidecar"
SERVICE_OPERATOR: Final = "retire-operator"

SPAN_CLIENT: Final = SpanName(
    "retire.client", "CLIENT", SERVICE_CLIENT, "the agent's current span",
    "A change that an agent asks for, from the call to its receipt, repetitions included; the name "
    "continues with the change: retire.client supersede.",
)  # fmt: skip
SPAN_TRANSITION: Final = SpanName(
    "servingscope", "SERVER", SERVICE_API, "traceparent of the HTTP call",
    "A change as its driver sees it, to the receipt; the name continues with the change: "
    "servingscope.supersede. Of the operator (INTERNAL) where the change is in an object's spec; "
    "its parent is then the object's annotation.",
)  # fmt: skip
SPAN_NODE: Final = SpanName(
    "node", "SERVER", SERVICE_SIDECAR, "traceparent of the gRPC call",
    "The same on the node that commits it, until it is fenced; the name continues with the change: "
    "node.supersede.",
)  # fmt: skip
SPAN_COMMIT: Final = SpanName(
    "fence.commit", "CLIENT", SERVICE_SIDECAR, "node.*",
    "ADVANCE: the compare-and-set in the registry, until it is durable.",
)  # fmt: skip
SPAN_PROPAGATE: Final = SpanName(
    "fence.propagate", "INTERNAL", SERVICE_SIDECAR, "node.*",
    "From COMMIT to UNPUBLISHABLE, with an event gate.ack for each gate.",
)  # fmt: skip
SPAN_FOLLOW: Final = SpanName(
    "fence.follow", "CONSUMER", SERVICE_SIDECAR, "fence.commit, through the registry's event",
    "Another node closes its gates: from the commit's event to its ack.",
)  # fmt: skip
SPAN_QUIESCE: Final = SpanName(
    "engine.quiesce", "INTERNAL", SERVICE_ENGINE, "node.* or fence.follow",
    "FENCE: the engine ends the scope's old work and says what is written.",
)  # fmt: skip
SPAN_CERTIFY: Final = SpanName(
    "kv.certify", "INTERNAL", SERVICE_ENGINE, "servingscope.*",
    "ALIGN: from COMMIT until the engine has compared the successor's prompt and signed.",
)  # fmt: skip
SPAN_PIN: Final = SpanName(
    "kv.pin", "INTERNAL", SERVICE_ENGINE, "kv.certify",
    "What stays pinned for the successor; a point in time.",
)  # fmt: skip
SPAN_ADMIT: Final = SpanName(
    "successor.admit", "INTERNAL", SERVICE_API, "servingscope.*",
    "RESUME: from COMMIT until the successor is in the engine; linked to its inference span.",
)  # fmt: skip
SPAN_INFERENCE: Final = SpanName(
    "chat | text_completion", "SERVER", SERVICE_API, "traceparent of the HTTP call",
    "A tagged call's inference, by the GenAI conventions: its name is the operation and the model. "
    "A superseded one ends at the fence with error.type superseded.",
)  # fmt: skip
SPAN_RECLAIM: Final = SpanName(
    "reclaim", "INTERNAL", SERVICE_SIDECAR, "root; linked to node.* or fence.follow",
    "RECLAIM: from the end of the FENCE until the old version's memory may go; outlives the call.",
)  # fmt: skip

A_TENANT: Final = Attribute("servingscope.tenant", "", "Owner of the scope.")
A_SCOPE: Final = Attribute("servingscope.scope", "", "Name of the scope.")
A_EXPECTED: Final = Attribute("servingscope.version.expected", "", "What the caller took it for.")
A_FROM: Final = Attribute("servingscope.version.from", "", "term.epoch before the change.")
A_TO: Final = Attribute("servingscope.version.to", "", "term.epoch after it.")
A_VERSION: Final = Attribute("servingscope.version", "", "term.epoch that an inference acts for.")
A_GENERATION: Final = Attribute("servingscope.generation", "1", "Ownership instance of KV.")
A_CHANGE: Final = Attribute("servingscope.change", "", "supersede, cancel, pause, resume.")
A_KEY: Final = Attribute("servingscope.idempotency_key", "", "Of the change.")
A_INHERIT: Final = Attribute("servingscope.contract.inherit", "", "certified or never.")
A_REPLAYED: Final = Attribute("servingscope.replayed", "", "true: answered from the record.")
A_OBJECT: Final = Attribute("servingscope.uid", "", "uid of the ServingScope object.")
A_NODE: Final = Attribute("servingscope.node", "", "Name of the node.")
A_OUTCOME: Final = Attribute("fence.outcome", "", "committed, replayed, or why it was refused.")
A_GATES: Final = Attribute("fence.gates", "1", "Gates that had to be accounted for.")
A_GATE: Final = Attribute("gate.name", "", "node/process of a gate.")
A_GATE_OUTCOME: Final = Attribute("gate.outcome", "", "acked or lease_ended.")
A_GATE_MS: Final = Attribute("gate.latency_ms", "ms", "Since the call.")
A_BRANCH: Final = Attribute(
    "engine.safe_point", "", "How the running step ended: quantum, layer_stop, finish."
)
A_RESIDUAL: Final = Attribute("engine.residual_ms", "ms", "Old work on the device after COMMIT.")
A_PREDICTED: Final = Attribute("engine.predicted_ms", "ms", "What the whole step was to take.")
A_REQUESTS: Final = Attribute("engine.requests", "1", "Old requests that were ended.")
A_FRONTIER: Final = Attribute("kv.frontier_tokens", "tokens", "Old tokens completely written.")
A_INHERITABLE: Final = Attribute("kv.inheritable_tokens", "tokens", "Common prefix.")
A_CERTIFIED: Final = Attribute("kv.certified_tokens", "tokens", "Covered by the certificate.")
A_STOP: Final = Attribute("kv.stop_reason", "", "Why reuse stopped where it stopped.")
A_BLOCKS: Final = Attribute("kv.pinned_blocks", "blocks", "Kept for the successor.")
A_TIER: Final = Attribute("kv.tier", "", "hbm or dram.")
A_LEASE: Final = Attribute("kv.lease_s", "s", "Until the pin ends.")
A_QUOTA: Final = Attribute("kv.quota_left", "blocks", "Left of the tenant's quota; absent: none.")
A_REQUEST: Final = Attribute("gen_ai.request.id", "", "vLLM's id; joins its own spans.")
A_LAST: Final = Attribute("servingscope.last_published_index", "1", "Of the output tokens.")
A_OPERATION: Final = Attribute("gen_ai.operation.name", "", "chat or text_completion.")
A_PROVIDER: Final = Attribute("gen_ai.provider.name", "", "vllm.")
A_MODEL: Final = Attribute("gen_ai.request.model", "", "As the call names it.")
A_CONVERSATION: Final = Attribute("gen_ai.conversation.id", "", "The scope.")
A_INPUT: Final = Attribute("gen_ai.usage.input_tokens", "tokens", "Of the prompts.")
A_OUTPUT: Final = Attribute("gen_ai.usage.output_tokens", "tokens", "Handed to the transport.")
A_CACHED: Final = Attribute(
    "gen_ai.usage.cache_read.input_tokens", "tokens", "Of the prompts, inherited or cached."
)
A_FINISH: Final = Attribute("gen_ai.response.finish_reasons", "", "abort, where it was superseded.")
A_ERROR: Final = Attribute("error.type", "", "Code of the error that ended the span.")
A_LINK: Final = Attribute("link.type", "", "On links: successor, reclaims.")
A_DB: Final = Attribute("db.system.name", "", "redis.")
A_DB_OPERATION: Final = Attribute("db.operation.name", "", "Script of the registry.")
EVENT_ACK: Final = Attribute("gate.ack", "", "Event: a gate is behind the commit.")

SPANS: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, SpanName))
ATTRIBUTES: Final = tuple(v for v in tuple(globals().values()) if isinstance(v, Attribute))

# --- logs --------------------------------------------------------------------------------------

LOGGER_STAGES: Final = "retire.stages"  # one event per stage, at level debug
LOG_LEVEL_ENV: Final = "RETIRE_LOG_LEVEL"  # debug | info | warning


# --- metrics -----------------------------------------------------------------------------------
# Prometheus names: base units (seconds, bytes), counters end in _total. Labels take few values:
# a scope's name is never one, and tenants beyond TENANT_LABELS_MAX share one value.


class Metric(NamedTuple):
    """One metric: what an operator of the system reads on its help line."""

    name: str
    kind: str  # counter | gauge | histogram
    unit: str  # seconds | bytes | tokens | blocks | 1 (a count or a flag)
    meaning: str
    labels: tuple[str, ...] = ()


TENANT_LABELS_MAX: Final = 100  # tenants with a label value of their own, first come
TENANT_OTHER: Final = "(other)"  # the rest

# Of the sidecar: /metrics on RETIRE_HTTP_LISTEN.
TRANSITIONS: Final = Metric(
    "retire_transitions_total", "counter", "1",
    "Calls that change a scope, by change (supersede, cancel, pause, resume) and outcome: done, or "
    "why it was refused.", ("change", "outcome"),
)  # fmt: skip
STAGE_SECONDS: Final = Metric(
    "retire_stage_seconds", "histogram", "seconds",
    "Time from the SUPERSEDE call to the end of a stage: commit, unpublishable, fence, align, "
    "resume; reclaim: until nothing of the old version is held.", ("stage",),
)  # fmt: skip
RESIDUAL_SECONDS: Final = Metric(
    "retire_residual_seconds", "histogram", "seconds",
    "Old work that ran on the device after COMMIT, of transitions that met a running step (C7).",
)  # fmt: skip
FENCES: Final = Metric(
    "retire_fences_total", "counter", "1",
    "Fences that met a running step, by how it ended: quantum, layer_stop, finish.", ("branch",),
)  # fmt: skip
FENCES_INCOMPLETE: Final = Metric(
    "retire_fences_incomplete_total", "counter", "1",
    "Transitions in which a node gave no fence receipt in time.",
)  # fmt: skip
GATES_PASSED: Final = Metric(
    "retire_gate_results_total", "counter", "1",
    "Gates behind a commit, by how: acked, or lease_ended (cut off or dead).", ("outcome",),
)  # fmt: skip
SUCCESSORS: Final = Metric(
    "retire_successors_total", "counter", "1",
    "Successors that were aligned, by what limited the reuse (StopReason).", ("stop_reason",),
)  # fmt: skip
TOKENS_INHERITABLE: Final = Metric(
    "retire_inheritable_tokens_total", "counter", "tokens",
    "Tokens that successors' prompts share with their predecessors' contexts.",
)  # fmt: skip
TOKENS_CERTIFIED: Final = Metric(
    "retire_certified_tokens_total", "counter", "tokens",
    "Tokens of predecessors' KV that certificates cover.",
)  # fmt: skip
TOKENS_ADOPTED: Final = Metric(
    "retire_adopted_tokens_total", "counter", "tokens",
    "Certified tokens whose successor was admitted with them: prefill that was not run again.",
)  # fmt: skip
GPU_SAVED: Final = Metric(
    "retire_gpu_saved_seconds_total", "counter", "seconds",
    "Device time of the adopted tokens' prefill, by the engine's own measured time per token. "
    "Nothing is counted until a long step was measured.",
)  # fmt: skip
QUOTA_REFUSALS: Final = Metric(
    "retire_quota_refusals_total", "counter", "1",
    "Prefixes that were not kept because the tenant's pin quota was exhausted.", ("tenant",),
)  # fmt: skip
TENANT_TRANSITIONS: Final = Metric(
    "retire_tenant_transitions_total", "counter", "1",
    "Transitions that moved a version, by tenant.", ("tenant",),
)  # fmt: skip
TENANT_ADOPTED: Final = Metric(
    "retire_tenant_adopted_tokens_total", "counter", "tokens",
    "Adopted tokens, by tenant.", ("tenant",),
)  # fmt: skip
QUOTA_BLOCKS: Final = Metric(
    "retire_quota_blocks", "gauge", "blocks",
    "This node's share of the tenant's pin quota; absent: the tenant has none.", ("tenant",),
)  # fmt: skip
LEASE_LEFT: Final = Metric(
    "retire_publish_lease_left_seconds", "gauge", "seconds",
    "Time to the node's publish deadline; 0: gates are closed.",
)  # fmt: skip
LEASE_LENGTH: Final = Metric(
    "retire_publish_lease_seconds", "gauge", "seconds",
    "Length of a publish lease; its age is this less the time left.",
)  # fmt: skip
LEASE_RENEWALS: Final = Metric(
    "retire_publish_lease_renewals_total", "counter", "1",
    "Renewals by outcome: granted, failed.", ("outcome",),
)  # fmt: skip
TERM: Final = Metric(
    "retire_registry_term", "gauge", "1", "Term under which this node entered the registry.",
)  # fmt: skip
REGISTRY_LOST: Final = Metric(
    "retire_registry_lost", "gauge", "1",
    "1: the registry is not the one that this node knew; nothing is committed until a rebuild.",
)  # fmt: skip
REGISTRY_UNREACHABLE: Final = Metric(
    "retire_registry_unreachable", "gauge", "1", "1: the last renewal did not reach the registry.",
)  # fmt: skip
READY: Final = Metric("retire_node_ready", "gauge", "1", "1: this node may serve.")
GATES: Final = Metric("retire_gates", "gauge", "1", "API processes attached to this node.")
ENGINES: Final = Metric("retire_engines", "gauge", "1", "Engines reached through them.")
SCOPES: Final = Metric("retire_scopes", "gauge", "1", "Scopes that this node has joined.")
SLOTS_FREE: Final = Metric(
    "retire_mailbox_slots_free", "gauge", "1", "Scopes that it can still join.",
)  # fmt: skip
RUNNING: Final = Metric(
    "retire_transitions_running", "gauge", "1", "Transitions under way here, RECLAIM included.",
)  # fmt: skip

# Of the API process, beside vLLM's own: its /metrics.
LATE_TOKENS: Final = Metric(
    "retire_late_tokens_total", "counter", "tokens",
    "Tokens of a version that were handed to a transport after this process had acked its end. "
    "Counted apart from the gates; must stay 0 (C1).",
)  # fmt: skip
RETIRED_RESPONSES: Final = Metric(
    "retire_retired_responses_total", "counter", "1",
    "Responses that a gate ended: superseded, cancelled, lease_expired.", ("why",),
)  # fmt: skip
FENCES_OVER_BOUND: Final = Metric(
    "retire_fences_over_bound_total", "counter", "1",
    "Fences whose residual work outlasted RETIRE_FENCE_BOUND_MS or the contract's bound (C7).",
)  # fmt: skip
PINNED_BLOCKS: Final = Metric(
    "retire_pinned_blocks", "gauge", "blocks", "KV blocks pinned, by tenant.", ("tenant",),
)  # fmt: skip
PINNED_BYTES: Final = Metric(
    "retire_pinned_bytes", "gauge", "bytes",
    "What is kept for successors, by tenant and tier: hbm (of each device), dram.",
    ("tenant", "tier"),
)  # fmt: skip
HOST_CAPACITY: Final = Metric(
    "retire_host_capacity_bytes", "gauge", "bytes", "Host memory for kept prefixes; 0: off.",
)  # fmt: skip
KV_BLOCKS: Final = Metric("retire_kv_blocks", "gauge", "blocks", "KV blocks of the engine.")
PIN_OVERDUE: Final = Metric(
    "retire_pin_overdue_seconds", "gauge", "seconds",
    "How long the oldest pin has outlived its lease: the lag of RECLAIM; 0: none has.",
)  # fmt: skip

# Of the operator: /metrics on RETIRE_METRICS_LISTEN.
RECONCILES: Final = Metric(
    "retire_operator_reconciles_total", "counter", "1",
    "Reconciliations of a ServingScope by outcome: settled, waiting, failed, error (a bug).",
    ("outcome",),
)  # fmt: skip
RECONCILE_SECONDS: Final = Metric(
    "retire_operator_reconcile_seconds", "histogram", "seconds", "Time of one reconciliation.",
)  # fmt: skip
QUEUE: Final = Metric(
    "retire_operator_queue_depth", "gauge", "1", "ServingScopes that wait for a worker.",
)  # fmt: skip
OPERATOR_SCOPES: Final = Metric(
    "retire_operator_scopes", "gauge", "1", "ServingScopes by condition Ready.", ("ready",),
)  # fmt: skip
OPERATOR_NODES: Final = Metric(
    "retire_operator_nodes", "gauge", "1", "Node pods by readiness.", ("ready",),
)  # fmt: skip
OPERATOR_SYNCED: Final = Metric(
    "retire_operator_registry_synced", "gauge", "1", "1: the registry is complete.",
)  # fmt: skip
OPERATOR_TERM: Final = Metric(
    "retire_operator_registry_term", "gauge", "1", "Term of the registry, by the Lease.",
)  # fmt: skip
REBUILDS: Final = Metric(
    "retire_operator_registry_rebuilds_total", "counter", "1",
    "Registries that this operator wrote anew under a higher term.",
)  # fmt: skip

METRICS: Final = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
