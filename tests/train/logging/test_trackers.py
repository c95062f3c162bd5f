"""Accelerate's trackers get what metrics.jsonl gets, and a broken one changes nothing in the training."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate.tracking import GeneralTracker
from grid import train_ten_steps
from processes import python
from runs import TEN_STEPS

from entrypoint import ExitCode, Failure
from train.config import checks, load, schema
from train.config.schema import LogConfig, RunConfig
from train.logging import trackers
from train.logging.metrics_logger import MetricsLogger, read_events
from train.logging.trackers import ResumableTracker, Trackers, hyperparameters, start_trackers

# Three trackers of a user: one that works, one that fails in the middle of the training, one that never returns.
OWN_TRACKERS = """
import json, threading
import __main__  # train.worker
from accelerate.tracking import GeneralTracker
from train.logging import trackers

__main__.USER_THREADS_TIMEOUT_S, trackers.PAUSES_AT_END_S = 3.0, (0.0, 0.1)

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
        self.write({"exit_code": self.exit_code})
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
        self.calls.append(("finished", getattr(self, "exit_code", None)))


class Resuming(ResumableTracker):
    """Keeps all calls in the list of the other class, and begins `run-1`, `run-2`."""

    name, project_variable = "resuming", "PROJECT"
    variables: ClassVar = {"RESUMING_DIR": "{folder}"}
    run_ids: list[str]

    def start(self) -> None:
        Remembering.calls.append((self.project, self.run_name, self.run_id))
        if self.run_id is None:
            self.run_ids.append(f"run-{len(self.run_ids) + 1}")
            self.run_id = self.run_ids[-1]

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        Remembering.calls.append(("config", values["train.epochs"]))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        Remembering.calls.append((step, values))

    def finish(self) -> None:
        Remembering.calls.append(("finished", self.exit_code))


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(Remembering, "calls", [], raising=False)
    monkeypatch.setattr(Resuming, "run_ids", [], raising=False)
    monkeypatch.setattr(trackers, "RETRY_S", 0.0)
    monkeypatch.setattr(trackers, "PAUSES_AT_END_S", (0.0, 0.0))
    return Remembering.calls


def started(folder: Path, tracker: type[GeneralTracker], warnings: list[str], **variables: str) -> Trackers:
    config = load.load_config(None, ["run.name=photos", "run.output_dir=study"])
    return start_trackers({tracker.name: tracker}, config, folder, dict(variables), warnings.append)


def finish(started: Trackers, exit_code: int | None = 0) -> None:
    started.end(exit_code)
    for thread in threading.enumerate():
        if thread.name.startswith("the tracker"):
            thread.join()


def test_the_names_are_those_of_the_trackers_that_are_tested() -> None:
    assert tuple(trackers.CLASSES) == schema.TRACKERS
    assert set(trackers.load_tracker_classes(["wandb", "mlflow"]).values()) < set(trackers.CLASSES.values())


@pytest.mark.parametrize("name", ["dvclive", "swanlab", "comet_ml"])
def test_a_tracker_that_nobody_tried_is_refused_with_the_way_on(name: str) -> None:
    with pytest.raises(Failure) as caught:
        load.load_config(None, [f"log.trackers=[{name}]"])
    assert "no other is tried here: name Accelerate's class, such as accelerate.tracking:" in str(caught.value)
    (tracker_class,) = trackers.load_tracker_classes(["accelerate.tracking:CometMLTracker"]).values()
    assert issubclass(tracker_class, GeneralTracker)


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
        ("finished", 0),
    ]
    assert warnings == []


def test_a_later_start_continues_the_run_and_each_start_says_how_it_ended(tmp_path: Path, calls: list[Any]) -> None:
    for exit_code in (75, 90):
        finish(started(tmp_path, Resuming, [], PROJECT="mine"), exit_code)
    assert calls == [
        ("mine", "photos", None),
        ("config", 5),
        ("finished", 75),
        ("mine", "photos", "run-1"),
        ("finished", 90),
    ]


def test_its_files_go_into_the_run_s_folder_unless_the_user_says_where(tmp_path: Path) -> None:
    for given, used in (({}, str(tmp_path / "trackers")), ({"RESUMING_DIR": "/mine"}, "/mine")):
        environ = dict(given)
        finish(start_trackers({"resuming": Resuming}, RunConfig(), tmp_path, environ, pytest.fail))
        assert environ == {"RESUMING_DIR": used}


def test_a_copied_run_folder_begins_a_run_of_its_own_and_the_original_goes_on(tmp_path: Path, calls: list[Any]) -> None:
    original, copy, warnings = tmp_path / "original", tmp_path / "copy", list[str]()
    original.mkdir()
    finish(started(original, Resuming, warnings))
    shutil.copytree(original, copy)
    for folder in (copy, original, copy):
        finish(started(folder, Resuming, warnings))
    assert [call[2] for call in calls if call[0] == "study"] == [None, None, "run-1", "run-2"]
    assert warnings == [
        f"note: {copy} is a copy, or was moved from another disk: it gets runs of its own in its trackers"
    ]


