"""A name is one line, whatever it is made of."""

from __future__ import annotations

import pytest

from train.files import one_line, shorten_name


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\r\nb", "\x1b[31mred", "\u2028", "\x85", "\u202egnp.exe", "\udcff"])
def test_what_ends_a_line_or_is_obeyed_by_a_terminal_is_written_as_python_does(name: str) -> None:
    assert one_line(name).isprintable()
    assert one_line(name).encode().decode("unicode_escape").encode(errors="surrogatepass") == name.encode(
        errors="surrogatepass"
    )


def test_umlauts_stay_as_they_are_and_what_is_escaped_can_be_told_apart() -> None:
    assert one_line("Äpfel 苹果") == "Äpfel 苹果"
    assert one_line("a\n") != one_line("a\\n")


def test_a_long_name_is_shown_by_its_beginning_and_a_name_that_fits_whole() -> None:
    assert shorten_name("a" * 6, 6) == "a" * 6
    assert shorten_name("a" * 7, 6) == "aaaaa…"
    assert shorten_name("a\nb", 3) == "a\\nb"
