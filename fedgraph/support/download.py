"""Download one published file: resume a broken transfer, verify the file, and only then move it into place.

Pooch (1.9) verifies and moves files as well, but does not resume: what a broken transfer has brought is thrown away.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedgraph import __version__
from fedgraph.support.errors import DataError

Progress = Callable[[int, int | None], None]
_CHUNK = 1 << 18


def fetch(
    url: str,
    target: Path,
    sha256: str | None = None,
    progress: Progress | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Download ``url`` to ``target``; a file that is already there is only verified.

    An unfinished transfer stays next to the target as ``NAME.part`` and is resumed by this or a later call where the
    server allows it.

    Parameters
    ----------
    url : str
        An http or https address.
    target : Path
        The file to write.
    sha256 : str, optional
        Checksum to verify, in hexadecimal digits.
    progress : callable, optional
        Called with the number of bytes transferred and the total, which is None if the server does not send it.
    attempts : int
        Number of tries; an HTTP error below 500 is not tried again.
    timeout : float
        Of the connection, in seconds.

    Returns
    -------
    Path
        ``target``.

    Raises
    ------
    DataError
        When the address cannot be fetched, or the file is not the published one; nothing is then put in place.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"cannot fetch {url!r}: only http and https addresses are fetched")
    if target.exists():
        _check(target, url, sha256, f"the file {target} is not the published one; move it away to fetch it anew")
        return target
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    reason = ""
    for _ in range(attempts):
        try:
            _transfer(url, part, sha256 is not None, progress, timeout)
        except urllib.error.HTTPError as error:
            reason = f"the server answered {error.code} {error.reason}"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            _validator_file(part).unlink(missing_ok=True)
            try:
                _check(part, url, sha256, "the file that came is not the published one and was thrown away")
            except DataError:
                part.unlink()
                raise
            os.replace(part, target)
            return target
    begun = part.exists() and part.stat().st_size > 0
    kept = " What came so far is kept, and the next try goes on from there." if begun else ""
    raise DataError(f"cannot fetch {url}: {reason}.{kept} Or download it by hand and put it at {target.absolute()}")


def _transfer(url: str, part: Path, verified: bool, progress: Progress | None, timeout: float) -> None:
    """Download ``part`` to its full length; raise OSError when the connection breaks off."""
    done = part.stat().st_size if part.exists() else 0
    validator = _validator_file(part).read_text() if done and _validator_file(part).exists() else ""
    # Without a validator or a checksum, a rest from another version of the file would go unnoticed.
    if done and not validator and not verified:
        done = 0
    headers = {"User-Agent": f"fedgraph/{__version__}", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
        if validator:
            headers["If-Range"] = validator
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return  # everything had come already
        part.unlink()
        return _transfer(url, part, verified, progress, timeout)
    with answer:
        if answer.headers.get_content_type() == "text/html":
            raise DataError(f"cannot fetch {url}: the address shows a web page; open it in a browser and save the file")
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")
        if answer.status == 206 and not resumed:
            part.unlink()
            raise ConnectionError("the server sent another part of the file than was asked for")
        done = done if resumed else 0
        total = None if answer.length is None else done + answer.length
        _validator_file(part).write_text(_validator(answer.headers))
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke off after {done:,} of {total:,} bytes")


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".version")


def _validator(headers: Any) -> str:
    """Return what identifies this version of the file in If-Range: a strong ETag, else the last modification."""
    etag = headers.get("ETag", "")
    return headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag


def _check(path: Path, url: str, sha256: str | None, consequence: str) -> None:
    if sha256 is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256.lower():
        raise DataError(f"{url}: its SHA-256 should be {sha256.lower()}, but it is {found}; {consequence}")
