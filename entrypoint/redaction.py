"""Redaction replaces secrets before a text is shown or written.

It recognizes secrets in variables by the variable's name, and URLs and tokens by their form.
`re` compiles the patterns at their first use: `entrypoint show` has none (docs/evidence/performance.md, row 9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "(not shown)"
# The edge of a word in a name: `_`, `-`, `.`, a digit, its ends, and a capital in camelCase.
_CAPITAL: Final = r"(?-i:(?<=[a-z])(?=[A-Z]))"
_START, _END = rf"(?:(?<![A-Z])|{_CAPITAL})", rf"(?:(?![A-Z])|{_CAPITAL})"
_SECRET_WORDS: Final = (
    # These also end a longer word: PGPASSWORD.
    r"(?:(?:PASS(?:WORD|WD|PHRASE|CODE)|TOKEN|SECRET|CREDENTIAL)S?"
    rf"|{_START}(?:(?:DB|SSH)?PASS|(?:API|ACCESS|AUTH|SECRET|PRIVATE|SSH)?KEYS?|CREDS?"
    r"|O?AUTH(?:ORIZATION|ENTICATION)?|PWD|COOKIES?|J?SESSIONS?(?:ID)?|BEARER|JWT|PAT|PW"
    # These only end a name: not `pin_memory`.
    rf"|(?:SIGNATURE|SIG|PIN|PRIVATE|CERT)(?![\w.-]))){_END}"
)
# The working folders, and what a desktop sets.
_OPEN_NAMES: Final = r"(?:OLD)?PWD|SESSION_MANAGER|DESKTOP_SESSION|(?:XDG|DBUS)_SESSION_\w+"
# A token by its form, outside a path.
_BARE_TOKEN: Final = (
    r"(?<![\w/.-])(?:(?:gh[oprsu]_|github_pat_|glpat-)[\w-]{6,}|hf_(?=\w*[\dA-Z]|\w{20})[A-Za-z0-9]{6,}"
    r"|sk-(?=[\w-]*\d)[\w-]{12,}|eyJ[\w-]{8,}(?:\.[\w-]+)*)(?![\w/-])"
)
# No secrets: a number (`model.args.key_dim=64`), yes or no, `value` that stands for one (`section.key=value`), and a
# file's path (`session=day1/a.jpg`); in base64 is no dot.
_PLAIN: Final = r"[^\s,}'\"`]+"
_SECRET_VALUE: Final = (
    r"(?!(?:-?[\d.]+|true|false|null|none)(?:[,}\s'\"`]|$)|\(not shown|value\b"
    r"|[\w.=/-]*/[\w=-]+\.[a-z]\w{1,4}(?![\w/.]))"
    rf"(?:\"[^\"]*\"?|'[^']*'?|\[[^]]*\]?|(?:(?:Bearer|Basic)\s+)?{_PLAIN}(?:(?<=;)\s+{_PLAIN})*)"
)
_NAME: Final = rf"(?<![\w./-])[\w.-]*{_SECRET_WORDS}[\w.-]*"  # a folder's name after a slash is none
# In any text: `name=value`, `'name': value`, `{name: value, name: value}`, and what follows Bearer.
_ASSIGNED_SECRET: Final = (
    rf"((?!session=[\w.-]+/){_NAME}(?:[ \t]*=(?!=)[ \t]*|['\"]\s*:\s*)"
    rf"|(?:(?<=\{{)|(?<=,\s)){_NAME}:\s+|\bBearer\s+){_SECRET_VALUE}"
)
_NAMED_SECRET: Final = rf"({_NAME}:\s+){_SECRET_VALUE}"  # in settings
_HEADER: Final = r"(\b(?:Authorization|Cookie(?=:\s*[^\s=]+=)):\s*)(?!\s|\(not shown)(?:=\"[^\"]*\"|[^\n'\"`])+"
_URL: Final = r"(\b\w+://|(?<!\w)//)([^\s'\"`]+)"
# user:password@host without a scheme, as in a proxy variable; `image:tag@sha256:` has no password.
_USER_PASSWORD: Final = r"(?<![\w/:.@-])[\w.+-]+:(?!/)[^\s/'\"`]+@(?!sha256:)"


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable of this name may not be shown or written."""
    return not re.fullmatch(_OPEN_NAMES, name) and re.search(_SECRET_WORDS, name, re.IGNORECASE) is not None


def redact(text: str) -> str:
    """Replace users, passwords, queries and fragments in addresses, tokens, and what `token=` and its like set."""
    text = re.sub(_USER_PASSWORD, f"{REDACTED}@", re.sub(_URL, _redact_url, text))
    text = re.sub(_BARE_TOKEN, REDACTED, re.sub(_HEADER, rf"\1{REDACTED}", text, flags=re.IGNORECASE))
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
    """A command line without secrets, also those in settings such as `hub_token=abc` and after `--password`."""
    redacted, option = [], ""
    for word in words:
        is_option = re.fullmatch(r"--[\w-]+", option) and is_secret_name(option) and not word.startswith("-")
        is_secret = bool(is_option and re.match(_SECRET_VALUE, word, re.IGNORECASE))
        text = re.sub(_NAMED_SECRET, rf"\1{REDACTED}", word, flags=re.IGNORECASE)
        redacted.append(REDACTED if is_secret else redact(text))
        option = word
    return redacted
