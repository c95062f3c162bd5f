"""One image is one line, whatever its name and its class are made of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from train.tasks.base import Prediction
from train.tasks.classification import Classification

LOGITS = torch.tensor([[3.0, 1.0]]).log()  # three times as likely
ODD = ["two words", "Größe", "a\nb", "a\tb", "a\r\nb", "\x1b[31mred", "\u2028", "\x85", "\u202egnp.exe", "back\\slash"]


def prediction(name: str, path: str = "a.png") -> Prediction:
    (predicted,) = Classification(classes=(name, "other")).predict(LOGITS, [Path(path)], None, top=2)
    assert predicted is not None
    return predicted


def test_a_line_is_path_class_and_probability_with_tabs_between() -> None:
    assert prediction("cat").as_text() == "a.png\tcat\t0.7500\tother\t0.2500"


@pytest.mark.parametrize("name", ODD)
def test_no_name_breaks_a_line_or_a_column(name: str) -> None:
    text = prediction(name, name).as_text()
    assert (len(text.splitlines()), len(text.split("\t"))) == (1, 5)
    assert text.isprintable() or text.replace("\t", "").isprintable()


@pytest.mark.parametrize("name", ODD)
def test_json_is_one_line_and_gives_the_name_back(name: str) -> None:
    text = prediction(name, name).as_json()
    assert len(text.splitlines()) == 1
    read = json.loads(text)
    assert (read["class"], read["path"], read["probability"]) == (name, str(Path(name)), pytest.approx(0.75))
    assert read["top"][1] == {"class": "other", "probability": pytest.approx(0.25)}


def test_a_path_whose_bytes_are_no_text_comes_back_from_json() -> None:
    text = prediction("cat", os.fsdecode(b"odd\xff.png")).as_json()
    text.encode()  # it can be written
    assert os.fsencode(json.loads(text)["path"]) == b"odd\xff.png"


def test_a_stream_of_ascii_gets_json_too() -> None:
    text = prediction("Größe \U0001f600").as_json(ascii_=True)
    assert text.isascii()
    assert json.loads(text)["class"] == "Größe \U0001f600"
