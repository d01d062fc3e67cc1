"""A loopback service that Tinker's training client talks to: it trains nothing, and keeps what it was sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as proto

from tests.consumers.tinker.service import Service

_DTYPES = {proto.DTYPE_FLOAT32: np.float32, proto.DTYPE_INT64: np.int64}


class TrainingService(Service):
    """Takes batches. Each token has the same logprob under its model."""

    def __init__(self) -> None:
        super().__init__(lambda body: {})
        self.batches: list[tuple[str, list[dict[str, Any]]]] = []
        """Loss and rows of each ``forward_backward``: ``model_input``, the arrays of the loss, ``spans`` of both."""
        self.updates: list[dict[str, Any]] = []

    def answer(self, path: str, body: Any) -> bytes | dict[str, Any]:
        if path == "/api/v1/create_model":
            return {"request_id": "create_model"}
        if path == "/api/v1/get_info":
            return {"model_data": {"model_name": "tiny"}, "model_id": "model-1"}
        if path == "/api/v1/forward_backward":
            self.batches.append(_rows(body))
            return {"request_id": "forward_backward"}
        if path == "/api/v1/save_weights_for_sampler":
            return {"request_id": "save_weights"}
        if path == "/api/v1/optim_step":
            self.updates.append(body)
            return {"request_id": "optim_step"}
        if path == "/api/v1/retrieve_future":
            return self._outcome(body["request_id"])
        return super().answer(path, body)

    def _outcome(self, request: str) -> bytes | dict[str, Any]:
        if request == "create_model":
            return {"type": "create_model", "model_id": "model-1"}
        if request == "save_weights":
            return {"type": "save_weights_for_sampler", "sampling_session_id": "sampling-1"}
        if request.isdigit():
            return self._result(self.script(self.asked[int(request)]))
        if request == "optim_step":
            return {"type": "optim_step"}
        message = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        lengths = [len(row["model_input"]) for row in self.batches[-1][1]]
        record = message.loss_fn_outputs.add(num_datums=len(lengths))
        logprobs = record.fields["logprobs"]
        logprobs.dtype = proto.DTYPE_FLOAT32
        logprobs.data = np.full(sum(lengths), -2.0, np.float32).tobytes()
        logprobs.offsets = (4 * np.cumsum([0, *lengths])).astype(np.int64).tobytes()
        found: bytes = message.SerializeToString()
        return found


def _rows(body: bytes) -> tuple[str, list[dict[str, Any]]]:
    message = proto.ForwardBackwardRequest.FromString(body)
    rows = []
    for datum in message.data:
        tokens = b"".join(chunk.encoded_text.tokens for chunk in datum.model_input)
        row: dict[str, Any] = {"model_input": np.frombuffer(tokens, np.int32).tolist()}
        for name, tensor in datum.loss_fn_inputs.items():
            row[name] = np.frombuffer(tensor.dense, _DTYPES[tensor.dtype]).tolist()
        row["spans"] = {
            "model_input": [_span(one) for one in datum.model_input_spans],
            "target_tokens": [_span(one) for one in datum.loss_fn_input_spans],
        }
        rows.append(row)
    return message.loss_fn, rows


def _span(span: Any) -> tuple[str, str, int, int]:
    """What a span names: prompt or sampled tokens, the sequence, and their place in it."""
    kind = span.WhichOneof("span")
    one = getattr(span, kind)
    return kind, one.sequence_id, one.offset, one.length
