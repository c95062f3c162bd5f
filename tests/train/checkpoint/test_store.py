"""Which checkpoints stand in a folder, which are whole, and which may go."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from calls import fail, intercepted
from checkpoints import DAMAGES, flip, readdress, reseal, saved

from entrypoint import ExitCode, Failure
from train.checkpoint import store
from train.checkpoint.manifest import DamagedCheckpointError
from train.config.schema import CheckpointConfig


def test_steps_are_listed_oldest_first_and_nothing_else(tmp_path: Path) -> None:
    for name in ("step-00000020", "step-00000003", "step-123456789", ".tmp-step-00000004-ab", "best", "step-7"):
        (tmp_path / name).mkdir()
    assert list(store.list_checkpoints(tmp_path)) == [3, 20, 123456789]


def test_a_folder_that_is_not_there_holds_no_steps(tmp_path: Path) -> None:
    assert store.list_checkpoints(tmp_path / "checkpoints") == {}


def test_a_checkpoint_that_was_to_be_replaced_counts_until_the_new_one_is_there(tmp_path: Path) -> None:
    (tmp_path / ".old-step-00000003").mkdir()
    assert store.list_checkpoints(tmp_path)[3].name == ".old-step-00000003"
    (tmp_path / "step-00000003").mkdir()
    assert store.list_checkpoints(tmp_path)[3].name == "step-00000003"


def test_a_linked_folder_is_a_security_refusal(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure, match="symbolic link") as caught:
        store.list_checkpoints(tmp_path / "checkpoints")
    assert caught.value.code == ExitCode.SECURITY


def test_a_whole_checkpoint_passes(tmp_path: Path) -> None:
    assert list(store.verify_hashes(saved(tmp_path, 30)).files) == ["model.safetensors", "state.json"]


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = saved(tmp_path, 30)
    reseal(path, format=2)
    with pytest.raises(Failure, match="newer version") as caught:
        store.verify_hashes(path)
    assert caught.value.code == ExitCode.DATA
    assert (caught.value.found, caught.value.expected) == ("format 2", "format 1 or older")


@pytest.mark.parametrize(("torch", "passes"), [("1.13.1", True), ("2.11.0+cpu", True), ("99.0.1", False)])
def test_an_older_torch_is_read_and_a_newer_one_refused(tmp_path: Path, torch: str, passes: bool) -> None:
    path = saved(tmp_path, 30)
    reseal(path, torch=torch)
    if passes:
        assert store.verify_hashes(path).torch == torch
    else:
        with pytest.raises(Failure, match="newer version"):
            store.verify_hashes(path)


def test_a_file_outside_the_checkpoint_is_a_security_refusal(tmp_path: Path) -> None:
    path = saved(tmp_path, 30)
    (tmp_path / "secret").write_bytes((path / "model.safetensors").read_bytes())
    readdress(path, "model.safetensors", "../secret")
    with pytest.raises(Failure, match="plain file name") as caught:
        store.verify_hashes(path)
    assert caught.value.code == ExitCode.SECURITY


def test_the_newest_stay_and_the_others_go(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30, 40)
    assert store.prune_checkpoints(tmp_path, CheckpointConfig(keep=2)) == ["step-00000010", "step-00000020"]
    assert list(store.list_checkpoints(tmp_path)) == [30, 40]


def test_the_best_stays(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30, 40)
    store.prune_checkpoints(tmp_path, CheckpointConfig(keep=1), best=20)
    assert list(store.list_checkpoints(tmp_path)) == [20, 40]


def test_the_newest_valid_stays_although_damaged_ones_are_newer(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    flip(tmp_path / "step-00000030" / "model.safetensors")
    store.prune_checkpoints(tmp_path, CheckpointConfig(keep=1))
    assert 20 in store.list_checkpoints(tmp_path)


def test_one_without_a_manifest_does_not_count_as_kept(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    (tmp_path / "step-00000020" / "manifest.json").unlink()
    store.prune_checkpoints(tmp_path, CheckpointConfig(keep=2), trusted=30)
    assert list(store.list_checkpoints(tmp_path)) == [10, 30]


def test_what_stands_above_the_step_just_committed_was_refused_and_goes(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    store.prune_checkpoints(tmp_path, CheckpointConfig(keep=2), trusted=20)
    assert list(store.list_checkpoints(tmp_path)) == [10, 20]


def test_nothing_goes_while_nothing_is_valid(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    for step in (10, 20):
        flip(tmp_path / store.step_folder_name(step) / "model.safetensors")
    assert store.prune_checkpoints(tmp_path, CheckpointConfig(keep=1)) == []


def test_a_newer_version_s_checkpoint_counts_as_whole(tmp_path: Path) -> None:
    reseal(saved(tmp_path, 10), format=2)
    saved(tmp_path, 20, keep=2)
    assert list(store.list_checkpoints(tmp_path)) == [10, 20]


def test_sweeping_takes_what_is_half_written_or_replaced(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    for name in (".tmp-step-00000020-ab", ".old-step-00000010"):
        (tmp_path / name).mkdir()
    store.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_sweeping_puts_back_what_was_not_replaced_after_all(tmp_path: Path) -> None:
    saved(tmp_path, 10).rename(tmp_path / ".old-step-00000010")
    store.remove_leftovers(tmp_path)
    assert store.verify_hashes(tmp_path / "step-00000010").step == 10


def test_the_step_just_committed_stays_although_it_cannot_be_read_back(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    with intercepted(fail(1, errno.EIO, name="open", times=99)):
        store.prune_checkpoints(tmp_path, CheckpointConfig(keep=1), trusted=20)
    assert 20 in store.list_checkpoints(tmp_path)


def test_a_version_of_a_thousand_digits_is_newer(tmp_path: Path) -> None:
    reseal(saved(tmp_path, 3), torch="9" * 5000)
    with pytest.raises(Failure, match="written by a newer version"):
        store.verify_hashes(tmp_path / store.step_folder_name(3))


@pytest.mark.parametrize("name", ["cut short", "empty", "a file missing", "the state missing", "no manifest"])
def test_what_lacks_a_file_or_a_part_of_one_is_seen_without_hashing(tmp_path: Path, name: str) -> None:
    assert list(store.verify_sizes(saved(tmp_path, 30)).files) == ["model.safetensors", "state.json"]
    DAMAGES[name](next(tmp_path.iterdir()))
    with pytest.raises(DamagedCheckpointError):
        store.verify_sizes(next(tmp_path.iterdir()))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_limit_of_the_system_does_not_pass_for_damage(tmp_path: Path, number: int) -> None:
    """A run would go on from an older checkpoint, or be told to start over."""
    saved(tmp_path, 10)
    with intercepted(fail(1, number, name="open", times=99)), pytest.raises(Failure) as caught:
        store.verify_hashes(tmp_path / "step-00000010")
    assert caught.value.code == ExitCode.RESOURCE
    assert store.is_valid_checkpoint(tmp_path / "step-00000010")
