"""From streams to rows of the journal: collects what ended, and parts of what goes on, as Arrow batches."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from loadstone.core import PlannedRequest
from loadstone.core.run_folder import journal_schema
from loadstone.measure.client.clock import Clock
from loadstone.measure.client.stream import Stream

if TYPE_CHECKING:
    import pyarrow as pa


class Fragments:
    """Rows not yet written. `events` counts the output events of all rows ever added."""

    def __init__(self, worker: int, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._schema = journal_schema()
        self._rows: list[tuple[Any, ...]] = []
        self.events = 0

    def warm_up(self) -> None:
        """Write a batch and throw it away: what libraries do at their first use, they do before the run."""
        request = PlannedRequest(0, 0, "warmup", 0.0, 1, 1, None, 0, None)
        self.add(Stream(request, b"", self._clock.origin_ns))
        batch = self.take()
        if batch is not None:
            batch.serialize()
        self.events = 0

    def add(self, stream: Stream) -> None:
        """The last fragment of a stream, which has ended."""
        heard = stream.http_status == 200 and stream.expected
        source = stream.token_source() if heard else None
        self._add(stream, source, stream.end_ns, stream.output_tokens() if heard else None, stream.status)

    def add_part(self, stream: Stream) -> None:
        """What came since the last fragment of a stream that goes on."""
        self._add(stream, stream.token_source(), None, stream.output_tokens(), None)

    def _add(self, stream: Stream, source: str | None, end_ns: int | None, output: int | None, status: Any) -> None:
        request, answer = stream.request, stream.answer
        since = self._clock.since_origin_s
        tokens = array("i", answer.running_tokens if source == "running usage" else ())
        self.events += len(stream.arrival_s)
        self._rows.append((
            request.request_id,
            request.cell,
            request.phase,
            request.session_id,
            request.turn,
            since(stream.intended_ns),
            None if stream.sent_ns is None else since(stream.sent_ns),
            stream.arrival_s,
            stream.read_index,
            tokens,
            source,
            None if end_ns is None else since(end_ns),
            answer.input_tokens,
            output,
            answer.cached_tokens,
            answer.reasoning_tokens,
            answer.finish_reason,
            status,
            stream.error,
            stream.http_status,
            self._worker,
            stream.replica,
            stream.reused,
            None if stream.worst_lag_ns < 0 else stream.worst_lag_ns * 1e-9,
            answer.server_prefill_s,
            answer.server_decode_s,
            stream.journaled,
        ))  # fmt: skip
        stream.journaled += len(stream.arrival_s)
        if stream.arrival_s:
            stream.heard_s = stream.arrival_s[-1]
        stream.arrival_s, stream.read_index = array("d"), array("i")
        answer.running_tokens = []

    def take(self) -> pa.RecordBatch | None:
        """All rows so far as one batch, forgotten here; None if there are none."""
        import pyarrow as pa

        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        columns = []
        for field, values in zip(self._schema, zip(*rows, strict=True), strict=True):
            columns.append(
                _lists(values, field.type) if pa.types.is_list(field.type) else pa.array(values, field.type)
            )
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _lists(values: tuple[array[Any], ...], kind: pa.ListType) -> pa.ListArray:
    """A list column of arrays, without a Python object per element."""
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    flat = pa.Array.from_buffers(kind.value_type, int(offsets[-1]), [None, pa.py_buffer(b"".join(values))])
    return pa.ListArray.from_arrays(pa.array(offsets), flat)
