"""docs/detection.md lists the launchers as their records do, and has the table of the tested ones."""

from __future__ import annotations

import re

from families import BEGIN, END, PAGE, table
from machines import REPOSITORY

from entrypoint.platforms import PLATFORMS


def test_the_page_lists_the_launchers_in_the_order_of_the_records() -> None:
    text = (REPOSITORY / "docs" / "detection.md").read_text()
    columns = re.findall(r"^\| \d+ \| [^|]+\| [^|]+ \| (`[^|]+) \|", text, re.M)
    listed = [name for column in columns for name in re.findall(r"`([\w-]+)`", column)]
    expected = [each.name for each in PLATFORMS if each.starts in ("rank", "node")]
    assert [name for name in listed if name in expected] == expected
    for each in PLATFORMS:
        variables = {*each.hosts, *each.host_files, *each.counts} if each.starts == "script" else set()
        assert all(f"`{name}`" in text for name in variables), each.name


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table(), "python tests/support/families.py"
