"""The application of the Open Inference Protocol: addresses, answers, requests for models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from treadle.base.errors import IndexRangeError, TreadleError
from treadle.base.log import get_logger
from treadle.base.version import VERSION
from treadle.serve.access import Access
from treadle.serve.batching import Outcome, Work, Worker
from treadle.serve.datatypes import NAMES, Array
from treadle.serve.limits import Limits
from treadle.serve.metrics import Metrics, ModelMetrics
from treadle.serve.models import ServedModel
from treadle.serve.protocol import (
    HEADER_LENGTH,
    Disconnected,
    End,
    Refusal,
    Response,
    error_response,
    json_response,
    read_request,
    write_response,
)
from treadle.serve.reception import Incoming, Receive, Reception, Scope, Send, check_method, sent

_READ = ("GET", "HEAD")


class _Served:
    """A model with its thread and its counts."""

    def __init__(self, model: ServedModel, metrics: Metrics, limits: Limits) -> None:
        self.model = model
        self.metrics = ModelMetrics(metrics, model.name, model.version)
        self.worker = Worker(model, self.metrics, limits.delay, limits.waiting)
        self.about = {"model_name": model.name, "model_version": model.version}


class Application(Reception):
    """Answers for models.

    Args:
        models: with names and versions that differ.
        limits: of requests.
        access: who may ask; anybody if left out.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        super().__init__(limits, access)
        self._models: dict[str, dict[str, _Served]] = {}
        for model in models:
            served = _Served(model, self.metrics, self.limits)
            self._models.setdefault(model.name, {})[model.version] = served

    def close(self) -> None:
        """End the models' threads."""
        for versions in self._models.values():
            for served in versions.values():
                served.worker.close(timeout=1.0)

    async def answered(
        self, parts: list[str], scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """The answer; None where it has been sent."""
        if parts[:2] == ["v2", "models"] and parts[-1] == "infer":
            await self._infer(self._model(parts[2:-1]), scope, receive, send)
            return None
        return self._read(parts, scope["method"])

    # -- what can be read ----------------------------------------------------------------------

    def _read(self, parts: list[str], method: str) -> Response:
        match parts:
            case ["v2"]:
                answer = self._about
            case ["v2", "health", "live"]:
                answer = _alive
            case ["v2", "health", "ready"]:
                answer = self._ready
            case ["metrics"]:
                answer = self.metrics_response
            case ["v2", "models", *rest] if rest:
                answer = self._of_models(rest)
            case _:
                raise Refusal(404, "there is nothing at this address; see /v2")
        check_method(method, *_READ)
        return answer()

    def _of_models(self, parts: list[str]) -> Callable[[], Response]:
        """Return the answer of `/v2/models/...`; an address that ends in `stats` may name
        no model.
        """
        match parts:
            case ["stats"]:
                return _statistics([s for v in self._models.values() for s in v.values()])
            case [name, "stats"] if name in self._models:
                return _statistics(list(self._models[name].values()))
            case [*name, "stats"]:
                return _statistics([self._model(name)])
            case [*name, "config"] if name:
                return _configuration(self._model(name), self.limits)
            case [*name, "ready"] if name:
                served = self._model(name)
                return self._ready if self.draining else _ready(served)
        return _metadata(self._model(parts), list(self._models[parts[0]]))

    def _model(self, parts: list[str]) -> _Served:
        """A model by its name, or its name, `versions` and a version."""
        version: str | None = None
        match parts:
            case [name]:
                pass
            case [name, "versions", version]:
                pass
            case _:
                raise Refusal(404, "a model's address is /v2/models/NAME[/versions/VERSION]")
        versions = self._models.get(name)
        if versions is None:
            raise Refusal(404, f"there is no model {name[:80]!r}")
        if version is None:
            return next(reversed(versions.values()))
        if version not in versions:
            known = ", ".join(versions)
            raise Refusal(404, f"there is no version {version[:80]!r} of {name}, but {known}")
        return versions[version]

    def _about(self) -> Response:
        extensions = ["binary_tensor_data", "classification", "model_configuration", "statistics"]
        return json_response({"name": "treadle", "version": VERSION, "extensions": extensions})

    def _ready(self) -> Response:
        return json_response({"ready": not self.draining}, 503 if self.draining else 200)

    # -- inference -----------------------------------------------------------------------------

    async def _infer(self, served: _Served, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 499
        try:
            response = await self._inferred(served, scope, receive)
            status = response.status
            await sent(send, response)
        finally:
            # 499 as others write it down: the client has gone.
            seconds = time.perf_counter() - started
            served.metrics.answered(status)
            served.metrics.seconds.observe(seconds)
            served.worker.statistics.answered(status, seconds)

    async def _inferred(self, served: _Served, scope: Scope, receive: Receive) -> Response:
        held = 0
        try:
            check_method(scope["method"], "POST")
            headers = dict(scope["headers"])
            held = self.admitted(headers)
            body, incoming = await self.body(scope, receive)
            model = served.model
            request = read_request(
                body, headers.get(HEADER_LENGTH), model.inputs, model.outputs, self.limits.json
            )
            results = await _submitted(served.worker, request.inputs, incoming)
            outputs = dict(zip((o.name for o in model.outputs), results, strict=True))
            return write_response(served.about, request, outputs)
        except Refusal as refusal:
            return error_response(refusal)
        except asyncio.CancelledError:
            return error_response(Refusal(503, "the server has ended"))
        except TreadleError as error:
            status = 400 if isinstance(error, IndexRangeError) else 500  # The data's fault or ours.
            return error_response(Refusal(status, f"{error.code} {error.where}: {error.problem}"))
        except Disconnected:
            raise
        except Exception as error:
            get_logger().error("request to %s failed", served.model.name, exc_info=error)
            return error_response(Refusal(500, f"the request failed: {type(error).__name__}"))
        finally:
            self.given_back(held)


def _submitted(
    worker: Worker, arrays: Sequence[Array], incoming: Incoming | None
) -> asyncio.Future[list[Array]]:
    """The results, which the model's thread will have.

    It is no coroutine: an error that one waited for would have its frame, and that the error.
    """
    rows = worker.model.rows(arrays)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Array]] = loop.create_future()

    def done(outcome: Outcome) -> None:
        with suppress(RuntimeError):  # The loop has ended before the run: nobody is waiting.
            loop.call_soon_threadsafe(_settle, future, outcome)

    def gone() -> bool:
        return future.cancelled() or (incoming is not None and incoming.gone)

    worker.submit(Work(arrays, rows, done, gone))
    return future


