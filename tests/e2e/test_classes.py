"""Classes of traffic, as a user measures and simulates them."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import MODEL, Ask, Json, Loadstone, Outcome, ScriptedServer, Send, answer, whole
from loadstone import query_runs
from loadstone.analyse.summary import summary_of
from loadstone.core.run_folder import read_plan
from loadstone.measure.simulated_server import TimingServer

DEPLOYMENT = "llama-3.1-8b@1xh100"


def by_class(cell: Json) -> dict[str, Json]:
    return {part["name"]: part for part in cell["by_class"]}


def class_names(folder: Path) -> dict[str, str]:
    """The class of each request, by its id."""
    plan = read_plan(folder)
    return {request.request_id: plan.classes[request.traffic_class].name for request in plan}


def test_slots_belong_to_their_class(loadstone: Loadstone, timing: TimingServer) -> None:
    outcome = loadstone(
        "bench", timing.url, "--duration", "2s", "--json",
        "--class", "short,slots=3,input=8,output=4",
        "--class", "long,slots=1,input=8,output=40,slo=e2e_p50<10s",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    cell, names = outcome.cell, class_names(outcome.folder)
    spans: dict[str, list[tuple[float, float]]] = {"short": [], "long": []}
    for record in outcome.records:
        spans[names[record["request_id"]]].append((record["sent_s"], record["end_s"]))
    for name, slots in (("short", 3), ("long", 1)):
        at_once = [
            sum(sent_s <= at_s < end_s for sent_s, end_s in spans[name]) for at_s, _ in spans[name]
        ]
        assert max(at_once) == slots
    parts = by_class(cell)
    assert parts["short"]["slots"] == 3
    assert parts["short"]["requests"]["ok"] > 3 * parts["long"]["requests"]["ok"]
    assert sum(part["requests"]["sent"] for part in parts.values()) == cell["requests"]["sent"]
    assert parts["long"]["slo_met"] is True
    assert [bound["metric"] for bound in cell["slo"]] == ["long:e2e_p50"]


def vllm(ask: Ask, send: Send) -> None:
    """A server that says it is vLLM."""
    if ask.path == "/v1/models":
        entry = {"id": MODEL, "owned_by": "vllm", "max_model_len": 4096}
        send(whole("200 OK", json.dumps({"data": [entry]}).encode()))
    else:
        answer(ask, send)


def test_each_class_has_its_own_fields_headers_and_key(
    loadstone: Loadstone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "classes:\n"
        "  - {name: chat, share: 3, input: 8, output: 4, priority: high, tenant: acme}\n"
        "  - {name: legal, share: 1, input: 9, output: 4, model: legal-r16, key_env: LEGAL_KEY,"
        " headers: {x-team: law}, priority: -2}\n"
    )
    monkeypatch.setenv("LEGAL_KEY", "sk-legal-0123456789")
    with ScriptedServer(vllm, meets=True) as server:
        outcome = loadstone(
            "bench", server.url, "--mix", mix, "--rate", "100", "--requests", "40", "--json"
        )
    assert outcome.code == 0, outcome
    asks = {
        name: [ask for ask in server.measured if ask.json["max_tokens"] and ask.prompt_tokens == n]
        for name, n in (("chat", 8), ("legal", 9))
    }
    assert len(asks["chat"]) >= 30
    assert len(asks["legal"]) >= 10
    for ask in asks["chat"]:
        assert (ask.json["model"], ask.json["priority"]) == (MODEL, -1)
        assert ask.headers["x-gateway-inference-fairness-id"] == "acme"
        assert "authorization" not in ask.headers
    for ask in asks["legal"]:
        assert (ask.json["model"], ask.json["priority"]) == ("legal-r16", 2)
        assert ask.headers["x-team"] == "law"
        assert ask.headers["authorization"] == "Bearer sk-legal-0123456789"
    files = [path for path in outcome.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"sk-legal-0123456789" in path.read_bytes()]


def test_priorities_of_a_server_that_is_not_known_are_refused(
    loadstone: Loadstone, timing: TimingServer
) -> None:
    text = "chat,share=1,input=8,output=4,priority=high"
    outcome = loadstone("bench", timing.url, "--rate", "50", "--requests", "8", "--class", text)
    assert outcome.code == 2
    assert "class chat: priority: nothing is known of priorities" in outcome.err


def test_what_the_server_turned_away_is_counted_by_class(loadstone: Loadstone) -> None:
    def busy(ask: Ask, send: Send) -> None:
        if ask.prompt_tokens == 9:
            send(whole("503 Service Unavailable", b'{"error": {"message": "The queue is full"}}'))
        else:
            answer(ask, send)

    with ScriptedServer(busy) as server:
        outcome = loadstone(
            "bench", server.url, "--rate", "100", "--requests", "60", "--json",
            "--class", "chat,share=2,input=8,output=4,slo=e2e<5s",
            "--class", "batch,share=1,input=9,output=4,slo=e2e<5s",
        )  # fmt: skip
    assert outcome.code == 0, outcome
    parts = by_class(outcome.cell)
    assert (parts["chat"]["requests"]["ok"], parts["chat"].get("rejected", 0)) == (40, 0)
    assert (parts["batch"]["requests"]["error"], parts["batch"]["rejected"]) == (20, 20)
    assert (parts["chat"]["attainment"], parts["batch"]["attainment"]) == (1.0, 0.0)
    assert outcome.cell["metrics"]["attainment"] == pytest.approx(40 / 60)
    assert {"class_rejected", "class_starved"} <= outcome.findings


def test_queries_and_exports_tell_the_class_and_why_it_was_turned_away(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    def busy(ask: Ask, send: Send) -> None:
        if ask.prompt_tokens == 9:
            send(whole("429 Too Many Requests", b'{"error": {"message": "slow down"}}'))
        elif ask.prompt_tokens == 10:
            told = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n'
            send(whole("200 OK", told, "text/event-stream"))
        else:
            answer(ask, send)

    with ScriptedServer(busy) as server:
        outcome = loadstone(
            "bench", server.url, "--rate", "100", "--requests", "60", "--json", "--warmup", "0",
            "--class", "chat,share=2,input=8,output=4,model=legal-r16",
            "--class", "batch,share=1,input=9,output=4",
            "--class", "agents,share=1,input=10,output=4",
        )  # fmt: skip
    assert outcome.code == 0, outcome
    parts = by_class(outcome.cell)
    assert parts["batch"]["rejected_for"] == {"429": 15}
    assert parts["agents"]["rejected_for"] == {"in stream": 15}
    expected = [("agents", None, "in stream", 15), ("batch", None, "429", 15)]
    expected.append(("chat", "legal-r16", None, 30))
    sql = "select class, model, rejected, count(*) from records group by all order by all"
    assert query_runs(sql, outcome.folder).rows == expected
    sql = "select class, rejected, requests_ok, round(share, 2) from classes order by all"
    rows = [("agents", 15, 0, 0.25), ("batch", 15, 0, 0.25), ("chat", 0, 30, 0.5)]
    assert query_runs(sql, outcome.folder).rows == rows
    table = tmp_path / "run.parquet"
    assert loadstone("export", outcome.folder, "--format", "parquet", "-o", table).code == 0
    columns = pq.read_table(table, columns=["class", "rejected"]).to_pylist()
    assert Counter(map(tuple, map(dict.values, columns))) == {
        ("chat", None): 30, ("batch", "429"): 15, ("agents", "in stream"): 15
    }  # fmt: skip
    (tmp_path / "run.csv").write_text(loadstone("export", outcome.folder).out)
    with (tmp_path / "run.csv").open() as file:
        told = [(row["class"], row["class_model"], row["rejected"]) for row in csv.DictReader(file)]
    assert told == [
        ("", "", ""), ("chat", "legal-r16", "0"), ("batch", "", "15"), ("agents", "", "15")
    ]  # fmt: skip
    imported = loadstone("import", tmp_path / "run.csv", "--out", tmp_path / "imported", "--json")
    assert imported.code == 0, imported
    (folder,) = imported.document["runs"]
    assert len(summary_of(Path(folder)).cells) == 1


CHAT = "chat,rate=6,input=512,output=64,slo=ttft_p99<1s"
DOCUMENTS = "documents,rate=1.5,input=4k,output=300"


def simulated(loadstone: Loadstone, deployment: str, *classes: str) -> Outcome:
    """A run in which every class has the requests of its rate over 80 s."""
    rates = [float(text.split("rate=")[1].split(",")[0]) for text in classes]
    flags = [flag for text in classes for flag in ("--class", text)]
    return loadstone(
        "simulate", deployment, "--requests", round(80 * sum(rates)), "--draws", "0", "--json",
        *flags,
    )  # fmt: skip


def test_classes_are_compared_by_name(loadstone: Loadstone) -> None:
    a, b = (
        simulated(loadstone, f"llama-3.1-8b@1x{gpu}", CHAT, DOCUMENTS) for gpu in ("h100", "h200")
    )
    compared = loadstone("compare", a.folder, b.folder, "--json").document
    (cell,) = compared["cells"]
    assert [row["metric"] for row in cell["metrics"]] == [
        "output_tokens_per_s",
        "j_per_output_token",
    ]
    assert [part["name"] for part in cell["by_class"]] == ["chat", "documents"]
    for part in cell["by_class"]:
        rows = {row["metric"]: row for row in part["metrics"]}
        own = [by_class(run.cell)[part["name"]] for run in (a, b)]
        assert part["units"]["paired"]
        assert [rows["tpot_p50"]["a"], rows["tpot_p50"]["b"]] == [
            numbers["tpot_s"]["p50"] for numbers in own
        ]
        assert rows["tpot_p50"]["low"] < rows["tpot_p50"]["ratio"] < 0.9
    assert not compared["unmatched"].get("a_classes")
    # The bound of a class, and a bound of each class.
    met = loadstone(
        "compare", a.folder, b.folder, "--json",
        "--fail-on", "chat:tpot_p50<-20%", "--fail-on", "e2e_p50<-20%",
    )  # fmt: skip
    assert met.code == 1
    bounds = met.document["fail_on"]
    assert bounds[0]["at"] == ["7.5 req/s · chat"]
    assert "7.5 req/s · chat" in bounds[1]["at"]
    # None are tested twice: all metrics of all classes are one family.
    p_values = [
        (row["p"], row["p_family"])
        for part in cell["by_class"]
        for row in part["metrics"]
        if row["p"] is not None
    ]
    assert len(p_values) >= 10
    assert all(p <= p_family for p, p_family in p_values)


def test_what_one_class_costs_another_is_compared_in_pairs(loadstone: Loadstone) -> None:
    """The same requests of a class, with and without another class beside it."""
    both = simulated(loadstone, DEPLOYMENT, CHAT, DOCUMENTS)
    alone = simulated(loadstone, DEPLOYMENT, CHAT)
    outcome = loadstone("compare", both.folder, alone.folder, "--json")
    assert outcome.code == 0, outcome
    (cell,) = outcome.document["cells"]
    (part,) = cell["by_class"]
    assert (cell["metrics"], part["name"], part["units"]["paired"]) == ([], "chat", True)
    rows = {row["metric"]: row for row in part["metrics"]}
    assert rows["tpot_p50"]["better"] == "b"
    assert outcome.document["unmatched"]["a_classes"] == ["documents"]
    assert "only A has class documents" in loadstone("compare", both.folder, alone.folder).out


def test_requests_of_a_class_are_its_own_in_a_comparison(loadstone: Loadstone) -> None:
    """Another order of the classes, and of laps of a closed loop, pairs the same requests."""
    slots = ("short,slots=3,input=64,output=uniform:10:40", "long,slots=2,input=512,output=200")
    flags = ("--duration", "20s", "--draws", "0", "--json")
    first = loadstone("simulate", DEPLOYMENT, *flags, "--class", slots[0], "--class", slots[1])
    again = loadstone("simulate", DEPLOYMENT, "--plan", first.folder, "--draws", "0", "--json")
    (cell,) = loadstone("compare", first.folder, again.folder, "--json").document["cells"]
    assert [part["load"]["value"] for part in cell["by_class"]] == [3, 2]
    for part in cell["by_class"]:
        for row in part["metrics"]:
            assert row["ratio"] == pytest.approx(1, rel=1e-6)


def test_a_trend_has_a_series_for_each_class(loadstone: Loadstone) -> None:
    folders = [simulated(loadstone, DEPLOYMENT, CHAT, DOCUMENTS).folder]
    series = loadstone("trend", *folders, "--json").document["series"]
    assert [kind["setup"].partition(" · ")[2].split(" · ")[-1] for kind in series][1:] == [
        "chat", "documents",
    ]  # fmt: skip


def test_a_bound_of_one_class_is_not_spoilt_by_another(loadstone: Loadstone) -> None:
    """95 % take a tenth of a second, 5 % two seconds: by class all is well, by one bound not."""
    outcome = loadstone(
        "simulate", DEPLOYMENT, "--rate", "2", "--requests", "400", "--draws", "0", "--json",
        "--class", "short,share=95,input=64,output=10,slo=e2e_p99<1s",
        "--class", "long,share=5,input=64,output=400,slo=e2e_p99<20s",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    parts = by_class(outcome.cell)
    assert parts["short"]["slo_met"]
    assert parts["long"]["slo_met"]
    whole_p99_s = outcome.cell["metrics"]["e2e_intended_s"]["p99"]
    assert whole_p99_s > 1.0 > parts["short"]["e2e_intended_s"]["p99"]
    assert outcome.cell["metrics"]["attainment"] == 1.0


def test_requests_under_way_follow_from_rate_and_time_in_each_class(loadstone: Loadstone) -> None:
    """Little's law, class by class."""
    outcome = loadstone(
        "simulate", DEPLOYMENT, "--rate", "20", "--requests", "4000", "--draws", "0", "--json",
        "--class", "chat,share=3,input=lognormal:300:0.6,output=uniform:20:200",
        "--class", "batch,share=1,input=2k,output=300",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    names = class_names(outcome.folder)
    records = [record for record in outcome.records if record["phase"] == "measure"]
    begin_s = min(record["intended_s"] for record in records)
    end_s = max(record["end_s"] for record in records)
    for name in ("chat", "batch"):
        own = [record for record in records if names[record["request_id"]] == name]
        times_s = [record["end_s"] - record["intended_s"] for record in own]
        rate = len(own) / (end_s - begin_s)
        steps = sorted(
            [(record["intended_s"], 1) for record in own]
            + [(record["end_s"], -1) for record in own]
        )
        area = active = 0.0
        last_s = begin_s
        for at_s, change in steps:
            area += active * (at_s - last_s)
            active, last_s = active + change, at_s
        assert area / (end_s - begin_s) == pytest.approx(
            rate * math.fsum(times_s) / len(own), rel=0.01
        )


def test_simulated_slots_belong_to_their_class(loadstone: Loadstone) -> None:
    outcome = loadstone(
        "simulate", DEPLOYMENT, "--duration", "20s", "--draws", "0", "--json",
        "--class", "short,slots=4,input=64,output=21", "--class", "long,slots=4,input=64,output=201",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    names = class_names(outcome.folder)
    for name in ("short", "long"):
        own = [
            (record["sent_s"], record["end_s"])
            for record in outcome.records
            if names[record["request_id"]] == name
        ]
        at_once = [sum(sent_s <= at_s < end_s for sent_s, end_s in own) for at_s, _ in own]
        assert max(at_once) == 4
    parts = by_class(outcome.cell)
    assert 8 < parts["short"]["requests"]["ok"] / parts["long"]["requests"]["ok"] < 11


def test_a_replay_of_slots_is_the_same_load(loadstone: Loadstone) -> None:
    flags = ("--draws", "0", "--json")
    first = loadstone(
        "simulate", DEPLOYMENT, "--duration", "20s", *flags,
        "--class", "short,slots=4,input=64,output=21", "--class", "long,slots=1,input=64,output=201",
    )  # fmt: skip
    again = loadstone("simulate", DEPLOYMENT, "--plan", first.folder, *flags)
    assert again.code == 0, again
    counts = [
        {name: part["requests"]["sent"] for name, part in by_class(run.cell).items()}
        for run in (first, again)
    ]
    assert counts[0] == counts[1]


def test_priorities_that_are_not_served_are_told(loadstone: Loadstone) -> None:
    classes = (
        "--class",
        "a,share=1,input=8,output=4,priority=1",
        "--class",
        "b,share=1,input=8,output=4",
    )
    flags = ("--rate", "9", "--requests", "40", "--draws", "0", "--json", *classes)
    assert "priorities_unused" in loadstone("simulate", DEPLOYMENT, *flags).findings
    served = loadstone("simulate", f"{DEPLOYMENT}/scheduling_policy=priority", *flags)
    assert "priorities_unused" not in served.findings
    wrong = loadstone("simulate", f"{DEPLOYMENT}/scheduling_policy=sjf", *flags)
    assert wrong.code == 2
    assert "use fcfs, priority" in wrong.err


def test_the_table_has_a_row_for_each_class(loadstone: Loadstone) -> None:
    flags = (
        "--requests", "200", "--draws", "0",
        "--class", "chat,share=3,input=300,output=20,slo=ttft_p99<1s",
        "--class", "batch,share=1,input=2k,output=30",
    )  # fmt: skip
    several = loadstone("simulate", DEPLOYMENT, "--rate", "10,20", *flags)
    assert "20 · chat" in several.out
    assert "20 · batch" in several.out
    assert "TTFT p99" not in several.out.split("· class")[0]
    one = loadstone("simulate", DEPLOYMENT, "--rate", "20", *flags)
    head, _, classes = one.out.partition("\n class ")
    assert "TTFT p99" not in head
    assert [line.split()[0] for line in classes.splitlines()[2:4]] == ["chat", "batch"]


def test_priorities_are_served_as_a_queue_with_two_priorities(loadstone: Loadstone) -> None:
    """One place to run in and equal service: Cobham's means of a queue without preemption."""
    service = loadstone(
        "simulate", f"{DEPLOYMENT}/max_num_seqs=1", "--concurrency", "1", "--requests", "8",
        "--input", "64", "--output", "100", "--draws", "0", "--json",
    ).records  # fmt: skip
    service_s = sorted(record["end_s"] - record["sent_s"] for record in service)[len(service) // 2]
    rates = 0.3 / service_s, 0.4 / service_s
    waits_s = {}
    for policy in ("priority", "fcfs"):
        outcome = loadstone(
            "simulate", f"{DEPLOYMENT}/max_num_seqs=1,scheduling_policy={policy}",
            "--requests", "12000", "--draws", "0", "--json",
            "--class", f"high,rate={rates[0]},input=64,output=100,priority=high",
            "--class", f"low,rate={rates[1]},input=64,output=100,priority=low",
        )  # fmt: skip
        assert outcome.code == 0, outcome
        for name, part in by_class(outcome.cell).items():
            waits_s[policy, name] = part["e2e_intended_s"]["mean"] / service_s - 1
    assert waits_s["priority", "high"] == pytest.approx(0.5, rel=0.05)
    assert waits_s["priority", "low"] == pytest.approx(1.667, rel=0.08)
    assert waits_s["fcfs", "high"] == pytest.approx(1.167, rel=0.08)
    assert waits_s["fcfs", "low"] == pytest.approx(1.167, rel=0.08)


def test_a_simulated_study_has_its_classes_and_serves_by_priority(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    path, out = Path("examples/classes_and_priorities.yaml"), tmp_path / "out"
    assert loadstone("study", "run", path, "--simulate", "--out", out).code == 0
    waits_s: dict[tuple[str, bool], float] = {}
    for file in out.rglob("summary.json"):
        (cell,) = json.loads(file.read_text())["cells"]
        run = json.loads(file.with_name("run.json").read_text())
        parts = by_class(cell)
        if cell["load"]["value"] == 12 and "documents" in parts:
            policy = "scheduling_policy" in json.dumps(run["settings"])
            waits_s |= {
                (name, policy): part["ttft_intended_s"]["p99"] for name, part in parts.items()
            }
    assert waits_s["chat", True] < waits_s["chat", False]
    assert waits_s["documents", True] > waits_s["documents", False]
