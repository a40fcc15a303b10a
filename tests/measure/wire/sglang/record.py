"""Records what an SGLang server says: `python tests/measure/wire/sglang/record.py URL [SET]`.

Each answer becomes NAME.hdr (status line and headers) and NAME.sse, .json or .txt (the body, its
chunks joined). Changed: folders before `site-packages/` are cut, with the length in the header; of
/metrics, only the buckets of time_to_first_token are kept.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx

HERE = Path(__file__).resolve().parent
TEXT = " cash single firm finally character"
WORDS = " cash single firm finally character function building then" * 12
LENGTH = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0}
USAGE = {"include_usage": True}
RUNNING = {"include_usage": True, "continuous_usage_stats": True}
SCHEMA = {
    "enum": ["one", "two"]
}  # no blanks allowed: a random model would fill an object with them
SCHEMA_LENGTH = {"max_new_tokens": 40, "temperature": 0}
TOO_LONG = [7] * 4200


class Ask(NamedTuple):
    name: str
    path: str
    body: dict[str, Any] | bytes | None = None


def _generate(name: str, *, stream: bool = True, **body: Any) -> Ask:
    return Ask(name, "/generate", {"sampling_params": LENGTH, "stream": stream} | body)


def _openai(name: str, *, stream: bool = True, **body: Any) -> Ask:
    common = {
        "model": "tiny",
        "max_tokens": 12,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    if "messages" in body:
        return Ask(name, "/v1/chat/completions", common | body)
    return Ask(name, "/v1/completions", common | {"prompt": TEXT} | body)


_CHAT = {"messages": [{"role": "user", "content": TEXT}]}
_FLUSH = Ask("flush_cache.txt", "/flush_cache", b"")

PLAIN = [
    Ask("health.txt", "/health"),
    Ask("models.json", "/v1/models"),
    Ask("get_model_info.json", "/get_model_info"),
    Ask("server_info.json", "/server_info"),
    Ask("loads.json", "/v1/loads"),
    Ask("tokenize.json", "/tokenize", {"model": "tiny", "prompt": TEXT}),
    _FLUSH,
    _generate("generate_text.sse", text=TEXT),
    _generate("generate_ids.sse", input_ids=[621, 2630, 1267, 1259, 670]),
    _generate("generate.json", text=TEXT, stream=False),
    _generate("generate_long.sse", text=WORDS),
    _generate("generate_repeated.sse", text=WORDS),
    _generate(
        "generate_interval_4.sse", text=TEXT, sampling_params=LENGTH | {"stream_interval": 4}
    ),
    _generate(
        "generate_logprob.sse",
        text=TEXT,
        return_logprob=True,
        sampling_params=LENGTH | {"max_new_tokens": 3},
    ),
    _generate(
        "generate_batch.sse", text=[TEXT, TEXT], sampling_params=LENGTH | {"max_new_tokens": 3}
    ),
    _generate(
        "generate_stop.sse",
        text=TEXT,
        sampling_params={"max_new_tokens": 3, "logit_bias": {"2": 100}},
    ),
    _generate(
        "generate_regex.sse",
        text=TEXT,
        sampling_params=SCHEMA_LENGTH | {"regex": "[0-9]{3}-[0-9]{2}"},
    ),
    _generate(
        "generate_schema.sse",
        text=TEXT,
        sampling_params=SCHEMA_LENGTH | {"json_schema": json.dumps(SCHEMA)},
    ),
    _generate(
        "generate_bad_schema.sse", text=TEXT, sampling_params=SCHEMA_LENGTH | {"json_schema": "{{"}
    ),
    _generate("generate_too_long.sse", input_ids=TOO_LONG),
    _generate("generate_too_long.json", input_ids=TOO_LONG, stream=False),
    _generate("generate_unknown_field.json", text=TEXT, colour=1, stream=False),
    _generate("generate_unknown_parameter.json", text=TEXT, sampling_params=LENGTH | {"colour": 1}),
    Ask("generate_bad_json.json", "/generate", b'{"text": "one'),
    _openai("completions.sse"),
    _openai("completions_usage.sse", stream_options=USAGE),
    _openai("completions_running.sse", stream_options=RUNNING),
    _openai("completions.json", stream=False),
    _openai("completions_ids.json", stream=False, prompt=[621, 2630, 1267, 1259, 670]),
    _openai(
        "completions_schema.sse",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        max_tokens=40,
        ignore_eos=False,
    ),
    _openai("completions_too_long.json", prompt=TOO_LONG),
    _openai("completions_wrong_model.json", model="other", stream=False),
    _openai("completions_unknown_field.json", colour=1, stream=False),
    _openai("chat.sse", **_CHAT),
    _openai("chat_usage.sse", **_CHAT, stream_options=USAGE),
    _openai("chat_running.sse", **_CHAT, stream_options=RUNNING),
    _openai("chat.json", **_CHAT, stream=False),
    _openai("chat_too_long.sse", messages=[{"role": "user", "content": " cash" * 4200}]),
    Ask("metrics.txt", "/metrics"),
]
CROWD = 5
LATE = [
    _generate("queue_full.sse", text=TEXT),
    _generate("queue_full.json", text=TEXT, stream=False),
    _openai("completions_queue_full.sse"),
    _openai("chat_queue_full.json", **_CHAT, stream=False),
]
INCREMENTAL = [_generate("incremental.sse", text=TEXT)]


def record(client: httpx.Client, ask: Ask) -> None:
    method = "GET" if ask.body is None else "POST"
    content = {"content": ask.body} if isinstance(ask.body, bytes) else {"json": ask.body}
    headers = {"content-type": "application/json"} if ask.body else {}
    save(
        ask.name,
        client.request(method, ask.path, headers=headers, **({} if ask.body is None else content)),
    )


def save(name: str, answer: httpx.Response) -> None:
    body = re.sub(rb'/[^"\s]*?/(?=site-packages/)', b"/", answer.content)
    body = re.sub(rb"(?m)^(?!sglang:time_to_first_token)\S*_bucket\{.*\n", b"", body)
    lines = [f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}"]
    for key, value in answer.headers.raw:
        said = str(len(body)) if key.lower() == b"content-length" else value.decode()
        lines.append(f"{key.decode()}: {said}")
    (HERE / name).write_bytes(body)
    (HERE / name).with_suffix(f"{Path(name).suffix}.hdr").write_bytes(
        "\r\n".join([*lines, "", ""]).encode()
    )
    print(answer.status_code, len(body), name)


def abort(client: httpx.Client) -> None:
    """A request that another one ends while it streams."""
    asked = _generate(
        "aborted.sse", text=TEXT, rid="a1", sampling_params=LENGTH | {"max_new_tokens": 2000}
    )
    thread = threading.Thread(target=record, args=(client, asked))
    thread.start()
    time.sleep(0.5)
    client.post("/abort_request", json={"rid": "a1"})
    thread.join()


def crowd(client: httpx.Client, params: dict[str, Any], late: list[Ask]) -> None:
    """More at once than there is room for, and `late` while they run. Saves the one taken back most
    often, if any."""
    body = {"text": WORDS, "sampling_params": params}
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.post("/generate", json=body)))
        for _ in range(CROWD)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.3 if late else 0)  # one by one into the queue, or all into one batch
    for ask in late:
        record(client, ask)
    for thread in threads:
        thread.join()
    most = max(answers, key=_retractions)
    if _retractions(most) > 0:
        save("retracted.json", most)


def _retractions(answer: httpx.Response) -> int:
    return answer.json()["meta_info"]["num_retractions"] if answer.status_code == 200 else -1


def main() -> None:
    url, what = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "plain"
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        if what == "full":
            crowd(client, LENGTH | {"max_new_tokens": 700}, LATE)
            return
        if what == "retracted":
            # A running request with ignore_eos has room for all its answer set aside, so that none
            # is taken back.
            crowd(client, {"max_new_tokens": 300, "min_new_tokens": 300, "temperature": 0}, [])
            return
        for ask in INCREMENTAL if what == "incremental" else PLAIN:
            record(client, ask)
        if what == "plain":
            abort(client)


if __name__ == "__main__":
    main()