def _settle(future: asyncio.Future[list[Array]], outcome: Outcome) -> None:
    if future.cancelled():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _alive() -> Response:
    return json_response({"live": True})


def _ready(served: _Served) -> Callable[[], Response]:
    return lambda: json_response({"name": served.model.name, "ready": True})


def _metadata(served: _Served, versions: list[str]) -> Callable[[], Response]:
    model = served.model
    content = {
        "name": model.name,
        "versions": versions,
        "platform": "treadle",
        "inputs": [end.described for end in model.inputs],
        "outputs": [end.described for end in model.outputs],
    }
    return lambda: json_response(content)


def _statistics(served: Sequence[_Served]) -> Callable[[], Response]:
    """Triton's statistics of models."""

    def answer() -> Response:
        stats = []
        for one in served:
            about = {"name": one.model.name, "version": one.model.version}
            stats.append({**about, **one.worker.statistics.data()})
        return json_response({"model_stats": stats})

    return answer


def _configuration(served: _Served, limits: Limits) -> Callable[[], Response]:
    """Triton's configuration of a model: where rows are joined, extents are those behind them."""
    model = served.model
    rows = model.most if model.most > 1 else 0

    def described(end: End) -> dict[str, Any]:
        dims = end.described["shape"][1:] if rows else end.described["shape"]
        return {"name": end.name, "data_type": f"TYPE_{NAMES[end.dtype]}", "dims": dims}

    content: dict[str, Any] = {
        "name": model.name,
        "platform": "treadle",
        "backend": "treadle",
        "version_policy": {"all": {}},
        "max_batch_size": rows,
        "input": [described(end) for end in model.inputs],
        "output": [described(end) for end in model.outputs],
    }
    if rows:
        delay = round(limits.delay * 1e6)
        content["dynamic_batching"] = {"max_queue_delay_microseconds": delay}
    return lambda: json_response(content)


__all__ = ["Application"]
