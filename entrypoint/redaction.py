"""Redaction replaces secrets before a text is shown or written.

It recognizes secrets in variables by the variable's name, and those in URLs by their form.
`re` compiles the patterns at their first use: `entrypoint show` has none (docs/performance.md, row 9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "(not shown)"
# PAT and PW as words: not PATH.
_SECRET_WORDS: Final = (
    r"(?:PASS|TOKEN|KEY|SECRET|CRED|AUTH|PWD|COOKIE|SESSION|BEARER|(?<![A-Z0-9])(?:PAT|PW)(?![A-Z0-9]))"
)
# The working folders, and what a desktop sets.
_OPEN_NAMES: Final = r"(?:OLD)?PWD|SESSION_MANAGER|DESKTOP_SESSION|(?:XDG|DBUS)_SESSION_\w+"
# A number is no secret (`model.args.key_dim=64`), and no `value` that stands for one (`section.key=value`).
_PLAIN: Final = r"[^\s,}'\"`]+"
_SECRET_VALUE: Final = (
    r"(?!-?[\d.]+(?:[,}\s]|$)|\(not shown|value\b)"
    rf"(?:\"[^\"]*\"?|'[^']*'?|\[[^]]*\]?|(?:(?:Bearer|Basic)\s+)?{_PLAIN}(?:(?<=;)\s+{_PLAIN})*)"
)
# In any text: `name=value`, `'name': value`, `{name: value, name: value}`, and what follows Bearer.
_ASSIGNED_SECRET: Final = (
    rf"([\w.-]*{_SECRET_WORDS}[\w.-]*(?:=|['\"]\s*:\s*)"
    rf"|(?:(?<=\{{)|(?<=,\s))[\w.-]*{_SECRET_WORDS}[\w.-]*:\s+|\bBearer\s+){_SECRET_VALUE}"
)
_NAMED_SECRET: Final = rf"([\w.-]*{_SECRET_WORDS}[\w.-]*:\s+){_SECRET_VALUE}"  # in settings and headers
_URL: Final = r"(\w+://|(?<!\w)//)([^\s'\"]+)"
# user:password@host without a scheme, as in a proxy variable; `image:tag@sha256:` has no password.
_USER_PASSWORD: Final = r"(?<![\w/:.@-])[\w.+-]+:(?!/)[^\s/'\"]+@(?!sha256:)"


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable of this name may not be shown or written."""
    return not re.fullmatch(_OPEN_NAMES, name) and re.search(_SECRET_WORDS, name, re.IGNORECASE) is not None


def redact(text: str) -> str:
    """Replace users, passwords, query strings and fragments in addresses, and what `token=` and its like set."""
    text = re.sub(_USER_PASSWORD, f"{REDACTED}@", re.sub(_URL, _redact_url, text))
    return re.sub(_ASSIGNED_SECRET, rf"\1{REDACTED}", text, flags=re.IGNORECASE)


def _redact_url(match: re.Match[str]) -> str:
    """Redact one URL.

    A password may contain an unescaped slash or question mark, so more than needed may be hidden.
    """
    location, separator, query = re.fullmatch(r"([^?#;]*)([?#;]?)(.*)", match[2], re.DOTALL).groups()  # type: ignore[union-attr]
    if "@" in query:
        return f"{match[1]}{REDACTED}"
    host = location.partition("/")[0]
    if "@" in location and "@sha256:" not in location and ("@" in host or ":" in host):
        location = f"{REDACTED}@{location.rpartition('@')[2]}"
    return f"{match[1]}{location}{separator}{REDACTED if query and not query.startswith('(not') else query}"


def redact_value(name: str, value: str) -> str:
    """A variable's value without secrets, on one line."""
    return REDACTED if is_secret_name(name) else redact_words([value])[0].replace("\n", " ")


def redact_words(words: Iterable[str]) -> list[str]:
    """A command line without secrets, also those in settings such as `hub_token=abc`."""
    return [redact(re.sub(_NAMED_SECRET, rf"\1{REDACTED}", word, flags=re.IGNORECASE)) for word in words]
