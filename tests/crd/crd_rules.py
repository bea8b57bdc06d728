"""Every structural rule of the CRD, with what it accepts and what it refuses, written out by hand.

Written out, not derived: a rule that vanishes from the CRD must fail a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from crd_schema import SIBLINGS

# What the API server says, by keyword.
SAYS: Final = {
    "minLength": "should be at least",
    "maxLength": "may not be more than",
    "pattern": "should match",
    "minimum": "greater than or equal to",
    "maximum": "less than or equal to",
    "enum": "supported values",
    "minItems": "should have at least",
    "maxItems": "must have at most",
    "unique": "Duplicate value",
    "required": "Required value",
    "format": "must be of type",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One keyword at one path."""

    path: str
    keyword: str
    accepted: tuple[Any, ...]
    refused: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.path} {self.keyword}"

    @property
    def says(self) -> str:
        """The words by which the refusal names the rule."""
        return SAYS[self.keyword.partition(":")[0]]

    @property
    def field(self) -> str:
        """How the refusal names the field."""
        head, _, missing = self.keyword.partition(":")
        path = f"{self.path}.{missing}" if head == "required" else self.path
        return path.replace("[]", "[1]" if head == "unique" else "[0]")


def label(path: str) -> list[Rule]:
    """A DNS label."""
    good = ("a", "a-1", "0")
    return [
        Rule(path, "minLength", ("a",), ("",)),
        Rule(path, "maxLength", ("a" * 63,), ("a" * 64,)),
        Rule(path, "pattern", good, ("A", "-a", "a-", "a.b", "a b")),
    ]


def text(path: str, most: int, least: int = 1) -> list[Rule]:
    """A string with bounds."""
    found = [Rule(path, "maxLength", ("a" * most,), ("a" * (most + 1),))]
    return found + ([Rule(path, "minLength", ("a" * least,), ("a" * (least - 1),))] * bool(least))


def number(path: str, least: int, most: int | None = None) -> list[Rule]:
    """An integer with bounds."""
    found = [Rule(path, "minimum", (least,), (least - 1,))]
    return found + ([Rule(path, "maximum", (most,), (most + 1,))] if most is not None else [])


def words(path: str, *accepted: str) -> list[Rule]:
    """One of a few words."""
    return [Rule(path, "enum", accepted, ("nonsense", "", accepted[0].swapcase()))]


def required(path: str) -> list[Rule]:
    """Every key of ``SIBLINGS`` at this path must be there."""
    whole = SIBLINGS[path]
    return [
        Rule(path, f"required:{name}", (whole,), ({k: v for k, v in whole.items() if k != name},))
        for name in whole
    ]


def moment(path: str) -> list[Rule]:
    """An RFC 3339 time."""
    return [Rule(path, "format:date-time", ("2026-11-30T12:00:00Z",), ("yesterday", "2026-11-30"))]


def several(path: str, most: int, one: dict[str, Any], key: str) -> list[Rule]:
    """An array with a limit whose items differ by ``key``."""
    items = [{**one, key: f"x{n}"} for n in range(most + 1)]
    return [Rule(path, "maxItems", (items[:most],), (items,))]


def unique(path: str, one: dict[str, Any]) -> list[Rule]:
    """A map by its keys: the same key twice is refused."""
    return [Rule(path, "unique", ([one],), ([one, one],))]


_PARTICIPANT: Final = SIBLINGS["status.participants[]"]
_RECEIPT: Final = SIBLINGS["status.receipts[]"]
_CONDITION: Final = SIBLINGS["status.conditions[]"]
_MESSAGE: Final = SIBLINGS["spec.context.inline.messages[]"]
_MESSAGES: Final = "spec.context.inline.messages"

SPEC: Final = [
    *label("spec.tenant"),
    *label("spec.poolRef.name"),
    *number("spec.epoch", 0, 2**40 - 1),
    *number("spec.term", 1, 2**24 - 1),
    *words("spec.contract.equivalence", "exact", "batch-invariant", "none"),
    *words("spec.contract.inherit", "certified", "never"),
    *words("spec.contract.retention.tier", "hbm", "dram"),
    *number("spec.contract.retention.ttlSeconds", 1, 3600),
    *number("spec.contract.fenceBoundMs", 1, 60_000),
    *words("spec.onNewInput", "reject", "enqueue", "interrupt", "rollback"),
    *required("spec.parentRef"),
    *text("spec.parentRef.name", 253),
    *text("spec.context.model", 256),
    *text("spec.context.inline.prompt", 262_144),
    Rule(_MESSAGES, "minItems", ([_MESSAGE],), ([],)),
    Rule(_MESSAGES, "maxItems", ([_MESSAGE] * 1024,), ([_MESSAGE] * 1025,)),
    *required(f"{_MESSAGES}[]"),
    *text(f"{_MESSAGES}[].role", 32),
    *text(f"{_MESSAGES}[].content", 262_144, 0),
    *required("spec.context.configMapRef"),
    *text("spec.context.configMapRef.name", 253),
    *text("spec.context.configMapRef.key", 253),
    *required("spec.context.secretRef"),
    *text("spec.context.secretRef.name", 253),
    *text("spec.context.secretRef.key", 253),
    *number("spec.quota.pinnedBlocks", 0, 2**31 - 1),
]

STATUS: Final = [
    Rule("status.version", "pattern", ("1.0", "12.345"), ("1", "1.", "v1.0", "1.0.0", "")),
    *words(
        "status.phase",
        *("Pending", "Active", "Retiring", "Paused", "Cancelled", "Blocked", "Degraded"),
        "Deleting",
    ),
    *several("status.participants", 256, _PARTICIPANT, "node"),
    *unique("status.participants", _PARTICIPANT),
    *required("status.participants[]"),
    *several("status.receipts", 8, _RECEIPT, "traceId"),
    *required("status.receipts[]"),
    *moment("status.receipts[].at"),
    *several("status.conditions", 16, _CONDITION, "type"),
    *unique("status.conditions", _CONDITION),
    *required("status.conditions[]"),
    *text("status.conditions[].type", 316, 0),
    *words("status.conditions[].status", "True", "False", "Unknown"),
    *number("status.conditions[].observedGeneration", 0),
    *moment("status.conditions[].lastTransitionTime"),
    *text("status.conditions[].reason", 1024),
    Rule(
        "status.conditions[].reason",
        "pattern",
        ("AtEpoch", "A", "A_b:c,d1"),
        ("at epoch", "1st", "Ready:", "a-b"),
    ),
    *text("status.conditions[].message", 32_768, 0),
]
