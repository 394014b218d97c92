"""The application of the Open Inference Protocol: addresses, answers, requests for models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from treadle.base.array import Array
from treadle.base.errors import IndexRangeError, TreadleError
from treadle.base.log import get_logger
from treadle.serve import descriptions
from treadle.serve.access import Access
from treadle.serve.batching import BatchRows, Outcome, Worker
from treadle.serve.limits import Limits
from treadle.serve.metrics import Metrics, ModelMetrics
from treadle.serve.models import Servable
from treadle.serve.protocol import (
    HEADER_LENGTH,
    Disconnected,
    ModelRequest,
    RequestRefusal,
    Response,
    error_response,
    json_response,
    read_request,
    write_response,
)
from treadle.serve.reception import Incoming, Receive, Reception, Scope, Send, check_method, sent

_READ = ("GET", "HEAD")
Outputs = dict[str, Array]


class Served:
    """A model with its thread and its counts."""

    def __init__(self, model: Servable, metrics: Metrics, limits: Limits) -> None:
        self.model = model
        self.metrics = ModelMetrics(metrics, model.name, model.version)
        self.worker = Worker(model, self.metrics, limits.delay, limits.waiting)
        self.about = {"model_name": model.name, "model_version": model.version}

    def answered(self, status: int, seconds: float) -> None:
        """Count a request, from its headers to its answer."""
        self.metrics.answered(status)
        self.metrics.seconds.observe(seconds)
        self.worker.statistics.answered(status, seconds)

    async def results(self, request: ModelRequest, incoming: Incoming | None = None) -> Outputs:
        """The outputs by name, which the model's thread computes."""
        results = await _submitted(self.worker, request.inputs, incoming)
        return dict(zip((end.name for end in self.model.outputs), results, strict=True))


@contextmanager
def refusing(served: Served) -> Iterator[None]:
    """Turn failures into refusals.

    Raises:
        Refusal: the request was wrong, or the model failed.
        Disconnected: the client has gone.
    """
    try:
        yield
    except (RequestRefusal, Disconnected):
        raise
    except TreadleError as error:
        status = 400 if isinstance(error, IndexRangeError) else 500  # The data's fault or ours.
        raise RequestRefusal(status, f"{error.code} {error.where}: {error.problem}") from None
    except Exception as error:
        get_logger().error("request to %s failed", served.model.name, exc_info=error)
        raise RequestRefusal(500, f"the request failed: {type(error).__name__}") from None


