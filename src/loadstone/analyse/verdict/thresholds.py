"""Holds every threshold of the verdict with its reason, by the findings that it decides.

A threshold lies where a deviation begins to show in the numbers, not where it begins to exist.
Severities, remedies and the runs for which a finding holds are in findings.toml.
"""

# --- Which of a cell's numbers an error of the client spoils: sends_late, client_read_late --------

SPOILT_SHARE = 0.1
"""The share of a metric from which an error in it spoils it: repeated runs of one setup differ by a
tenth, and no difference below it is claimed from one run.
"""

# --- request_errors -------------------------------------------------------------------------------

CAUSES = {
    422: "the server does not understand the requests, or one of their fields",
    413: "a proxy limits the size of requests (nginx: client_max_body_size)",
    429: "the server, or a gateway, limits requests",
    502: "a proxy found no engine behind it",
    503: "the server was full, or a proxy found no engine ready",
    504: "a proxy timed out waiting for the engine",
}
"""The cause that the HTTP status of most refusals tells."""
REFUSALS = {
    "increase the physical batch size": (
        "an input is longer than llama.cpp's physical batch, which --ubatch-size raises (and"
        " --batch-size with it)"
    ),
    "must have less than [0-9]+ tokens": (
        "an input is longer than the model takes, and is refused where --auto-truncate is off"
    ),
    "maximum allowed batch size": (
        "a request has more texts than the server takes, which --max-client-batch-size raises"
    ),
    "[Mm]odel is overloaded": (
        "the server has as many requests as it takes, which --max-concurrent-requests raises"
    ),
}
"""The cause that a refusal's own words tell, of llama.cpp and Text Embeddings Inference."""
CUT_SPREAD = 0.1
CUT_S = 0.5
"""The spread of silences before connections were cut (middle half over median) and the least
silence: if all are as long, it was somebody's time limit.
"""

# --- inputs_truncated -----------------------------------------------------------------------------

TRUNCATED_TOKENS = 2
"""Tokens by which a request may be counted shorter: two words that a tokenizer joins are no text
that was cut."""

# --- engine_restarted, engines_in_turns -----------------------------------------------------------

FELL_SHARE = 0.5
"""Counters that fell between two samples, of those above 0, from which the engine began anew: all
do then, and a single one may only be misnamed."""
START_MOVED_S = 1.0
"""A change of the start time of an engine that is more than rounding."""

# --- counters_differ, drafts_beyond_end -----------------------------------------------------------

COUNTED_SHARE = 0.9
"""Output tokens that engines count over those that answers state, below which the answers state
what was not made; and tokens that came over those of the engines' steps."""
COUNTED_TIMES, COUNTED_S = 1.25, 0.005
"""Mean time to the first token as engines count it, over TTFT, and beyond it: theirs ends before
the network, and of a few requests more."""

# --- server_writes_late ---------------------------------------------------------------------------

SERVER_LATE_S = 1e-3
"""Writes that are later than this had to wait for a processor; the work of writing itself takes a
tenth of it."""

# --- few_samples ----------------------------------------------------------------------------------

P99_REQUESTS = 368
"""Independent requests that bound a p99 from above with 97.5 %: 0.99ⁿ ≤ 0.025."""

# --- wide_interval --------------------------------------------------------------------------------

WIDE_REQUESTS = 50
"""Requests from which a 95 % interval of a mean or a throughput that is wider than the value says
that the cell has no one value; of fewer it says that they are few."""

# --- sessions_unfinished --------------------------------------------------------------------------

UNFINISHED_SHARE = 0.1
"""Share of the sessions that did not end, from which time per task is that of the shorter ones."""

# --- ends_late ------------------------------------------------------------------------------------

ENDS_LATE_SHARE = 0.05
ENDS_LATE_S = 0.01
"""Time between the last output and the end of an answer, as a share of the time from its sending to
its end, means, and in seconds: complete answers hold so much of a closed loop's slots.
"""

# --- sends_late -----------------------------------------------------------------------------------

LATE_FLOOR_S = 0.002
"""A send that is no later than this is as punctual as a process gets that has just been woken."""
MISSING_SHARE = 0.05
"""The mean lag of a closed loop's sends over the mean E2E: the part of the load that was missing.
"""

# --- cap_held_back --------------------------------------------------------------------------------

