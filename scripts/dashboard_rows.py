"""What the dashboard shows, as data: rows of panels with expressions, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass

OURS = 'namespace=~"$namespace", pod=~"$pod"'


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries``: (expression, legend). ``bad``: from this value on it is red."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"  # or stat
    width: int = 8
    bad: float | None = None
    traces: bool = False  # show exemplars: a dot leads to the transition's trace


def rate(metric: str, by: str = "", more: str = "") -> str:
    """Per second over the interval of the panel, summed."""
    labels = f" by ({by})" if by else ""
    return f"sum{labels}(rate({metric}{{{OURS}{more}}}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "", more: str = "") -> str:
    """Of a histogram."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', labels, more)})"


def quantiles(metric: str, more: str = "") -> tuple[tuple[str, str], ...]:
    """The median and the tail."""
    return tuple((quantile(q, metric, more=more), f"p{q * 100:g}") for q in (0.5, 0.99))


def now(function: str, metric: str, by: str = "", more: str = "") -> str:
    """An aggregate of a gauge."""
    labels = f" by ({by})" if by else ""
    return f"{function}{labels}({metric}{{{OURS}{more}}})"


def ratio(part: str, whole: str) -> str:
    """0 where there is nothing of the whole."""
    return f"({part}) / ({whole} > 0) or vector(0)"


TENANT = ', tenant=~"$tenant"'
OPERATOR = 'namespace=~"$namespace"'

