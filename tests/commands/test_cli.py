"""The command line: what it refuses, in one line each, and what it keeps to itself."""

import errno
import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer

from conftest import (
    LAST_CHUNK,
    MODEL,
    QUICK,
    SSE,
    Ask,
    Loadstone,
    Reply,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    whole,
)
from loadstone import __version__
from loadstone.commands import app
from loadstone.measure.simulated_server import TimingServer, start
from loadstone.measure.simulated_server.settings import FixedLatency
from loadstone.workload.flag_names import other_flags
from test_summary import CLOSED, make_run


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--input", "0"), "--input"),
        (("--input", "-5"), "--input"),
        (("--output", "1.5"), "--output"),
        (("--output", "many"), "--output"),
        (("--range-ratio", "0"), "--range-ratio"),
        (("--range-ratio", "nan"), "--range-ratio"),
        (("--rate", "0"), "--rate 0"),
        (("--rate", "-1"), "--rate -1"),
        (("--rate", "nan"), "--rate"),
        (("--rate", "1,x"), "--rate: 'x'"),
        (("--rate", "1,inf", "--requests", "4,8"), "--requests: a list goes with --rate inf alone"),
        (("--rate", "1,inf", "--turns", "2"), "--rate: with --turns inf stands alone"),
        (("--rate", "1e300"), "requests in one run"),
        (("--rate", "1", "--concurrency", "1"), "--rate and --concurrency"),
        (("--rate", "inf", "--duration", "5s"), "--rate inf"),
        (("--rate", "1", "--requests-per-rate", "inf"), "--requests-per-rate"),
        (("--concurrency", "0"), "--concurrency"),
        (("--concurrency", "1.5"), "--concurrency"),
        (("--concurrency", "inf"), "--concurrency"),
        (("--concurrency", "1", "--max-concurrency", "1"), "--max-concurrency"),
        (("--rate", "1", "--max-concurrency", "0"), "--max-concurrency 0"),
        (("--requests", "1,2"), "--requests"),
        (("--requests", "1e15"), "--requests"),
        (("--requests", "100000000"), "requests in one run"),
        (("--requests", "5", "--duration", "5s"), "--requests and --duration"),
        (("--duration", "0"), "--duration"),
        (("--duration", "soon"), "--duration"),
        (("--burstiness", "0", "--rate", "1"), "--burstiness"),
        (("--burstiness", "0.5", "--concurrency", "1"), "--burstiness"),
        (("--warmup", "-1"), "--warmup"),
        (("--warmup", "many"), "--warmup"),
        (("--seed", "-1"), "--seed"),
        (("--seed", "99999999999999999999999"), "--seed"),
        (("--salt", "a\r\nb"), "--salt"),
        (("--workers", "0"), "--workers"),
        (("--workers", "100000"), "--workers 100000"),
        (("--temperature", "nan"), "--temperature nan"),
        (("--temperature", "-1"), "--temperature -1"),
        (("--top-p", "7"), "--top-p 7"),
        (("--proxy", "nowhere"), "--proxy"),
        (("--proxy", ""), "--proxy"),
        (("--proxy", "socks5://127.0.0.1:1"), "--proxy"),
        (("--proxy", "https://127.0.0.1:1"), "--proxy"),
        (("--proxy", "http://u:geheim@127.0.0.1:1"), "--proxy: this proxy cannot be used"),
        (("--endpoint", "speech"), "speech"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--slo", "speed<1s"), "--slo"),
        (("--slo", "ttft<fast"), "--slo"),
        (("--slo", ""), "--slo"),
        (("--slo", "ttft<0"), "--slo: 'ttft<0' can never be met"),
        (("--slo", "tpot<30ms,ttft<500"), "--slo: 'ttft<500': 500 seconds? write 500ms or 500s"),
        (("--slo", "e2e_p99<=10."), "10. seconds? write 10.ms or 10.s"),
        (
            ("--requests", "10", "--requests-per-rate", "3", "--rate", "5"),
            "--requests and --requests-per-rate",
        ),
        (
            ("--duration", "2s", "--requests-per-rate", "3", "--rate", "5"),
            "--duration and --requests-per-rate",
        ),
        (("--prefix", "1.5"), "--prefix: '1.5' is not a number of tokens"),
        (("--prefix", "-1"), "--prefix: '-1' is not a number of tokens"),
        (("--input", "128k", "--output", "1"), "context of 131072 tokens"),
        (("--prefix", "1k", "--input", "1k"), "--prefix 1024: inputs may be as short as 1024"),
        (("--engine", "vllm"), "'--engine': 'vllm' is not one of 'llama.cpp'; see --help"),
        (("--header", "no colon"), "--header"),
        (("--header", "Näme: x"), "--header"),
        (("--header", "X: ü"), "--header"),
        (("--extra-body", "{"), "--extra-body"),
        (("--extra-body", "[1]"), "--extra-body"),
        (("--timeout-first", "never"), "--timeout-first"),
        (("--timeout-idle", "0"), "--timeout-idle"),
        (("--prefix", "8", "--input", "8"), "--prefix 8"),
        (("--prefix-groups", "0"), "--prefix-groups"),
        (("--prefix-groups", "2"), "--prefix-groups"),
        (("--plan", "no-such-folder"), "no-such-folder"),
        (("--plan", "x", "--rate", "1"), "--plan and --rate"),
        (("--dataset", "no-such-file"), "no-such-file"),
        (("--model", "gpt-x"), "--model gpt-x: the server offers timing"),
        (("--tokenizer", "no-such-file"), "--tokenizer"),
        (("--engine", "llama.cpp"), "--engine"),
        (("--input", "131072", "--output", "1"), "context of 131072 tokens"),
        (("--out", "/proc/runs"), "/proc/runs"),
    ],
)
def test_bad_input_is_one_line(
    loadstone: Loadstone, timing: TimingServer, flags: tuple[str, ...], said: str
) -> None:
    assert said in loadstone("bench", timing.url, *flags).line()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # of two engines none is left out silently
        (
            ("ttft=1ms,itl=1ms", "ttft=2ms,itl=1ms", "--sim"),
            "--sim: a run simulates one deployment",
        ),
        (("ttft=1ms,itl=1ms", "--sim", "--engine", "llama.cpp"), "--engine and --sim"),
        (("--sim", "--engine", "llama.cpp"), "--engine and --sim"),
        # fixed times that are none
        (("ttft", "--sim"), "--sim"),
        (("ttft=x", "--sim"), "--sim"),
        (("speed=1s", "--sim"), "--sim"),
        (("ttft=1s,ttft=2s", "--sim"), "--sim"),
        (("llama-9b@1xh100", "--sim"), "no model 'llama-9b'"),
        (("llama-3.1-8b@1xh1000", "--sim"), "h1000"),
        # no request can be made of these
        (("http://xn--a:1",), "no host and port"),
        (
            ("http://127.0.0.1:1", "-H", "Content-Length: 5"),
            "Content-Length follows from the request",
        ),
        (("http://127.0.0.1:1", "-H", "transfer-encoding: chunked"), "follows from the request"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(
    loadstone: Loadstone, words: tuple[str, ...], said: str
) -> None:
    assert said in loadstone("bench", *words).line()


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8000", "ftp://x", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1",
        "http://127.0.0.1:0", "http://a b", "http://no.such.host.invalid", "http://u:geheim@127.0.0.1", "http://x\x1b[31m",
        "http://127.0.0.1/?key=geheim", "http://\u00e9\u0000", "http://..", "http://127.0.0.1:1/v1/chat/completions",
    ],
)  # fmt: skip
def test_a_bad_url_is_one_line(loadstone: Loadstone, url: str) -> None:
    line = loadstone("bench", url).line()
    assert "geheim" not in line
    assert "\x1b" not in line


