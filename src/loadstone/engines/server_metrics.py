"""Holds the metrics that engines report of themselves in /metrics: names that all share, by each
engine's own.

running, waiting   gauges, requests
kv_usage           gauge, share of the KV cache in use
preemptions        counter, requests put back in the queue with their KV lost
prefix_hits        counter, prompt tokens taken from a prefix cache
prefix_queries     counter, prompt tokens looked for in it
picture_hits       counter, pictures taken from a cache of prepared ones; picture_queries: looked
                   for in it
draft_steps        counter, steps that verified drafts
draft_tokens       counter, tokens drafted; draft_accepted: of these accepted
draft_accepted_by_position  the same by the place in the draft, which a label tells
transfers          counter, KV caches handed from prefill to decode workers; transferred_tokens:
                   prompt tokens that decode workers had from them; transfers_failed: those that
                   failed
output_tokens      counter, tokens that were made; ttft_s: sum of a histogram, seconds before the
                   first of a request
queue_s, prefill_s, transfer_s  sums of histograms, seconds before a request is scheduled, of its
                                prompt's steps, of a
                   KV cache's transfer; their counts are named alike
accepted_length    gauge, tokens that such a step gives
late_s, writes     counters, seconds that writes came after their due time, and how many: of the
                   timing server alone
"""

from collections.abc import Iterable, Mapping

from loadstone.engines.table import engine_tables


def _join(tables: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    joined: dict[str, tuple[str, ...]] = {}
    for table in tables:
        for name, spellings in table.items():
            joined[name] = joined.get(name, ()) + spellings
    return joined


def count_of(name: str) -> str:
    """Return the count that belongs to the sum of a histogram."""
    return name.replace("_sum", "_count", 1)


GAUGES = _join(table.gauges for table in engine_tables().values())
COUNTERS = _join(table.counters for table in engine_tables().values())
START_TIME = "process_start_time_seconds"
READY = ("inference_pool_ready_pods", "kube_deployment_status_replicas_ready")
"""Gauges of gateways and clusters: replicas that are ready."""
NAMES = frozenset(
    name.partition("{")[0]
    for names in (*GAUGES.values(), *COUNTERS.values())
    for sum_of_names in names
    for part in sum_of_names.split("+")
    for name in (part, count_of(part))
) | {START_TIME, *READY}