CAP_SHARE = 0.05
CAP_FLOOR_S = 0.005
CAP_REQUESTS = 0.01
"""A wait for a slot of a capped open loop, beyond this share of the median E2E and so many seconds;
of so many of the requests, and at least two."""
WAITED_SHARE = 0.1
"""Requests that waited for a slot, from which a capped open loop is a closed one in the part that
matters most: its tail.
"""

# --- rate_not_reached, rate_by_chance -------------------------------------------------------------

RATE_SHARE = 0.95
"""Achieved rate over planned rate, below which another load was measured than the one asked for."""
RATE_REQUESTS = 20
"""Sends from which a rate is worth comparing: the middle nine tenths of them are."""
CHANCE_SHARE = 0.1
"""Rate of the arrivals that were drawn, over or under the one asked for: as much as a minute of 100
may be off."""

# --- warmup_leaked --------------------------------------------------------------------------------

WARM_TIMES = 2.0
WARM_MORE = 4
"""Warm-up requests under way when the first measured one is sent, beyond this many times the p95 of
requests under way later, and so many more: a backlog of the start. Arrivals at random alone do not
come near."""

# --- fleet_imbalance ------------------------------------------------------------------------------

IMBALANCE = 1.25
"""The busiest server's output tokens over the mean, from which a fleet is unevenly used."""

# --- not_stationary: blocks of requests in the order they were due (overload, queue_grows: core.pac

BLOCKS = 10
BLOCK_REQUESTS = 5
"""Requests in a block, at least: below 50 in all, chance looks like a trend."""
CLOSED_BLOCK_REQUESTS = 3
"""The same of a closed loop, which has no queue whose ups and downs are trends of a short cell."""
TAU = 0.75
"""Kendall's τ of the blocks from which they rise or fall steadily: for ten blocks in random order
|τ| ≥ 0.75 has a probability of 0.001 (Kendall 1938), and blocks of two kinds do not reach it."""
STARTS = (0.2, 0.1, 0.05, 0.025)
"""Shares of the requests that may be a warm-up."""
SLOW_END, DENSER = 1.5, 1.1
"""Pace of an open loop's last requests over that of the others, from which they are slower, unless
more come in the last quarter than before. So queues below saturation are taken for it in no more
than 1 % of cells (simulated processor sharing, 60 to 400 requests).
"""
ENDS = 3
"""Blocks that stand for the beginning of a cell, or its end."""
TIED = 0.01
"""Difference of two blocks, as a share, that says nothing of the direction."""
DRIFT_RATIO = 1.12
"""The last blocks over the first, or the inverse, from which a cell has no one latency: that much
they differ where all grows by 18 % from the first request to the last. Repeated runs of one setup
differ by less."""
DRIFT_SHARE = 0.05
"""The change's share of the median E2E from which it matters; of a start, times its share of the
requests."""
LENGTHS_RATIO = 1.1
"""A change of the lengths asked for, from which a change of latencies is their doing."""

# --- phases_locked --------------------------------------------------------------------------------

LOCKED = 0.8
"""Standard deviation of the mean gaps between sends of a closed loop's slots over their
generations, as a share of the mean gap, from which requests are sent in groups that stay: 1 where
all are in pairs. In 50 simulated loops of equal lengths it was up to 0.74 or from 0.84 on, in 50 of
spread lengths 0 (docs/measuring.md).
"""
LOCKED_APART = 0.2
"""The same of TTFT, from which its percentiles depend on how many slots are in which group."""

# --- kinds_mixed ----------------------------------------------------------------------------------

KINDS_TOKENS = 16
"""Answers that are shorter are left out: one wait between two tokens is most of their pace."""
KINDS_APART = 1.5
KINDS_OTHERS = 3.0
"""The slowest of the faster kind to the fastest of the slower one, in time per token, from which
they are two; and from which no engine serves both: a part was answered by something else, and not
measured."""
KINDS_STEPS = 1.8
"""Steps of the slower kind (p10) over those of the faster one (p90), from which they are two,
however soon they begin."""
KINDS_IN_TURN = 0.5
"""Changes from one kind to the other, over those of random order: stretches of time have few."""

# --- paces_apart ----------------------------------------------------------------------------------

PACES_APART = 0.5
"""Mean difference of log steps between requests that are under way together, from which each has a
pace of its own. Of lognormal paces of one request each it is 1.13 standard deviations."""

# --- beyond_hardware ------------------------------------------------------------------------------

BEYOND = 1.2
"""MBU or MFU that no hardware has: what it reads and computes is known to within this."""

# --- gpu_throttled --------------------------------------------------------------------------------

