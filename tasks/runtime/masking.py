"""Passwords and tokens in addresses, headers and settings are masked before anything is shown, logged or kept.

A secret goes before a readable address: where a text leaves it open whether something is one, it is masked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

MASK = "***"
_SHORTEST = 6
"""Characters of a secret of the environment that is masked wherever it stands: shorter ones occur by chance."""
_WORDS = r"password|passwd|pwd|secret|token|signature|credential|api[_-]?key|access[_-]?key|private[_-]?key"
_NAME = re.compile(_WORDS.replace("pwd|", "").replace("signature|", ""), re.IGNORECASE)
_NAMED = rf"[\w\-]*(?:{_WORDS})[\w\-]*"
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ASSIGNED = re.compile(
    rf"(?P<key>(?:^|[?&;,\s({{])(?:{_NAMED}|sig|key)=)"
    rf"(?:(?:{_QUOTED})(?=[)\]}}'\",;.&\s]|$)|[^&\s]+?(?=[)\]}}'\",;.]*(?:[&\s]|$)))",
    re.IGNORECASE,
)
_QUOTED_KEY = re.compile(
    rf"""(?P<key>(?P<q>\\?['"]){_NAMED}(?P=q)\s*[:,=]\s*(?:[bru](?=['"]))?)(?:{_QUOTED})""", re.IGNORECASE
)
_HEADER = re.compile(
    r"(?P<key>\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w\-]*(?:token|key|secret|signature|auth)[\w\-]*)"
    # A value ends with its quote where the name is quoted too; in a header as it was sent, with the line.
    rf"""(?:(?P<quoted>\\?['"])\s*[:,]\s*(?:[bru](?=['"]))?|\s*[:,]\s*))(?(quoted)(?:{_QUOTED}|[^\r\n]+)|[^\r\n]+)""",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*$")
_PLAIN_HOST = re.compile(r"(?:[\w.\-]*|\[[0-9a-fA-F:.%]+\])(?P<port>:\d{1,5})?(?=[/?#@]|['\"`)\]}>,;|.!]*:?(?:\s|$))")
_ALIAS = re.compile(r"models:/[^\s@:]+@")
_WITH_PASSWORD = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*://[^:/@]*:(?P<password>.*)@[^@]*")
_WITH_PATHS = re.compile(r"s3a?|gs|gcs|az|abfss?|adl|hf|file|memory|zip|hdfs|dbfs|github|git\+file")
"""Schemes in whose paths an @ is nothing unusual."""


def mask_text(text: str) -> str:
    """``text`` without the secrets of every address, query, header and ``password=...`` in it.

    Of an address everything before the last @ is masked, whatever stands there: a password with a slash, an @ or a
    blank is no URI by the letter of RFC 3986, but databases take it. A blank in a secret that begins like a port
    or with a blank (``user:80 x@host``) is beyond what a text can tell. What the environment keeps under a name that
    tells of a secret, or as the password of an address, is masked wherever it stands.
    """
    return _mask_text(text, _known_secrets())


def _mask_text(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, MASK)
    text = _without_user_info(text)
    for pattern in (_HEADER, _QUOTED_KEY, _ASSIGNED):
        text = pattern.sub(rf"\g<key>{MASK}", text)
    return text


def mask_secrets(value: Any) -> Any:
    """``value`` with every text in it masked, however nested, and all texts under keys like ``password``."""
    return _mask_secrets(value, _known_secrets())  # the environment is looked at once


def _mask_secrets(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _mask_text(value, secrets)
    if isinstance(value, Mapping):
        return {
            _mask_text(str(key), secrets): _masked(item) if _NAME.search(str(key)) else _mask_secrets(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mask_secrets(item, secrets) for item in value]
    return value


def _masked(value: Any) -> Any:
    """Every text in ``value`` replaced; numbers and flags tell nothing (``max_tokens: 512``)."""
    if isinstance(value, (str, bytes)):
        return MASK if value else value
    if isinstance(value, Mapping):
        return {str(key): _masked(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_masked(item) for item in value]
    return value


def _without_user_info(text: str) -> str:
    if "://" not in text or "@" not in text:
        return text
    parts, end = [], 0
    for start, stop, scheme in _addresses(text):
        at = _end_of_user_info(text[start:stop], scheme)
        parts.append(text[end:start])
        parts.append(f"{MASK}{text[start + at : stop]}" if at >= 0 else text[start:stop])
        end = stop
    return "".join([*parts, text[end:]])


def _addresses(text: str) -> Iterator[tuple[int, int, str]]:
    """Where what follows each ``scheme://`` begins, where it ends at the latest (the next address), and its scheme."""
    found: list[tuple[int, int, str]] = []
    for match in re.finditer("://", text):
        scheme = _SCHEME.search(text, max(0, match.start() - 40), match.start())
        if scheme is None:
            continue
        before = text[scheme.start() - 1 : scheme.start()]
        if not found or not before or before.isspace() or before in "'\"`([{<,;=|:":
            found.append((match.end(), scheme.start(), scheme.group().lower()))
    at = 0
    while at < len(found):
        start, _, scheme_name = found[at]
        at += 1
        stop = found[at][1] if at < len(found) else len(text)
        # Half a pair of user and password: what looked like the next address belongs to the password.
        while at < len(found) and "@" not in text[start:stop] and not _PLAIN_HOST.match(text, start, stop):
            at += 1
            stop = found[at][1] if at < len(found) else len(text)
        yield start, stop, scheme_name


def _end_of_user_info(rest: str, scheme: str) -> int:
    """The place of the @ that ends user and password in what follows ``scheme://``; -1 where there are none."""
    if "@" not in rest:
        return -1
    plain = _PLAIN_HOST.match(rest)
    if plain is None:  # a colon with something else than a port behind it, or signs that no host has
        last_alias = max((match.end() - 1 for match in _ALIAS.finditer(rest)), default=-1)
        at = rest.rfind("@")
        return rest.rfind("@", 0, rest.rfind("models:/")) if at == last_alias and rest.count("@") > 1 else at
    following = rest[plain.end() : plain.end() + 1]
    if following not in ("/", "?", "#", "@") or not following:
        return -1
    if following != "@" and plain["port"] is None and _WITH_PATHS.fullmatch(scheme):
        return -1
    word = re.split(r"\s", rest, maxsplit=1)[0]
    return rest.rfind("@") if word.endswith("@") else word.rfind("@")


def _known_secrets() -> list[str]:
    """Secrets of the environment, longest first."""
    return _secrets_of(tuple(os.environ.items()))


@lru_cache(maxsize=1)  # texts are masked by the hundred, and looking at every name takes milliseconds
def _secrets_of(environment: tuple[tuple[str, str], ...]) -> list[str]:
    found: set[str] = set()
    for name, value in environment:
        if _NAME.search(name) and not os.path.exists(value):
            found.add(value)
        elif (address := _WITH_PASSWORD.fullmatch(value)) is not None:
            found |= {address["password"], unquote(address["password"])}
    return sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)