@pytest.mark.process
def test_an_unreadable_line_of_a_dataset_is_named(
    loadstone: Loadstone, timing: TimingServer, tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": \n')
    assert (
        f"{file}, line 3"
        in loadstone("bench", timing.url, "--dataset", file, "--output", "4").line()
    )
    file.write_text('{"prompt": "a"}\n')
    assert "--output" in loadstone("bench", timing.url, "--dataset", file).line()
    assert (
        "--prefix"
        in loadstone(
            "bench", timing.url, "--dataset", file, "--output", "4", "--prefix", "2"
        ).line()
    )


@pytest.mark.process
def test_a_chat_prompt_shorter_than_its_template(
    loadstone: Loadstone, timing: TimingServer
) -> None:
    line = loadstone("bench", timing.url, "--endpoint", "chat", "--input", "7").line()
    assert "the server adds 7 tokens to every prompt; ask for at least 8" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "--num-prompts", "5"), "--num-prompts: here it is --requests; see --help"),
        (("simulate", "llama-3.1-8b@1xh100", "--isl=5"), "--isl: here it is --input; see --help"),
        (
            ("bench", "--goodput", "ttft:500"),
            "--goodput: here it is --slo, with units: ttft<500ms,tpot<30ms",
        ),
        (
            ("bench", "--api-key", "geheim"),
            "--api-key: here it is LOADSTONE_API_KEY or OPENAI_API_KEY",
        ),
        (
            ("bench", "--percentile-metrics", "ttft"),
            "--percentile-metrics: here it is not needed: p50",
        ),
        (("bench", "--request", "5"), "No such option: --request ("),
        (("show", "--num-prompts"), "No such option: --num-prompts; see --help"),
    ],
)
def test_another_tools_flag_is_told_by_its_name_here(
    loadstone: Loadstone, words: tuple[str, ...], said: str
) -> None:
    line = loadstone(*words).line()
    assert line.startswith(said)
    assert "geheim" not in line