HELD_DOWN = {"hardware_slowdown", "thermal", "hardware_thermal", "power_brake"}
"""Reasons for low clocks that are the machine's trouble. The power cap is none: under heavy
products it is a GPU's ordinary state, for at full clocks they draw more than it may."""
HELD_DOWN_SHARE = 0.02
"""Share of the readings: at one a second, one in a cell of a minute; heat comes and goes slowly."""
LEAST_HELD_DOWN = 2
"""Readings: a single one may be a spike."""
CAPPED_SHARE = 0.1
"""Share of the readings in which the power cap alone held the clocks down."""

# --- client_saturated -----------------------------------------------------------------------------

BUSY_SHARE = 0.9
"""A worker's processor time as a share of the cell, from which it works without a pause: what comes
next, waits."""
BUSY_CELL_S = 1.0
"""A cell so short is mostly beginning and end."""

# --- client_read_late, events_coalesced -----------------------------------------------------------

TOGETHER_SHARE = 0.1
"""Events that share a read with the one before, as a share of all that follow another, from which
percentiles of ITL are those of reads."""
READ_LATE_SHARE = 0.5
"""Share of such events from which the median gap was not measured."""
LONG_WAITS = 0.01
"""Share of the requests, two at least, that waited as long as the p99 of ITL."""
UNMEASURED_GAP = 0.1
"""Median ITL over median TPOT, of another tool's run, below which half of the gaps are none of an
engine's steps."""

# --- tpot_understated, ttft_overstated, arrivals_bunched ------------------------------------------

UNDERSTATED = 1.1
"""The factor by which TPOT is too small, median of the answers, for the tokens that came with the
first."""
BLOCK_TOKENS, BLOCK_TIMES = 4.0, 1.5
"""Tokens per event, by the final count, from which the first event is taken to have as many; and
those of the first read over those of a later one, up to which tokens come in blocks: an engine's or
a gateway's own way to send, where a read is what it makes.
"""
OVERSTATED = 0.1
"""Share of TTFT, median of the answers, during which the first event waited for those that it came
with."""
BUNCHED_S = 1e-5
"""Time per output token, median, below which tokens were not streamed: well below any engine's
step."""
STARVED_SHARE = 0.1
"""Receive lag over E2E, medians, from which a client that got no processor is what bunched an
answer."""

# --- answers_collected ----------------------------------------------------------------------------

COLLECTED_REQUESTS = 20
COLLECTED_OTHERS = 3
COLLECTED_LENGTH = 0.1
"""The fewest requests, and the fewest of them whose answer is this share longer or shorter than its
prompt lets expect: fewer may do so by chance, or by their position in the burst that begins a loop.
"""
COLLECTED_FIT = 0.9
"""Share of the variance of TTFT, at equal prompt length, that the length of the answer explains:
nothing that begins to answer knows how long it will be."""
COLLECTED_SHARE = (0.5, 1.05)
"""The part of the mean TTFT that grows with the answer, least and most: a queue that grows while a
loop fills gives more. What a token without an event adds to TTFT, over the time between events,
lies within it too.
"""
COLLECTED_SPREAD = 0.5
"""The distance from the p10 to the p90 of TPOT, over its median: an engine's pace follows the
number of others that it serves.
"""

# --- first_event_early ----------------------------------------------------------------------------

EARLY_EVENTS = 8
"""The fewest events of an answer whose later ones have a pace."""
EARLY_GAPS = 3.0
"""The ratio of the first gap to the pace of the later ones from which it is none of them."""
EARLY_SHARE = 0.75
"""Share of the answers: where prompts of others are computed between the first two tokens it is
half of them."""

EARLY_ALIKE = 0.25
"""Share of the answers that begin with the same text, below which a model wrote it: a gateway has
few texts."""

# --- requests_resent, connections_not_kept --------------------------------------------------------

RESENT_SHARE = 0.01
RESENT_REQUESTS = 5
"""Share and number of requests sent a second time, above which they are more than the race of a
server's keep-alive time.
"""
CHURN_SHARE = 0.5
"""Share of requests on fresh connections, beyond the first of each slot, from which connections are
not kept."""
CHURN_REQUESTS = 10
"""The fewest requests beyond the first of each slot that tell anything."""
CHURN_COST = 0.05
"""Time to connect over E2E, medians, from which that is no small matter."""
CHURN_FLOOR_S = 0.005
"""A time to connect that is a small matter, whatever E2E is."""

# --- input_length, output_length, empty_answers ---------------------------------------------------

