"""Spans of a run: read back by OpenTelemetry's own protobuf, by a collector, and as sessions."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conftest import Loadstone, ScriptedServer
from loadstone.core.trace_ids import traceparent
from loadstone.measure.simulated_server import TimingServer
from loadstone.workload.agents import read

HEADER = r"00-[0-9a-f]{32}-[0-9a-f]{16}-01"


def spans_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """All spans, with plain attributes."""
    spans = []
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                facts = {
                    fact["key"]: next(iter(fact["value"].values())) for fact in span["attributes"]
                }
                spans.append(span | {"attributes": facts})
    return spans


def export(loadstone: Loadstone, folder: Path, *more: object) -> dict[str, Any]:
    path = folder.parent / "spans.json"
    assert loadstone("export", folder, "--format", "otlp", "-o", path).code == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.fixture
def session_run(loadstone: Loadstone, timing: TimingServer) -> Path:
    flags = (
        "--turns 3 --think-time 20ms --concurrency 2 --requests 6 --warmup 0 --input 100 --output 4"
        " --json"
    )
    return loadstone("bench", timing.url, *flags.split()).folder


def test_ids_are_a_run_s_own_and_distinct() -> None:
    headers = [traceparent("run", f"0-{index}", None) for index in range(10_000)]
    assert len(set(headers)) == 10_000
    traces, spans = ({header.split("-")[place] for header in headers} for place in (1, 2))
    assert len(traces) == len(spans) == 10_000
    assert traceparent("run", "0-0", None) == headers[0] != traceparent("other", "0-0", None)
    first, second = (traceparent("run", f"0-{index}", "0-0").split("-") for index in (0, 1))
    assert first[1] == second[1]
    assert first[2] != second[2]


def test_the_header_leads_to_the_request_s_span(loadstone: Loadstone) -> None:
    flags = [
        "--input",
        "8",
        "--output",
        "4",
        "--concurrency",
        "2",
        "--requests",
        "6",
        "--warmup",
        "1",
        "--json",
    ]
    with ScriptedServer() as server:
        outcome = loadstone("bench", server.url, "--traceparent", *flags)
        plain = loadstone("bench", server.url, *flags)
    sent = [ask.headers.get("traceparent") for ask in server.measured]
    assert sent[7:] == [None] * 7
    assert plain.code == 0
    spans = spans_of(export(loadstone, outcome.folder))
    named = {f"00-{span['traceId']}-{span['spanId']}-01" for span in spans if span["kind"] == 3}
    assert set(sent[:7]) == named


def test_a_session_is_a_trace_with_its_pauses(loadstone: Loadstone, session_run: Path) -> None:
    spans = spans_of(export(loadstone, session_run))
    traces: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        traces.setdefault(span["traceId"], []).append(span)
    assert len(traces) == 2
    for members in traces.values():
        names = [span["name"] for span in members]
        assert (names.count("invoke_agent"), names.count("execute_tool")) == (1, 2)
        by_id = {span["spanId"]: span for span in members}
        assert len(by_id) == len(members)
        (root,) = [span for span in members if "parentSpanId" not in span]
        assert root["name"] == "invoke_agent"
        for span in members:
            over = by_id[span.get("parentSpanId", root["spanId"])]
            assert int(over["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
            assert int(span["endTimeUnixNano"]) <= int(over["endTimeUnixNano"])
    (facts, *_) = [span["attributes"] for span in spans if span["kind"] == 3]
    assert facts["gen_ai.usage.output_tokens"] == "4"
    assert facts["gen_ai.operation.name"] == "chat"
    assert facts["gen_ai.response.time_to_first_chunk"] == facts["loadstone.ttft_s"] > 0
    assert facts["loadstone.run"] == session_run.name


def test_what_was_written_is_read_as_sessions(loadstone: Loadstone, session_run: Path) -> None:
    export(loadstone, session_run)
    replayed = read(session_run.parent / "spans.json")
    assert (replayed.format, len(replayed.sessions), replayed.calls) == ("otel", 2, 6)
    for calls in replayed.sessions:
        assert [call.parents for call in calls] == [(), (0,), (1,)]
        assert all(0.019 < call.delay_s < 0.5 for call in calls[1:])
        assert [call.output_tokens for call in calls] == [4, 4, 4]
        assert calls[1].kept == (calls[0].input_tokens + 4) // 16 == 6


def test_opentelemetry_reads_it(loadstone: Loadstone, session_run: Path) -> None:
    pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    document = export(loadstone, session_run)
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    message = ParseDict(document, ExportTraceServiceRequest())
    (scope,) = message.resource_spans[0].scope_spans
    assert len(scope.spans) == len(spans_of(document)) > 12
    assert {len(span.trace_id) for span in scope.spans} == {16}


class _Collector(BaseHTTPRequestHandler):
    bodies: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_are_sent_to_a_collector(
    loadstone: Loadstone, session_run: Path, collector: str
) -> None:
    pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert loadstone("export", session_run, "--format", "otlp", "-o", collector).code == 0
    (path, kind, body) = _Collector.bodies[-1]
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    request = ExportTraceServiceRequest.FromString(body)
    written = spans_of(export(loadstone, session_run))
    (scope,) = request.resource_spans[0].scope_spans
    assert [span.span_id.hex() for span in scope.spans] == [span["spanId"] for span in written]


def test_a_url_is_for_spans_alone_and_needs_a_collector(
    loadstone: Loadstone, session_run: Path
) -> None:
    line = loadstone("export", session_run, "--format", "csv", "-o", "http://127.0.0.1:9").line()
    assert "only --format otlp" in line
    pytest.importorskip("opentelemetry.proto", reason="needs opentelemetry-proto")
    line = loadstone("export", session_run, "--format", "otlp", "-o", "http://127.0.0.1:9").line()
    assert "no collector takes spans there" in line
