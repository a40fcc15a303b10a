"""Reads what is sent: the file that the options name, or the lengths of synthetic prompts."""

from pathlib import Path

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.workload import agents, dataset, option_values, real_text, trace
from loadstone.workload.draw import Workload
from loadstone.workload.lengths import Length, Sessions, parse_length, parse_think
from loadstone.workload.load_options import WorkloadOptions
from loadstone.workload.option_fields import changed_options
from loadstone.workload.pictures import Pictured, parse_pictures
from loadstone.workload.synthetic import Synthetic

_DEFAULT_INPUT, _DEFAULT_OUTPUT = "1024", "128"
WITH_A_TRACE = ("time-scale", "trace-window", "trace-sample", "length-scale")
"""Options that need --trace."""
_WITH_AGENTS = ("answers", "tool-time")
"""Options that need --agents."""


def check_combinations(options: WorkloadOptions) -> None:
    if options.prefix_groups > 1 and not options.prefix:
        raise InputError(
            "--prefix-groups: prompts of a group share a prefix; give its length with --prefix"
        )
    for flag in changed_options(options):
        has_trace = options.trace is not None or (
            flag == "time-scale" and (options.mix or options.classes)
        )
        if flag in WITH_A_TRACE and not has_trace:
            raise InputError(f"--{flag}: says how a trace is replayed; it goes with --trace")
        if flag in _WITH_AGENTS and options.agents is None:
            raise InputError(f"--{flag}: says how sessions are replayed; it goes with --agents")
    if (
        options.skip_bad
        and options.trace is None
        and options.dataset is None
        and options.agents is None
    ):
        raise InputError(
            "--skip-bad: leaves out bad lines of a file; it goes with --trace, --dataset or"
            " --agents"
        )


def sessions_of(options: WorkloadOptions) -> Sessions | None:
    if options.turns is None:
        if options.think_time is not None:
            raise InputError(
                "--think-time: lies between the turns of a session; it goes with --turns"
            )
        return None
    think = parse_think(options.think_time) if options.think_time is not None else parse_think("0")
    return Sessions(parse_length(options.turns, 1.0, "--turns"), think)


def parse_output(options: WorkloadOptions, default: str | None = None) -> Length:
    return parse_length(options.output or default or "", options.range_ratio, "--output")


_EXCLUDED = {
    "agents": (
        ("input", "dataset", "trace", "text", "prefix", "turns", "think-time", "range-ratio"),
        "the file says what is asked, and when",
    ),
    "trace": (
        ("input", "output", "dataset", "text", "prefix", "turns", "range-ratio"),
        "the trace says what is asked",
    ),
    "dataset": (("input", "prefix", "text"), "the dataset says what prompts hold"),
    "text": (("prefix", "turns"), "each prompt is text of its own"),
}
"""By the flag of a file: those that it excludes, and why."""


def read_workload(options: WorkloadOptions, sessions: Sessions | None) -> Workload:
    """Read the file that is named, or describe synthetic prompts. Raises InputError."""
    changed = changed_options(options)
    source = next((name for name in _EXCLUDED if getattr(options, name) is not None), None)
    if source is not None:
        excluded, why = _EXCLUDED[source]
        for flag in changed:
            if flag in excluded:
                raise InputError(f"--{source} and --{flag}: {why}; give one")
    if options.agents is not None:
        return _read_agents(options, options.agents)
    if options.trace is not None:
        return _read_trace(options, options.trace)
    if options.dataset is not None:
        conversations = sessions is not None
        return dataset.read(options.dataset, conversations=conversations, skip_bad=options.skip_bad)
    synthetic = Synthetic(
        parse_length(options.input or _DEFAULT_INPUT, options.range_ratio, "--input"),
        parse_output(options, _DEFAULT_OUTPUT),
        options.prefix,
        options.prefix_groups,
        system_prompt=sessions is not None,
    )
    if options.text is None:
        return synthetic
    return real_text.RealText(real_text.read(options.text), synthetic)


def add_pictures(workload: Workload, options: WorkloadOptions) -> Workload:
    """Return a workload with the pictures that are asked for. Raises InputError."""
    flags = [flag for flag in changed_options(options) if flag.startswith("image")]
    if not flags:
        return workload
    if options.images is None:
        raise InputError(f"--{flags[0]}: says how pictures are; say how many with --images")
    for source in ("trace", "agents"):
        if getattr(options, source) is not None:
            raise InputError(f"--{source} and --images: do not go together; leave one out")
    request = parse_pictures(
        options.images,
        options.image_size,
        options.image_format,
        options.image_content,
        options.image_groups,
        options.image_place,
    )
    return Pictured(workload, request) if request.count.mean else workload


def _read_trace(options: WorkloadOptions, path: Path) -> trace.Trace:
    """Read the part of a trace that is replayed, with the lengths asked for. Raises InputError."""
    traced = trace.read(path, skip_bad=options.skip_bad)
    if options.trace_window_s is not None:
        traced = traced.cut(*options.trace_window_s)
    if options.trace_sample is not None:
        traced = traced.sample(options.trace_sample, options.seed)
    if options.length_scale is not None:
        traced = traced.scaled_lengths(options.length_scale)
    return traced


def _read_agents(options: WorkloadOptions, path: Path) -> agents.AgentTrace:
    """Read sessions of agents, with the pauses and lengths asked for. Raises InputError."""
    read = agents.read(path, skip_bad=options.skip_bad)
    if options.answers == "live":
        if read.block_tokens:
            raise InputError(
                "--answers live: the file has no messages that could hold them; leave it out"
            )
        read = msgspec.structs.replace(read, live=True)
    unknown = sum(not call.output_tokens for calls in read.sessions for call in calls)
    if unknown:
        if options.output is None:
            raise InputError(
                f"--output: {unknown} calls of {path} have no answer there, nor its length; give"
                " e.g. --output 256"
            )
        lengths = parse_length(options.output, 1.0, "--output").draw(
            np.random.default_rng([options.seed, 0]), unknown
        )
        read = read.with_outputs(lengths)
    if options.tool_time is None:
        return read
    scale = options.tool_time.strip().removesuffix("x")
    if scale != options.tool_time.strip():
        factors = option_values.numbers(scale, "--tool-time")
        if len(factors) != 1 or not 0 <= factors[0] <= 1e6:
            raise InputError(
                f"--tool-time: {options.tool_time!r} is no multiple of the recorded; write e.g."
                " 0.5x"
            )
        return read.with_pauses(factors[0], None, options.seed)
    return read.with_pauses(1.0, parse_think(options.tool_time, "--tool-time"), options.seed)
