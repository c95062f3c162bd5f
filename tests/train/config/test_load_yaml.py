"""YAML 1.2 text to plain values with lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from entrypoint import ExitCode, Failure
from train.config import load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e5", 1e5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("0x1F", 31),
        ("0o17", 15),
        ("+7", 7),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("0777", "0777"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"),
        ("=", "="),
        ("<<", "<<"),
        ("True", True),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("9" * 19, float("9" * 19)),
        ("9" * 6000, math.inf),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    read = load.parse_yaml(text, "t").value
    assert (read, type(read)) == (value, type(value))


def test_nan_is_a_number() -> None:
    assert math.isnan(load.parse_yaml(".nan", "t").value)


def test_every_key_has_its_line() -> None:
    lines = load.parse_yaml("a:\n  b: 1\n\n  c: [2, 3]\nd: 4\n", "t").lines
    assert lines == {(): 1, ("a",): 1, ("a", "b"): 2, ("a", "c"): 4, ("a", "c", "0"): 4, ("a", "c", "1"): 4, ("d",): 5}


def test_an_alias_is_a_copy() -> None:
    assert load.parse_yaml("a: &x {e: 1}\nb: *x", "t").value == {"a": {"e": 1}, "b": {"e": 1}}


def test_a_byte_order_mark_is_not_part_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load.read_yaml_file(tmp_path / "c.yaml").value == {"a": 1}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        pytest.param("!!python/object/apply:os.system [ls]", ExitCode.SECURITY, "nothing was run", id="python-object"),
        pytest.param("a: !!python/name:os.system x", ExitCode.SECURITY, "!!python/name", id="python-name"),
        pytest.param("!!python/tuple [1]: 2", ExitCode.SECURITY, "python/tuple", id="python-key"),
        pytest.param("a: !!int foo", ExitCode.USAGE, "!!int", id="tag"),
        pytest.param("a: !mine 3", ExitCode.USAGE, "!mine", id="own-tag"),
        pytest.param("a: !!set {b}", ExitCode.USAGE, "!!set", id="set-tag"),
        pytest.param(
            "a: 1\nb: 2\na: 3", ExitCode.USAGE, "line 3, column 1: a is written twice, first on line 1", id="twice"
        ),
        pytest.param("a: {b: 1, b: 2}", ExitCode.USAGE, "a.b is written twice", id="twice-nested"),
        pytest.param(BOMB, ExitCode.USAGE, "more values", id="anchor-bomb"),
        pytest.param("a: &a [*a]", ExitCode.USAGE, "more values", id="endless-alias"),
        pytest.param("[" * 3000, ExitCode.USAGE, "levels", id="deep"),
        pytest.param(f"[{'*a,' * 101}]", ExitCode.USAGE, "alias", id="undefined-aliases"),
        pytest.param("#" * 1_100_000, ExitCode.USAGE, "larger than 1024 KiB", id="huge"),
        pytest.param("? [a]\n: b", ExitCode.USAGE, "a key must be text", id="list-key"),
        pytest.param("1.5: b", ExitCode.USAGE, "a key must be text", id="number-key"),
        pytest.param("a: b: c", ExitCode.USAGE, "line 1, column 5", id="two-colons"),
        pytest.param("a:\n\t- b", ExitCode.USAGE, "line 2, column 1", id="tab"),
        pytest.param("a: 1\nb: {c: 1", ExitCode.USAGE, "line 2, column 9", id="open-brace"),
        pytest.param("a: 'b", ExitCode.USAGE, "line 1, column 6", id="open-quote"),
        pytest.param("a: @x", ExitCode.USAGE, "'@'", id="at"),
        pytest.param("a: *nope", ExitCode.USAGE, "nope", id="undefined-alias"),
        pytest.param("--- 1\n--- 2", ExitCode.USAGE, "another document", id="two-documents"),
        pytest.param("%YAML 3.0\n---\na: 1", ExitCode.USAGE, "version 1", id="yaml-3"),
        pytest.param("a: 1\nb: \x01", ExitCode.USAGE, "line 2", id="control-character"),
        pytest.param("a: \udcff", ExitCode.USAGE, "\\udcff", id="surrogate"),
    ],
)
def test_bad_text_is_refused_with_place_and_fix(text: str, code: ExitCode, said: str) -> None:
    with pytest.raises(Failure) as caught:
        load.parse_yaml(text, "my.yaml")
    failure = caught.value
    assert (failure.code, bool(failure.fix)) == (code, True)
    assert said in failure.what
    assert failure.what.startswith("my.yaml")


def test_a_weight_for_each_of_imagenets_21841_classes_is_no_bomb(tmp_path: Path) -> None:
    names = [f"n{number:08d}" for number in range(21_841)]
    file = tmp_path / "cfg.yaml"
    file.write_text("optim:\n  class_weights:\n" + "".join(f"    {name}: 1.5\n" for name in names))
    assert load.load_config(str(file)).optim.class_weights == dict.fromkeys(names, 1.5)


def test_whole_numbers_are_names_of_classes() -> None:
    config = load.load_config(None, ["optim.class_weights={1: 1, 10: 2.5, 02: 3}"])
    assert config.optim.class_weights == {"1": 1, "10": 2.5, "02": 3}
    assert (
        load.build_config(load.parse_yaml(load.dump_config(config), "x"), "x").optim.class_weights
        == config.optim.class_weights
    )


def test_more_values_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_VALUES", 100)
    with pytest.raises(Failure, match="more values"):
        load.parse_yaml("[" + "1," * 101 + "]", "my.yaml")


def test_what_is_left_open_is_looked_for_on_the_line_before_too() -> None:
    with pytest.raises(Failure, match="not valid YAML") as caught:
        load.parse_yaml("run: {name: a}\ndata: {name: folder\ntrain: {epochs: 1}\n", "my.yaml")
    assert "mend line 3, or the one before it (a bracket, brace or quote that is not closed)" in caught.value.fix
    with pytest.raises(Failure) as caught:
        load.parse_yaml("a: @x", "my.yaml")
    assert caught.value.fix.startswith("mend line 1: ")


def test_a_missing_file_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"no\.yaml does not exist") as caught:
        load.read_yaml_file(tmp_path / "no.yaml")
    assert caught.value.code == ExitCode.NO_INPUT


@pytest.mark.parametrize("path", ["/dev/null", "."], ids=["device", "folder"])
def test_only_regular_files_are_read(path: str) -> None:
    with pytest.raises(Failure, match="not a regular file") as caught:
        load.read_yaml_file(Path(path))
    assert caught.value.code == ExitCode.USAGE


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes("a: ü".encode("latin-1"))
    with pytest.raises(Failure, match="UTF-8"):
        load.read_yaml_file(tmp_path / "c.yaml")


def test_a_name_that_the_system_refuses_is_a_usage_error() -> None:
    with pytest.raises(Failure, match="cannot be read"):
        load.read_yaml_file(Path("x" * 300))


@pytest.mark.parametrize("text", ["3e-4", "no", "0777", "12:30:00", "0o7", "null", "", "1_0", "true", "a: b", "- x"])
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    dumped = yaml.dump([text], Dumper=load.Yaml12Dumper)
    assert load.parse_yaml(dumped, "t").value == [text]
    assert yaml.safe_load(dumped) == [text]


@pytest.mark.parametrize(("asked", "there"), [("cfg.yml", "cfg.yaml"), ("cfg.yaml", "cfg.yml")])
def test_a_file_of_the_other_ending_is_offered(asked: str, there: str, tmp_path: Path) -> None:
    (tmp_path / there).touch()
    with pytest.raises(Failure, match="does not exist") as caught:
        load.read_yaml_file(tmp_path / asked)
    assert caught.value.fix.startswith(f"write {tmp_path / there}; or ")
