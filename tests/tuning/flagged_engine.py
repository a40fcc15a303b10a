"""A stand-in for llama-server whose flags decide what becomes of it: how fast it is, whether it
starts, dies, or answers otherwise. It solves generated questions, token by token."""

import argparse
import itertools
import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STEP_S = 0.01
SPEEDS = {1: 1.0, 2: 1.3, 4: 0.8}
"""By --threads."""
NO_ROOM, DIES, LIES = 64, 100, "q4_0"
"""Of --parallel, --poll and --cache-type-k."""


def solve(prompt: str) -> str:
    """Return the right answer to a generated question; to anything else ten words."""
    if found := re.search(r"say nothing else: (\S+)", prompt):
        return found[1]
    if found := re.search(r"What is (\d+) \+ (\d+)\?", prompt):
        return str(int(found[1]) + int(found[2]))
    if wanted := re.search(r"What is the number of ([a-z0-9 ]+)\?", prompt):
        number = re.search(rf"The number of {wanted[1]} is (\d+)\.", prompt)
        return number[1] if number else ""
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--poll", type=int, default=50)
    parser.add_argument("--cache-type-k", default="f16")
    words, _ = parser.parse_known_args()
    if words.parallel >= NO_ROOM:
        print("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory")
        sys.exit(1)
    step_s = STEP_S / SPEEDS.get(words.threads, 1.0)
    numbers = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                model = {"id": "tiny", "object": "model", "owned_by": "llamacpp"}
                self._send(
                    json.dumps({"object": "list", "data": [model]}).encode(), "application/json"
                )
            elif self.path == "/health":
                self._send(b"{}", "application/json")
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                self.send_error(404)
                return
            if words.poll == DIES and next(numbers) > 20:
                os._exit(3)
            prompt = asked["prompt"]
            count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
            text = solve(prompt) if isinstance(prompt, str) else ""
            if text and words.cache_type_k == LIES:
                text = text[::-1] + "0"
            pieces = [text] if text else ["w "] * int(asked.get("max_tokens", 8))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number, piece in enumerate(pieces):
                time.sleep(step_s)
                last = number == len(pieces) - 1
                reason = ("stop" if text else "length") if last else None
                self._event({"choices": [{"index": 0, "text": piece, "finish_reason": reason}]})
            usage = {"prompt_tokens": count, "completion_tokens": len(pieces), "total_tokens": 0}
            self._event({"choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def _event(self, body: dict[str, object]) -> None:
            self._chunk(f"data: {json.dumps(body)}\n\n".encode())

        def _chunk(self, part: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()

    threading.Timer(600, lambda: os._exit(4)).start()
    ThreadingHTTPServer((words.host, words.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
