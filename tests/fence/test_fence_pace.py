"""The host launches a layer just in time: a device and its clock are simulated, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from retire.engine.pace import AHEAD_MAX, LEAD_MS, Pace

LAYERS = 64
LAUNCH_MS = 0.2  # what the host needs for a layer


class Stop(Exception):
    """As a safe point's."""


@dataclass
class Device:
    """Computes layers one after the other, as far as they are launched; all times in ms."""

    layer_ms: float
    now: float = 0.0
    busy_until: float = 0.0
    dry: float = 0.0  # how long it had nothing to do in the middle of the step
    revised_at: float = float("inf")
    looks: list[float] = field(default_factory=list)

    def launch_layer(self) -> None:
        self.now += LAUNCH_MS
        if self.busy_until:
            self.dry += max(0.0, self.now - LAUNCH_MS - self.busy_until)
        self.busy_until = max(self.busy_until, self.now) + self.layer_ms

    def sleep(self, seconds: float) -> None:
        self.now += seconds * 1e3 + 0.06  # timers are late

    def look(self) -> None:
        self.looks.append(self.now)
        if self.now >= self.revised_at:
            raise Stop


class Mark:
    """An event of the device's queue."""

    def __init__(self, device: Device) -> None:
        self.device, self.at = device, float("inf")

    def record(self) -> None:
        self.at = self.device.busy_until

    def query(self) -> bool:
        return self.device.now >= self.at


def step(device: Device, pace: Pace, predicted_ms: float | None) -> int:
    """One armed step; the layers launched."""
    pace.begin(predicted_ms)
    for layer in range(LAYERS):
        try:
            pace.hold(device.look)
            device.look()
        except Stop:
            return layer
        device.launch_layer()
    return LAYERS


def paced(device: Device) -> Pace:
    return Pace(lambda: Mark(device), clock_s=lambda: device.now / 1e3, sleep=device.sleep)


@pytest.mark.parametrize("layer_ms", [0.4, 0.7, 1.4, 3.2, 6.4, 13.5])
@pytest.mark.parametrize("predicted", [None, 0.5, 1.0, 1.1], ids=["new", "half", "right", "over"])
def test_the_device_never_waits_for_the_host(layer_ms: float, predicted: float | None) -> None:
    """In two steps in a row, less than a hundredth of their time, whatever was predicted."""
    device = Device(layer_ms)
    pace = paced(device)
    for _ in range(2):
        assert step(device, pace, predicted and predicted * layer_ms) == LAYERS
    assert device.dry <= 0.01 * 2 * LAYERS * layer_ms


def test_a_host_that_waits_too_long_lets_the_device_run_dry() -> None:
    """NEGATIVE CONTROL: half a layer longer at each."""
    device = Device(3.2)
    pace = paced(device)
    early = pace._early_ms
    pace._early_ms = lambda: early() + 1.6  # type: ignore[method-assign]
    step(device, pace, 3.2)
    assert device.dry > 0.05 * LAYERS * 3.2


@pytest.mark.parametrize("layer_ms", [1.4, 3.2, 6.4, 13.5])
@pytest.mark.parametrize("part", [0.31, 0.47, 0.52, 0.77])
def test_a_stop_leaves_at_most_the_lead_and_a_layer(layer_ms: float, part: float) -> None:
    """Wherever in the step the revision falls; and what is said to be left is what is left."""
    device = Device(layer_ms, revised_at=part * LAYERS * layer_ms)
    pace = paced(device)
    assert step(device, pace, layer_ms) < LAYERS
    residual = device.busy_until - device.revised_at
    assert residual <= LEAD_MS + layer_ms + 0.5
    left = device.busy_until - device.now
    assert pace.left_ms() == pytest.approx(left, abs=0.3 + 0.05 * layer_ms)


@pytest.mark.parametrize("layer_ms", [1.4, 3.2, 6.4, 13.5])
def test_the_first_layers_are_held_back_too(layer_ms: float) -> None:
    """An idle device starts at once on the first: the second waits although nothing was seen."""
    for revised_at in (0.5, 0.5 * layer_ms, 5.0, 1.6 * layer_ms):
        device = Device(layer_ms, revised_at=revised_at)
        step(device, paced(device), layer_ms)
        assert device.busy_until - max(revised_at, LAUNCH_MS) <= LEAD_MS + layer_ms + 0.5


def test_a_revision_is_seen_while_the_host_waits() -> None:
    """Within a look: not only when the next layer is due."""
    device = Device(13.5, revised_at=300.0)
    step(device, paced(device), 13.5)
    assert device.now - device.revised_at < 0.5
    gaps = [b - a for a, b in zip(device.looks, device.looks[1:], strict=False)]
    assert max(gaps) <= 0.5


@pytest.mark.parametrize(
    ("layer_ms", "ahead"), [(None, 1), (13.5, 1), (1.0, 1), (0.6, 2), (0.3, 4), (0.05, AHEAD_MAX)]
)
def test_short_layers_are_launched_several_ahead(layer_ms: float | None, ahead: int) -> None:
    """As many as make up the lead, and never more than ranks agree on."""
    pace = paced(Device(1.0))
    pace.begin(layer_ms)
    assert pace.ahead == ahead


def test_the_host_is_never_further_ahead_than_it_says() -> None:
    """Ranks that stop together rely on it: also where looks find something and stop nothing."""
    device = Device(1.4)
    pace = paced(device)
    pace.begin(1.4)
    for _ in range(LAYERS):
        pace.hold(device.look)
        assert sum(not mark.query() for mark, _ in pace._marks) <= pace.ahead
        device.launch_layer()
