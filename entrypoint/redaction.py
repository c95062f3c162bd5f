"""Redaction replaces secrets before a text is shown or written.

It recognizes secrets in variables by the variable's name, and those in URLs by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "(not shown)"
_SECRET_WORDS: Final = r"(?:PASS|TOKEN|KEY|SECRET|CRED|AUTH|(?<![A-Z0-9])PAT(?![A-Z0-9]))"  # PAT as a word: not PATH
SECRET_NAME_PATTERN: Final = re.compile(_SECRET_WORDS, re.IGNORECASE)
# name=value and name: value, as in `model.args={hub_token: abc}`; a number is none, as in `model.args.key_dim=64`.
NAMED_SECRET_PATTERN: Final = re.compile(
    rf"([\w.-]*{_SECRET_WORDS}[\w.-]*(?:=|:\s+|['\"]\s*:\s*)['\"]?)(?!-?[\d.]+(?:[,}}\s]|$))[^\s,}}'\"]+", re.IGNORECASE
)
URL_PATTERN: Final = re.compile(r"(\w+://|(?<!\w)//)([^\s'\"]+)")
# user:password@host without a scheme, as in a proxy's variable; `image:tag@sha256:` is none.
USER_PASSWORD_PATTERN: Final = re.compile(r"(?<![\w/:.@-])[\w.+-]+:(?!/)[^\s/'\"]+@(?!sha256:)")


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable of this name may not be shown or written."""
    return SECRET_NAME_PATTERN.search(name) is not None


def redact(text: str) -> str:
    """Without users, passwords and query strings of addresses."""
    return USER_PASSWORD_PATTERN.sub(f"{REDACTED}@", URL_PATTERN.sub(_redact_url, text))


def _redact_url(found: re.Match[str]) -> str:
    """A password may hold a slash or a question mark that nobody has escaped: rather too much is hidden."""
    place, mark, query = found[2].partition("?")
    if "@" in query:
        return f"{found[1]}{REDACTED}"
    host = place.partition("/")[0]
    if "@" in place and "@sha256:" not in place and ("@" in host or ":" in host):
        place = f"{REDACTED}@{place.rpartition('@')[2]}"
    return f"{found[1]}{place}{mark}{REDACTED if query and not query.startswith('(not') else query}"


def redact_value(name: str, value: str) -> str:
    """The value of a variable, for a line."""
    return REDACTED if is_secret_name(name) else redact(value).replace("\n", " ")


def redact_words(words: Iterable[str]) -> list[str]:
    """A command line: also without the values of settings that are called as secrets are."""
    return [redact(NAMED_SECRET_PATTERN.sub(rf"\1{REDACTED}", word)) for word in words]