class Application(Reception):
    """Answers for models.

    Args:
        models: with names and versions that differ.
        limits: of requests.
        access: who may ask; anybody if left out.
    """

    def __init__(
        self,
        models: Sequence[Servable],
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        super().__init__(limits, access)
        self._models: dict[str, dict[str, Served]] = {}
        for model in models:
            served = Served(model, self.metrics, self.limits)
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
            await self._infer(self._addressed(parts[2:-1]), scope, receive, send)
            return None
        return self._read(parts, scope["method"])

    # -- what can be read ----------------------------------------------------------------------

    def _read(self, parts: list[str], method: str) -> Response:
        answer: Callable[[], Response]
        match parts:
            case ["v2"]:
                answer = partial(json_response, descriptions.server())
            case ["v2", "health", "live"]:
                answer = partial(json_response, {"live": True})
            case ["v2", "health", "ready"]:
                answer = self._ready
            case ["metrics"]:
                answer = self.metrics_response
            case ["v2", "models", *rest] if rest:
                answer = self._of_models(rest)
            case _:
                raise RequestRefusal(404, "there is nothing at this address; see /v2")
        check_method(method, *_READ)
        return answer()

    def _of_models(self, parts: list[str]) -> Callable[[], Response]:
        """Return the answer of `/v2/models/...`; an address that ends in `stats` may name
        no model.
        """
        content: dict[str, Any]
        match parts:
            case ["stats"]:
                content = self.statistics(self.all_served())
            case [name, "stats"] if name in self._models:
                content = self.statistics(self.all_served(name))
            case [*name, "stats"]:
                content = self.statistics([self._addressed(name)])
            case [*name, "config"] if name:
                content = self.configuration(self._addressed(name))
            case [*name, "ready"] if name:
                content = {"name": self._addressed(name).model.name, "ready": True}
                return self._ready if self.draining else partial(json_response, content)
            case _:
                content = self.metadata(self._addressed(parts))
        return partial(json_response, content)

    def _addressed(self, parts: list[str]) -> Served:
        """A model by its name, or its name, `versions` and a version."""
        match parts:
            case [name]:
                return self.served(name)
            case [name, "versions", version]:
                return self.served(name, version)
        raise RequestRefusal(404, "a model's address is /v2/models/NAME[/versions/VERSION]")

    def served(self, name: str, version: str | None = None) -> Served:
        """A model by its name and version; without one the last that was named.

        Raises:
            Refusal: there is none.
        """
        versions = self._models.get(name)
        if versions is None:
            raise RequestRefusal(404, f"there is no model {name[:80]!r}")
        if version is None:
            return next(reversed(versions.values()))
        if version not in versions:
            known = ", ".join(versions)
            raise RequestRefusal(
                404, f"there is no version {version[:80]!r} of {name}, but {known}"
            )
        return versions[version]

    def all_served(self, name: str = "") -> list[Served]:
        """All versions of a model, or of all models."""
        chosen = [self._models[name]] if name else self._models.values()
        return [served for versions in chosen for served in versions.values()]

    def metadata(self, served: Served) -> dict[str, Any]:
        """Inputs and outputs of a model."""
        return descriptions.metadata(served.model, list(self._models[served.model.name]))

    def configuration(self, served: Served) -> dict[str, Any]:
        """Triton's configuration of a model."""
        return descriptions.configuration(served.model, self.limits.delay)

    def statistics(self, chosen: Sequence[Served]) -> dict[str, Any]:
        """Triton's counts of models."""
        return descriptions.statistics([(one.model, one.worker.statistics) for one in chosen])

    def _ready(self) -> Response:
        return json_response({"ready": not self.draining}, 503 if self.draining else 200)

    # -- inference -----------------------------------------------------------------------------

    async def _infer(self, served: Served, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 499
        try:
            response = await self._inferred(served, scope, receive)
            status = response.status
            await sent(send, response)
        finally:
            # 499 as others write it down: the client has gone.
            served.answered(status, time.perf_counter() - started)

    async def _inferred(self, served: Served, scope: Scope, receive: Receive) -> Response:
        held = 0
        try:
            with refusing(served):
                check_method(scope["method"], "POST")
                headers = dict(scope["headers"])
                held = self.admitted(headers)
                body, incoming = await self.body(scope, receive)
                model, length = served.model, headers.get(HEADER_LENGTH)
                request = read_request(body, length, model.inputs, model.outputs, self.limits.json)
                outputs = await served.results(request, incoming)
                return write_response(served.about, request, outputs)
        except RequestRefusal as refusal:
            return error_response(refusal)
        except asyncio.CancelledError:
            return error_response(RequestRefusal(503, "the server has ended"))
        finally:
            self.given_back(held)


def _submitted(
    worker: Worker, arrays: Sequence[Array], incoming: Incoming | None
) -> asyncio.Future[list[Array]]:
    """The results, which the model's thread will have.

    It is not a coroutine: an error that one waited for would have its frame, and that the error.
    """
    rows = worker.model.rows(arrays)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Array]] = loop.create_future()

    def done(outcome: Outcome) -> None:
        with suppress(RuntimeError):  # The loop has ended before the run: nobody is waiting.
            loop.call_soon_threadsafe(_settle, future, outcome)

    def gone() -> bool:
        return future.cancelled() or (incoming is not None and incoming.gone)

    worker.submit(BatchRows(arrays, rows, done, gone))
    return future


def _settle(future: asyncio.Future[list[Array]], outcome: Outcome) -> None:
    if future.cancelled():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


__all__ = ["Application", "Served", "refusing"]
