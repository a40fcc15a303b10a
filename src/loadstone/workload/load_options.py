"""The options of what is sent and until when: requests, load, sampling, checks of answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from loadstone.workload import option_values as values
from loadstone.workload.option_fields import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    BURSTINESS,
    LOAD,
    RUN,
    SHARE,
    WORKLOAD,
    Flags,
    Limits,
    flag,
)
from loadstone.workload.request import Sampling

TEMPERATURE = Limits("must be 0 (greedy) or above", 0)


@dataclasses.dataclass(kw_only=True)
class WorkloadOptions(Flags):
    """The requests, as the plan has them."""

    input: str | None = flag(
        WORKLOAD,
        "prompt tokens: 1024, 8k, uniform:512:1024, normal:1024:128, lognormal:1024:0.5 [default:"
        " 1024; 256 of an embedding's input, 32 of a query]",
        read=values.text,
    )
    inputs: str | None = flag(
        WORKLOAD,
        "with --endpoint embeddings: texts in a request, in the same forms [default: 1]",
        read=values.text,
    )
    documents: str | None = flag(
        WORKLOAD,
        "with --endpoint rerank or score: documents in a request [default: 10]",
        read=values.text,
    )
    document: str | None = flag(
        WORKLOAD, "tokens of each document, in the same forms [default: 256]", read=values.text
    )
    output: str | None = flag(
        WORKLOAD,
        "output tokens, in the same forms [default: 128; a dataset's own]",
        read=values.text,
    )
    range_ratio: float = flag(
        WORKLOAD, "draw lengths uniformly from [ratio·n, n]", 1.0, limits=SHARE
    )
    prefix: int = flag(
        WORKLOAD,
        "tokens at the start of each prompt that its group shares, e.g. 2000",
        "0",
        values.tokens,
    )
    prefix_groups: int = flag(
        WORKLOAD, "groups of prompts; prompts of a group share a prefix", 1, limits=AT_LEAST_1
    )
    dataset: Path | None = flag(
        WORKLOAD,
        "file of prompts: ShareGPT, OpenAI messages or plain; JSONL, JSON or text",
        read=values.path,
    )
    text: str | None = flag(
        WORKLOAD,
        "prompts of real text, cut to --input: a text, JSONL or Parquet file, or a folder; with"
        " PATH:COLUMN where the column is not clear",
        read=values.name_or_path,
    )
    images: str | None = flag(
        WORKLOAD,
        "pictures in each prompt, beside its text: 1, uniform:1:4 (docs/images.md)",
        read=values.text,
    )
    image_size: str | None = flag(
        WORKLOAD,
        "width x height of pictures in pixels: 512x512,1920x1080:0.2 (a weight), or"
        " uniform:256x256:1536x1536 [default: 1024x768]",
        read=values.text,
    )
    image_format: str | None = flag(
        WORKLOAD, "png, or jpeg with its quality [default: jpeg:85]", read=values.text
    )
    image_content: Literal["photo", "noise", "solid"] = flag(
        WORKLOAD, "what pictures compress like", "photo"
    )
    image_groups: int | None = flag(
        WORKLOAD,
        "so many different sets of pictures, which requests share [default: each is new]",
        limits=AT_LEAST_1,
    )
    image_place: Literal["first", "last"] = flag(
        WORKLOAD, "where pictures stand: before the text, or behind it", "first"
    )
    turns: str | None = flag(
        WORKLOAD,
        "conversations of this many turns, e.g. 4 or uniform:2:6; loads then count conversations",
        read=values.text,
    )
    think_time: str | None = flag(
        WORKLOAD,
        "pause between turns: 2s, uniform:1s:3s, exponential:2s, lognormal:2s:0.5",
        read=values.text,
    )
    trace: Path | None = flag(
        WORKLOAD,
        "replay this trace at its own times: Azure, Mooncake, BurstGPT, plain CSV, JSONL",
        read=values.path,
    )
    agents: Path | None = flag(
        WORKLOAD,
        "replay sessions of agents: Weka, Mooncake or Dynamo rows, MLPerf, OpenAI messages,"
        " OpenTelemetry spans; loads then count sessions",
        read=values.path,
    )
    answers: Literal["recorded", "live"] = flag(
        WORKLOAD,
        "with --agents: whose answers later prompts hold, the file's or the server's own",
        "recorded",
    )
    tool_time: str | None = flag(
        WORKLOAD,
        "with --agents: pauses between calls, a multiple of the recorded, 0.5x, or drawn: 2s,"
        " exponential:2s [default: 1x]",
        read=values.text,
    )
    time_scale: Sequence[float] = flag(
        WORKLOAD,
        "multiply a trace's times by this; 0.1: ten times as fast; a list: a load each"
        " [default: 1]",
        (),
        values.scales,
    )
    trace_window_s: tuple[float, float] | None = flag(
        WORKLOAD, "replay only FROM:TO of a trace, e.g. 0s:10m", read=values.window
    )
    trace_sample: float | None = flag(
        WORKLOAD, "replay this share of a trace's requests, e.g. 0.1", limits=SHARE
    )
    length_scale: float | None = flag(
        WORKLOAD,
        "multiply a trace's lengths in tokens by this; prefixes stay shared",
        limits=ABOVE_0,
    )
    mix: Path | None = flag(
        WORKLOAD,
        "YAML file of classes of traffic, each with its share, lengths and bounds (docs/mixed.md)",
        read=values.path,
    )
    classes: Sequence[str] = flag(
        WORKLOAD,
        "a class of traffic, 'chat,share=0.7,input=512,output=128,slo=ttft_p99<1s'; once for each",
        (),
        values.texts,
        name="class_",
    )
    without: str | None = flag(
        WORKLOAD,
        "of a mix: also run the same plan without this class, to see what it costs the others",
        read=values.text,
    )
    skip_bad: bool = flag(WORKLOAD, "leave out bad lines of a file, and report how many", False)
    scenario: str | None = flag(
        WORKLOAD,
        "published rules that set options and are checked: agentx@0.13, mlperf-agentic@ea332753,"
        " like:aa-agentperf",
        read=values.text,
    )
    plan: Path | None = flag(
        WORKLOAD, "replay the plan of a run folder, or a plan.parquet", read=values.path
    )
    seed: int = flag(
        WORKLOAD,
        "seed of the plan: same seed, same plan",
        0,
        limits=Limits("must be 0 or more, and below 2^63", 0, maximum=(1 << 63) - 1),
    )
    structured: str | None = flag(
        WORKLOAD, "constrain answers: json-schema:FILE, grammar:FILE or regex:PATTERN"
    )


@dataclasses.dataclass(kw_only=True)
class SamplingOptions(Flags):
    """The way in which an engine draws the tokens of answers."""

    temperature: float | None = flag(
        WORKLOAD, "sampling temperature [default: the server's]", limits=TEMPERATURE
    )
    top_p: float | None = flag(WORKLOAD, "nucleus sampling [default: the server's]", limits=SHARE)
    sampling_seed: int | None = flag(WORKLOAD, "sampling seed for the engine")
    stop: Sequence[str] = flag(
        WORKLOAD, "stop answers at this text (may be repeated)", (), values.texts
    )

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.sampling_seed, tuple(self.stop))


@dataclasses.dataclass(kw_only=True)
class LoadOptions(Flags):
    """The load: how requests are offered, and how many of them."""

    concurrency: Sequence[int] = flag(
        LOAD,
        "closed loop: requests under way at a time; a list: a load each [default: 1,4,16; of"
        " bench: 1, 2, 4 … until throughput stops growing]",
        (),
        values.counts,
    )
    rate: Sequence[float] = flag(
        LOAD,
        "open loop: requests/s; a list: a load each; inf: all of --requests at once",
        (),
        values.numbers,
    )
    burstiness: float = flag(
        LOAD,
        "spread of open-loop arrivals: 1 is Poisson, below 1 burstier, above 1 more even, inf"
        " constant",
        1.0,
        limits=BURSTINESS,
    )
    ramp: str | None = flag(
        LOAD,
        "rate in pieces: 1:20:60s,20:30s (1 to 20 in 60 s, then 20 for 30 s); or"
        " concurrency=1:64:60s",
    )
    max_concurrency: int | None = flag(
        LOAD,
        "cap on an open loop's requests under way; waiting for a slot counts as latency",
        limits=AT_LEAST_1,
    )
    requests: Sequence[int] = flag(
        LOAD,
        "measured requests per load; a list with --rate inf [default: 8 to 16 × concurrency; a"
        " minute of arrivals]",
        (),
        values.counts,
    )
    requests_per_rate: float | None = flag(LOAD, "measured requests per load: this × the rate")
    duration_s: float | None = flag(
        LOAD,
        "measure each load for this long instead, e.g. 60s",
        read=values.seconds,
        limits=ABOVE_0,
    )
    grace_s: float = flag(
        LOAD, "after --duration: time for requests under way to end", "30s", values.seconds
    )
    find_max: str | None = flag(
        LOAD,
        "search the highest load at which these bounds hold, ttft_p99<500ms,tpot_p99<30ms, by"
        " --rate or, with --concurrency, by requests under way; for --max-duration in all [default:"
        " 10m]",
        read=values.text,
    )
    warmup: int | None = flag(
        LOAD,
        "requests before the measured ones, or 0 [default: the concurrency; a second of the rate,"
        " at most a tenth]",
        limits=AT_LEAST_0,
    )
    start: Literal["staggered", "together"] = flag(
        LOAD,
        "users begin staggered, by a warm-up of cut answers, or together, without one, as with"
        " other tools",
        "staggered",
    )


@dataclasses.dataclass(kw_only=True)
class EarlyEndOptions(Flags):
    """Rules that end a measured cell before all of its requests are sent."""

    stop_when: str | None = flag(
        LOAD,
        "end a load once all of these are known so well, with 95% confidence:"
        " tpot_p50±2%,ttft_p99±10%; or whether bounds hold, ttft_p99<500ms; without --requests or"
        " --duration it goes on until then, or for --max-duration",
    )
    max_errors: float | None = flag(
        LOAD,
        "end a load once more than this share of its requests fails, e.g. 5%",
        read=values.share,
        limits=Limits("must be from 0 to below 1", 0, maximum=0.999),
    )
    min_duration_s: float | None = flag(
        LOAD,
        "shortest time of a load before --stop-when ends it",
        read=values.seconds,
        limits=ABOVE_0,
    )
    max_duration_s: float | None = flag(
        LOAD,
        "longest time of a load [default: 10m with --stop-when alone]",
        read=values.seconds,
        limits=ABOVE_0,
    )


@dataclasses.dataclass(kw_only=True)
class CheckOptions(Flags):
    """Questions mixed into the load whose answers are graded."""

    check: str | None = flag(
        WORKLOAD,
        "grade answers under this load: FILE[:N] of questions (GSM8K, multiple choice, JSON schema,"
        " tool calls, needles), or generated[:N], which needs no file",
        read=values.text,
    )
    check_share: float = flag(
        WORKLOAD,
        "the most that graded requests may be of all, e.g. 5%",
        "10%",
        values.share,
        limits=Limits("must be above 0 and at most 0.9", exclusive_minimum=0, maximum=0.9),
    )
    check_min: float | None = flag(
        WORKLOAD,
        "the least share of right answers, e.g. 90%; below it is an error",
        read=values.share,
        limits=SHARE,
    )
    check_tokens: int | None = flag(
        WORKLOAD,
        "the most tokens of a graded answer [default: the item's, else 128 or 1024]",
        limits=AT_LEAST_1,
    )
    keep_answers: bool = flag(
        RUN, "keep the texts of graded answers in answers.parquet, not their hashes alone", False
    )
