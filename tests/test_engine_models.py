"""`-hf` fetches a model from the hub or says in one sentence why not.

The hub is a stand-in on loopback that speaks what huggingface_hub asks of it; the client is the
real one, in a process of its own, because it reads its environment when it is imported.
"""

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

REPO = "someone/Tiny-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"# Tiny",
    "mmproj-F16.gguf": b"GGUF eyes",
    "Tiny-Q2_K.gguf": b"GGUF two",
    "Tiny-Q4_K_M.gguf": b"GGUF four" * 1000,
    "Tiny-Q8_0.gguf": b"GGUF eight",
    "big/Tiny-BF16-00001-of-00002.gguf": b"GGUF part one",
    "big/Tiny-BF16-00002-of-00002.gguf": b"GGUF part two",
}


@dataclass
class Hub:
    """What the stand-in serves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    gated: bool = False
    fail: int = 0  # HTTP status of every answer, 0: as it should be
    cuts: int = 0  # so many downloads break off half way
    endpoint: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)


class Handler(BaseHTTPRequestHandler):
    """One request to the stand-in; `server.hub` says what to answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Keep quiet."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub, path = self.server.hub, self.path.partition("?")[0]
        hub.requests.append((self.command, path))
        hub.tokens.add(self.headers.get("Authorization"))
        prefix = f"/{REPO}/resolve/main/"
        if hub.fail:
            self.reply(hub.fail)
        elif path == f"/api/models/{REPO}":
            siblings = [{"rfilename": name} for name in hub.files]
            body = {"id": REPO, "sha": COMMIT, "siblings": siblings}
            self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
        elif hub.gated and path.startswith(prefix):
            self.reply(403, headers={"X-Error-Code": "GatedRepo"})
        elif path.startswith(prefix) and path.removeprefix(prefix) in hub.files:
            self.send_file(hub, hub.files[path.removeprefix(prefix)])
        else:
            self.reply(401, headers={"X-Error-Code": "RepoNotFound"})

    def send_file(self, hub, data):
        headers = {"ETag": f'"{sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        start, wanted = 0, self.headers.get("Range")
        if wanted:
            hub.ranges.append(wanted)
            start = int(re.fullmatch(r"bytes=(\d+)-\d*", wanted)[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = self.command == "GET" and hub.cuts > 0
        hub.cuts -= cut
        self.reply(206 if wanted else 200, data[start:], headers, cut=cut)

    def reply(self, status, body=b"", headers=None, *, cut=False):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


@contextmanager
def serving(hub):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = hub
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub():
    with serving(Hub()) as stand_in:
        yield stand_in


@pytest.fixture
def resolve(hub, tmp_path):
    """`resolve(hf)` in a process of its own: the path, or the error as `Kind: sentence`."""
    code = """
import sys
from ringline.engine.models import resolve_model
from ringline.errors import RinglineError
try:
    print(resolve_model(None, sys.argv[1]))
except RinglineError as error:
    print(f"{type(error).__name__}: {error}")
"""

    def run(hf, **environment):
        kept = {name: os.environ[name] for name in os.environ if not name.startswith("HF_")}
        env = {
            **kept,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **environment,
        }
        done = subprocess.run(
            [sys.executable, "-c", code, hf], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_model_is_fetched_into_the_hubs_cache(hub, resolve, tmp_path):
    path = Path(resolve(REPO))
    assert path.name == "Tiny-Q4_K_M.gguf"
    assert path.read_bytes() == FILES[path.name]
    assert path.is_relative_to(tmp_path / "hf")
    assert [name for method, name in hub.requests if method == "GET" and "resolve" in name] == [
        f"/{REPO}/resolve/main/Tiny-Q4_K_M.gguf"
    ]


def test_what_is_in_the_cache_is_not_fetched_again(hub, resolve):
    first = resolve(REPO)
    hub.requests.clear()
    assert resolve(REPO) == first
    assert not [name for method, name in hub.requests if method == "GET" and "resolve" in name]


def test_all_shards_are_fetched_and_the_first_is_named(resolve):
    path = Path(resolve(f"{REPO}:BF16"))
    assert path.name == "Tiny-BF16-00001-of-00002.gguf"
    second = path.with_name("Tiny-BF16-00002-of-00002.gguf")
    assert second.read_bytes() == FILES[f"big/{second.name}"]


def test_a_download_that_breaks_off_is_continued(hub, resolve):
    # The client keeps what it has in chunks of 10 MiB.
    data = b"GGUF" + os.urandom(1 << 20) * 24
    hub.files["Tiny-Q4_K_M.gguf"] = data
    hub.cuts = 1
    assert Path(resolve(REPO)).read_bytes() == data
    assert hub.ranges == [f"bytes={10 << 20}-"]


def test_the_token_of_the_environment_is_sent(hub, resolve):
    resolve(REPO)
    assert hub.tokens == {None}
    resolve(REPO, HF_TOKEN="hf_secret")
    assert "Bearer hf_secret" in hub.tokens


def test_without_a_network_the_cache_answers(hub, resolve):
    first = resolve(REPO)
    assert resolve(REPO, HF_ENDPOINT="http://127.0.0.1:1") == first
    assert resolve(REPO, HF_HUB_OFFLINE="1") == first
    hub.fail = 503
    assert resolve(REPO) == first
    assert "holds no model Q2_K; it has Tiny-Q4_K_M.gguf" in resolve(
        f"{REPO}:Q2_K", HF_HUB_OFFLINE="1"
    )


def test_without_a_network_and_a_cache_the_cause_is_named(resolve):
    assert resolve(REPO, HF_ENDPOINT="http://127.0.0.1:1") == (
        f"NetworkError: {REPO} cannot be fetched from http://127.0.0.1:1: "
        "[Errno 111] Connection refused"
    )
    assert "offline mode is enabled" in resolve(REPO, HF_HUB_OFFLINE="1")


def test_a_hub_that_fails_is_named_with_its_answer(hub, resolve):
    hub.fail = 503
    assert resolve(REPO) == f"NetworkError: {hub.endpoint} answers 503 for {REPO}"


def test_an_unknown_repository_is_an_error_of_the_caller(hub, resolve):
    assert resolve("nobody/nothing") == (
        f"CallerError: there is no repository nobody/nothing on {hub.endpoint}, "
        "or it is private and HF_TOKEN is not set"
    )


def test_a_gated_repository_says_where_to_ask(hub, resolve):
    hub.gated = True
    assert resolve(REPO) == (
        f"CallerError: the repository {REPO} is gated: "
        f"ask for access at {hub.endpoint}/{REPO} and set HF_TOKEN"
    )


def test_a_repository_without_models_says_so(hub, resolve):
    hub.files = {"README.md": b"", "model.safetensors": b"", "mmproj-F16.gguf": b"GGUF"}
    assert resolve(REPO) == f"CallerError: the repository {REPO} holds no GGUF model"


def test_a_name_that_the_hub_does_not_allow_is_an_error_of_the_caller(resolve):
    assert resolve("a/b--c").startswith("CallerError: 'a/b--c' is no name of a repository: ")


def test_a_file_that_is_no_gguf_file_is_refused_after_the_download(hub, resolve):
    hub.files = {"model.gguf": b"<html>"}
    assert re.fullmatch(r"CallerError: .*model\.gguf is not a GGUF file: .*", resolve(REPO))
