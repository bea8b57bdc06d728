"""The mailbox: how a decision of the sidecar reaches every gate of a host with one store.

Layout and the reasons for it: ``layout.py``. Must never import the registry, the sidecar or vLLM.
"""

from retire.mailbox.layout import Current, GateState, Slot, SlotFlags, SlotRef
from retire.mailbox.overlaps import Overlaps
from retire.mailbox.progress import ProgressLines
from retire.mailbox.view import MailboxView
from retire.mailbox.writer import MailboxWriter

__all__ = [
    "Current",
    "GateState",
    "MailboxView",
    "MailboxWriter",
    "Overlaps",
    "ProgressLines",
    "Slot",
    "SlotFlags",
    "SlotRef",
]
