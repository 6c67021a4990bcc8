from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedgraph.support.download import fetch
from fedgraph.support.errors import DataError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content`` at /file; every quirk of real servers is a switch."""

    content = CONTENT
    etag: str | None = '"one"'
    ranges = True
    break_off: tuple[int, ...] = ()  # how many bytes the first answers hold before the connection closes
    status = 200
    wrong_range = False
    content_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
            return
        server.asked.append(wanted)
        if server.status != 200:
            self.send_error(server.status)
            return
        start = 0
        condition = self.headers.get("If-Range")
        if wanted and server.ranges and condition in (None, server.etag):
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))  # type: ignore[union-attr]
            if start >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.end_headers()
                return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            claimed = start + 1 if server.wrong_range else start
            self.send_header("Content-Range", f"bytes {claimed}-{len(server.content) - 1}/{len(server.content)}")
        if server.etag:
            self.send_header("ETag", server.etag)
        self.send_header("Content-Type", server.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.break_off:
            body, server.break_off = body[: server.break_off[0]], server.break_off[1:]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def leftovers(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path != target)


def test_a_file_is_fetched_checked_and_put_in_place(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "file.bin"
    found = fetch(server.url, target, SHA256, lambda done, total: steps.append((done, total)))
    assert found == target
    assert target.read_bytes() == CONTENT
    assert leftovers(target) == []
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})


def test_a_file_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(CONTENT)
    fetch(server.url, target, SHA256)
    assert server.asked == []


def test_another_file_in_its_place_is_never_overwritten(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match="move it away"):
        fetch(server.url, target, SHA256)
    assert target.read_bytes() == b"mine"


def test_a_broken_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.break_off = (300_000,)
    target = tmp_path / "file.bin"
    with pytest.raises(DataError, match=r"broke off after 300,000 of 1,024,000 bytes.*kept") as caught:
        fetch(server.url, target, SHA256, attempts=1)
    assert server.url in str(caught.value)
    assert f"by hand and put it at {target}" in str(caught.value)
    assert not target.exists()
    fetch(server.url, target, SHA256)
    assert server.asked == [None, "bytes=300000-"]
    assert target.read_bytes() == CONTENT
    assert leftovers(target) == []


def test_one_call_makes_several_attempts(server: Server, tmp_path: Path) -> None:
    server.break_off = (300_000, 200_000)
    target = fetch(server.url, tmp_path / "file.bin")
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]
    assert target.read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.break_off = False, (300_000,)
    target = fetch(server.url, tmp_path / "file.bin", SHA256)
    assert server.asked == [None, "bytes=300000-"]
    assert target.read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(server: Server, tmp_path: Path) -> None:
    server.break_off = (300_000,)
    with pytest.raises(DataError):
        fetch(server.url, tmp_path / "file.bin", attempts=1)
    server.content, server.etag = CONTENT[::-1], '"two"'
    target = fetch(server.url, tmp_path / "file.bin")
    assert server.asked[-1] == "bytes=300000-"
    assert target.read_bytes() == CONTENT[::-1]


def test_without_version_and_checksum_nothing_is_resumed(server: Server, tmp_path: Path) -> None:
    server.etag, server.break_off = None, (300_000,)
    fetch(server.url, tmp_path / "file.bin")
    assert server.asked == [None, None]


def test_a_checksum_alone_is_enough_to_resume(server: Server, tmp_path: Path) -> None:
    server.etag, server.break_off = None, (300_000,)
    target = fetch(server.url, tmp_path / "file.bin", SHA256)
    assert server.asked == [None, "bytes=300000-"]
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    target = fetch(server.url, tmp_path / "file.bin", SHA256)
    assert server.asked == [f"bytes={len(CONTENT)}-"]  # answered 416
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    target = fetch(server.url, tmp_path / "file.bin", SHA256)
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]
    assert target.read_bytes() == CONTENT


def test_a_wrong_range_is_not_appended(server: Server, tmp_path: Path) -> None:
    server.break_off, server.wrong_range = (300_000,), True
    target = fetch(server.url, tmp_path / "file.bin")
    assert server.asked == [None, "bytes=300000-", None]
    assert target.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_and_names_both(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="SHA-256") as caught:
        fetch(server.url, tmp_path / "file.bin", "0" * 64)
    assert "0" * 64 in str(caught.value)
    assert SHA256 in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (503, 2)])
def test_a_missing_page_is_asked_for_once_and_a_server_fault_is_tried_again(
    status: int, asked: int, server: Server, tmp_path: Path
) -> None:
    server.status = status
    with pytest.raises(DataError, match=f"answered {status}"):
        fetch(server.url, tmp_path / "file.bin", attempts=2)
    assert len(server.asked) == asked


def test_a_web_page_is_not_taken_for_the_file(server: Server, tmp_path: Path) -> None:
    server.content_type = "text/html; charset=utf-8"
    with pytest.raises(DataError, match="web page"):
        fetch(server.url, tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_nobody_there(server: Server, tmp_path: Path) -> None:
    url = server.url
    server.server_close()
    with pytest.raises(DataError, match="cannot fetch") as caught:
        fetch(url, tmp_path / "file.bin", timeout=2.0)
    assert url in str(caught.value)
    assert str(tmp_path / "file.bin") in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://example.org/file", "file"])
def test_only_web_addresses_are_fetched(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only http and https"):
        fetch(url, tmp_path / "file.bin")


def test_no_redirection_to_a_local_file(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot fetch"):
        fetch(server.url.replace("/file", "/elsewhere"), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()
