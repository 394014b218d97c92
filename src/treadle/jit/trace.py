"""MegEngine's `trace`: the body runs at every call and is checked against what was recorded.

With `without_host=True` the recorded program replaces the body, as `jit.compile` does. Both stand
on the same capture. A body that reads values of tensors, or asks Python for an extent that data
decide, cannot be captured; it runs op by op, and its sequence of ops is checked all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from treadle.autodiff.tape import Tape
from treadle.base import tree
from treadle.base.errors import CompileError, ShapeError, TraceError, TreadleError
from treadle.base.files.source import PathLike
from treadle.base.log import get_logger
from treadle.base.modes import LOCAL, install_capture
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.dispatch import EagerType
from treadle.engine.execute import Timeline
from treadle.engine.options import Options
from treadle.engine.phases import finds_extents, renumbered
from treadle.engine.plan import Interface
from treadle.graph.builder import GraphOperand
from treadle.graph.ir import Graph, Value
from treadle.graph.repeated_builder import FollowingBuilder, Recorded
from treadle.graph.value_numbers import Deciding
from treadle.jit.binding import Binding
from treadle.jit.capture import Capture, capture
from treadle.jit.captured import CapturedCall, Source
from treadle.jit.choosing import replaced
from treadle.jit.compiled import Compiled, signature
from treadle.jit.course import Course, Left, course_of
from treadle.jit.inspection import profile_data, without_values
from treadle.jit.memory import (
    DTRConfig,
    GraphOptimizationConfig,
    SublinearMemoryConfig,
    memory_budget,
)
from treadle.jit.naming import Fixing, Traced, scoped
from treadle.jit.sequence import SequenceWatch
from treadle.jit.variants import Single, Variant, interface_of
from treadle.ops.gather import numbering_anew
from treadle.ops.op import Op
from treadle.tensor import Tensor

if TYPE_CHECKING:
    from treadle.engine.package.models import Model
    from treadle.inspect.profile import Profile
    from treadle.jit.dump import CompGraphDumpResult, Ends
    from treadle.jit.open_dump import ExampleCall as Call


_Recorded = tuple[CapturedCall, list[str]]
"""A call for `dump`, with the names of its arguments."""


class _Level(int):
    """A level that nobody has asked for."""


_UNASKED = _Level(2)
_NOT_SAID = _Level(0)
"""A False that nobody has given."""


class trace:
    """Record a function's ops and run them as one program; usable bare or with arguments.

    By default the body runs at every call, so Python side effects happen and a changed course is
    noticed; its ops are then run as the recorded program. Changed shapes are recorded anew.

    Args:
        function: what to trace; without it, the object is a decorator.
        symbolic: accepted: programs are captured before they run in either case.
        without_host: run the recorded program without the body from the second call on.
        capture_as_const: what `dump` needs: arguments are tensors, other tensors are constants.
        record_only: record for `dump` and compute nothing; results have no values.
        sublinear_memory_config, dtr_config: bytes of values that the program may hold at once;
            what exceeds them is computed again where that helps.
        graph_opt_config: whether loops take in transposes and reductions; the engine chooses
            where it is left out.
        profiling: measure kernels; `get_profile` returns what was found.
        opt_level: 0 to 3, as `level` of `jit.compile`; 2 unless given. From 1 on, one that is
            given allows rewrites that hold in real arithmetic only, as MegEngine's do: log(exp(x))
            is x, x / x is 1.
        symbolic_shape: whether a dumped model takes other sizes than the one it was traced at. A
            shape is a tuple inside a traced function in either case.
        imperative: run the body op by op, checked and uncompiled.

    Raises:
        TraceError: when called: ops, element types or constants differ from the recorded ones.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        symbolic: bool = False,
        capture_as_const: bool = False,
        record_only: bool = False,
        sublinear_memory_config: SublinearMemoryConfig | None = None,
        dtr_config: DTRConfig | None = None,
        profiling: bool = False,
        opt_level: int = _UNASKED,
        graph_opt_config: GraphOptimizationConfig | None = None,
        symbolic_shape: bool = True,
        without_host: bool = False,
        imperative: bool = False,
    ) -> None:
        budget = memory_budget(dtr_config, sublinear_memory_config)
        fast = opt_level is not _UNASKED and opt_level > 0
        self._options = Options(
            level=min(int(opt_level), 3), fast=fast, memory_budget=budget, strict_budget=False,
            disabled=() if graph_opt_config is None else graph_opt_config.left_out(),
        )  # fmt: skip
        self._for_dump = capture_as_const or record_only
        self._record_only = record_only
        self._profiling = profiling
        self._last: _Recorded | None = None
        self._opened = symbolic_shape
        self._call: Call | None = None
        self._profile: Profile | Timeline | None = None
        self._without_host = without_host and not self._for_dump
        self._eager, self._open, self._why = imperative, False, ""
        self._fixed = False
        self._variants: dict[Any, list[Variant]] = {}
        self._courses: dict[Any, Course] = {}
        self._renumbered = _Renumbered()
        self._recorded_calls: dict[Any, Recorded] = {}
        self._left = Left()
        self._kinds: dict[Any, Any] = {}
        self._compiled: Compiled[..., Any] | None = None
        if function is not None:
            self._wrap(function)

    def _wrap(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)
        if self._without_host:
            self._compiled = Compiled(function, self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the traced function (or, where there is none yet, decorate one)."""
        if "_function" not in self.__dict__:
            self._wrap(args[0])
            return self
        if self._compiled is not None:
            result = self._compiled(*args, **kwargs)
            if self._profiling:
                self._profile = self._compiled.profile(*args, repeats=1, **kwargs)
            return result
        if self._for_dump and not all(isinstance(x, Tensor) for x in args):
            raise AssertionError("Only support tensor type args when capture_as_const is enabled")
        if LOCAL.capture is not None or isinstance(LOCAL.hook, Tape):
            return self._function(*args, **kwargs)
        key, leaves = signature(args, kwargs)
        _check_types(self._name, self._kinds, key)
        if self._eager:
            return self._checked(key, leaves, args, kwargs)
        try:
            return self._recorded(key, leaves, args, kwargs)
        except _NeedsValues as reason:
            get_logger("jit").info("%s runs op by op: %s", self._name, reason.problem)
            # What the body reads, and extents that data decides, may be attributes of ops.
            self._eager, self._open = True, True
            self._courses.clear()
            self._why = f"there is no program: {reason.problem}"
            if self._for_dump and not isinstance(reason, _OpenExtents):
                self._last, self._why = _fixed(self._function, leaves, args, kwargs, self._name)
                self._fixed = self._last is not None
            return self._checked(key, leaves, args, kwargs)

    @property
    def _name(self) -> str:
        return str(getattr(self._function, "__name__", "trace"))

    # -- as a program ----------------------------------------------------------------------

    def _recorded(self, key: Any, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        given = replaced(args, kwargs, leaves)
        ahead = self._recorded_calls.get(key)
        captured, recorded = _captured(self._function, *given, self._name, self._for_dump, ahead)
        if recorded is not None:
            self._recorded_calls[key] = recorded
        if self._for_dump:
            self._last, call = _noted(captured, args, kwargs)
            self._call = call if self._opened else None
        is_open, graph = self._renumbered(captured.graph)
        captured = replace(captured, graph=graph) if is_open else captured
        if self._record_only:
            return without_values(captured)
        variant = self._variant(key, captured, interface_of(captured, is_open))
        try:
            binding = Binding(captured, variant.interface.updates, variant.stages.compile())
            result = self._ran(variant, binding, leaves)
        except (CompileError, ShapeError) as error:
            if is_open:  # Op by op, an extent of 1 stretches, for one.
                raise _OpenExtents(error.where, error.problem, at=error.at) from error
            raise
        self._left.add(reference for _, reference in captured.escaped)
        return result

    def _variant(self, key: Any, captured: CapturedCall, interface: Interface) -> Variant:
        """The program of this call: one that is known, or that of another world."""
        known = self._variants.setdefault(key, [])
        for variant in known:
            if variant.captured.graph == captured.graph and variant.interface == interface:
                return variant
        self._follow(key, course_of(captured, self._left))
        known.append(Single(captured, self._options))
        return known[-1]

    def _ran(self, variant: Variant, binding: Binding, leaves: list[Any]) -> Any:
        """One run, measured if so asked."""
        if self._profiling:
            arrays = binding.payloads(leaves).arrays
            self._profile = variant.inspected.profile(arrays, repeats=1)
        return binding(leaves)

    # -- op by op --------------------------------------------------------------------------

    def _checked(self, key: Any, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        watch = SequenceWatch(leaves, self._left, attributes=not self._open)
        with watch:
            result = self._function(*args, **kwargs)
            for action in watch.endings:
                action()
        self._follow(key, watch.course(tree.flatten(result)[0]))
        self._left.add(watch.alive())
        return result

    def _follow(self, key: Any, course: Course) -> None:
        """Raise `CourseError` where a call differs from the first one of its world."""
        self._courses.setdefault((key, course.world), course).follow(self._name, course)

    # -- looking inside --------------------------------------------------------------------

    def explain(self) -> str:
        """Explain the program traced last; see `Compiled.explain`."""
        if self._compiled is not None:
            return self._compiled.explain()
        if not self._variants:
            raise TraceError(
                f"trace {self._name}", "there is no program yet", hint="call the function first"
            )
        return self._latest.inspected.explained()

    @property
    def graph(self) -> Graph:
        """The graph traced last, as it was captured."""
        if self._compiled is not None:
            return self._compiled.variants[-1].captured.graph
        if self._last is not None:
            return self._last[0].graph
        return self._latest.captured.graph

    @property
    def _latest(self) -> Variant:
        return list(self._variants.values())[-1][-1]

    @property
    def ops(self) -> tuple[Op, ...]:
        """Ops of the graph traced last, in order."""
        return tuple(n.op for n in self.graph.nodes)

    @property
    def vars(self) -> tuple[Value, ...]:
        """Values of the graph traced last: inputs, then results of ops."""
        graph = self.graph
        return (*graph.inputs, *(v for n in graph.nodes for v in n.outputs))

    def get_profile(self) -> dict[str, Any]:
        """Return the cost of the last call, kernel by kernel.

        Returns:
            `graph_exec`: the program's launches, each an operator; `profiler`: their times on the
            device and the host, and their work. `utils.profile_analyzer` sorts and sums them.

        Raises:
            TraceError: nothing was measured; trace with profiling=True.
        """
        if self._profile is None:
            raise TraceError(
                f"trace {self._name}",
                "nothing has been measured",
                hint="trace with profiling=True and call the function",
            )
        if isinstance(self._profile, Timeline):
            raise TraceError(
                f"trace {self._name}",
                "kernels are measured in programs of one part on the host only",
                hint="jit.compile the function; its profile() has the times of the parts",
            )
        return profile_data(self._profile)

    def dump(
        self,
        file: PathLike | IO[Any],
        *,
        arg_names: Sequence[str] | None = None,
        output_names: Sequence[str] | str | None = None,
        append: bool = False,
        keep_var_name: int = 1,
        keep_opr_name: bool | int = _NOT_SAID,
        keep_param_name: bool = False,
        keep_opr_priority: bool = False,
        no_change_graph: bool = False,
        strip_info_file: Any = None,
        append_json: bool = False,
        optimize_for_inference: bool = True,
        user_info: Any = None,
        enable_metadata: bool = True,
        input_data: Sequence[Any] | None = None,
        repeat: int = 1,
        silent: bool = False,
        no_assert: bool = False,
        maxerr: float = 1e-4,
        resize_input: bool = False,
        input_transform: Callable[[Any], Any] | None = None,
        dump_format: str | None = None,
        model_version: int = 2,
        compat_older_version: str | None = None,
        engines: Sequence[str] = (),
        **options: bool,
    ) -> CompGraphDumpResult:
        """Write the traced function as a model file: program and parameters, without Python.

        The file is Treadle's: one that needs no source of the function, runs no code when it is
        loaded, and is compiled for the machine it is loaded on. MegEngine's files are not written.

        Args:
            file: a path, which is replaced atomically, or a file object opened in binary mode.
            arg_names: names of the inputs; `arg_0`, ..., `kwarg_name` unless given.
            output_names: names of the results; keys of a dict, else names of the last ops.
            append: keep the models that are in the file, and add this one.
            user_info: anything that JSON knows, kept with the model.
            enable_metadata: write `user_info` and the options.
            input_data: test cases kept with the model: arrays, `"x.npy"`, `"#rand(0, 255)"`, or
                for several inputs `"data:x.npy;mask:#rand(0, 1)"` or dicts of arrays.
            repeat: how often each test case counts.
            no_assert: leave the expected results out of the test cases.
            maxerr: by how much, relative, results may differ from the expected ones.
            input_transform: applied to the arrays of `input_data`.
            options: MegEngine's names of layouts and fusions. They are recorded; layouts and
                fusion are decided where the model is loaded. `enable_io16xc32` and `enable_ioc16`
                make all values between inputs and outputs float16; ops compute in float32 with the
                former.
            engines: names of engines such as "openvino" whose compiled form of the model goes into
                the file beside the program, for machines that have them in the same versions.
            keep_opr_name: an explicit False leaves names of operators out; they are kept
                otherwise.
            optimize_for_inference: kept with the model; it is optimized where it is loaded.
            keep_var_name, keep_param_name, keep_opr_priority, no_change_graph, strip_info_file,
            append_json, silent, resize_input, dump_format, model_version, compat_older_version:
                for MegEngine's signature. These names are kept, and nothing is stripped.

        Raises:
            ValueError: the function has not been called, was traced without capture_as_const, or
                an option or the number of names is wrong.
            TraceError: the function does more than compute results from arguments and state.
            OSError: the file cannot be written.
        """
        from treadle.jit.dump import DumpOptions, Ends, checked_options, without_names, write

        chosen = checked_options(options, optimize_for_inference)
        names = [output_names] if isinstance(output_names, str) else output_names
        model = self.model(Ends(arg_names, names))
        model = model if keep_opr_name is _NOT_SAID or keep_opr_name else without_names(model)
        asked = DumpOptions(
            append,
            user_info,
            enable_metadata,
            chosen,
            input_data,
            input_transform,
            repeat,
            no_assert,
            maxerr,
            resize_input,
            tuple(engines),
        )
        return write(file, model, asked)

    def model(self, ends: Ends) -> Model:
        """Return the model that `dump` writes, with these names of inputs and results.

        Raises:
            ValueError, TraceError: as `dump`.
        """
        if not self._for_dump:
            raise ValueError("dump: trace the function with capture_as_const=True")
        if self._last is None:
            raise ValueError(f"dump: {self._why or 'call the traced function first'}")
        call = None if self._fixed else self._call
        model = _model_of(self._function, self._name, self._last, call, self._options.fast, ends)
        if self._fixed:
            get_logger("jit").warning(_FIXED, self._name)
        return model.fixed() if self._fixed else model


def _noted(captured: CapturedCall, args: Any, kwargs: Any) -> tuple[_Recorded, Call]:
    """Return what a dump needs to know of a call."""
    from treadle.jit.dump import argument_names
    from treadle.jit.open_dump import asked

    return (captured, argument_names(args, kwargs)), asked(args, kwargs)


def _model_of(
    function: Callable[..., Any],
    name: str,
    recorded: _Recorded,
    call: Call | None,
    fast: bool,
    ends: Ends,
) -> Model:
    """Return the model of a call, for other extents as well where `call` says how it was made."""
    from treadle.jit.dump import Weights, model_of
    from treadle.jit.open_dump import model_for_extents

    captured, arguments = recorded
    weights = Weights()
    model = model_of(name, captured, arguments, ends, fast, weights)
    if call is None:
        return model
    return model_for_extents(function, model, call, captured, fast, weights)


def _captured(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    name: str,
    for_dump: bool,
    ahead: Recorded | None,
) -> tuple[CapturedCall, Recorded | None]:
    """The capture of a call, which is expected to be as one before, and what the next one may
    follow.
    """
    recorders: list[_Following] = []

    def following(name: str) -> Capture:
        recorders.append(_Following(name, ahead))
        return recorders[-1]

    try:
        with numbering_anew():
            if not for_dump:
                return capture(function, args, kwargs, name, kind=following), recorders[0].recorded
            with scoped() as kind:
                return capture(function, args, kwargs, name, kind=kind), None
    except TreadleError as error:
        if error.needs_run or any(r.has_found for r in recorders):
            raise _NeedsValues(error.where, error.problem, at=error.at) from error
        raise


class _Renumbered:
    """Graphs with names for extents that data decide which are the same in all calls."""

    def __init__(self) -> None:
        self._last: tuple[Graph, bool, Graph] | None = None

    def __call__(self, graph: Graph) -> tuple[bool, Graph]:
        """Return whether there are such extents, and the graph."""
        last = self._last
        if last is None or last[0] is not graph:
            is_open, named = finds_extents(graph), graph
            if is_open:
                named = last[2] if last is not None and last[0] == graph else renumbered(graph)
            self._last = last = graph, is_open, named
        return last[1], last[2]


class _Following(Traced):
    """A capture that expects the graph of the call before."""

    def __init__(self, name: str, ahead: Recorded | None) -> None:
        super().__init__(name)
        self.is_repeated = ahead is not None
        self._builder: FollowingBuilder = FollowingBuilder(name, ahead)
        self._deciding = Deciding(self._builder)

    def _input(
        self, type_: TensorType, source: Source, name: str = "", at: CompNode | None = None
    ) -> GraphOperand:
        self._builder.comes_from(at)
        return super()._input(type_, source, name, at)

    @property
    def recorded(self) -> Recorded | None:
        """The graph, for the next call."""
        return self._builder.recorded

    @property
    def has_found(self) -> bool:
        """True if data decide an extent of a value."""
        nodes = self._builder.appended
        return not all(v.type.is_static for node in nodes for v in node.outputs)


class _NeedsValues(TraceError):
    """The body reads values, so it has to run op by op."""


class _OpenExtents(_NeedsValues):
    """Data decide extents that no program takes; a file can hold what was captured."""


_FIXED = (
    "dump: %s reads values of tensors; the model holds those of the first call, and refuses inputs "
    "that give others"
)


def _fixed(
    function: Callable[..., Any], leaves: list[Any], args: Any, kwargs: Any, name: str
) -> tuple[_Recorded | None, str]:
    """A program for `dump` in which what this call reads is constant; or None, and why."""
    given, named = replaced(args, kwargs, leaves)
    try:
        with scoped(Fixing) as kind:
            captured = capture(function, given, named, name, kind=kind)
    except (TraceError, ShapeError) as error:
        return None, f"there is no program: {error.problem}"
    return _noted(captured, args, kwargs)[0], ""


def _check_types(name: str, kinds: dict[Any, Any], key: Any) -> None:
    """Element types must be those of the first call with this structure; shapes may change."""
    rank = _without_shapes(key)
    first = kinds.setdefault(rank[0], rank[1])
    if first != rank[1]:
        raise TraceError(
            f"trace {name}",
            "element types or devices of the arguments differ from the recorded ones",
            saw=f"{rank[1]}, recorded {first}",
            hint="trace one function per element type",
        )


def _without_shapes(key: Any) -> tuple[Any, Any]:
    """The structure of a signature, and its element types and places."""
    alone = all(isinstance(p, tuple) and p and isinstance(p[0], EagerType) for p in key)
    shape, parts = (len(key), key) if alone else key  # See `signature`.
    kinds = tuple(
        f"{p[0].quantized or p[0].dtype.name}@{p[0].device}"
        for p in parts
        if isinstance(p[0], EagerType)
    )
    return shape, kinds


def is_tracing() -> bool:
    """Return whether this thread is capturing or tracing a function."""
    return LOCAL.capture is not None


@contextmanager
def exclude_from_trace() -> Iterator[None]:
    """Run the block outside of the trace that goes on, op by op and unchecked.

    Raises:
        TraceError: the function is being compiled, so that nothing would run the block at each
            call.
    """
    held = LOCAL.capture
    if held is None:
        yield
        return
    if isinstance(held, Capture):
        raise TraceError(
            "jit",
            "the function leaves the trace for a while, so its values are known only when it runs",
            hint="trace it with imperative=True",
        ).of_run()
    if isinstance(held, SequenceWatch):
        held.interrupt()
    hook = LOCAL.hook
    install_capture(None, None if hook is held else hook)
    try:
        yield
    finally:
        install_capture(held, hook)


__all__ = ["exclude_from_trace", "is_tracing", "trace"]
