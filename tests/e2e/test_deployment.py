"""`loadstone bench URL --deployment …`: what the user says a server runs on, and what then knows
it."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import loadstone as package
from conftest import QUICK, Ask, Loadstone, Outcome, ScriptedServer, Send, answer, whole
from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.stored_run import read_run
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.record import RunInfo, Target
from loadstone.core.settings import read_settings
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.report.data.pairs import pair_predictions
from loadstone.report.data.points import points_of
from loadstone.runs.deployments import deployment_record, doubts

SMALL = (
    "--input",
    "64",
    "--output",
    "8",
    "--concurrency",
    "1",
    "--requests",
    "6",
    "--warmup",
    "0",
    "--json",
)

OWN = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 1024, "num_hidden_layers": 4, "vocab_size": 1000,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 4096, "max_position_embeddings": 8192,
}  # fmt: skip


def papers(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.folder / "run.json").read_bytes())["settings"][
        "deployment"
    ]
    return found


def as_vllm(ask: Ask, send: Send) -> None:
    """A server of vLLM 0.26.0 whose model has an alias."""
    said: dict[str, Any] = {
        "/v1/models": {"data": [{"id": "house-model", "owned_by": "vllm"}]},
        "/version": {"version": "0.26.0"},
    }
    if ask.path in said:
        send(whole("200 OK", json.dumps(said[ask.path]).encode()))
    else:
        answer(ask, send)


def met(engine: str | None, version: str | None = None, model: str = "house-model") -> Target:
    return Target(
        url="http://x",
        endpoint="chat",
        model=model,
        engine=engine,
        engine_version=version,
        prompt_kind="text",
    )


def stated(text: str, target: Target) -> dict[str, Any]:
    return deployment_record(text, parse_deployment(text), target)


@pytest.mark.parametrize(
    ("text", "model", "context", "meta", "said"),
    [
        ("llama-3.1-8b@1xh100", "meta-llama/Llama-3.1-8B-Instruct", 8192, {}, []),
        ("llama-3.1-8b@1xh100", "/models/Meta-Llama-3.1-8B-Instruct-AWQ/", None, {"n_params": 8_030_261_312}, []),
        ("llama-3.1-8b@1xh100/max_model_len=4096", "llama-3.1-8b", 4096, {}, []),
        ("llama-3.1-8b@1xh100", "tiny", 512, {}, ["the server names its model tiny"]),
        ("llama-3.1-8b@1xh100", "Llama-3.1-70B", None, {}, ["the server names its model Llama-3.1-70B"]),
        (
            "llama-3.1-8b@1xh100", "llama-3.1-8b", None, {"n_params": 4_458_752},
            ["the server's model has 4.46e+06 parameters, not 8.03e+09"],
        ),
        (
            "llama-3.1-8b@1xh100/max_model_len=4096", "llama-3.1-8b", 512, {},
            ["the server's context is 512 tokens, not 4,096"],
        ),
        (
            "llama-2-7b@1xh100", "llama-2-7b", 131072, {},
            ["the server's context is 131,072 tokens, beyond the model's 4,096"],
        ),
    ],
)  # fmt: skip
def test_what_a_server_says_against_its_deployment(
    text: str, model: str, context: int | None, meta: dict[str, Any], said: list[str]
) -> None:
    target = met("vLLM", model=model)
    target.max_model_tokens = context
    target.models = {"data": [{"id": model, "meta": meta}]}
    assert doubts(parse_deployment(text), target) == said


def test_a_doubt_is_told_and_kept(loadstone: Loadstone, timing: TimingServer) -> None:
    outcome = loadstone("bench", timing.url, *SMALL, "--deployment", "llama-3.1-8b@1xh100")
    said = "the server names its model timing"
    assert (
        f"--deployment llama-3.1-8b@1xh100: please check: {said}; reports rely on it" in outcome.err
    )
    assert papers(outcome)["doubts"] == [said]


def test_reports_and_comparisons_know_what_it_ran_on(
    loadstone: Loadstone, timing: TimingServer, tmp_path: Path
) -> None:
    runs = [
        loadstone("bench", timing.url, *SMALL, "--deployment", f"llama-3.1-8b@{gpus}")
        for gpus in ("1xh100", "2xh200/tp2")
    ]
    said = papers(runs[1])
    assert (said["gpu"], said["gpus"], said["tp"], said["weights_dtype"]) == ("h200", 2, 2, "bf16")
    assert said["stated"] == "llama-3.1-8b@2xh200/tp2"
    # The shorthand's default is nobody's word; who was met is kept.
    target = runs[1].document["target"]
    assert (said["engine"], said["model"], said["engine_version"]) == (
        target["engine"], target["model"], target["engine_version"],
    )  # fmt: skip
    folders = [run.folder for run in runs]
    prices = ("--price", "h200=3,h100=2")

    page = tmp_path / "both.md"
    assert loadstone("report", *folders, "-o", page, *prices).code == 0
    text = page.read_text()
    assert "roofline" in text
    assert "2×H200 tp2" in text
    assert text.count("declared by the user: llama-3.1-8b") == 2

    table = tmp_path / "both.csv"
    assert loadstone("report", *folders, "-o", table, *prices).code == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["gpu"] for row in rows] == ["H100", "H200"]

    document = loadstone("compare", *folders, *prices, "--json").document
    assert (document["prices"]["a"], document["prices"]["b"]) == ([2.0], [6.0])
    assert {"gpu", "gpus", "tp"} <= {each["what"] for each in document["setup"]}
    views = [read_run(folder) for folder in folders]
    lights = [point.roofline.tpot_s for point in points_of(views)]
    assert lights[0] is not None
    assert lights[1] is not None
    assert lights[0] > 2 * lights[1]


def test_without_it_nothing_is_assumed(loadstone: Loadstone, timing: TimingServer) -> None:
    run = loadstone("bench", timing.url, *SMALL)
    assert "deployment" not in json.loads((run.folder / "run.json").read_bytes())["settings"]
    assert loadstone("calibrate", run.folder).line().endswith("give it with --deployment")


def test_the_server_has_the_last_word_on_itself(loadstone: Loadstone) -> None:
    with ScriptedServer(as_vllm, meets=True) as server:
        run = loadstone(
            "bench", server.url, *QUICK, "--concurrency", "1", "--requests", "3", "--json",
            "--deployment", "llama-3.1-8b:fp8@8xh100/tp4,version=0.9",
        )  # fmt: skip
        asks = len(server.asks)
        wrong = loadstone(
            "bench", server.url, *QUICK, "--deployment", "llama-3.1-8b@1xh100/engine=sglang"
        )
        assert not [ask for ask in server.asks[asks:] if ask.measured]
    assert "sglang" in wrong.line()
    assert "vLLM" in wrong.line()
    said = papers(run)
    assert (said["engine"], said["engine_version"], said["model"]) == (
        "vllm",
        "0.26.0",
        "house-model",
    )
    assert said["name"] == "llama-3.1-8b:fp8@8xh100/tp4,dp2,engine=vllm,version=0.26.0"
    view = read_run(run.folder)
    assert view.facts.label == "vLLM 0.26.0 · house-model fp8 · 8×H100 tp4 dp2"
    assert view.facts.architecture == "meta-llama/Meta-Llama-3.1-8B"


def test_an_engine_that_does_not_say_what_it_is_is_the_one_that_was_declared(
    loadstone: Loadstone,
) -> None:
    def as_transformers(ask: Ask, send: Send) -> None:
        if ask.path == "/v1/models":
            send(
                whole(
                    "200 OK",
                    json.dumps(
                        {"data": [{"id": "meta-llama/x", "owned_by": "meta-llama"}]}
                    ).encode(),
                )
            )
        else:
            answer(ask, send)

    with ScriptedServer(as_transformers, meets=True) as server:
        done = loadstone(
            "bench", server.url, *SMALL, "--deployment", "llama-3.1-8b@1xcpu/engine=transformers"
        )
        bare = loadstone("bench", server.url, *SMALL, "--deployment", "llama-3.1-8b@1xcpu")
    assert json.loads((done.folder / "run.json").read_bytes())["target"]["engine"] == "transformers"
    assert json.loads((bare.folder / "run.json").read_bytes())["target"]["engine"] is None


def test_it_is_laid_over_the_simulation_of_the_same(loadstone: Loadstone, tmp_path: Path) -> None:
    asked = (*QUICK, "--concurrency", "1", "--requests", "3", "--json", "--out", tmp_path / "runs")
    with ScriptedServer(as_vllm, meets=True) as server:
        measured = loadstone("bench", server.url, *asked, "--deployment", "llama-3.1-8b@2xh100")
        other = loadstone("bench", server.url, *asked, "--deployment", "llama-3.1-8b@1xh100")
    simulated = loadstone("simulate", "llama-3.1-8b@2xh100", *asked, "--draws", "0")
    points = points_of([read_run(each.folder) for each in (measured, other, simulated)])
    ((first, second),) = pair_predictions(points)
    assert [point.run for point in (*first, *second)] == [
        simulated.folder.name,
        measured.folder.name,
    ]


def test_a_simulated_engine_says_what_it_simulates(loadstone: Loadstone, tmp_path: Path) -> None:
    text = "llama-3.1-8b@2xh100/tp1,dp2,engine=sglang"
    run = (*SMALL, "--out", tmp_path / "runs")
    with start(text) as server:
        unstated = loadstone("bench", server.url, *run)
        stated_too = loadstone("bench", server.url, *run, "--deployment", text)
    embedded = loadstone("bench", "--sim", text, *run)
    for outcome in (unstated, embedded):
        told = papers(outcome)
        assert {name: told[name] for name in ("gpu", "gpus", "tp", "dp", "engine", "simulates", "stated_by")} == {
            "gpu": "h100", "gpus": 2, "tp": 1, "dp": 2, "engine": "simulated engine", "simulates": "sglang",
            "stated_by": "server",
        }  # fmt: skip
        assert "stated" not in told
        assert read_run(outcome.folder).facts.label.endswith("Meta-Llama-3.1-8B bf16 · 2×H100 dp2")
    assert papers(stated_too)["stated"] == text
    simulated = loadstone("simulate", text, *run, "--draws", "0")
    points = points_of([read_run(each.folder) for each in (unstated, simulated)])
    assert {point.setup.gpus for point in points} == {2}


@pytest.mark.parametrize(
    "name", ["/etc/passwd@1xh100", "llama-3.1-8b@1x/etc/passwd", "nonsense", 7, None, "x" * 9999]
)
def test_what_a_server_calls_its_deployment_is_no_file(name: object, loadstone: Loadstone) -> None:
    def liar(ask: Ask, send: Send) -> None:
        card = {"id": "house-model", "owned_by": "loadstone-sim", "deployment": name}
        if ask.path == "/v1/models":
            send(whole("200 OK", json.dumps({"data": [card]}).encode()))
        else:
            answer(ask, send)

    with ScriptedServer(liar, meets=True) as server:
        run = loadstone("bench", server.url, *SMALL)
    assert "deployment" not in json.loads((run.folder / "run.json").read_bytes())["settings"]


def test_bad_ones_are_one_line_before_anything_is_sent(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    good = "llama-3.1-8b@1xh100"
    with ScriptedServer() as server:
        for text in ("llama-3.1-8b", "llama-3.1-8b@1xh1000", f"{good}/tp3", ""):
            assert (
                "deployment" in loadstone("bench", server.url, *QUICK, "--deployment", text).line()
            )
        assert server.asks == []
    for arguments in (("--sim",), ("--sim", good), (), ("--engine", "llama.cpp")):
        assert "--deployment" in loadstone("bench", *arguments, *QUICK, "--deployment", good).line()
    assert not (tmp_path / "runs").exists()


def test_a_fleet_has_one_together_and_python_says_it_too(
    timing: TimingServer, twin: TimingServer, tmp_path: Path
) -> None:
    document = package.bench(
        [timing.url, twin.url], deployment="llama-3.1-8b@2xh100/dp2", concurrency=2, requests=4, input=8,
        output=4, out=tmp_path,
    ).document()  # fmt: skip
    facts = run_facts(package.open_run(document["run_dir"]).info)
    assert (facts.gpu, facts.gpus, facts.dp, facts.tp) == ("H100", 2, 2, 1)
    with pytest.raises(InputError, match="not MODEL@GPUS"):
        package.bench(timing.url, deployment="llama-3.1-8b", out=tmp_path)


@pytest.mark.parametrize(
    ("text", "target", "engine", "version", "options"),
    [
        ("llama-3.1-8b@1xh100", met(None), None, None, "tp1"),
        ("llama-3.1-8b@1xh100/version=7", met(None), None, "7", "tp1,version=7"),
        ("llama-3.1-8b@1xh100/engine=sglang", met(None), "sglang", None, "tp1,engine=sglang"),
        ("llama-3.1-8b@1xh100", met("SGLang", "0.5.9"), "sglang", "0.5.9", "tp1,engine=sglang,version=0.5.9"),
        ("llama-3.1-8b@1xh100", met("llama.cpp"), "llama.cpp", None, "tp1,engine=llama.cpp"),
        ("llama-3.1-8b@1xh100/engine=trtllm", met("TensorRT-LLM"), "tensorrt-llm", None, "tp1,engine=tensorrt-llm"),
        # Triton says nothing of what is behind it, and its version is its own.
        ("llama-3.1-8b@1xh100", met("Triton", "2.50"), "Triton", "2.50", "tp1"),
        ("llama-3.1-8b@1xh100/engine=trtllm", met("Triton", "2.50"), "tensorrt-llm", None, "tp1,engine=tensorrt-llm"),
        # What stands in for an engine has no version of an engine.
        ("llama-3.1-8b@1xh100", met("timing server", "0.1.0"), "timing server", "0.1.0", "tp1"),
        # A server's text adds no options to the shorthand.
        ("llama-3.1-8b@1xh100", met("vLLM", "1,tp8"), "vllm", "1,tp8", "tp1,engine=vllm"),
    ],
)  # fmt: skip
def test_engine_and_version(
    text: str, target: Target, engine: str | None, version: str | None, options: str
) -> None:
    said = stated(text, target)
    assert (said["engine"], said["engine_version"]) == (engine, version)
    assert said["name"] == f"llama-3.1-8b@1xh100/{options}"
    assert parse_deployment(said["name"]).worker.gpu.name == "h100"


@pytest.mark.parametrize(
    "option", ["engine=vllm", "ENGINE=vLLM", "max-num-seqs=64", "max_num_seqs=64"]
)
def test_another_engine_than_the_server_says(option: str) -> None:
    text = f"llama-3.1-8b@1xh100/{option}"
    assert stated(text, met("vLLM"))["engine"] == "vllm"
    for other in ("SGLang", "timing server"):
        with pytest.raises(InputError, match=f"engine is vllm, .* {other}"):
            stated(text, met(other))


@pytest.mark.parametrize(
    ("says", "inside"),
    [("SGLang", "engine=sglang"), (None, "engine=vllm"), ("simulated engine", None)],
)
def test_pools_have_the_engine_that_the_server_says_and_a_name_that_can_be_read(
    says: str | None, inside: str | None
) -> None:
    text = "llama-3.1-8b@prefill=2*(1xh100/tp1)+decode=1xh100/tp1" + (
        ",engine=vllm" if says != "SGLang" else ""
    )
    record = stated(text, met(says))
    read = parse_deployment(record["name"])
    assert [(pool.role, pool.workers) for pool in read.pools] == [("prefill", 2), ("decode", 1)]
    assert (f",{inside})+" in record["name"]) if inside else ("engine=" not in record["name"])
    if says == "SGLang":
        assert [pool["engine"] for pool in record["pools"]] == ["sglang", "sglang"]


def test_the_version_of_triton_is_not_that_of_the_engine_behind_it() -> None:
    target = met("Triton", "2.50")
    settings = {"deployment": stated("llama-3.1-8b@1xh100/engine=trtllm", target)}
    info = RunInfo(
        run_id="r", source="measured", created="", command=[], loadstone="", host=Host(), target=target, plan_id="",
        seed=0, salt=None, settings=read_settings(settings),
    )  # fmt: skip
    assert run_facts(info).label == "TensorRT-LLM · house-model bf16 · 1×H100"


# --- calibrate ------------------------------------------------------------------------------------


def test_calibrate_knows_what_runs_were_measured_on(loadstone: Loadstone, tmp_path: Path) -> None:
    asked = ("--input", "64", "--output", "12", "--concurrency", "1,3", "--requests", "4", "--json")
    with start(FixedLatency(ttft_s=0.02, itl_s=0.004)) as server:
        first, second, other = (
            loadstone("bench", server.url, *asked, "--deployment", f"llama-3.1-8b@1x{gpu}").folder
            for gpu in ("h100", "h100", "h200")
        )
    out = ("--out", tmp_path / "profiles", "--json")
    found = loadstone("calibrate", first, second, "--force", *out).document
    again = loadstone(
        "calibrate", first, second, "--force", *out, "--deployment", "llama-3.1-8b@1xh100"
    ).document
    assert found == again
    assert "one deployment" in loadstone("calibrate", first, other, *out).line()
    # What the user says now goes before what they said then.
    assert (
        loadstone(
            "calibrate", first, other, "--force", *out, "--deployment", "llama-3.1-8b@1xh100"
        ).code
        == 0
    )


def test_hardware_of_ones_own_outlives_its_file(
    loadstone: Loadstone, timing: TimingServer, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("like: h200\nname: own-9\n")
    run = loadstone("bench", timing.url, *SMALL, "--deployment", f"llama-3.1-8b@1x{own}/tp1")
    own.unlink()
    view = read_run(run.folder)
    assert view.facts.gpu == "own-9"
    assert points_of([view])[0].roofline.tpot_s is not None
    assert loadstone("calibrate", run.folder, "--force", "--out", tmp_path / "profiles").code == 0


def test_a_model_of_ones_own_outlives_its_file(
    loadstone: Loadstone, timing: TimingServer, tmp_path: Path
) -> None:
    own = tmp_path / "own" / "config.json"
    own.parent.mkdir()
    own.write_text(json.dumps(OWN))
    run = loadstone("bench", timing.url, *SMALL, "--deployment", f"{own.parent}@1xh200/tp1")
    own.unlink()
    view = read_run(run.folder)
    assert view.facts.architecture == str(own.parent)
    assert points_of([view])[0].roofline.tpot_s is not None
    assert loadstone("calibrate", run.folder, "--force", "--out", tmp_path / "profiles").code == 0


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b@1x{folder}/own.yaml/tp1",
        "{folder}/config.json@1xh100",
        "llama-3.1-8b@1xh1000",
        7,
    ],
)
def test_calibrate_reads_no_file_that_a_run_names(
    name: Any, loadstone: Loadstone, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text("like: h200\n")
    run = package.bench(
        None,
        concurrency=1,
        requests=2,
        input=8,
        output=4,
        out=tmp_path / "runs",
        warmup=0,
        sim="ttft=5ms,itl=1ms",
    ).document()
    path = Path(run["run_dir"]) / "run.json"
    document = json.loads(path.read_bytes())
    named = name.format(folder=tmp_path) if isinstance(name, str) else name
    document["settings"]["deployment"] = {"name": named, "stated": "x", "gpu": "h100"}
    path.write_text(json.dumps(document))
    assert (
        "with --deployment"
        in loadstone("calibrate", path.parent, "--out", tmp_path / "profiles").line()
    )
    assert not (tmp_path / "profiles").exists()