def test_another_tools_flags_are_none_of_ours_and_what_they_are_called_here_is() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in ("bench", "simulate"):
        ours = {flag for parameter in commands[name].params for flag in parameter.opts}
        assert ours.isdisjoint(other_flags())
    ours |= {
        flag
        for parameter in commands["bench"].params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    told = {flag for here in other_flags().values() for flag in re.findall(r"--[a-z][a-z-]+", here)}
    assert told <= ours


@pytest.mark.process
def test_a_deployment_that_is_none_is_one_line(
    capfd: pytest.CaptureFixture[str], loadstone: Loadstone
) -> None:
    assert (
        "not a fixed latency; write llama-3.1-8b@1xh100, or"
        in loadstone("bench", "--sim", "llama-3.1-8b").line()
    )
    assert (
        loadstone("bench", "--sim", "http://localhost:8000").line().startswith("--sim and a URL:")
    )
    assert capfd.readouterr().err == ""  # nor from a server that was begun


@pytest.mark.process
def test_a_folder_that_is_no_run(loadstone: Loadstone, tmp_path: Path) -> None:
    assert "not a run folder" in loadstone("recover", tmp_path).line()
    assert "not a run folder" in loadstone("recover", tmp_path / "nowhere").line()
    (tmp_path / "run.json").write_text("{}")
    assert "run.json" in loadstone("recover", tmp_path).line()
    (tmp_path / "file").touch()
    assert (
        "cannot write here"
        in loadstone("bench", "--sim", *QUICK, "--out", tmp_path / "file" / "runs").line()
    )


def test_every_command_has_a_json_of_its_own() -> None:
    commands = typer.main.get_command(app).commands
    assert commands
    alone = {name: command for name, command in commands.items() if name != "study"}
    for name, command in {**alone, **commands["study"].commands}.items():
        if name == "schema":
            continue  # it prints nothing else
        assert any("--json" in parameter.opts for parameter in command.params), name


SECRETS = {"key": "sk-geheim-1", "header": "geheim-2", "extra": "geheim-3"}


@pytest.mark.process
@pytest.mark.parametrize("variable", ["LOADSTONE_API_KEY", "OPENAI_API_KEY"])
@pytest.mark.parametrize("attached", [False, True])
def test_secrets_reach_the_server_and_nothing_else(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch, variable: str, attached: bool
) -> None:
    monkeypatch.setenv(variable, SECRETS["key"])
    header = (
        [f"-HX-Pass: {SECRETS['header']}"]
        if attached
        else ["--header", f"X-Pass: {SECRETS['header']}"]
    )
    extra = f'{{"user": "{SECRETS["extra"]}"}}'
    body = [f"--extra-body={extra}"] if attached else ["--extra-body", extra]
    with ScriptedServer() as server:
        run = (*QUICK, "--concurrency", "1", "--requests", "3", "--json", *header, *body)
        outcome = loadstone("bench", server.url, *run)
    assert outcome.cell["requests"]["ok"] == 3
    for ask in server.asks:
        assert ask.headers["authorization"] == f"Bearer {SECRETS['key']}"
        assert ask.headers["x-pass"] == SECRETS["header"]
        assert (
            not ask.path.startswith("/v1/") or not ask.body or ask.json["user"] == SECRETS["extra"]
        )
    kept = b"".join(path.read_bytes() for path in outcome.folder.rglob("*") if path.is_file())
    for secret in SECRETS.values():
        assert secret not in outcome.out + outcome.err
        assert secret.encode() not in kept


@pytest.mark.process
def test_a_key_that_the_server_repeats_is_not_written_down(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRETS["key"])

    def refuse(ask: Ask, send: Send) -> None:
        send(
            whole(
                "401 Unauthorized", f'{{"error": "no such key: {SECRETS["key"]}, sorry"}}'.encode()
            )
        )

    with ScriptedServer(refuse) as server:
        outcome = loadstone(
            "bench", server.url, *QUICK, "--concurrency", "1", "--requests", "3", "--json"
        )
    assert {record["error"] for record in outcome.records} == {"HTTP 401: no such key: …, sorry"}
    kept = b"".join(path.read_bytes() for path in outcome.folder.rglob("*") if path.is_file())
    assert SECRETS["key"].encode() not in kept + outcome.out.encode() + outcome.err.encode()


LONG_KEY = "sk-geheim-0123456789"


def repeated(place: str) -> Reply:
    """A server that repeats the key it was given, at this place."""

    def reply(ask: Ask, send: Send) -> None:
        key = ask.headers["authorization"].removeprefix("Bearer ")
        said = f'{{"error": {{"message": "no such key: {key}"}}}}'.encode()
        if place == "refusal of the list" and ask.path == "/v1/models":
            send(whole("401 Unauthorized", said))
        elif place == "redirect" and ask.path == "/v1/models":
            send(
                f"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1/?k={key}\r\nContent-Length: 0\r\n\r\n".encode()
            )
        elif place == "first refusal" and ask.path == "/v1/completions":
            send(whole("403 Forbidden", said))
        elif (
            place == "refused field" and ask.path == "/v1/completions" and "temperature" in ask.json
        ):
            send(whole("400 Bad Request", said))
        elif place == "papers" and ask.path == "/v1/models":
            send(whole("200 OK", f'{{"data": [{{"id": "{MODEL}", "owner": "{key}"}}]}}'.encode()))
        elif place == "papers" and ask.path == "/version":
            send(whole("200 OK", f'{{"version": "1.0 {key}"}}'.encode()))
        elif place == "papers" and ask.path == "/metrics":
            send(
                whole(
                    "200 OK",
                    f'# TYPE a_total counter\na_total{{key="{key}"}} 1\n'.encode(),
                    "text/plain",
                )
            )
        elif place == "answers" and ask.measured and ask.number % 2:
            send(
                whole("401 Unauthorized", b"x" * 185 + b" " + key.encode())
            )  # cut short where it is told
        elif place == "answers" and ask.measured:
            fields = {"model": key, "choices": [{"index": 0, "text": "x", "finish_reason": key}]}
            send(SSE + chunk(event(fields)) + chunk(event("[DONE]")) + LAST_CHUNK)
        else:
            answer(ask, send)

    return reply


@pytest.mark.process
@pytest.mark.parametrize(
    "place",
    ["refusal of the list", "redirect", "first refusal", "refused field", "papers", "answers"],
)
def test_a_key_is_written_down_nowhere_wherever_the_server_repeats_it(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", LONG_KEY)
    with ScriptedServer(repeated(place), meets=True) as server:
        outcome = loadstone(
            "bench", server.url, *QUICK, "--temperature", "0.5", "--concurrency", "1", "--requests", "4", "--json",
            "--out", tmp_path / "keys",
        )  # fmt: skip
    told = outcome.out + outcome.err
    for path in (tmp_path / "keys").rglob("*"):
        if path.suffix == ".parquet":
            told += str(pq.read_table(path).to_pylist())
        elif path.is_file():
            told += path.read_text()
    assert LONG_KEY[:8] not in told
    assert "…" in told
    assert (outcome.code == 0) == (place in ("papers", "answers"))


@pytest.mark.process
def test_a_model_that_is_named_after_the_key_takes_it_into_no_file(
    loadstone: Loadstone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADSTONE_API_KEY", LONG_KEY)

    def named(ask: Ask, send: Send) -> None:
        if ask.body:
            answer(ask, send)
        else:
            send(whole("200 OK", json.dumps({"data": [{"id": f"model-{LONG_KEY}"}]}).encode()))

    with ScriptedServer(named, meets=True) as server:
        outcome = loadstone(
            "bench",
            server.url,
            *QUICK,
            "--concurrency",
            "1",
            "--requests",
            "2",
            "--out",
            tmp_path / "runs",
            "--json",
        )
    assert {ask.json["model"] for ask in server.measured} == {f"model-{LONG_KEY}"}
    assert outcome.document["target"]["model"] == "model-…"
    for path in (tmp_path / "runs").rglob("*"):
        assert LONG_KEY not in str(path)
        assert path.is_dir() or LONG_KEY.encode() not in path.read_bytes()


@pytest.mark.process
def test_parts_of_keys_go_into_no_file_and_what_stays_is_told(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    def named(ask: Ask, send: Send) -> None:
        if ask.body:
            answer(ask, send)
        else:
            models = [{"id": "model-geheim-12"}, {"id": "other-geheim-34"}, {"id": "geheim-56"}]
            send(whole("200 OK", json.dumps({"data": models}).encode()))

    extra = {"upstream": {"auth": {"value": "geheim-34"}}}
    with ScriptedServer(named, meets=True) as server:
        outcome = loadstone(
            "bench", server.url, *QUICK, "--concurrency", "1", "--requests", "2", "--out", tmp_path / "runs",
            "--model", "model-geheim-12", "-H", "Cookie: sid=geheim-12; lang=de", "-H", "X-Auth: user;geheim-56;x",
            "--extra-body", json.dumps(extra), "--label", "with-geheim-12", "--json",
        )  # fmt: skip
    assert outcome.code == 0, outcome
    assert "--label holds a part of a key" in outcome.err
    for path in (tmp_path / "runs").rglob("*"):
        text = b"" if path.is_dir() else path.read_bytes()
        assert b"geheim-34" not in text
        assert b"geheim-56" not in text
        assert b"model-geheim-12" not in text


@pytest.mark.process
def test_a_header_that_names_the_model_is_no_key(loadstone: Loadstone) -> None:
    with ScriptedServer() as server:
        outcome = loadstone(
            "bench",
            server.url,
            *QUICK,
            "-H",
            f"X-Model: {MODEL}",
            "--concurrency",
            "1",
            "--requests",
            "2",
            "--json",
        )
    assert {ask.json["model"] for ask in server.measured} == {MODEL}
    assert outcome.document["target"]["models"]["data"][0]["id"] == MODEL


@pytest.mark.parametrize(
    "url",
    [
        "http://user:geheim @127.0.0.1:1",
        "http://üser:geheim@127.0.0.1:1",
        "http://user:geheim@127.0.0.1:abc",
        "http://user:gehe/imgeheim@127.0.0.1:1",
        "http://user:gehe?imgeheim@127.0.0.1:1",
        "ftp://user:geheim@127.0.0.1",
        "user:geheim@127.0.0.1:1",
        "http://127.0.0.1:abc/?api_key=geheim",
        "http://127.0.0.1:1/?api_key=geheim&next=http://a@b",
    ],
)
def test_what_is_secret_in_a_url_is_not_repeated(loadstone: Loadstone, url: str) -> None:
    for urls in ((url,), (url, url)):
        line = loadstone("bench", *urls).line()
        assert "geh" not in line


@pytest.mark.process
def test_a_word_that_is_no_text_is_told_in_one_line(loadstone: Loadstone) -> None:
    assert "not UTF-8" in loadstone("bench", "--sim", "--out", os.fsdecode(b"caf\xe9")).line()


@pytest.mark.process
def test_a_header_of_ones_own_goes_before_the_key(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    with ScriptedServer() as server:
        loadstone(
            "bench",
            server.url,
            *QUICK,
            "--concurrency",
            "1",
            "--requests",
            "1",
            "-H",
            "authorization: mine",
        )
    assert {ask.headers["authorization"] for ask in server.asks} == {"mine"}


def test_a_key_that_is_no_key(loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "geheim\n")
    line = loadstone("bench", "http://127.0.0.1:1").line()
    assert "OPENAI_API_KEY" in line
    assert "geheim" not in line


@pytest.mark.process
def test_a_context_too_short(loadstone: Loadstone) -> None:
    with start(FixedLatency(), max_model_len=100) as server:
        line = loadstone("bench", server.url, "--input", "90", "--output", "11").line()
        assert (
            "--input 90 and --output 11: together they are beyond the server's context of 100 tokens"
            in line
        )


@pytest.mark.process
def test_models_of_hostile_names(loadstone: Loadstone) -> None:
    name = b"[bold]x[/bold]\\x1b]0;owned\\x07\\n".decode("unicode_escape")

    def named(ask: Ask, send: Send) -> None:
        import json

        if ask.path == "/v1/models":
            send(whole("200 OK", json.dumps({"data": [{"id": name}]}).encode()))
        else:
            answer(ask, send)

    with ScriptedServer(named, meets=True) as server:
        outcome = loadstone("bench", server.url, *QUICK, "--concurrency", "1", "--requests", "2")
    assert outcome.code == 0
    assert server.measured[0].json["model"] == name
    for text in (outcome.out, outcome.err):
        assert "[bold]x[/bold]\ufffd]0;owned\ufffd" in text
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.process
def test_another_tool_s_numbers_beside_ours(loadstone: Loadstone, timing: TimingServer) -> None:
    outcome = loadstone(
        "bench",
        timing.url,
        *QUICK,
        "--concurrency",
        "1",
        "--requests",
        "4",
        "--dialect",
        "vllm",
        "--json",
    )
    beside = outcome.cell["dialect"]
    assert beside["tool"].startswith("vllm bench serve")
    assert beside["metrics"]["completed"] == 4
    assert beside["metrics"]["mean_ttft_ms"] == pytest.approx(
        1000 * outcome.cell["metrics"]["ttft_s"]["mean"]
    )
    assert beside["metrics"].keys() == beside["definitions"].keys()
    again = loadstone("show", outcome.folder, "--json")
    assert again.cell["dialect"] == beside
    shown = loadstone("show", outcome.folder, "--dialect", "llmperf")
    assert "token_benchmark_ray.py" in shown.out
    assert (
        "--dialect no-tool: unknown"
        in loadstone("show", outcome.folder, "--dialect", "no-tool").line()
    )
    assert (
        "--dialect no-tool: unknown"
        in loadstone("bench", timing.url, "--dialect", "no-tool").line()
    )


@pytest.mark.process
def test_the_package_itself_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadstone", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "simulate" in done.stdout


def test_what_stands_before_a_command(loadstone: Loadstone) -> None:
    assert loadstone("--version").out == f"loadstone {__version__}\n"
    assert loadstone("-h").out == loadstone("--help").out
    assert loadstone("size", "-h").out == loadstone("size", "--help").out
    assert loadstone("no-verb").line() == "No such command 'no-verb'; see --help"


def test_simulate_says_what_flags_of_bench_do_there(loadstone: Loadstone) -> None:
    said = " ".join(loadstone("simulate", "--help").out.split())
    for flag, meaning in {
        "--model": "the deployment decides what is simulated",
        "--temperature": "changes no simulated time",
    }.items():
        assert meaning in said.partition(f"{flag} ")[2].partition(" --")[0]
    assert "sampling temperature" in loadstone("bench", "--help").out


def test_help_lists_options_under_headings(loadstone: Loadstone) -> None:
    said = loadstone("bench", "--help").out
    headings = [
        line[:-1] for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings == ["Examples", "Arguments", "Target", "Workload", "Load", "Run", "Options"]
    assert "--rate " in said.partition("\nLoad:\n")[2].partition("\nRun:\n")[0]
    assert "--trace-window" in said.partition("\nWorkload:\n")[2].partition("\nLoad:\n")[0]
    plain = loadstone("show", "--help").out
    assert plain.count("\nOptions:\n") == 1
    assert "--help" in plain.partition("\nOptions:\n")[2]


@pytest.mark.process
def test_a_user_without_a_home(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch, timing: TimingServer
) -> None:
    """A container's: a number that no file knows, and HOME unset."""

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert loadstone("catalogue", "gpus", "--json").code == 0
    monkeypatch.delenv("HOME")
    assert loadstone("bench", timing.url, *QUICK, "--requests", "2", "--json").code == 0
    monkeypatch.delenv("HOME")
    said = loadstone("size", "~/model/config.json", "--gpu", "h200").line()
    assert said.startswith("/model/config.json: cannot be read (No such file")


def test_a_home_of_nobody(loadstone: Loadstone) -> None:
    said = loadstone("size", "~nobody-here/config.json", "--gpu", "h200").line()
    assert said.startswith("~nobody-here/config.json: cannot be read (No such file")


def test_no_place_for_temporary_files(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where all but one volume is read-only: a report needs none, and what does says what to
    do."""
    make_run(tmp_path / "runs" / "r", [CLOSED], {})
    with monkeypatch.context() as read_only:
        read_only.setattr(tempfile, "tempdir", None)
        read_only.setattr(tempfile, "_candidate_tempdir_list", list)
        assert loadstone("report", tmp_path / "runs", "-o", tmp_path / "r.md").code == 0
        said = loadstone(
            "query", "select count(*) from records", "--runs", tmp_path / "runs"
        ).line()
    assert (
        said
        == "No usable temporary directory found in []; set TMPDIR to a folder that can be written"
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
)
def test_no_room_on_this_machine_is_one_line(
    error: Exception, loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "Popen", no_room)
    assert (
        loadstone("bench", "--sim", "ttft=1ms,itl=1ms", *QUICK)
        .line()
        .startswith("no room for more memory, proc")
    )


@pytest.mark.process
def test_a_server_of_ours_that_does_not_start_is_no_verdict(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 would be: measured, and not trusted."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    said = loadstone("bench", "--sim", "ttft=1ms,itl=1ms", *QUICK).line()
    assert said.startswith("the timing server did not start")