def test_a_run_folder_under_another_path_is_the_same_run(tmp_path: Path, calls: list[Any]) -> None:
    """As in a container, and after its parent was renamed."""
    folder = tmp_path / "one" / "run"
    folder.mkdir(parents=True)
    finish(started(folder, Resuming, []))
    (tmp_path / "one").rename(tmp_path / "two")
    finish(started(tmp_path / "two" / "run", Resuming, []))
    assert calls[-2] == ("study", "photos", "run-1")


def test_a_start_whose_folder_another_start_has_locked_says_nothing(tmp_path: Path, calls: list[Any]) -> None:
    finish(started(tmp_path, Resuming, []), exit_code=None)
    assert "finished" not in str(calls)


class Locked(Remembering):
    """Fails for a while, as an SQLite file that another job has locked, or a server that is started again."""

    errors = 0

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if type(self).errors:
            type(self).errors -= 1
            raise OSError("database is locked")
        super().log(values, step)


def test_what_an_error_kept_from_a_tracker_is_sent_later_in_its_order(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Locked, "errors", 2)
    warnings: list[str] = []
    locked = started(tmp_path, Locked, warnings)
    for step in range(4):
        locked.log({"loss": 1.0}, step=step)
    finish(locked)
    assert [call[0] for call in calls[2:]] == [0, 1, 2, 3, "finished"]
    assert warnings == [
        "warning: the tracker remembering fails, training goes on (its records are sent later): OSError: database is "
        "locked",
        "note: the tracker remembering has all records now",
    ]


def test_a_record_that_is_refused_for_ever_keeps_no_other_from_the_tracker(tmp_path: Path, calls: list[Any]) -> None:
    class Picky(Remembering):
        def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
            if step == 1:
                raise ValueError("Invalid metric name")
            super().log(values, step)

    warnings: list[str] = []
    picky = started(tmp_path, Picky, warnings)
    for step in range(8):
        picky.log({}, step=step)
    finish(picky)
    assert sorted(call[0] for call in calls[2:-1]) == [0, 2, 3, 4, 5, 6, 7]
    assert calls[-1] == ("finished", 0)
    assert warnings[1:] == ["warning: the tracker remembering lacks 1 records; metrics.jsonl has all"]


def test_of_a_tracker_that_does_not_keep_up_the_lost_records_are_counted(
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
        "warning: the tracker remembering fails, training goes on (its records are sent later): 2 records wait for it",
        "warning: the tracker remembering lacks 4 records; metrics.jsonl has all",
    ]
    assert calls[2:] == [(0, {}), (1, {}), ("finished", 0)]


def test_a_tracker_that_cannot_begin_gives_one_warning_and_the_number_of_its_records(tmp_path: Path) -> None:
    class Offline(Remembering):
        def start(self) -> None:
            raise SystemExit("no network\nat all")

    warnings: list[str] = []
    offline = started(tmp_path, Offline, warnings)
    offline.log({}, step=1)
    finish(offline)
    assert warnings == [
        "warning: the tracker remembering fails, training goes on (its records are sent later): SystemExit: no network",
        "warning: the tracker remembering lacks 1 records; metrics.jsonl has all",
    ]


def test_hyperparameters_hold_no_secret_and_only_simple_values() -> None:
    config = load.load_config(
        None, ["model.name=my:make", "model.args={api_key: abc123, url: 'https://me:pw@host/x', depth: 3}"]
    )
    values = hyperparameters(config)
    assert (values["model.args.depth"], values["train.max_steps"], values["log.trackers"]) == (3, "null", "[]")
    assert not {"abc123", "pw"} & set(json.dumps(values).replace("@", '"').replace(":", '"').split('"'))


def test_a_tracker_whose_package_is_missing_is_refused_with_the_line_to_install_it() -> None:
    checks.refuse_conflicts(RunConfig(log=LogConfig(trackers=["tensorboard", "my_module:Tracker"])))
    with pytest.raises(Failure) as caught:
        checks.refuse_conflicts(RunConfig(log=LogConfig(trackers=["tensorboard", "no_such_tracker"])))
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.what == "log.trackers: no_such_tracker is not installed"
    assert "pip install no_such_tracker" in str(caught.value.fix)


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
    alone = train_ten_steps(tmp_path / "alone", ["log.every_steps=2"])

    tracked = tmp_path / "runs" / "tracked"
    weights = [
        (folder / "checkpoints/step-00000010/model.safetensors").read_bytes() for folder in (tracked, alone.folder)
    ]
    assert weights[0] == weights[1]
    output = done.stdout + done.stderr
    assert (
        output.count("own_trackers:Failing fails, training goes on")
        == output.count("own_trackers:Blocked is still")
        == 1
    )
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
    assert records[-1] == {"exit_code": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "exit_code"), [("loss:0:4:nan", 90), ("step:0:4:term", 75)])
def test_a_tracker_is_told_the_exit_code_of_a_training_that_did_not_finish(
    tmp_path: Path, fault: str, exit_code: int
) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    (tmp_path / "own_trackers.py").write_text(OWN_TRACKERS)
    command = ("-m", "train", "--config", "ten.yaml", "log.trackers=['own_trackers:Recorder']")
    done = python(*command, cwd=tmp_path, environ={"FAULT": fault})
    assert done.returncode == exit_code, done.stderr
    *_, last = map(json.loads, (tmp_path / "runs/run/trackers/recorder.jsonl").read_text().splitlines())
    assert last == {"exit_code": exit_code}