ROWS: dict[str, tuple[Panel, ...]] = {
    "Guarantee": (
        Panel(
            "Late tokens",
            "Tokens of a superseded version that were delivered after its end had been "
            "acknowledged. Counted apart from the gates. Anything but 0 is a broken promise (C1): "
            "docs/runbooks/RetireLateTokens.md",
            "short",
            ((f"sum(increase(retire_late_tokens_total{{{OURS}}}[$__range]))", "late tokens"),),
            kind="stat",
            width=4,
            bad=1,
        ),
        Panel(
            "Shortest publish lease",
            "Time to the publish deadline of the node that is nearest to it. "
            "At 0 its gates are closed.",
            "s",
            ((now("min", "retire_publish_lease_left_seconds"), "left"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Nodes ready",
            "Nodes that hold their lease and have an API process attached.",
            "short",
            ((now("sum", "retire_node_ready"), "ready"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Transitions by outcome",
            "Calls that change a scope, each counted by the node that "
            "committed it. Version conflicts are agents that were overtaken: nothing is wrong.",
            "ops",
            ((rate("retire_transitions_total", "change, outcome"), "{{change}} {{outcome}}"),),
            width=12,
        ),
        Panel(
            "Gates behind a commit",
            "acked: the gate switched by itself. lease_ended: it was cut off or "
            "dead, and SUPERSEDE waited for its lease.",
            "ops",
            ((rate("retire_gate_results_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Responses ended by a gate",
            "Streams that were superseded or cancelled, or whose lease did not come back.",
            "ops",
            ((rate("retire_retired_responses_total", "why"), "{{why}}"),),
        ),
        Panel(
            "Lease age",
            "Time since the last renewal of each node's publish lease. A sound node renews "
            "at a third.",
            "s",
            (
                (
                    f"max by (pod) (retire_publish_lease_seconds{{{OURS}}} - "
                    f"retire_publish_lease_left_seconds{{{OURS}}})",
                    "{{pod}}",
                ),
            ),
        ),
    ),
    "Latency": (
        Panel(
            "Time to UNPUBLISHABLE",
            "From the SUPERSEDE call until no gate anywhere can publish the old "
            "version; the call is acknowledged then.",
            "s",
            quantiles("retire_stage_seconds", ', stage="unpublishable"'),
            traces=True,
        ),
        Panel(
            "Time to FENCED",
            "From the call until every writer of the old version is closed.",
            "s",
            quantiles("retire_stage_seconds", ', stage="fence"'),
            traces=True,
        ),
        Panel(
            "Time to RECLAIMED",
            "From the call until nothing of the old version is held; the wait for "
            "the successor, or for the end of the retention, is in it.",
            "s",
            quantiles("retire_stage_seconds", ', stage="reclaim"'),
        ),
        Panel(
            "Every stage, p99",
            "All stages since the call, side by side.",
            "s",
            ((quantile(0.99, "retire_stage_seconds", "stage"), "{{stage}}"),),
            width=12,
            traces=True,
        ),
        Panel(
            "Residual work",
            "Old work that ran on the device after COMMIT (C7).",
            "s",
            quantiles("retire_residual_seconds"),
            width=12,
            traces=True,
        ),
    ),
    "GPU saved": (
        Panel(
            "Device time saved",
            "Prefill that adopted tokens made unnecessary, by the engine's own "
            "measured time per token, as seconds of device time per second.",
            "percentunit",
            ((rate("retire_gpu_saved_seconds_total", "pod"), "{{pod}}"),),
        ),
        Panel(
            "Tokens",
            "Shared with the predecessor, certified, and adopted instead of computed.",
            "short",
            (
                (rate("retire_inheritable_tokens_total"), "inheritable"),
                (rate("retire_certified_tokens_total"), "certified"),
                (rate("retire_adopted_tokens_total"), "adopted"),
            ),
        ),
        Panel(
            "Adopted of inheritable",
            "Share of the common prefixes that was not computed again.",
            "percentunit",
            (
                (
                    ratio(
                        rate("retire_adopted_tokens_total"), rate("retire_inheritable_tokens_total")
                    ),
                    "adopted",
                ),
            ),
        ),
        Panel(
            "Where reuse stopped",
            "What limited the reuse of each successor. quota, generation and "
            "restore are avoidable; first_difference is the agent's new plan.",
            "ops",
            ((rate("retire_successors_total", "stop_reason"), "{{stop_reason}}"),),
            width=12,
        ),
        Panel(
            "How running steps ended",
            "quantum: by itself. layer_stop: given up at a safe point. finish: "
            "worth more than what was left of it.",
            "ops",
            ((rate("retire_fences_total", "branch"), "{{branch}}"),),
            width=12,
        ),
    ),
    "KV and pins": (
        Panel(
            "Pinned blocks of all",
            "Share of the engine's KV blocks that is kept for successors. Idle: 0.",
            "percentunit",
            (
                (
                    f"sum by (pod) (retire_pinned_blocks{{{OURS}}}) / "
                    f"sum by (pod) (retire_kv_blocks{{{OURS}}})",
                    "{{pod}}",
                ),
            ),
        ),
        Panel(
            "KV cache in use",
            "vLLM's own gauge: requests and pins together.",
            "percentunit",
            ((now("max", "vllm:kv_cache_usage_perc", "pod"), "{{pod}}"),),
        ),
        Panel(
            "Kept bytes by tier",
            "In device memory (of each device) and in host memory.",
            "bytes",
            (
                (now("sum", "retire_pinned_bytes", "tier"), "{{tier}}"),
                (now("sum", "retire_host_capacity_bytes"), "host capacity"),
            ),
        ),
        Panel(
            "Overdue pins",
            "How long the oldest pin has outlived its lease: the lag of RECLAIM.",
            "s",
            ((now("max", "retire_pin_overdue_seconds", "pod"), "{{pod}}"),),
            width=12,
            bad=10,
        ),
        Panel(
            "Transitions under way",
            "RECLAIM included; one that stays is held by a retention, or stuck.",
            "short",
            ((now("sum", "retire_transitions_running", "pod"), "{{pod}}"),),
            width=12,
        ),
    ),
    "Registry": (
        Panel(
            "Term",
            "Rises when the registry had lost its data and was rebuilt.",
            "short",
            (
                (now("max", "retire_registry_term"), "nodes"),
                (f"max(retire_operator_registry_term{{{OPERATOR}}})", "operator"),
            ),
            kind="stat",
            width=4,
        ),
        Panel(
            "Lost or unreachable",
            "Nodes that know another registry than the one that answers, and nodes "
            "that reach none.",
            "short",
            (
                (now("sum", "retire_registry_lost"), "lost"),
                (now("sum", "retire_registry_unreachable"), "unreachable"),
            ),
            kind="stat",
            width=4,
            bad=1,
        ),
        Panel(
            "Rebuilds",
            "Registries that the operators wrote anew.",
            "short",
            ((f"sum(retire_operator_registry_rebuilds_total{{{OPERATOR}}})", "rebuilds"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Lease renewals",
            "Each node renews three times a lease.",
            "ops",
            ((rate("retire_publish_lease_renewals_total", "outcome"), "{{outcome}}"),),
            width=12,
        ),
        Panel(
            "ServingScopes by Ready",
            "As the operators see them.",
            "short",
            ((f"max by (ready) (retire_operator_scopes{{{OPERATOR}}})", "{{ready}}"),),
        ),
        Panel(
            "Reconciliations",
            "settled and waiting are well; failed is tried again; error is a bug.",
            "ops",
            (
                (
                    f"sum by (outcome) (rate(retire_operator_reconciles_total{{{OPERATOR}}}"
                    "[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "Reconcile time, p99",
            "And the objects that wait for a worker.",
            "s",
            (
                (
                    "histogram_quantile(0.99, sum by (le) (rate("
                    f"retire_operator_reconcile_seconds_bucket{{{OPERATOR}}}[$__rate_interval])))",
                    "p99",
                ),
                (f"sum(retire_operator_queue_depth{{{OPERATOR}}})", "waiting (count)"),
            ),
        ),
    ),
    "Tenants": (
        Panel(
            "Transitions by tenant",
            "Who revises how often. Tenants beyond the first hundred share a line.",
            "ops",
            ((rate("retire_tenant_transitions_total", "tenant", TENANT), "{{tenant}}"),),
        ),
        Panel(
            "Pinned blocks by tenant",
            "Who holds the pins now.",
            "short",
            ((now("sum", "retire_pinned_blocks", "tenant", TENANT), "{{tenant}}"),),
        ),
        Panel(
            "Pin quota by tenant",
            "Blocks that the nodes may pin for a tenant; a tenant without a quota has no line.",
            "short",
            ((now("sum", "retire_quota_blocks", "tenant", TENANT), "{{tenant}}"),),
        ),
        Panel(
            "Adopted tokens by tenant",
            "Who profits from inheritance.",
            "short",
            ((rate("retire_tenant_adopted_tokens_total", "tenant", TENANT), "{{tenant}}"),),
            width=12,
        ),
        Panel(
            "Prefixes refused for quota",
            "Successors that started cold because the tenant's pins were used up.",
            "ops",
            (
                (
                    rate("retire_quota_refusals_total", "tenant", TENANT) + " or vector(0)",
                    "{{tenant}}",
                ),
            ),
            width=12,
        ),
    ),
}