LENGTH_SHARE = 0.01
"""Share of requests whose input or output is not as long as asked, from which the workload is
another one."""
CHARACTERS_A_TOKEN, LONG_CHARACTERS, EQUAL_COUNTS = 16.0, 2000, 4
"""Characters that no tokenizer puts into a token on average over so long a text: 3 to 5 are
usual, 8 of code with long indents. Half of it tells where so many texts have the same, largest,
count."""
EMPTY_SHARE = 0.01
"""Share of answers without any output, though complete: as for lengths."""
EMPTY_REQUESTED_TOKENS = 8
ONE_TOKEN_SHARE = 0.5
"""Share of answers of one token where EMPTY_REQUESTED_TOKENS or more were allowed, from which there
is no decoding to measure. Some are natural: a yes, a no.
"""

# --- answers_identical, answers_repeated ----------------------------------------------------------

SAME_REQUESTS = 20
"""The fewest answers that are compared."""
SAME_SHARE = 0.5
"""Share of answers whose gaps are equal to the microsecond, from which no engine made them: no two
requests agree in several gaps by chance.
"""
SAME_TEXTS_SHARE = 0.1
"""Share of different prompts that got the text of another: few answers of an engine agree in eight
tokens."""

# --- first_events_alike ---------------------------------------------------------------------------

ALIKE_SHARE, BLANK_SHARE = 0.9, 0.1
"""Share of the answers that begin with the same event, or with white space, from which it may be
somebody else's than the model's."""

UNCOUNTED_SHARE, WAIT_STEPS = 0.05, 3.0
"""Share of answers with more events than tokens, and steps between their first two events, from
which the first is no token."""

SOON_TOKENS, PACE_CHANGE = 3.0, 1.4
"""TTFT in tokens, below which no prompt may have been computed; then the first gaps over the later
ones, or the inverse, from which two write the answer."""

# --- no_usage, tokens_not_streamed, several_tokens_an_event, fewer_tokens_than_events -------------

NO_USAGE_SHARE = 0.01
"""Share of answers without usage, from which percentiles mix two ways of counting."""
COALESCED_TOKENS = 1.05
"""Tokens per output event from which events are no tokens; events per token, from which tokens are
miscounted."""
UNSEEN_TOKENS = 64
"""Tokens per output event from which most of them were never streamed: no engine's stream interval
is so long."""

BILL_SPREAD, BILL_TIMES = 0.05, 3.0
"""Standard deviation over answers of log characters per token, at least, and times that of log
characters per event, from which the count has tokens that the text has not. Where events are
batches of what is counted, it is no larger.
"""
BILL_WHOLE = 0.5
"""Share of the least variance of the events' lengths, from which events cannot hold so many whole
tokens each: a mean of n + f tokens an event has one of f·(1 − f) at least, whatever their
lengths add."""

# --- transfers_differ -----------------------------------------------------------------------------

NOT_HANDED_OVER_SHARE = 0.05
"""Share of prompt tokens that decode workers did not get from prefill workers: whole blocks alone
are handed over."""

# --- prefix_cache_helped, prompts_repeated --------------------------------------------------------

CACHED_SHARE = 0.01
"""Cached tokens beyond the plan's promise, as a share of input tokens, from which a run is
flattered."""
REPEATED_SHARE = 0.01
"""Share of a file's prompts that are sent again, from which a finding tells it."""
SYSTEM_TOKENS = 16
"""The tokens that a chat template may add for a system message, which is shared too."""

# --- pictures -------------------------------------------------------------------------------------

PICTURES_LATE = 0.01
"""Share of requests whose pictures were not made when they were due, from which the client is too
slow."""
UPLOAD_SHARE = 0.2
"""Share of the median TTFT that a request takes to leave, from which TTFT is the network's."""
PICTURE_CACHED_SHARE = 0.5
"""Share of a prompt's tokens that come from a cache, from which a new picture was not new."""
MARKER_TOKENS = 16
"""Tokens of text that a server may put around a picture: a tokenizer without such marks spells
them."""
FLAT_AREA, FLAT_TOKENS = 4.0, 1.1
"""Ratio of areas over which tokens that grow by less than the other ratio are bounded."""

CLASS_ANSWERS = 16
"""Answers of a class of traffic from which its median means anything."""
ADAPTER_LOADS = 0.25
"""Loads of adapters to the GPU for each answer."""
CLASS_DRIFT = 0.1
"""Relative difference between a class's share of the requests sent and of those planned."""
