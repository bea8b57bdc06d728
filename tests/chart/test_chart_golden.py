"""The render, line by line, and what helm itself says of the chart."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from chart_render import CHART, ROOT, VALUES, VARIANTS, helm, masked, template

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/chart/test_chart_golden.py"


@pytest.mark.parametrize("name", VARIANTS)
def test_the_render_is_the_one_that_was_reviewed(name: str, variant):
    """Every change of the render shows as a diff of tests/chart/golden."""
    text, path = masked(variant(name)), GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    wanted = path.read_text() if path.exists() else ""
    changes = difflib.unified_diff(wanted.splitlines(), text.splitlines(), "golden", "now", n=2)
    shown = "\n".join(list(changes)[:60])
    assert text == wanted, f"if this is meant: {UPDATE}\n{shown}"


def test_no_golden_file_is_left_over():
    """A variant that is gone takes its golden file with it; control: there are several."""
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(VARIANTS)
    assert len(VARIANTS) >= 5


@pytest.mark.parametrize("name", VARIANTS)
def test_two_renders_differ_in_secrets_only(name: str, variant):
    """What is masked is all that is random: the golden files can be trusted."""
    again = template("--values", str(VALUES / f"{name}-values.yaml"))
    assert masked(again) == masked(variant(name))


def test_secrets_are_new_in_every_release(variant):
    """Control of the masks: passwords and keys really differ."""
    again = template("--values", str(VALUES / "default-values.yaml"))
    for name, key in (("retire-registry-server", "sidecar-password"), ("retire-ca", "tls.key")):
        first, second = (one.one("Secret", name) for one in (variant("default"), again))
        part = "stringData" if "stringData" in first else "data"
        assert first[part][key] != second[part][key]


@pytest.mark.parametrize("name", VARIANTS)
def test_lint(name: str):
    """``helm lint --strict`` has nothing to say."""
    done = helm("lint", "--strict", str(CHART), "--values", str(VALUES / f"{name}-values.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_charts_crds_are_the_source_of_truth():
    """crds/ of the repository and of the chart: the same files, byte for byte."""
    source = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    copy = {path.name: path.read_bytes() for path in (CHART / "crds").glob("*.yaml")}
    assert "servingscopes.yaml" in source
    assert copy == source, "cp crds/*.yaml charts/retire/crds/"
