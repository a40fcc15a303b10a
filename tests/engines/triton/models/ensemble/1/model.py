"""A model that keeps time: the first token `first_token_s` after the request, then one every
`token_s`.

Its tokens are words; a prompt costs one token a word, and one more at its beginning. Its answers
would end after `natural_tokens`, unless `min_tokens` demands more. A prompt that says "fail after
N" gets N tokens, then an error. Sampling is accepted and changes nothing.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_FAIL = re.compile(r"fail after (\d+)")
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """The name is Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]

        def number(name: str) -> float:
            return float(parameters[name]["string_value"])

        self._first_token_s, self._token_s = number("first_token_s"), number("token_s")
        self._natural_tokens = int(number("natural_tokens"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Decoupled: answers come later, through each request's sender, so that requests do not
        wait for another."""
        for request in requests:
            fields = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            asyncio.run_coroutine_threadsafe(
                self._answer(fields, request.get_response_sender()), self._loop
            )

    async def _answer(self, fields: dict[str, Any], sender: Any) -> None:
        try:
            await self._speak(fields, sender)
        except Exception as error:  # whatever it is, the client must hear of it
            failed = pb_utils.InferenceResponse(
                output_tensors=[], error=pb_utils.TritonError(str(error))
            )
            sender.send(failed, flags=_FINAL)
        else:
            # As tensorrt_llm_bls does: all tokens are out when the empty final response comes.
            sender.send(flags=_FINAL)

    async def _speak(self, fields: dict[str, Any], sender: Any) -> None:
        prompt = _scalar(fields, "text_input", b"").decode()
        limit = int(_scalar(fields, "max_tokens", 0))
        if limit < 1:
            raise ValueError(f"max_tokens must be positive, not {limit}")
        fails = _FAIL.search(prompt)
        stops = {word.decode() for word in fields.get("stop_words", np.empty(0)).ravel()}
        least = int(_scalar(fields, "min_tokens", 1))
        streams = bool(_scalar(fields, "stream", False))
        prompt_tokens = len(prompt.split()) + 1
        said: list[str] = []
        due_s = self._loop.time() + self._first_token_s
        for word in _words(limit, min(limit, max(least, self._natural_tokens))):
            await asyncio.sleep(due_s - self._loop.time())
            due_s += self._token_s
            if sender.is_cancelled():
                return
            if fails and len(said) == int(fails[1]):
                raise RuntimeError("this prompt was to fail")
            said.append(word)
            if streams:
                sender.send(_response(fields, f" {word}", prompt_tokens, 1))
            if word in stops and len(said) >= least:
                break
        if not streams:
            # Not asked to leave the prompt out, TensorRT-LLM repeats and counts it.
            alone = bool(_scalar(fields, "exclude_input_in_output", False))
            text = ("" if alone else prompt) + "".join(f" {word}" for word in said)
            sender.send(
                _response(fields, text, prompt_tokens, len(said) + (0 if alone else prompt_tokens))
            )

    def finalize(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _words(limit: int, count: int) -> Iterator[str]:
    return (f"tok{number % 1000}" for number in range(min(limit, count)))


def _scalar(fields: dict[str, Any], name: str, default: Any) -> Any:
    return fields[name].ravel()[0] if name in fields else default


def _response(fields: dict[str, Any], text: str, prompt_tokens: int, tokens: int) -> Any:
    """Outputs have a batch of one; counts are sent where they were asked for, those of output for
    this part alone."""
    outputs = [pb_utils.Tensor("text_output", np.array([[text]], np.object_))]
    for name, count in (("num_input_tokens", prompt_tokens), ("num_output_tokens", tokens)):
        if _scalar(fields, f"return_{name}", False):
            outputs.append(pb_utils.Tensor(name, np.array([[count]], np.int32)))
    return pb_utils.InferenceResponse(output_tensors=outputs)
