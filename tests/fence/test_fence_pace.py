"""The host launches a layer just in time: a device and its clock are simulated, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from retire.engine.pace import AHEAD_MAX, LEAD_MS, Pace

LAYERS = 64
LAUNCH_MS = 0.2  # what the host needs for a layer
TOKENS = 2048


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
    pace.begin(TOKENS, predicted_ms)
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


def warm(device: Device) -> Pace:
    """After a step, with an idle device."""
    pace = paced(device)
    step(device, pace, None)
    device.now = device.busy_until + 3.0
    device.busy_until = 0.0
    return pace


@pytest.mark.parametrize("layer_ms", [0.4, 0.7, 1.4, 3.2, 6.4, 13.5])
@pytest.mark.parametrize("predicted", [None, 0.5, 1.0, 10.0])
def test_the_device_never_waits_for_the_host(layer_ms: float, predicted: float | None) -> None:
    """In two steps in a row, less than a hundredth of their time, whatever was predicted.

    A prediction of ten times as much (kernels were compiled when it was measured) must not come
    true by waiting for it.
    """
    device = Device(layer_ms)
    pace = paced(device)
    for _ in range(2):
        assert step(device, pace, predicted and predicted * layer_ms) == LAYERS
    assert device.dry <= 0.01 * 2 * LAYERS * layer_ms


def test_a_host_that_waits_too_long_lets_the_device_run_dry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NEGATIVE CONTROL: a prediction is waited for, and believed although the host was late."""
    monkeypatch.setattr(Pace, "_layer_ms", property(lambda self: self._predicted_ms))
    device = Device(3.2)
    step(device, paced(device), 10 * 3.2)
    assert device.dry > LAYERS * 3.2


@pytest.mark.parametrize("change", [0.3, 3.0], ids=["faster", "slower"])
def test_what_is_known_of_layers_is_given_up_when_it_is_wrong(change: float) -> None:
    """From one step to the next, and in the middle of one; dry for a layer or two, no longer."""
    device = Device(6.4)
    pace = paced(device)
    step(device, pace, 6.4)
    device.layer_ms *= change
    step(device, pace, 6.4)
    assert device.dry <= 2 * 6.4


def test_layers_that_take_turns_are_as_long_as_the_shorter_one() -> None:
    """Sliding and full attention: waiting for the longer would let the device run dry."""
    device = Device(3.0)
    pace = paced(device)
    for _ in range(2):
        pace.begin(TOKENS, 3.0)
        for layer in range(LAYERS):
            pace.hold(device.look)
            device.layer_ms = 3.0 if layer % 2 else 2.0
            device.launch_layer()
    assert device.dry <= 0.01 * 2 * LAYERS * 2.5


@pytest.mark.parametrize("layer_ms", [1.4, 3.2, 6.4, 13.5])
@pytest.mark.parametrize("part", [0.31, 0.47, 0.52, 0.77])
def test_a_stop_leaves_at_most_the_lead_and_a_layer(layer_ms: float, part: float) -> None:
    """Wherever in the step the revision falls; and what is said to be left is what is left."""
    device = Device(layer_ms)
    pace = warm(device)
    device.revised_at = device.now + part * LAYERS * layer_ms
    assert step(device, pace, layer_ms) < LAYERS
    residual = device.busy_until - device.revised_at
    assert residual <= LEAD_MS + layer_ms + 0.5
    left = device.busy_until - device.now
    assert pace.left_ms() == pytest.approx(left, abs=0.3 + 0.05 * layer_ms)


@pytest.mark.parametrize("layer_ms", [1.4, 3.2, 6.4, 13.5])
def test_the_first_layers_are_held_back_too(layer_ms: float) -> None:
    """An idle device starts at once on the first: the second waits although nothing was seen."""
    for after in (0.5, 0.5 * layer_ms, 5.0, 1.6 * layer_ms):
        device = Device(layer_ms)
        pace = warm(device)
        began = device.now
        device.revised_at = began + after
        step(device, pace, layer_ms)
        residual = device.busy_until - max(device.revised_at, began + LAUNCH_MS)
        assert residual <= LEAD_MS + layer_ms + 0.5


def test_a_revision_is_seen_while_the_host_waits() -> None:
    """Within a look: not only when the next layer is due."""
    device = Device(13.5)
    pace = warm(device)
    device.looks.clear()
    device.revised_at = device.now + 300.0
    step(device, pace, 13.5)
    assert device.now - device.revised_at < 0.5
    gaps = [b - a for a, b in zip(device.looks, device.looks[1:], strict=False)]
    assert max(gaps) <= 0.5


@pytest.mark.parametrize(
    ("layer_ms", "ahead"), [(None, 1), (13.5, 1), (1.0, 1), (0.6, 2), (0.3, 4), (0.05, AHEAD_MAX)]
)
def test_short_layers_are_launched_several_ahead(layer_ms: float | None, ahead: int) -> None:
    """As many as make up the lead, and never more than ranks agree on."""
    pace = paced(Device(1.0))
    pace.begin(TOKENS, layer_ms)
    assert pace.ahead == ahead


def test_ranks_are_equally_far_ahead_whatever_each_has_measured() -> None:
    """They stop at one layer only if none can be past it. CONTROL: their measurements differ."""
    ranks = [warm(Device(layer_ms)) for layer_ms in (0.3, 1.6)]
    for pace in ranks:
        pace.begin(TOKENS, 1.0)
    assert ranks[0]._known_ms != ranks[1]._known_ms
    assert {pace.ahead for pace in ranks} == {1}


def test_a_steps_layers_are_known_from_the_one_before_by_its_tokens() -> None:
    """A quarter of the tokens, a quarter of the time."""
    pace = warm(Device(6.4))
    whole = pace._layer_ms
    pace.begin(TOKENS // 4, None)
    assert whole is not None and pace._known_ms == pytest.approx(whole / 4)


def test_the_host_is_never_further_ahead_than_it_says() -> None:
    """Ranks that stop together rely on it: also where looks find something and stop nothing."""
    device = Device(1.4)
    pace = paced(device)
    pace.begin(TOKENS, 1.4)
    for _ in range(LAYERS):
        pace.hold(device.look)
        assert sum(not mark.query() for mark, _ in pace._marks) <= pace.ahead
        device.launch_layer()
