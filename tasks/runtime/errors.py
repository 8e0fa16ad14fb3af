"""Errors that a person can act on, of whatever surrounds a run, in words without secrets."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from congruence.kernels.errors import CongruenceError, InvalidInputError


class SettingsError(CongruenceError, ValueError):
    """An evaluation file that cannot be run: names file, key, value and remedy."""


class TooManyInvalidRowsError(CongruenceError):
    """More rows of a split are unusable than ``max_invalid`` allows: lists them with their reasons."""


class ClusterError(CongruenceError):
    """A Dask cluster or an embedded server that did not start or was lost: says what died, and how to go on."""


KEPT = "finished work is saved; run the same command to resume"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_RESTORE = (
    "restore it from a backup, or move it away to begin with an empty one, which knows none of the models and runs "
    "that were logged"
)
_SQLITE = {
    "database or disk is full": f"the disk is full; make room; {KEPT}",
    "file is not a database": f"it is no SQLite database; {_RESTORE}",
    "malformed": f"it is damaged; {_RESTORE}",
    "unsupported file format": f"it is damaged; {_RESTORE}",
    "unable to open database file": "it cannot be opened as a file; see what stands there, and who may write it",
    "readonly database": "it is read-only; make it and its folder writable",
    "disk i/o error": "the disk does not read or write it; see whether the disk is full or failing",
    "no such table": f"tables are missing in it; {_RESTORE}",
}


class SurroundingsError(CongruenceError, OSError):
    """A disk, a folder or a file around a run that it cannot go on with: waiting changes nothing."""


def trouble(error: BaseException) -> str | None:
    """What is wrong with a disk, a folder or a database file, with the remedy; None where the error tells of none."""
    for cause in chain(error):
        if isinstance(cause, SurroundingsError):
            return str(cause)
        if isinstance(cause, OSError) and (found := _of_the_disk(cause)) is not None:
            return found
        if (found := database_trouble(cause)) is not None:
            return f"MLflow's database: {found}"
    return None


def database_trouble(error: BaseException) -> str | None:
    """What is wrong with an SQLite file, by SQLite's words in ``error``."""
    text = str(error).lower()
    if not isinstance(error, sqlite3.Error) and "sqlite" not in text:
        return None
    return next((remedy for words, remedy in _SQLITE.items() if words in text), None)


def require_database(path: Path, whose: str = "MLflow's") -> None:
    """Refuse an SQLite file that is none, is cut off or is damaged; one that is not there is made later.

    Another process may be writing it: it is read under SQLite's own locks.

    Raises:
        SurroundingsError: says what is wrong and what to do.
    """
    if (damage := _damage(path, whose)) is not None:
        raise SurroundingsError(f"{path}: {damage}")


def _damage(path: Path, whose: str) -> str | None:
    if path.is_dir():
        return f"{whose} database is expected there, found a folder; move it away"
    try:
        with path.open("rb") as file:
            beginning = file.read(16)
    except FileNotFoundError:
        return None
    if not beginning:
        return None
    if beginning != b"SQLite format 3\0":
        return f"{whose} database cannot be used: {_SQLITE['file is not a database']}"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0.1)) as database:
            # SQLite sees by itself that a file is cut off.
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            is_small = path.stat().st_size < _CHECKED_BYTES
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone() if is_small else ("ok",)
    except sqlite3.Error as error:
        trouble_there = database_trouble(error)  # none where another process has locked it: opening it waits
        return None if trouble_there is None else f"{whose} database cannot be used: {trouble_there}"
    if found != "ok" or not tables:
        return f"{whose} database is damaged ({found.strip().splitlines()[-1][:120]}); {_RESTORE}"
    return None


_CHECKED_BYTES = 64 * 2**20
"""Up to this size a database is read through once: a tenth of a second."""


def _of_the_disk(error: OSError) -> str | None:
    name = error.filename2 or error.filename  # of a file that is put in place: where it should go
    path = Path(str(name)) if name else None
    if error.errno in _FULL:
        place = next((part for part in (path, *path.parents) if part.exists()), None) if path is not None else None
        free = f"that holds {place} ({shutil.disk_usage(place).free / 2**20:.0f} MiB free) " if place else ""
        return f"the disk {free}is full; make room; {KEPT}"
    if error.errno == errno.EFBIG:
        return f"{path or 'a file'} would be larger than files may be here (see ulimit -f); allow more; {KEPT}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open for this process (see ulimit -n); allow more, for example 4096; {KEPT}"
    if path is None:
        return None
    if error.errno in _REFUSED:
        return f"{path} cannot be written ({error.strerror}); make it writable, or give another folder with --home"
    if error.errno in _IN_THE_WAY:
        blocking = next((part for part in (path, *path.parents) if part.exists() and not part.is_dir()), None)
        if blocking is not None:
            return f"{blocking} is a file where a folder is needed; move it away, and run again"
        if path.is_dir() and error.errno == errno.EISDIR:
            return f"{path} is a folder where a file is needed; move it away, and run again"
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


class SplitError(InvalidInputError):
    """A split that cannot be evaluated: names the file, column, row and value, and the remedy."""


class SplitChangedError(SplitError):
    """A file of a split is no longer the one that was indexed: names the file. What was read of it is not used."""


def changed(path: str, what: str = "was replaced or written to") -> SplitChangedError:
    """The error for a file that is not the one that was indexed."""
    return SplitChangedError(
        f"{path}: {what} since the split was opened, so that its rows are no longer those that were indexed; nothing "
        "that was read of it is used; let whatever writes it finish, and run again"
    )


def unknown_column(name: str, role: str, available: Iterable[str], where: str) -> SplitError:
    """The error for a column that does not exist: lists those that do and points at the nearest name."""
    names = list(available)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    listed = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    return SplitError(f"{where}: there is no column {name!r} ({role}){hint} the columns are: {listed or 'none'}")


class ContractError(InvalidInputError):
    """A model whose input or output is not what its settings promise: names the column, shape, row or value."""


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
