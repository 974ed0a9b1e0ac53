"""Pages of other origins, as a browser asks for them: over HTTP, with and without a key."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager

import pytest

import make_model
from make_model import ModelSpec
from ringline.api.origins import Origins
from ringline.errors import CallerError
from tests.api_server import api_server
from tests.peers.processes import patience

SECONDS = 60.0
PAGE, EVIL = "https://chat.example", "https://evil.example"
BODY = {"prompt": "Go", "max_tokens": 1}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )


@pytest.fixture(scope="module")
def closed(small):
    """A server without a key that allows no origin."""
    with api_server(small, "-c", 512) as found:
        yield found


@pytest.fixture(scope="module")
def allowing(small):
    """A server with a key that allows one origin and the pages of this machine."""
    with api_server(
        small, "-c", 512, "--api-key", "k", "--cors-origins", f"{PAGE}, localhost"
    ) as found:
        yield found


@contextmanager
def asked(server, path="/v1/completions", body=BODY, *, method="POST", **headers):
    """One request with just these headers; urllib would set Host itself."""
    found = http.client.HTTPConnection(
        server.url.removeprefix("http://"), timeout=patience(SECONDS)
    )
    try:
        data = None if body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        found.request(method, path, data, named)
        yield found.getresponse()
    finally:
        found.close()


def preflight(server, origin):
    headers = {"Access_Control_Request_Method": "POST", "Origin": origin}
    return asked(server, body=None, method="OPTIONS", **headers)


@pytest.mark.parametrize(
    "origin", [PAGE, "http://localhost:3000", "http://[::1]:5", "http://127.0.0.1"]
)
def test_an_allowed_page_may_ask_and_read(origin, allowing):
    with preflight(allowing, origin) as answer:
        assert answer.status == 200
        assert answer.getheader("Access-Control-Allow-Origin") == origin
        assert "POST" in answer.getheader("Access-Control-Allow-Methods")
        assert "Authorization" in answer.getheader("Access-Control-Allow-Headers")
    with asked(allowing, Origin=origin, Authorization="Bearer k") as answer:
        assert answer.status == 200
        assert answer.getheader("Access-Control-Allow-Origin") == origin
        assert "Origin" in answer.getheader("Vary")
    streamed = {**BODY, "stream": True}
    with asked(allowing, body=streamed, Origin=origin, Authorization="Bearer k") as answer:
        assert answer.getheader("Access-Control-Allow-Origin") == origin
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_an_allowed_page_can_read_what_is_wrong(allowing):
    with asked(allowing, Origin=PAGE) as answer:
        assert answer.status == 401
        assert answer.getheader("Access-Control-Allow-Origin") == PAGE


@pytest.mark.parametrize(
    "origin", [EVIL, "http://localhost.evil.example", "http://notlocalhost", "null", "http://[x"]
)
def test_another_page_is_told_nothing(origin, allowing, closed):
    for server in (allowing, closed):
        with preflight(server, origin) as answer:
            assert answer.status == 200
            assert answer.getheader("Access-Control-Allow-Origin") is None
        with asked(
            server, "/v1/models", None, method="GET", Origin=origin, X_Api_Key="k"
        ) as answer:
            assert answer.status == 200
            assert answer.getheader("Access-Control-Allow-Origin") is None


def test_what_another_page_posts_is_not_computed(closed):
    with asked(closed, Origin=EVIL, Content_Type="text/plain") as answer:
        assert answer.status == 403
        error = json.loads(answer.read())["error"]
    assert (error["type"], error["code"]) == ("permission_error", "forbidden_origin")
    assert error["message"].endswith(f"start it with --cors-origins {EVIL}")


@pytest.mark.parametrize("named", [{}, {"Sec_Fetch_Site": "same-origin", "Origin": PAGE}])
def test_the_servers_own_page_may_post(named, closed):
    with asked(closed, **{"Origin": closed.url, **named}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("192.168.1.10", 200),
        ("localhost", 200),
        ("LocalHost.:8080", 200),
        ("ring.localhost", 200),
        ("ring", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(host, status, closed):
    with asked(closed, Host=host, Origin=f"http://{host}") as answer:
        assert answer.status == status, answer.read()
    with asked(closed, "/v1/models", None, method="GET", Host=host) as answer:
        assert answer.status == status


def test_with_a_key_any_name_will_do(allowing):
    with asked(allowing, Host="ring.example", Authorization="Bearer k") as answer:
        assert answer.status == 200


def test_the_name_of_an_allowed_origin_is_trusted():
    origins = Origins.parse(f"{PAGE}/,http://10.0.0.5:3000")
    assert origins.trust("chat.example")
    assert not origins.trust("evil.example")
    assert origins.allow("http://10.0.0.5:3000")
    assert not origins.allow("http://10.0.0.5")
    assert Origins.parse("*").allow(EVIL)
    assert Origins.parse("*").trust("evil.example")
    assert Origins.parse("") == Origins()


@pytest.mark.parametrize("text", ["chat.example", "https://chat.example/path", "https://", "null"])
def test_what_is_no_origin_is_refused(text):
    with pytest.raises(CallerError, match="an origin is like"):
        Origins.parse(text)


def test_all_pages_without_a_key_are_warned_of(small):
    with api_server(small, "-c", 512, "--cors-origins", "*") as server:
        assert "--cors-origins is * and no --api-key is given" in server.log()
        with asked(server, Origin=EVIL) as answer:
            assert answer.status == 200
            assert answer.getheader("Access-Control-Allow-Origin") == EVIL
