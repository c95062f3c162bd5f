"""Accelerate's trackers get what metrics.jsonl gets, and a broken one changes nothing in the training."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from processes import python
from runs import TEN_STEPS

from entrypoint import ExitCode, Failure
from train.config import checks, load, schema
from train.config.schema import RunConfig
from train.logging import trackers
from train.logging.metrics_logger import MetricsLogger, read_events
from train.logging.trackers import ResumableTracker, Trackers, hyperparameters, start_trackers

# Three trackers of a user: one that works, one that fails in the middle of the training, one that never returns.
OWN_TRACKERS = """
import json, threading
from accelerate.tracking import GeneralTracker

class Recorder(GeneralTracker):
    name, requires_logging_directory, tracker = "recorder", True, None

    def __init__(self, project, folder):
        super().__init__()
        self.file = open(f"{folder}/{self.name}.jsonl", "a")

    def store_init_configuration(self, values):
        self.write({"config": values})

    def log(self, values, step=None, **kwargs):
        self.write({"step": step, **values})

    def write(self, record):
        self.file.write(json.dumps(record) + "\\n")

    def finish(self):
        self.file.close()

class Failing(Recorder):
    name = "failing"

    def log(self, values, step=None, **kwargs):
        if step >= 4:
            raise ConnectionError("token=abcdef123456 was refused")

class Blocked(Failing):
    name = "blocked"

    def log(self, values, step=None, **kwargs):
        threading.Event().wait()
"""


class Remembering(GeneralTracker):  # type: ignore[misc]
    """Keeps all calls in a list of its class."""

    name, requires_logging_directory = "remembering", False
    calls: list[Any]
    run_id = "run-1"

    def __init__(self, project: str, **arguments: Any) -> None:
        super().__init__()
        self.calls.append(("project", project, arguments))

    @property
    def tracker(self) -> Any:
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("config", values["train.epochs"]))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.calls.append((step, values))

    def finish(self) -> None:
        self.calls.append("finished")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(Remembering, "calls", [], raising=False)
    return Remembering.calls


def started(folder: Path, tracker: type[GeneralTracker], warnings: list[str], **variables: str) -> Trackers:
    config = load.load_config(None, ["run.name=photos", "run.output_dir=study"])
    return start_trackers({tracker.name: tracker}, config, folder, dict(variables), warnings.append)


def finish(started: Trackers) -> None:
    started.end()
    for thread in threading.enumerate():
        if thread.name.startswith("the tracker"):
            thread.join()


def test_the_names_are_those_of_accelerate() -> None:
    assert set(schema.TRACKERS) == set(LOGGER_TYPE_TO_CLASS)


def test_a_tracker_gets_each_number_of_an_event_and_the_config(tmp_path: Path, calls: list[Any]) -> None:
    warnings: list[str] = []
    with MetricsLogger(tmp_path, main=True, tensorboard=False, warn=warnings.append).opened(step=0) as logger:
        logger.trackers = started(tmp_path, Remembering, warnings)
        logger.write("train", step=10, loss=0.5, host="node01")
        logger.write("checkpoint", step=5, seconds=1.0)  # of an earlier step: wandb would ignore it
        logger.write_each("gpu", step=10, of=[("node/0", {"gpu": "node/0"}, {"power_w": 300.0})])
        finish(logger.trackers)
    assert calls == [
        ("project", "study", {}),
        ("config", 5),
        (10, {"train/loss": 0.5}),
        (10, {"gpu/node/0/power_w": 300.0}),
        "finished",
    ]
    assert warnings == []


def test_a_tracker_that_can_continues_its_run_and_keeps_the_hyperparameters(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resumable = ResumableTracker(
        name="name", id="id", read_id=lambda run: run.run_id, arguments={"resume": "allow"}, project_variable="PROJECT"
    )
    monkeypatch.setattr(trackers, "RESUMABLE_TRACKERS", {Remembering.name: resumable})
    for _ in range(2):
        finish(started(tmp_path, Remembering, [], PROJECT="mine"))
    arguments = {"resume": "allow", "name": "photos"}
    assert calls == [
        ("project", "mine", {**arguments, "id": None}),
        ("config", 5),
        "finished",
        ("project", "mine", {**arguments, "id": "run-1"}),
        "finished",
    ]


def test_dvclive_goes_on_in_the_run_s_folder(tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By default each start would delete ./dvclive. With the real package, two starts leave the values of both."""
    monkeypatch.setattr(Remembering, "name", "dvclive")
    finish(started(tmp_path, Remembering, []))
    (_, _, arguments), *_ = calls
    assert (arguments["dir"], arguments["resume"]) == (str(tmp_path / "trackers/dvclive"), True)


