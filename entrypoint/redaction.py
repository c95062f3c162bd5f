"""Redaction replaces secrets before a text is shown or written.

It recognizes secrets in variables by the variable's name, and those in URLs by their form.
`re` compiles the patterns at their first use: `entrypoint show` has none (docs/performance.md, row 9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "(not shown)"
_SECRET_WORDS: Final = r"(?:PASS|TOKEN|KEY|SECRET|CRED|AUTH|(?<![A-Z0-9])PAT(?![A-Z0-9]))"  # PAT as a word: not PATH
# name=value and name: value, as in `model.args={hub_token: abc}`. A number is no secret:
# `model.args.key_dim=64`.
_NAMED_SECRET: Final = (
    rf"([\w.-]*{_SECRET_WORDS}[\w.-]*(?:=|:\s+|['\"]\s*:\s*)['\"]?)(?!-?[\d.]+(?:[,}}\s]|$))[^\s,}}'\"]+"
)
_URL: Final = r"(\w+://|(?<!\w)//)([^\s'\"]+)"
# user:password@host without a scheme, as in a proxy variable; `image:tag@sha256:` has no password.
_USER_PASSWORD: Final = r"(?<![\w/:.@-])[\w.+-]+:(?!/)[^\s/'\"]+@(?!sha256:)"


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable of this name may not be shown or written."""
    return re.search(_SECRET_WORDS, name, re.IGNORECASE) is not None


def redact(text: str) -> str:
    """Replace users, passwords and query strings in addresses."""
    return re.sub(_USER_PASSWORD, f"{REDACTED}@", re.sub(_URL, _redact_url, text))


def _redact_url(match: re.Match[str]) -> str:
    """Redact one URL.

    A password may contain an unescaped slash or question mark, so more than needed may be hidden.
    """
    location, separator, query = match[2].partition("?")
    if "@" in query:
        return f"{match[1]}{REDACTED}"
    host = location.partition("/")[0]
    if "@" in location and "@sha256:" not in location and ("@" in host or ":" in host):
        location = f"{REDACTED}@{location.rpartition('@')[2]}"
    return f"{match[1]}{location}{separator}{REDACTED if query and not query.startswith('(not') else query}"


def redact_value(name: str, value: str) -> str:
    """A variable's value without secrets, on one line."""
    return REDACTED if is_secret_name(name) else redact(value).replace("\n", " ")


def redact_words(words: Iterable[str]) -> list[str]:
    """A command line without secrets, also those in settings such as `hub_token=abc`."""
    return [redact(re.sub(_NAMED_SECRET, rf"\1{REDACTED}", word, flags=re.IGNORECASE)) for word in words]
