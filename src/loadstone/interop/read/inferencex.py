"""Reads InferenceX's aggregates (agg_*.json of its runs, rows of its database): vLLM's client with
latencies in seconds.

A closed loop; rates are per GPU. Lengths are drawn from 0.8 of the stated ones on, which no file
says.
"""

from loadstone.core.plan import Load
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.reader import Reader
from loadstone.interop.read.values import Value, drop_missing, make_lengths

_RANGE_RATIO = 0.8


def read_aggregate(document: Value, where: str) -> ResultCell:
    metrics = document.at("metrics") if document.has("metrics") else document
    apart = document.get("disagg") in (True, "true")
    prefill, decode = document.whole("num_prefill_gpu"), document.whole("num_decode_gpu")
    gpus = (
        document.whole("tp|decode_tp")
        if decode is None
        else decode + (prefill or 0 if apart else 0)
    )
    drafts = document.text("spec_decoding|spec_method")
    setup = [
        drafts if drafts not in (None, "none") else None,
        (
            "attention dp"
            if document.get("dp_attention|decode_dp_attention") in (True, "true")
            else None
        ),
        f"{prefill} prefill + {decode} decode GPUs" if apart else None,
    ]
    counts = {"output_tokens_per_s": decode if apart else gpus, "total_tokens_per_s": gpus}
    per_gpu = metrics.fields(
        output_tokens_per_s="output_tput_per_gpu", total_tokens_per_s="tput_per_gpu"
    )
    places = document.positive("conc")
    image = document.text("image") or ""
    return ResultCell(
        where=where,
        tool="InferenceX",
        load=Load("concurrency", places) if places else None,
        created=document.when("date"),
        deployment=drop_missing({"engine_version": image.rpartition(":")[2] or None, "gpus": gpus})
        | document.fields(
            engine="framework", model="model", gpu="hw|hardware", weights_dtype="precision"
        )
        | ({} if apart else document.fields(tp="tp|decode_tp", ep="ep|decode_ep")),
        workload=make_lengths(document.get("isl"), document.get("osl"), _RANGE_RATIO),
        label=", ".join(filter(None, setup)) or None,
        definitions="vllm",
        latencies=metrics.read_spelled(),
        totals={name: rate * (counts[name] or 0) for name, rate in per_gpu.items() if counts[name]},
    )


READER = Reader(
    tools="InferenceX's aggregates",
    documents=[(("conc", "hw|hardware", "tput_per_gpu|metrics.tput_per_gpu"), read_aggregate)],
)
