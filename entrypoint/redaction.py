"""Secrets are replaced before a text is shown or written: of variables by their name, of addresses by their form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "(not shown)"
_SECRET: Final = r"(?:PASS|TOKEN|KEY|SECRET|CRED|AUTH|(?<![A-Z0-9])PAT(?![A-Z0-9]))"  # PAT as a word: not PATH
SECRET: Final = re.compile(_SECRET, re.IGNORECASE)
# name=value and name: value, as in `model.args={hub_token: abc}`; a number is none, as in `model.args.key_dim=64`.
NAMED: Final = re.compile(
    rf"([\w.-]*{_SECRET}[\w.-]*(?:=|:\s+|['\"]\s*:\s*)['\"]?)(?!-?[\d.]+(?:[,}}\s]|$))[^\s,}}'\"]+", re.IGNORECASE
)
ADDRESS: Final = re.compile(r"(\w+://|(?<!\w)//)([^\s'\"]+)")
# user:password@host without a scheme, as in a proxy's variable; `image:tag@sha256:` is none.
USER: Final = re.compile(r"(?<![\w/:.@-])[\w.+-]+:(?!/)[^\s/'\"]+@(?!sha256:)")


def is_secret(name: str) -> bool:
    """Whether the value of a variable of this name may not be shown or written."""
    return SECRET.search(name) is not None


def redact(text: str) -> str:
    """Without users, passwords and query strings of addresses."""
    return USER.sub(f"{HIDDEN}@", ADDRESS.sub(_of_address, text))


def _of_address(found: re.Match[str]) -> str:
    """A password may hold a slash or a question mark that nobody has escaped: rather too much is hidden."""
    place, mark, query = found[2].partition("?")
    if "@" in query:
        return f"{found[1]}{HIDDEN}"
    host = place.partition("/")[0]
    if "@" in place and "@sha256:" not in place and ("@" in host or ":" in host):
        place = f"{HIDDEN}@{place.rpartition('@')[2]}"
    return f"{found[1]}{place}{mark}{HIDDEN if query and not query.startswith('(not') else query}"


def redact_value(name: str, value: str) -> str:
    """The value of a variable, for a line."""
    return HIDDEN if is_secret(name) else redact(value).replace("\n", " ")


def redact_words(words: Iterable[str]) -> list[str]:
    """A command line: also without the values of settings that are called as secrets are."""
    return [redact(NAMED.sub(rf"\1{HIDDEN}", word)) for word in words]
