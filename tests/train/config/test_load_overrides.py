"""Command-line settings to values in a mapping."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.config.load import apply_overrides, keep_last_overrides, parse_override, parse_overrides


@pytest.mark.parametrize("text", ["abc", "=3", "a.=3", ".a=3", "a..b=3"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(Failure, match=r"is not section\.key=value") as caught:
        parse_override(text)
    assert (caught.value.code, caught.value.fix) == (ExitCode.USAGE, "write e.g. optim.lr=0.1")


@pytest.mark.parametrize("name", ["cfg.yaml", "runs/a b.yml", "notes"])
def test_a_file_without_its_option_is_told_with_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").touch()
    with pytest.raises(Failure, match="is not section") as caught:
        parse_override(name)
    assert caught.value.fix == f"write --config {shlex.quote(name)}"


@pytest.mark.parametrize("text", ["a.b=[1", "a.b=@x", "a.b={c: 1, c: 2}"])
def test_a_value_that_is_no_yaml_names_the_argument(text: str) -> None:
    with pytest.raises(Failure) as caught:
        parse_override(text)
    assert f"`{text}`" in caught.value.what


def test_python_tags_are_refused_here_too() -> None:
    with pytest.raises(Failure) as caught:
        parse_override("a.b=!!python/object/apply:os.system [id]")
    assert caught.value.code == ExitCode.SECURITY


def test_only_the_first_equals_sign_counts() -> None:
    override = parse_override("a.b=c=d")
    assert (override.keys, override.value) == (("a", "b"), "c=d")


def test_merging_leaves_the_original_alone() -> None:
    original = {"a": {"b": 1}}
    assert (apply_overrides(original, [parse_override("a.b=2")]), original) == ({"a": {"b": 2}}, {"a": {"b": 1}})


def test_merging_makes_the_sections_that_are_missing() -> None:
    assert apply_overrides(None, [parse_override("a.b.c=1"), parse_override("d.e=2")]) == {
        "a": {"b": {"c": 1}},
        "d": {"e": 2},
    }


@pytest.mark.parametrize("value", [{"a": 3}, {"a": [1]}, [1], "x"])
def test_a_setting_inside_what_is_no_mapping_is_refused(value: object) -> None:
    with pytest.raises(Failure, match=r"`a.b=1` sets a key inside (a|the file), which is not a mapping") as caught:
        apply_overrides(value, [parse_override("a.b=1")])
    assert caught.value.code == ExitCode.USAGE


def test_one_key_twice_is_refused_and_both_are_named() -> None:
    with pytest.raises(Failure, match=r"optim\.lr is written twice on the command line") as caught:
        parse_overrides(["optim.lr=1", "run.seed=1", "optim.lr=2"])
    assert (caught.value.code, caught.value.fix) == (ExitCode.USAGE, "remove `optim.lr=1` or `optim.lr=2`")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("optim.lr=1", "optim={lr: 2}"), "optim"),
        (("optim={lr: 2}", "optim.lr=1"), "optim"),
        (("model.args.width=8", "model.args={depth: 2}"), "model.args"),  # the width would be lost
        (("model={args: {depth: 2}}", "model.args.depth=3"), "model"),
        (("optim={lr: 2}", "optim={momentum: 0}"), "optim"),
    ],
)
def test_a_key_that_is_set_again_with_its_section_is_refused_and_both_are_named(
    words: tuple[str, str], key: str
) -> None:
    with pytest.raises(Failure) as caught:
        parse_overrides(words)
    assert caught.value.what == f"{key} is written twice on the command line"
    assert (caught.value.code, caught.value.found) == (ExitCode.USAGE, f"`{words[0]}` and `{words[1]}`")


def test_another_key_may_be_added_to_a_section_that_is_set() -> None:
    words = ["model.args={width: 4}", "model.args.depth=2"]
    assert apply_overrides(None, parse_overrides(words)) == {"model": {"args": {"width": 4, "depth": 2}}}


def test_a_section_keeps_the_keys_of_the_file_that_it_is_not_given() -> None:
    file = {"optim": {"name": "adamw", "lr": 0.1}, "model": {"name": "small_cnn", "args": {"width": 4}}}
    words = ["optim={lr: 2}", "model.args={depth: 2}"]
    assert apply_overrides(file, parse_overrides(words)) == {
        "optim": {"name": "adamw", "lr": 2},
        "model": {"name": "small_cnn", "args": {"depth": 2}},
    }


def test_of_a_program_s_words_and_its_user_s_the_last_for_a_key_is_kept() -> None:
    assert keep_last_overrides(["a.b=1", "a.c=1", "a.b=2", "a.d=x=y"]) == ["a.c=1", "a.b=2", "a.d=x=y"]


def test_of_a_user_s_section_all_that_a_program_does_not_set_is_kept() -> None:
    kept = keep_last_overrides(["run={name: '7', output_dir: runs}", "run.output_dir=/tmp"])
    assert kept == ["run={name: '7'}", "run.output_dir=/tmp"]
    assert apply_overrides(None, parse_overrides(kept)) == {"run": {"name": "7", "output_dir": "/tmp"}}
    assert keep_last_overrides(["a.b.c=1", "a.b={d: 2}"]) == ["a.b={d: 2}"]
