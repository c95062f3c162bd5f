"""The types and defaults of the configuration, and the files that we ship."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from entrypoint import Failure
from train.config import load
from train.config.schema import KEYS, RunConfig

CONFIGS = Path(__file__).parents[3] / "configs"


def given_keys(path: Path) -> set[str]:
    """The section.key paths that a file writes out."""
    text = yaml.safe_load(path.read_text())
    nested = {"launch.timeouts"}
    keys = {f"{section}.{key}" for section, values in text.items() for key in values} - nested
    return keys | {f"launch.timeouts.{key}" for key in text.get("launch", {}).get("timeouts", {})}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert isinstance(load.load_config(str(path)), RunConfig)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_means_what_it_says(path: Path) -> None:
    """The loaded values are the file's, and nothing else differs from the quickstart."""
    loaded, defaults = dataclasses.asdict(load.load_config(str(path))), dataclasses.asdict(RunConfig())
    for section, values in defaults.items():
        written = yaml.safe_load(path.read_text()).get(section, {})
        assert loaded[section] == values | written | {
            key: values[key] | written.get(key, {}) for key in values if isinstance(values[key], dict)
        }


def test_the_quickstart_file_is_the_default() -> None:
    assert load.load_config(str(CONFIGS / "quickstart.yaml")) == RunConfig()


def test_the_quickstart_file_writes_out_every_key() -> None:
    assert given_keys(CONFIGS / "quickstart.yaml") == set(KEYS)


def test_the_quickstart_file_explains_itself() -> None:
    lines = (CONFIGS / "quickstart.yaml").read_text().splitlines()
    assert sum("#" in line for line in lines) > 60


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().run.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "words",
    [
        ["model={args: {api_key: hunter2}, nam: x}"],
        ["log.api_key=hunter2"],
        ["model.args.api_key=hunter2", "model.args.api_key=hunter2"],
        ["model.args={width: 3, api_key: hunter2}", "model.args.width=4"],
        ["optim.args=[{api_key: hunter2}]"],
    ],
    ids=" ".join,
)
def test_an_error_about_a_setting_does_not_show_a_secret_in_it(words: list[str]) -> None:
    with pytest.raises(Failure) as caught:
        load.load_config(None, words)
    assert "(not shown)" in str(caught.value) or "api_key" not in str(caught.value)
    assert "hunter2" not in f"{caught.value}{caught.value.as_json()}"
