"""No request without the token, of another site or under another name gets anything."""

from __future__ import annotations

import base64
import http.client

import pytest

pytest.importorskip("starlette")

from starlette.datastructures import Headers

from memfit.serve.guard import Door

QUESTION = {"kind": "model", "subject": "gpt2", "gpu": "T4"}
PATHS = ("/", "/api/controls", "/api/ledgers", "/report?file=run.memfit", "/api/running?file=run.memfit", "/nothing")


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_nothing(served, path: str):
    for token in ("", "another", "a token for test"):
        status, said = served.get(path, X_Memfit_Token=token)
        assert status == 403
        assert "run.memfit" not in said


def test_another_site_gets_nothing_even_with_the_token(served):
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert served.ask("POST", "/api/instant", QUESTION, **{"X-Memfit-Token": "a token for tests", **headers})[0] == 403
    assert served.get("/serve.js", X_Memfit_Token="", Origin="http://evil.example")[0] == 403
    assert served.post("/api/instant", QUESTION, Origin=f"http://127.0.0.1:{served.port}")[0] == 200


def test_a_name_that_only_points_here_gets_nothing(served):
    for host in ("evil.example", f"evil.example:{served.port}", "127.0.0.1.evil.example", "127.0.0.1:1", ""):
        assert served.get("/api/controls", Host=host or " ")[0] in (400, 421)
    for host in (f"localhost:{served.port}", f"127.0.0.1:{served.port}"):
        assert served.get("/api/controls", Host=host)[0] == 200


def test_answers_cannot_be_framed_read_or_kept_by_others(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", "/", headers={"X-Memfit-Token": "a token for tests"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    headers = answer.headers
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


def test_another_interface_needs_the_password_too():
    door = Door(token="t", host="0.0.0.0", port=80, password="a long password")
    given = {"host": "10.0.0.7:80", "x-memfit-token": "t"}
    right = base64.b64encode(b"me:a long password").decode()
    assert door.why_not(Headers(given), "")[0] == 401
    assert door.why_not(Headers(given | {"authorization": "Basic bad"}), "")[0] == 401
    assert door.why_not(Headers(given | {"authorization": f"Basic {right}"}), "") == (0, "")
    assert door.why_not(Headers(given | {"authorization": f"Basic {right}", "x-memfit-token": ""}), "")[0] == 403
    assert Door(token="t", port=80).why_not(Headers(given), "")[0] == 421, "without a password only this machine's own names count"


def test_the_command_refuses_another_interface_without_a_password(monkeypatch: pytest.MonkeyPatch, capsys):
    from memfit.cli import main

    monkeypatch.delenv("MEMFIT_PASSWORD", raising=False)
    assert main(["serve", "--host", "0.0.0.0", "--no-open"]) == 2
    assert "MEMFIT_PASSWORD" in capsys.readouterr().err
