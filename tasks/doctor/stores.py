"""The store of embeddings and predictions: whether it can be written, read and deleted, here and on workers."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import requests

from congruence.kernels.masking import mask_text
from congruence.tasks.doctor.answers import ask, clock, host_and_port, why_none
from congruence.tasks.doctor.findings import Finding, Step, fine, wrong
from congruence.tasks.embeddings.objects import ObjectStore

PLACE = "store"
_AMAZON = "https://s3.amazonaws.com"
_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE, or give the machine a role"
_REMEDIES = {
    "requesttimetooskewed": "set this machine's clock by NTP: S3 refuses requests that are 15 minutes off",
    "signaturedoesnotmatch": "correct the secret key (AWS_SECRET_ACCESS_KEY, or the profile)",
    "invalidaccesskeyid": "correct the access key (AWS_ACCESS_KEY_ID, or the profile)",
    "unable to locate credentials": _KEYS,
    "nocredentials": _KEYS,
    "access denied": "give this user the right to write, read, list and delete there",
    "forbidden": "give this user the right to write, read, list and delete there, or correct the keys",
    "accessdenied": "give this user the right to write, read, list and delete there",
    "nosuchbucket": "make the bucket, or correct store.uri",
    "bucket does not exist": "make the bucket, or correct store.uri",
    "no module named 's3fs'": "pip install -c constraints.txt 'congruence[s3]'",
    "install s3fs": "pip install -c constraints.txt 'congruence[s3]'",
    "no module named 'gcsfs'": "pip install -c constraints.txt 'congruence[gcs]'",
    "install gcsfs": "pip install -c constraints.txt 'congruence[gcs]'",
}
_OTHERWISE = "see whether store.uri is right, is there, and may be written by this user"


def store(uri: str, options: Mapping[str, Any]) -> Iterator[Finding | Step]:
    """Write an object into the store at ``uri``, read it and delete it; an S3 server is asked for its clock first."""
    shown = mask_text(uri)
    if uri.startswith(("s3://", "s3a://")):
        found = list(_endpoint(options))
        yield from found
        if any(item.level == "wrong" for item in found):
            return
    yield Step(f"writing to {shown}", _OTHERWISE)
    message = probe(uri, options)
    yield fine(PLACE, f"{shown} can be written, read and deleted") if message is None else wrong(PLACE, *message)


def probe(uri: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Write, read and delete an object; what is wrong and how to fix it, None where nothing is."""
    key, text = f".doctor/{secrets.token_hex(8)}", secrets.token_bytes(16)
    shown = mask_text(uri)
    try:
        opened = ObjectStore(uri, options)
        try:
            opened.put(key, text)
            read = opened.get(key)
        finally:
            opened.remove(key)
            opened.remove_empty_folders([key])
    except Exception as error:  # of whatever file system it is
        return _told(shown, error)
    if read != text:
        return f"{shown}: what was written is not what is read", "see the server's log, and caches between it and here"
    return None


def _told(shown: str, error: Exception) -> tuple[str, str]:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = next((remedy for words, remedy in _REMEDIES.items() if words in text.lower()), _OTHERWISE)
    return f"{shown} cannot be used ({mask_text(text)[:300]})", remedy


def _endpoint(options: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the S3 server is there at all: its own client asks it for minutes."""
    url = endpoint(options)
    try:
        host, port = host_and_port(url)
        socket.create_connection((host, port), timeout=5).close()
        answer = ask("HEAD", url)
    except (OSError, requests.RequestException) as error:
        why = why_none(error) or f"{type(error).__name__}: {error}"
        remedy = "start it, or correct AWS_ENDPOINT_URL or store.storage_options.client_kwargs.endpoint_url"
        yield wrong(PLACE, f"the S3 server {url}: {why}", remedy)
        return
    yield from clock("S3", answer.skew)


def endpoint(options: Mapping[str, Any]) -> str:
    """The address of the S3 server that s3fs asks with these options."""
    inner = options.get("client_kwargs")
    given = options.get("endpoint_url") or (inner.get("endpoint_url") if isinstance(inner, Mapping) else None)
    for found in (given, os.environ.get("AWS_ENDPOINT_URL_S3"), os.environ.get("AWS_ENDPOINT_URL")):
        if found:
            return str(found)
    return _AMAZON