def test_a_tracker_that_does_not_keep_up_is_switched_off_with_one_warning(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "MAX_WAITING", 2)
    is_logging, may_go_on = threading.Event(), threading.Event()

    class Slow(Remembering):
        def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
            is_logging.set()
            may_go_on.wait()
            super().log(values, step)

    warnings: list[str] = []
    slow = started(tmp_path, Slow, warnings)
    slow.log({}, step=0)
    is_logging.wait()
    for step in range(1, 6):
        slow.log({}, step=step)
    may_go_on.set()
    finish(slow)
    assert warnings == [
        "warning: the tracker remembering is switched off, training goes on: 2 records wait for it",
    ]
    assert calls[2:] == [(0, {}), "finished"]


def test_a_tracker_that_cannot_begin_gives_one_warning(tmp_path: Path) -> None:
    class Offline(Remembering):
        def start(self) -> None:
            raise SystemExit("no network\nat all")

    warnings: list[str] = []
    finish(started(tmp_path, Offline, warnings))
    assert warnings == [
        "warning: the tracker remembering is switched off, training goes on: SystemExit: no network",
    ]


def test_hyperparameters_hold_no_secret_and_only_simple_values() -> None:
    config = load.load_config(
        None, ["model.name=my:make", "model.args={api_key: abc123, url: 'https://me:pw@host/x', depth: 3}"]
    )
    values = hyperparameters(config)
    assert (values["model.args.depth"], values["train.max_steps"], values["log.trackers"]) == (3, "null", "[]")
    assert not {"abc123", "pw"} & set(json.dumps(values).replace("@", '"').replace(":", '"').split('"'))


def test_a_tracker_whose_package_is_missing_is_refused_with_the_line_to_install_it() -> None:
    checks.refuse_missing_trackers(["tensorboard", "my_module:Tracker"])
    with pytest.raises(Failure) as caught:
        checks.refuse_missing_trackers(["tensorboard", "dvclive"])
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.what == "log.trackers: dvclive is not installed"
    assert "pip install dvclive" in str(caught.value.fix)


def test_a_class_that_is_no_tracker_is_refused() -> None:
    with pytest.raises(Failure, match=r"log\.trackers pathlib:Path is no tracker"):
        trackers.load_tracker_classes(["pathlib:Path"])


def test_no_tracker_is_loaded_by_default() -> None:
    assert trackers.load_tracker_classes(RunConfig().log.trackers) == {}


def test_broken_trackers_change_nothing_and_a_working_one_has_the_values_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    (tmp_path / "own_trackers.py").write_text(OWN_TRACKERS)
    command = ("-m", "train", "--config", "ten.yaml", "--device", "cpu", "log.every_steps=2", "run.name=tracked")
    names = ["tensorboard", *(f"own_trackers:{name}" for name in ("Recorder", "Failing", "Blocked"))]
    done = python(*command, f"log.trackers={json.dumps(names)}", cwd=tmp_path, environ={"WANDB_API_KEY": "s3cr3t"})
    assert done.returncode == 0, done.stderr
    alone = python(*command, "run.output_dir=alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr

    tracked = tmp_path / "runs" / "tracked"
    weights = [
        (folder / "checkpoints/step-00000010/model.safetensors").read_bytes()
        for folder in (tracked, tmp_path / "alone" / "tracked")
    ]
    assert weights[0] == weights[1]
    output = done.stdout + done.stderr
    assert output.count("own_trackers:Failing is switched off") == output.count("own_trackers:Blocked is still") == 1
    assert not any(
        secret in output + (tracked / "run.json").read_text() + (tracked / "logs/rank-0000.log").read_text()
        for secret in ("abcdef123456", "s3cr3t")
    )
    assert list((tracked / "trackers" / "runs").glob("events.out.tfevents.*"))
    config, *records = map(json.loads, (tracked / "trackers" / "recorder.jsonl").read_text().splitlines())
    assert config["config"]["run.name"] == "tracked"
    losses = [(record["step"], record["train/loss"]) for record in records if "train/loss" in record]
    events = list(read_events(tracked / "metrics.jsonl"))
    assert losses == [(event["step"], event["loss"]) for event in events if event["event"] == "train"]
    assert [record["eval/accuracy"] for record in records if "eval/accuracy" in record] == [
        event["accuracy"] for event in events if event["event"] == "eval"
    ]
    assert any("usage/images" in record for record in records)
