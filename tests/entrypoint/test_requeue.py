"""Whether a job is requeued, decided from srun's exit code and the files that a start left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoint.requeue import decide_requeue


def decide(folder: Path, srun_code: int, **files: object) -> str:
    """The decision about files such as exit={"code": 75}; a text is written as it is."""
    paths = []
    for name, value in files.items():
        path = folder / f"{name.replace('_', '-')}.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        paths.append(path)
    return str(decide_requeue(srun_code, paths))


@pytest.mark.parametrize(
    ("code", "decision"), [(0, "exit"), (65, "exit"), (75, "requeue"), (137, "exit"), (91, "requeue")]
)
def test_the_exit_code_says_whether_a_job_is_requeued(tmp_path: Path, code: int, decision: str) -> None:
    assert decide(tmp_path, code) == f"{code} {decision}"


def test_the_run_s_code_wins_over_srun_s(tmp_path: Path) -> None:
    assert decide(tmp_path, 137, exit={"code": 75}) == "75 requeue"


def test_the_code_of_a_node_without_ranks_counts_if_the_run_wrote_none(tmp_path: Path) -> None:
    assert decide(tmp_path, 1, node_n1={"code": 78, "host": "n1.site"}) == "78 requeue n1"


def test_the_code_of_one_rank_does_not_count(tmp_path: Path) -> None:
    assert decide(tmp_path, 1, rank_0001={"code": 75}) == "1 exit"


def test_a_locked_run_folder_keeps_its_code_when_the_other_start_ends_meanwhile(tmp_path: Path) -> None:
    assert decide(tmp_path, 73, exit={"code": 75}) == "73 exit"


@pytest.mark.parametrize("text", ["", "{", '{"code": ', '{"code": "75"}', '{"code": null}', "[75]", '{"code": true}'])
def test_a_file_that_holds_no_code_is_passed_over(tmp_path: Path, text: str) -> None:
    assert decide(tmp_path, 9, exit=text) == "9 exit"


def test_every_broken_host_is_named_once_and_only_if_the_job_is_requeued(tmp_path: Path) -> None:
    broken = {
        "rank_0000": {"code": 78, "host": "b"},
        "rank_0001": {"code": 78, "host": "b"},
        "node_a": {"code": 78, "host": "a"},
    }
    assert decide(tmp_path, 78, **broken, rank_0002={"code": 69, "host": "c"}) == "78 requeue a,b"
    assert decide(tmp_path, 65, exit={"code": 65}, **broken) == "65 exit"


def test_a_forged_host_does_not_become_words_of_a_command(tmp_path: Path) -> None:
    assert decide(tmp_path, 78, node_n1={"code": 78, "host": "n1 $(rm) JobId=8"}) == "78 requeue n1"
