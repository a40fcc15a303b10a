"""GPUs and nodes of the user's own: from a file to sizes, runs, reports, and one line where it
cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from conftest import Loadstone
from loadstone import catalogue
from loadstone.analyse.roofline import roofline_of
from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.summary import summary_of
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.record import RunInfo
from loadstone.core.settings import read_settings
from loadstone.predict.step_time.profile import profile_of

GIB = 1 << 30
SLOW = """
like: h200
hbm_gib: 96
hbm_bytes_per_s: 4.0e12
flops_per_s: {bf16: 148e12, fp16: 148e12, fp8: 296e12}
source: {hbm_bytes: a listing}
"""
WHOLE = {
    "vendor": "nvidia", "hbm_gib": 200, "usable_gib": 198, "hbm_bytes_per_s": 1e13, "flops_per_s": {"bf16": 3e15},
    "link": "nvlink-switch", "link_bytes_per_s": 1e12, "per_node": 8, "tdp_w": 1500,
}  # fmt: skip


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    path = tmp_path / "Slow-200.yaml"
    path.write_text(SLOW)
    return path


# --- what a file says -----------------------------------------------------------------------------


def test_only_what_differs_is_written(slow: Path) -> None:
    gpu, h200 = catalogue.gpu(str(slow)), catalogue.gpu("h200")
    assert (gpu.name, gpu.given) == ("slow-200", str(slow))
    assert (gpu.hbm_bytes, gpu.hbm_bytes_per_s) == (96 * GIB, 4.0e12)
    # YAML 1.1 has 148e12 as a text, and 4.0e12 too: both are numbers here. FLOP/s take the place of
    # all of H200's.
    assert gpu.flops_per_s == {"bf16": 148e12, "fp16": 148e12, "fp8": 296e12}
    assert gpu.usable_bytes == round(96 * GIB * h200.usable_bytes / h200.hbm_bytes)
    assert (gpu.link_bytes_per_s, gpu.tdp_w, gpu.per_node) == (450e9, 700, 8)
    assert gpu.source["hbm_bytes"] == "a listing"
    assert gpu.source["flops_per_s"] == "Slow-200.yaml"
    assert gpu.source["all"] == h200.source["all"]
    assert "estimate" in gpu.source["usable_bytes"]


def test_a_whole_gpu_of_json(tmp_path: Path) -> None:
    (tmp_path / "x900.json").write_text(json.dumps(WHOLE))
    gpu = catalogue.gpu(str(tmp_path / "x900.json"))
    assert (gpu.usable_bytes, gpu.pair_bytes_per_s, gpu.source) == (
        198 * GIB,
        1e12,
        {"all": "x900.json"},
    )


def test_an_entry_as_the_catalogue_prints_it_is_a_file(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    (entry,) = json.loads(loadstone("catalogue", "gpus", "mi300x", "--json").out)["gpus"]
    (tmp_path / "mine.json").write_text(json.dumps(entry | {"name": "mi300x-mine", "tdp_w": 650}))
    found = catalogue.gpu(str(tmp_path / "mine.json"))
    same = msgspec.structs.replace(
        catalogue.gpu("mi300x"), name=found.name, given=found.given, tdp_w=650
    )
    assert found == same


def test_what_changes_in_the_file_is_seen(slow: Path) -> None:
    assert catalogue.gpu(str(slow)).hbm_bytes_per_s == 4.0e12
    slow.write_text(SLOW.replace("4.0e12", "3.0e12"))
    assert catalogue.gpu(str(slow)).hbm_bytes_per_s == 3.0e12


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("like: h2000", "like 'h2000': not in the catalogue; nearest: h200"),
        ("like: 3", "like '3'"),
        ("like: h200\nhbm_gb: 96", "unknown field `hbm_gb`"),
        ("like: h200\nhbm_bytes_per_s: 4.8", "hbm_bytes_per_s is 4.8 per second; write it in full"),
        ("like: h200\nhbm_bytes_per_s: 4.8e3", "hbm_bytes_per_s is 4800 per second"),
        ("like: h200\nflops_per_s: {bf16: 989}", "flops_per_s.bf16 is 989 per second"),
        ("like: h200\nhbm_bytes_per_s: 4.8 TB/s", "$.hbm_bytes_per_s"),
        ("like: h200\nflops_per_s: {fp8: 1e15}", "no bf16"),
        ("like: h200\nflops_per_s: {bf16: 1e15, FP8: 2e15}", "'FP8'; its types are bf16"),
        ("like: h200\nusable_gib: 150", "more memory is usable than there is"),
        ("like: h200\nhbm_gib: .inf", "hbm_gib"),
        ("like: h200\ntdp_w: .inf", "tdp_w"),
        ("like: h200\ntdp_w: .nan", "tdp_w"),
        ("like: h200\nper_node: 0", "per_node"),
        ("like: h200\nsource: me", "source"),
        ("like: h200\nname: H200", "'H200' is the catalogue's own"),
        ("like: h200\nname: dgx-h200", "the catalogue's own"),
        ("like: h200\nname: ../x", "is not a name"),
        ("vendor: nvidia\nhbm_gib: 96\nlink_bytes_per_s: 9e11", "lacks usable_gib"),
        ("like: dgx-h200\ngpus: 0", "$.gpus"),
        ("gpus: 8\ngpu: h3000", "no GPU 'h3000'"),
        ("a: &a {b: 1}\n<<: *a", "merge key"),
        ("like: [h200", "not readable"),
        ("like: " + "[" * 5_000, "x.yaml: "),
        ("h200", "no fields"),
        ("", "no fields"),
        ("#" * 70_000, "more than 64 KiB"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        catalogue.parse_worker(f"llama-3.1-8b@1x{path}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot be read \(No such file"):
        catalogue.gpu("nowhere.yaml")


# --- in a deployment ------------------------------------------------------------------------------


def test_a_deployment_names_the_file_and_gives_itself_again(slow: Path) -> None:
    found = catalogue.parse_worker(f"llama-3.1-8b:fp8@8x{slow}/tp4,dp2,engine=sglang")
    assert (found.gpus, found.tp, found.dp, found.engine, found.gpu.name) == (
        8,
        4,
        2,
        "sglang",
        "slow-200",
    )
    assert catalogue.parse_worker(found.name) == found


def test_a_node_of_ones_own_and_its_network(slow: Path) -> None:
    path = slow.with_name("four.yml")
    path.write_text(f"gpu: {slow.name}\ngpus: 4\nnics: 2\nnic_bytes_per_s: 25e9\nram_gib: 512")
    found = catalogue.parse_worker(f"llama-3.1-70b@2x{path}")
    assert (found.gpus, found.nodes, found.tp, found.pp) == (8, 2, 4, 2)
    assert found.gpu.nic_bytes_per_s == 12.5e9
    assert found.node is not None
    assert found.node.ram_bytes == 512 * GIB
    assert found.has_own_hardware
    path.write_text("like: dgx-h200\ngpus: 4\nnics: 2")
    capped = catalogue.parse_worker(f"llama-3.1-70b@2x{path}")
    assert (capped.gpus, capped.gpu.name, capped.gpu.nic_bytes_per_s) == (8, "h200", 25e9)
    assert capped.has_own_hardware
    assert not catalogue.parse_worker("llama-3.1-70b@2xdgx-h200").has_own_hardware
    path.write_text(f"gpu: {slow.name}\ngpus: 4\nnics: 2\nnic_bytes_per_s: 25e9")
    found = catalogue.parse_worker(f"llama-3.1-70b@2x{path}")
    assert catalogue.parse_worker(found.name) == found
    with pytest.raises(InputError, match="is a node"):
        catalogue.gpu(str(path))
    with pytest.raises(InputError, match="is a GPU, not a node"):
        catalogue.node(str(slow))


def test_kept_in_the_users_folder_it_has_a_name(
    slow: Path, monkeypatch: pytest.MonkeyPatch, loadstone: Loadstone
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(slow.parent))
    with pytest.raises(InputError, match="no GPU or node 'slow-200'"):
        catalogue.parse_worker("llama-3.1-8b@1xslow-200")
    kept = slow.parent / "loadstone" / "hardware"
    kept.mkdir(parents=True)
    slow.rename(kept / "slow-200.yaml")
    found = catalogue.parse_worker("llama-3.1-8b@1xSlow-200")
    assert found.gpu.hbm_bytes == 96 * GIB
    assert found.name.partition("@")[2].startswith("1xslow-200/")
    assert "slow-200" in [gpu.name for gpu in catalogue.gpus()]
    assert "slow-200" in loadstone("catalogue", "gpus").out


def test_size_takes_it_wherever_a_name_goes(slow: Path, loadstone: Loadstone) -> None:
    rows = loadstone(
        "size", "llama-3.1-8b", "--gpu", f"{slow},h200", "--gpus", "1,2", "--json"
    ).document["rows"]
    whole = loadstone(
        "size", f"llama-3.1-8b@2x{slow}/tp2", "--engine", "sglang", "--json"
    ).document["rows"]
    assert [(row["gpu"], row["gpus"]) for row in rows] == [
        ("slow-200", 1),
        ("slow-200", 2),
        ("h200", 1),
        ("h200", 2),
    ]
    assert rows[0]["usable_bytes"] == catalogue.gpu(str(slow)).usable_bytes
    assert (whole[0]["gpu"], whole[0]["tp"], whole[0]["engine"]) == ("slow-200", 2, "sglang")


# --- predictions and records ----------------------------------------------------------------------


def test_it_is_as_uncertain_as_a_gpu_that_nobody_has_measured(slow: Path) -> None:
    own, measured = (
        profile_of(catalogue.parse_worker(f"llama-3.1-8b@1x{name}/engine=sglang,version=0.5.0"))
        for name in (slow, "h200")
    )
    unknown = profile_of(
        catalogue.parse_worker("llama-3.1-8b@1xgaudi3/engine=sglang,version=0.5.0")
    )
    assert own.logarithms == measured.logarithms
    assert (own.covariance, own.residual) == (unknown.covariance, unknown.residual)
    assert sum(own.covariance[i][i] for i in range(len(own.names))) > sum(
        measured.covariance[i][i] for i in range(len(own.names))
    )


def test_a_run_stays_readable_where_the_file_is_gone(
    slow: Path, loadstone: Loadstone, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    asked = (
        "--input",
        64,
        "--output",
        16,
        "--concurrency",
        2,
        "--requests",
        4,
        "--out",
        out,
        "--json",
    )
    folder = loadstone("simulate", f"llama-3.1-8b@1x{slow}/tp1", *asked).folder
    slow.unlink()
    info = msgspec.json.decode((folder / "run.json").read_bytes(), type=RunInfo)
    said = info.settings.deployment["gpu"]
    assert (said["hbm_bytes_per_s"], said["hbm_bytes"], said["source"]["hbm_bytes"]) == (
        4e12,
        96 * GIB,
        "a listing",
    )
    facts = run_facts(info)
    assert facts.gpu == "slow-200"  # not H200, which it only resembles
    (cell,) = summary_of(folder).cells
    assert cell.roofline is not None
    # All weights but the table of embeddings are read in a step, and next to nothing else.
    assert cell.roofline.tpot_s == pytest.approx(
        (8_030_261_248 - 128_256 * 4096) * 2 / 4.0e12, rel=0.01
    )
    assert roofline_of(info, facts, cell) is not None
    # A record that names a file has nothing read for it.
    slow.write_text(SLOW)
    assert (
        roofline_of(info, msgspec.structs.replace(facts, gpu=str(slow), hardware=None), cell)
        is None
    )
    assert "slow-200" in loadstone("show", folder).out


def test_a_described_gpu_that_is_none_is_let_be() -> None:
    settings = {"deployment": {"gpu": {"name": "x", "hbm_bytes": -1}, "gpus": 2}}
    info = RunInfo(
        run_id="r", source="imported", created="", command=[], loadstone="", host=Host(), target=None, plan_id="",
        seed=0, salt=None, settings=read_settings(settings),
    )  # fmt: skip
    assert (run_facts(info).hardware, run_facts(info).gpu) == (None, "x")


def test_measurements_on_it_are_predicted(slow: Path, loadstone: Loadstone) -> None:
    points = slow.with_name("points.csv")
    head = "engine,model,precision,gpu,num_gpus,tp,dp,input_len,output_len,arrival,arrival_value,tpot_ms_median"
    row = "vllm 0.19.0,llama-3.1-8b,bf16,{},1,1,1,512,64,concurrency,1,9.0"
    lost = slow.with_name("lost-h200.yaml")
    points.write_text("\n".join([head, row.format(slow), row.format(lost), row.format("h200")]))
    mine, gone, h200 = loadstone("validate", points, "--json").document["rows"]
    # Weights are read 1.2 times as slowly: the prediction is of this GPU and not of one that its
    # name resembles.
    assert mine["predicted"]["tpot_ms"] > 1.1 * h200["predicted"]["tpot_ms"]
    assert "No such file" in gone["skipped_because"]


def test_another_file_of_the_same_name_is_another_setup(
    slow: Path, loadstone: Loadstone, tmp_path: Path
) -> None:
    ask = (
        "--input",
        64,
        "--output",
        16,
        "--concurrency",
        1,
        "--requests",
        8,
        "--out",
        tmp_path / "runs",
        "--json",
    )
    folders = []
    for sequences in (32, 64):
        folders.append(
            loadstone("simulate", f"llama-3.1-8b@1x{slow}/max_num_seqs={sequences}", *ask).folder
        )
        slow.write_text(SLOW.replace("4.0e12", "3.0e12"))
    said = json.loads(loadstone("compare", *folders, "--json").out)
    setup = {each["what"]: each for each in said["setup"]}
    assert (setup["hardware"]["a"], setup["hardware"]["b"]) == (
        {"hbm_bytes_per_s": 4e12},
        {"hbm_bytes_per_s": 3e12},
    )
    assert setup["engine arguments"]["b"] == {"max_num_seqs": "64"}
