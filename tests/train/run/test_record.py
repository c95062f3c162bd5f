"""What ran, where and with what can be read afterwards, and run again."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from disks import fill, mounted

from entrypoint import ExitCode, Failure, World
from train.config import load
from train.config.schema import DataConfig, ModelConfig, RunConfig
from train.run import record

WORLD = World(
    rank=0,
    local_rank=0,
    world_size=4,
    local_world_size=2,
    node_rank=0,
    num_nodes=2,
    master_addr="node01",
    master_port=20001,
)


def begun(folder: Path, *, step: int = 0, now: float = 0.0, environ: dict[str, str] | None = None, **more: Any) -> None:
    """One more start."""
    told: dict[str, Any] = {"world_size": 4, "hosts": ["node01", "node02"], "launcher": "slurm-task", **more}
    record.complete_start(folder, step=step, environ=environ or {}, started_at=now, **told)


def started(folder: Path, *, step: int = 0, now: float = 0.0, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """The record after one more start that trained."""
    begun(folder, step=step, now=now, environ=environ)
    record.write_run(
        folder,
        world=WORLD,
        hosts=["node01", "node02"],
        launcher="slurm-task",
        sources={"rank": "SLURM_PROCID"},
        argv=["train", "--config", "a.yaml", "model.args.hub_token=abc", "model.weights=https://me:abc@host/x?abc"],
        environ=environ or {},
        variables={"acting": {"NCCL_DEBUG": "INFO"}, "removed": {}},
        training={"precision": "bf16"},
    )
    found = record.read_run(folder)
    assert found is not None
    return found


def test_a_start_is_recorded_with_its_place_and_where_that_came_from(tmp_path: Path) -> None:
    found = started(tmp_path)
    assert found["world"] == asdict(WORLD)
    assert (found["hosts"], found["launcher"]) == (["node01", "node02"], "slurm-task")
    assert found["sources"] == {"rank": "SLURM_PROCID"}
    hidden = ["model.args.hub_token=(not shown)", "model.weights=https://(not shown)@host/x?(not shown)"]
    assert found["argv"] == ["train", "--config", "a.yaml", *hidden]
    assert found["variables"] == {"acting": {"NCCL_DEBUG": "INFO"}, "removed": {}}
    assert found["training"] == {"precision": "bf16"}


def test_a_start_that_trains_nothing_adds_its_entry_alone(tmp_path: Path) -> None:
    before = started(tmp_path)
    begun(tmp_path, step=8, world_size=None, hosts=["login"], launcher="local")
    after = record.read_run(tmp_path) or {}
    entry = {"step": 8, "idle": True, "hosts": ["login"], "launcher": "local"}
    assert (after["starts"][:-1], after["starts"][-1] | entry) == (before["starts"], after["starts"][-1])
    assert "world_size" not in after["starts"][-1]
    assert {**after, "starts": None} == {**before, "starts": None}


def test_the_versions_that_matter_are_recorded(tmp_path: Path) -> None:
    versions = started(tmp_path)["versions"]
    assert {"python", "train-image", "torch", "torchvision", "accelerate"} <= versions.keys()
    assert versions["torch"].startswith("2.")


def test_a_requeue_appends_its_start(tmp_path: Path) -> None:
    started(tmp_path, now=0.0, environ={"SLURM_JOB_ID": "7"})
    starts = started(tmp_path, step=120, now=60.0, environ={"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"})["starts"]
    assert [(start["at"], start["step"], start["job"]) for start in starts] == [
        ("1970-01-01T00:00:00+00:00", 0, "7"),
        ("1970-01-01T00:01:00+00:00", 120, "7"),
    ]
    assert starts[1]["restart"] == "1"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"starts": 3}'])
def test_an_unreadable_record_is_begun_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert record.read_run(tmp_path) is None
    assert len(started(tmp_path)["starts"]) == 1


def test_a_record_that_cannot_be_written_keeps_the_old_one(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        before = started(disk)
        fill(disk)
        with pytest.raises(Failure) as caught:
            started(disk, step=120)
        assert record.read_run(disk) == before
    assert caught.value.code == ExitCode.IO


# Texts that YAML 1.1 or 1.2 would read as something else.
NAMES = ["1e5", "0o17", "no", "null", "3.5", "12:30:00", ".5", "-1", "0x1f", "Zoë", "a: b", "#1", "2024-01-01"]


@pytest.mark.parametrize("name", NAMES)
def test_the_written_configuration_is_read_as_the_same_run(tmp_path: Path, name: str) -> None:
    args = {name: [name, 1e-5, None]}
    config = replace(RunConfig(), data=DataConfig(root=name), model=ModelConfig(args=args))
    record.write_config(tmp_path, config)
    assert load.load_config(str(tmp_path / "config.yaml")) == config


def test_the_written_configuration_is_complete(tmp_path: Path) -> None:
    record.write_config(tmp_path, RunConfig())
    text = (tmp_path / "config.yaml").read_text()
    assert "weight_decay: 0.0005" in text
    assert text.startswith("run:\n  name: quickstart\n")


def test_an_earlier_run_s_results_are_set_aside_and_its_logs_stay(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    for name in ("metrics.jsonl", "run.json", "mine.txt"):
        (tmp_path / name).write_text(name)
    assert record.move_results_aside(tmp_path) == tmp_path / "before-1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before-1", "logs", "mine.txt"]
    assert (tmp_path / "before-1" / "checkpoints" / "step-00000010").is_dir()


def test_setting_aside_again_takes_another_folder(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "metrics.jsonl").write_text(str(number))
        assert record.move_results_aside(tmp_path) == tmp_path / f"before-{number}"
    assert (tmp_path / "before-1" / "metrics.jsonl").read_text() == "1"


def test_a_new_run_has_nothing_to_set_aside(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()  # by the rehearsal of a save
    assert record.move_results_aside(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_record_that_is_nested_too_deep_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 100_000)
    assert record.read_run(tmp_path) is None
