"""A wait is told in place on a terminal, and in a line now and then elsewhere."""

from __future__ import annotations

import io

from train.data.download import StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_a_passing_line_is_written_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    teller = StatusLine(stream, clock)
    for second in range(25):
        clock.now = second
        teller.passing(f"at {second}")
    assert stream.getvalue() == "at 10\nat 20\n"


def test_a_fact_is_always_written_and_puts_off_what_passes() -> None:
    stream, clock = io.StringIO(), Clock()
    teller = StatusLine(stream, clock)
    clock.now = 11
    teller.line("a fact")
    teller.passing("left out")
    teller.line("another")
    assert stream.getvalue() == "a fact\nanother\n"


def test_on_a_terminal_the_next_line_replaces_what_passed() -> None:
    stream, clock = Terminal(), Clock()
    teller = StatusLine(stream, clock)
    for second in (1, 2):
        clock.now = second
        teller.passing(f"at {second}")
    teller.line("done")
    assert stream.getvalue() == "at 1\r\x1b[Kat 2\r\x1b[Kdone\n"


def test_at_its_end_a_terminal_is_clean() -> None:
    stream, clock = Terminal(), Clock()
    teller = StatusLine(stream, clock)
    clock.now = 1
    teller.passing("at 1")
    teller.end()
    teller.end()
    assert stream.getvalue() == "at 1\r\x1b[K"


def test_nothing_is_written_where_nothing_is_told() -> None:
    stream = Terminal()
    StatusLine(stream, Clock()).end()
    assert stream.getvalue() == ""
