"""`loadstone size` as a user meets it: rows, tables, CSV, pictures, and one line where it cannot
be."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadstone as package
from browser import Browser, needs_chromium
from conftest import Loadstone
from loadstone.core.errors import InputError
from loadstone.predict.sizing.deployments import split_models
from loadstone.report.pages.sizes import FACTS

CONTRACT = {
    "model", "gpu", "gpus", "tp", "pp", "dp", "weights_dtype", "kv_dtype", "weights_bytes", "kv_bytes_per_token",
    "kv_replication", "context_tokens", "batch", "kv_bytes", "activation_bytes", "free_bytes", "fits",
    "max_context_tokens", "max_concurrent_requests", "why",
}  # fmt: skip


def test_combinations_in_which_a_replica_has_nobody_to_share_with_are_left_out() -> None:
    rows = package.size(
        "deepseek-v3", gpu="h200", gpus=[8, 16], tp=[1, 8], attention_dp=True
    ).document()["rows"]
    assert [(row["gpus"], row["tp"], row["dp"]) for row in rows] == [
        (8, 1, 8),
        (16, 1, 16),
        (16, 8, 2),
    ]


def test_of_several_engines_each_takes_its_own_arguments() -> None:
    given = [
        "max_num_seqs=16",
        "disable_cuda_graph=1",
        "pipeline_parallel_size=2",
        "max_model_len=4096",
    ]
    rows = package.size(
        "llama-3.1-8b",
        gpu="h100",
        gpus=2,
        engine=["vllm", "sglang", "trtllm"],
        arguments=given,
        context=2048,
    ).document()["rows"]
    assert [row["engine"] for row in rows] == ["vllm", "sglang", "tensorrt-llm"]
    assert [row["pp"] for row in rows] == [2, 1, 2]  # the same word of two of them
    assert [row["max_concurrent_requests"] == 16 for row in rows] == [True, False, False]


def test_json_has_the_contracts_rows(loadstone: Loadstone) -> None:
    outcome = loadstone("size", "llama-3.1-405b", "--gpu", "h200", "--gpus", "1,2,4,8", "--context", "128k",
                        "--batch", 32, "--json")  # fmt: skip
    assert outcome.code == 0
    document = json.loads(outcome.out)
    assert document["schema"] == 1
    rows = document["rows"]
    assert [row["gpus"] for row in rows] == [1, 2, 4, 8]
    assert all(row.keys() >= CONTRACT for row in rows)
    assert [row["tp"] for row in rows] == [1, 2, 4, 8]
    last = rows[-1]
    assert (last["kv_bytes_per_token"], last["context_tokens"], last["batch"]) == (
        516_096,
        131_072,
        32,
    )
    assert last["kv_bytes"] == 516_096 * 131_072 * 32
    assert [row["fits"] for row in rows] == [False] * 4
    assert rows[0]["max_context_tokens"] == 0 < last["max_context_tokens"]
    assert "GPUs would" in rows[0]["why"]


def test_the_table_shows_what_binds(loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = loadstone(
        "size", "llama-3.1-8b@1xh100,llama-3.1-70b@1xh100/tp1,engine=sglang", "--context", "4096",
    )  # fmt: skip
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert any("Llama-3.1-8B" in line and line.rstrip().endswith("yes") for line in lines)
    assert any("Llama-3.1-70B" in line and line.rstrip().endswith("NO (1)") for line in lines)
    assert any(line.startswith("(1) ") and "do not fit" in line for line in lines)


@pytest.mark.parametrize(
    ("deployment", "decision"),
    [
        ("llama-3.1-8b@1xh100", "Meta-Llama-3.1-8B fits on 1×h100 with "),
        ("llama-3.1-70b@1xh100", "Meta-Llama-3.1-70B does not fit on 1×h100 with 2 × 4,096 tokens"),
        ("llama-3.1-8b@1xh100,llama-3.1-70b@1xh100", "1 of 2 deployments fit."),
    ],
)
def test_the_decision_stands_first(deployment: str, decision: str, loadstone: Loadstone) -> None:
    outcome = loadstone("size", deployment, "--context", "4096", "--batch", "2")
    assert outcome.out.startswith(decision)


def test_rows_of_several_engines_say_whose_they_are_and_what_is_asked_of_the_cache(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    args = ("size", "llama-3.1-8b", "--gpu", "h100", "--context", "8k", "--batch", "16")
    outcome = loadstone(*args, "--engine", "vllm,sglang")
    heads, *rows = [
        line for line in outcome.out.splitlines() if "model" in line or "1×h100" in line
    ][:3]
    assert heads.split()[:4] == ["model", "GPUs", "parallel", "engine"]
    assert [engine in row for engine, row in zip(("vllm", "sglang"), rows, strict=True)] == [
        True,
        True,
    ]
    # 16 requests of 8,192 tokens, 131,072 bytes each, are 16 GiB.
    end = heads.index("KV needed") + len("KV needed")
    assert [row[:end].split()[-1] for row in rows] == ["16.0", "16.0"]
    assert "engine" not in loadstone(*args).out.splitlines()[1]


def test_help_and_page_name_what_tables_are_made_of(loadstone: Loadstone) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "sizing.md").read_text()
    facts = page.partition("`--by A,B`")[2].partition("`--context-map")[0]
    assert [fact for fact in FACTS if f"`{fact}`" not in facts] == []
    assert "model,machine" in "".join(loadstone("size", "--help").out.split())


def test_a_table_of_machines(loadstone: Loadstone) -> None:
    args = ("size", "llama-3.1-8b,mixtral-8x7b", "--gpu", "h100,h200", "--gpus", "1,2")
    outcome = loadstone(*args, "--by", "machine,model", "--show", "fits")
    assert [line.split() for line in outcome.out.splitlines() if "×" in line] == [
        ["1×h100", "yes", "no"],
        ["2×h100", "yes", "yes"],
        ["1×h200", "yes", "yes"],
        ["2×h200", "yes", "yes"],
    ]


@pytest.mark.parametrize(
    ("more", "by", "differ"),
    [
        (("--gpus", "1,2"), "gpu,model", "gpus"),
        (("--gpus", "1,2", "--engine", "vllm,sglang"), "gpu,model", "gpus, engine"),
        (("--gpus", "2", "--tp", "1,2"), "gpu,model", "tp"),
        (("--gpus", "1,2"), "tp,model", "gpu"),
    ],
)
def test_what_follows_from_other_facts_is_not_asked_for(
    loadstone: Loadstone, more: tuple[str, ...], by: str, differ: str
) -> None:
    """tp follows gpus, unless it is asked for itself; the machine follows from both."""
    outcome = loadstone(
        "size", "llama-3.1-8b,mixtral-8x7b", "--gpu", "h100,h200", *more, "--by", by
    )
    assert f"rows differ in {differ} too" in outcome.line()


def test_a_table_of_two_facts(loadstone: Loadstone) -> None:
    outcome = loadstone(
        "size", "llama-3.1-8b,mixtral-8x7b", "--gpu", "h100", "--gpus", "1,2", "--by", "gpus,model"
    )
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines() if line.strip()[:1] in ("1", "2")]
    assert rows == [["1", "131,072", "0"], ["2", "131,072", "32,768"]]
    outcome = loadstone("size", "llama-3.1-8b", "--gpu", "a100,h100", "--weights-dtype", "bf16,fp8", "--by",
                        "weights-dtype,gpu", "--show", "fits")  # fmt: skip
    assert [
        line.split() for line in outcome.out.splitlines() if line.strip()[:2] in ("bf", "fp")
    ] == [
        ["bf16", "yes", "yes"],
        ["fp8", "yes", "yes"],
    ]


def test_utilization_moves_the_room(loadstone: Loadstone) -> None:
    def tokens(*flags: str) -> int:
        outcome = loadstone("size", "llama-3.1-8b", "--gpu", "h100", "--json", *flags)
        return int(json.loads(outcome.out)["rows"][0]["kv_capacity_tokens"])

    assert (
        tokens("--gpu-memory-utilization", "0.5")
        < tokens()
        < tokens("--gpu-memory-utilization", "0.97")
    )
    assert tokens("--engine", "sglang", "--mem-fraction-static", "0.5") < tokens(
        "--engine", "sglang"
    )
    assert tokens("-a", "max_num_seqs=64") > tokens()
    assert tokens("--kv-dtype", "fp8") == pytest.approx(2 * tokens(), abs=32)


def test_csv_has_the_same_rows(loadstone: Loadstone, tmp_path: Path) -> None:
    out = tmp_path / "sizes.csv"
    outcome = loadstone(
        "size", "llama-3.1-8b", "--gpu", "h100", "--gpus", "1,2", "--csv", out, "--json"
    )
    rows = json.loads(outcome.out)["rows"]
    with out.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["weights_bytes"] for row in read] == [str(row["weights_bytes"]) for row in rows]
    assert [row["fits"] for row in read] == ["true", "true"]
    assert list(read[0]) == list(rows[0])


@pytest.mark.parametrize(
    ("name", "head"), [("m.png", b"\x89PNG"), ("m.svg", b"<svg"), ("m.html", b"<!doctype html")]
)
def test_a_picture(loadstone: Loadstone, tmp_path: Path, name: str, head: bytes) -> None:
    outcome = loadstone("size", "llama-3.1-8b", "--gpu", "h100", "--picture", tmp_path / name)
    assert outcome.code == 0
    assert (tmp_path / name).read_bytes().startswith(head)


def test_a_map_of_contexts(loadstone: Loadstone, tmp_path: Path) -> None:
    outcome = loadstone(
        "size",
        "llama-3.1-8b",
        "--gpu",
        "h100",
        "--gpus",
        "1,2",
        "--context-map",
        tmp_path / "c.svg",
    )
    assert outcome.code == 0
    assert ">128k<" in (tmp_path / "c.svg").read_text(encoding="utf-8")


@needs_chromium
@pytest.mark.process
def test_a_picture_in_html_is_a_page_that_draws_it(loadstone: Loadstone, tmp_path: Path) -> None:
    path = tmp_path / "m.html"
    assert loadstone("size", "llama-3.1-8b@1xh100", "--picture", path).code == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(path.as_uri())
        browser.until("document.querySelectorAll('.chart.drawn').length == 1")
        # Vega-Lite remarks that rows which have a height are fitted in width alone.
        assert [said for said in browser.complaints if "fit-y" not in said] == []


def test_a_models_name_does_not_end_the_script(loadstone: Loadstone, tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 100,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    outcome = loadstone(
        "size", folder / "config.json", "--gpu", "h100", "--picture", tmp_path / "m.html"
    )
    assert outcome.code == 0
    assert "<script>alert" not in (tmp_path / "m.html").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["lama-3.1-8b", "--gpu", "h100"], "llama-3.1-8b"),
        (["llama-3.1-8b", "--gpu", "h1000"], "h100"),
        (["llama-3.1-8b"], "--gpu: none given"),
        (
            ["llama-3.1-8b@1xh100", "--gpu", "h200"],
            "--gpu: 'llama-3.1-8b@1xh100' is a whole deployment",
        ),
        (["8xh200"], "MODEL: '8xh200' is GPUs and no model; write e.g. llama-3.1-70b@8xh200"),
        (["llama-3.1-8b", "--gpu", "8xh200"], "write --gpu h200 --gpus 8, or llama-3.1-8b@8xh200"),
        (["llama-3.1-8b", "--gpu", "h100", "--context", "8q"], "--context: '8q'"),
        (["llama-3.1-8b", "--gpu", "h100", "--batch", "0"], "--batch"),
        (["llama-3.1-8b", "--gpu", "h100", "--gpus", "2", "--tp", "3"], "tp3"),
        (["llama-3.1-8b", "--gpu", "h100", "--engine", "vlm"], "vllm"),
        (["llama-3.1-8b", "--gpu", "h100", "--engine", "transformers"], "no sizing rules"),
        (
            ["llama-3.1-8b", "--gpu", "h100", "--gpu-memory-utilization", "1.2"],
            "--gpu-memory-utilization",
        ),
        (["llama-3.1-8b", "--gpu", "h100", "--by", "gpus,colour"], "--by: 'colour'"),
        (
            ["llama-3.1-8b", "--gpu", "h100", "--gpus", "1,2", "--by", "model,gpu"],
            "rows differ in gpus",
        ),
        (
            ["llama-3.1-8b", "--gpu", "h100", "--picture", "m.bmp"],
            "m.bmp: a picture's name ends in",
        ),
        (["llama-3.1-8b", "--gpu", "h100", "-a", "colour=red"], "colour"),
    ],
)
def test_bad_input_is_one_line(loadstone: Loadstone, flags: list[str], said: str) -> None:
    outcome = loadstone("size", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert said in outcome.err


def test_counts_that_cannot_be_are_left_out(loadstone: Loadstone) -> None:
    ways = ("--gpus", "1,2,4", "--tp", "1,2", "--pp", "1", "--dp", "1,2")
    outcome = loadstone("size", "llama-3.1-8b", "--gpu", "h100", *ways, "--json")
    assert [(row["gpus"], row["tp"], row["dp"]) for row in json.loads(outcome.out)["rows"]] == [
        (1, 1, 1),
        (2, 1, 2),
        (2, 2, 1),
        (4, 2, 2),
    ]


def test_commas_inside_a_deployment_part_nothing() -> None:
    assert split_models("a, b@8xh200/tp4,ep8,engine=sglang,c@1xh100 ,d") == [
        "a",
        "b@8xh200/tp4,ep8,engine=sglang",
        "c@1xh100",
        "d",
    ]
    switches = "b@8xh200/tp8,dp8,enable_dp_attention,--disable-cuda-graph,engine=sglang"
    assert split_models(f"{switches},c") == [switches, "c"]


GIVEN = {"gpu": "h100"}


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"context": "8k"}, {"context": 8192}),
        ({"context": ["8k", 4096]}, {"context": [8192, 4096]}),
        ({"context": "8k,4096"}, {"context": [8192, 4096]}),
        ({"batch": "1,2"}, {"batch": [1, 2]}),
        ({"context": None, "batch": []}, {}),
        ({"gpus": np.int64(2)}, {"gpus": 2}),
    ],
)
def test_in_python_as_on_the_command_line(options: dict[str, Any], same: dict[str, Any]) -> None:
    assert (
        package.size("llama-3.1-8b", **GIVEN, **options).document()
        == package.size("llama-3.1-8b", **GIVEN, **same).document()
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context": "8q"}, "context: '8q' is not a number of tokens"),
        ({"context": -1}, "context: -1 is not a number of tokens"),
        ({"context": 1.5}, "context: 1.5"),
        ({"context": True}, "context: True"),
        ({"batch": 0}, "batch: 0 is not a whole number of at least 1"),
        ({"batch": [1, 0]}, "batch: 0"),
        ({"batch": "0"}, "batch: 0"),
        ({"tp": True}, "tp: True"),
        ({"gpus": 2.5}, "gpus: 2.5"),
        ({"engine": 5}, "engine: 5 is not a text; write e.g. 'vllm'"),
        ({"engine_version": 0.19}, "engine-version: 0.19 is not a text"),
        ({"gpu": {"h100": 1}}, "gpu: {'h100': 1} is not a text"),
    ],
)
def test_in_python_what_means_nothing_is_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        package.size("llama-3.1-8b", **{**GIVEN, **options})
    assert said in str(caught.value)
    with pytest.raises(InputError, match="models: 5 is not a text"):
        package.size(5, **GIVEN)  # type: ignore[arg-type]


def test_what_was_assumed_of_a_config_is_said_everywhere(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    config = {
        "model_type": "newest", "torch_dtype": "bfloat16", "hidden_size": 64, "vocab_size": 100, "quantum_leaps": 3,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = ("size", f"{tmp_path},llama-3.1-8b", "--gpu", "h100", "--gpus", "1,2")
    outcome = loadstone(*asked, "--csv", tmp_path / "rows.csv", "--json")
    first, _, sure, _ = json.loads(outcome.out)["rows"]
    assert "model_type 'newest' not known" in first["assumed"]
    assert "tie_word_embeddings absent: not tied assumed" in first["assumed"]
    assert first["assumed"].endswith("taken to change no size: quantum_leaps")
    assert sure["assumed"] == first["why"] == ""
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert [row["assumed"] for row in csv.DictReader(file)] == [
            first["assumed"],
            first["assumed"],
            "",
            "",
        ]
    for more in ((), ("--by", "gpus,model")):
        lines = [
            line
            for line in loadstone(*asked, *more).out.splitlines()
            if line.startswith("assumed for ")
        ]
        assert len(lines) == 1
        assert lines[0].startswith(f"assumed for {tmp_path}: model_type 'newest' not known")


def test_in_python() -> None:
    one = package.size("llama-3.1-8b", gpu="h100", context=8192).document()
    assert package.size(["llama-3.1-8b"], gpu=["h100"], context=[8192]).document() == one
    assert one["rows"][0]["fits"]
    for several in ((8192,), range(8192, 8193), np.array([8192]), (tokens for tokens in (8192,))):
        assert (
            package.size(np.array(["llama-3.1-8b"]), gpu=("h100",), context=several).document()
            == one
        )
    assert (
        package.size("llama-3.1-8b", gpu="h100", context=np.array(8192), batch=[]).document() == one
    )
    with pytest.raises(InputError, match=r"^contexts: no such option; the nearest is context$"):
        package.size("llama-3.1-8b", contexts=8192)
    with pytest.raises(InputError, match="none given"):
        package.size("llama-3.1-8b")


@pytest.mark.parametrize("flag", ["--csv", "--picture", "--context-map"])
def test_a_file_that_cannot_be_written(loadstone: Loadstone, tmp_path: Path, flag: str) -> None:
    line = loadstone("size", "llama-3.1-8b@1xh100", flag, tmp_path / "none" / "out.svg").line()
    assert "cannot write" in line


def test_an_argument_goes_to_the_engine_that_has_it(loadstone: Loadstone) -> None:
    def tokens(*flags: str) -> list[int]:
        outcome = loadstone("size", "llama-3.1-8b", "--gpu", "h100", "--json", *flags)
        return [row["kv_capacity_tokens"] for row in json.loads(outcome.out)["rows"]]

    both = ("--engine", "vllm,sglang")
    (vllm, sglang), (less, same) = tokens(*both), tokens(*both, "--gpu-memory-utilization", "0.5")
    assert less < vllm
    assert same == sglang
    said = loadstone("size", "llama-3.1-8b", "--gpu", "h100", "--mem-fraction-static", "0.8").line()
    assert "mem_fraction_static is an argument of sglang, not of vllm" in said


def test_braces_are_several_deployments(loadstone: Loadstone) -> None:
    outcome = loadstone("size", "llama-3.1-70b@4xh200/engine={vllm,sglang},tp={2,4}", "--json")
    rows = json.loads(outcome.out)["rows"]
    assert [(row["engine"], row["tp"]) for row in rows] == [
        ("vllm", 2),
        ("vllm", 4),
        ("sglang", 2),
        ("sglang", 4),
    ]
    assert "braces that are not closed" in loadstone("size", "llama-3.1-70b@4xh200/tp={2,4").line()


def test_commas_of_json_part_no_options(loadstone: Loadstone) -> None:
    overrides = (
        '{"max_position_embeddings": 65536, "rope_scaling": {"rope_type": "yarn", "factor": 1.0}}'
    )
    row = ("--gpu", "h200", "--gpus", "2", "--json")
    for text in (
        ("qwen3-32b", "--argument", f"hf_overrides={overrides}", *row),
        (f"qwen3-32b@2xh200/hf_overrides={overrides},tp2,qwen3-8b@1xh200", "--json"),
    ):
        assert json.loads(loadstone("size", *text).out)["rows"][0]["context_tokens"] == 65_536


def test_strict_is_for_scripts(loadstone: Loadstone) -> None:
    assert loadstone("size", "llama-3.1-405b@1xh100", "--strict").code == 1
    assert loadstone("size", "llama-3.1-405b@1xh100", "--strict", "--json").code == 1
    assert loadstone("size", "llama-3.1-405b@1xh100").code == 0
    assert loadstone("size", "llama-3.1-405b@1xh100,llama-3.1-8b@1xh100", "--strict").code == 0
