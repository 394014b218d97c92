"""`load_and_run MODEL [--flags]`: run a model file, time it, check it, look at its values.

    python -m treadle.tools.load_and_run model.mge --input image.npy --iter 100

Flags are those of MegEngine's program of this name, with dashes or underscores; `--help` says what
each does here.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from treadle.backends import registry
from treadle.backends.c_loaders import INIT, dynamic_parameter, has_loaders, open_loaders
from treadle.backends.codegen import tuned
from treadle.base.env import NUM_THREADS
from treadle.base.errors import TreadleError
from treadle.engine.devices.names import resolve
from treadle.engine.execute.callers import call_together
from treadle.engine.options import Options
from treadle.engine.package.models import Model, Runner, read_models, write_models
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.inspect.profile import Profile
from treadle.interop.files import read_foreign_models
from treadle.lite.globals import decrypted
from treadle.lite.model import is_packed
from treadle.lite.packed import choices_of, choices_text, pack, unpack
from treadle.lite.portable import layouts_of, use_choices
from treadle.lite.runner import LiteRunner
from treadle.quantization.precision import with_precision
from treadle.runtime.array import to_host
from treadle.tools.fast_run import SECONDS, carried, measure
from treadle.tools.load_and_run_flags_table import FLAGS
from treadle.tools.run_model import (
    WrongValues,
    as_wanted,
    check_case,
    facts,
    parsed_inputs,
    timed,
    values_of,
    with_batch,
    write_arrays,
)
from treadle.utils import custom

_TYPES: dict[str, Any] = {"int": int, "float": float, "text": str}
_OF_THE_HOST = ("fast-run", "full-run", "fitting", "layout-transform")
_REFUSED = tuple(name for name, _, what in FLAGS if what.startswith("refused"))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        "load_and_run", description="Run a model file, time it, check it, look at its values."
    )
    made.add_argument("model", help="a file that trace.dump or Network.dump wrote")
    for name, kind, what in FLAGS:
        names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
        if kind == "flag":
            made.add_argument(*names, action="store_true", help=what)
        else:
            made.add_argument(*names, type=_TYPES[kind], metavar=kind.upper(), help=what)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0, or 1 where the model or a value is wrong.

    Raises:
        SystemExit: misuse, with status 2.
    """
    wanted = parser()
    args = wanted.parse_args(arguments)
    read_foreign_models()
    for name in _OF_THE_HOST if args.cuda else ():
        if getattr(args, name.replace("-", "_")):
            wanted.error(f"--cuda: --{name} is for the host")
    if args.c_opr_lib_with_param and (args.lite or not args.c_opr_lib):
        wanted.error("--c-opr-lib-with-param: give --c-opr-lib, and run without --lite")
    for name in _REFUSED:
        if getattr(args, name.replace("-", "_")):
            what = next(what for n, _, what in FLAGS if n == name)
            wanted.error(f"--{name}: {what.removeprefix('refused: ')}")
    if args.wait_gdb:
        print(f"process {os.getpid()}: press Enter to go on")
        sys.stdin.readline()
    try:
        _run(args)
    except (TreadleError, WrongValues, OSError, ValueError) as error:
        print(f"load_and_run: {error}", file=sys.stderr)
        return 1
    return 0


def _prepare(args: argparse.Namespace) -> None:
    """Prepare what has to be there before a model is read: threads, cores, libraries,
    measurements.
    """
    threads = args.multithread or args.multithread_default
    if threads:
        NUM_THREADS.set(str(threads))
    if args.multi_thread_core_ids:
        os.sched_setaffinity(0, [int(n) for n in args.multi_thread_core_ids.split(",")])
    if args.c_opr_lib:
        _open(args.c_opr_lib, args.c_opr_init_interface)
    if args.fast_run_algo_policy and Path(args.fast_run_algo_policy).exists():
        use_choices(choices_of(Path(args.fast_run_algo_policy).read_text(encoding="utf-8")))


def _open(path: str, function: str | None) -> None:
    """Open a library of loaders, or of custom ops, by its function that lists or registers them."""
    if has_loaders(path) or (function or "").endswith("_init"):
        open_loaders(path, function or INIT)
    else:
        custom.load(path, function or custom.LISTING)


def _model(path: Path, cryption: str | None) -> Model:
    """The model of a file, or of a packed one, whose measurements are used from here on.

    `cryption` names the method by which a file that is not packed is decrypted.
    """
    with path.open("rb") as file:
        if not is_packed(file.read(4)):
            return read_models(
                io.BytesIO(decrypted(path.read_bytes(), cryption)) if cryption else path
            )[0]
    packed = unpack(path.read_bytes())
    use_choices(packed.cache)
    return read_models(io.BytesIO(packed.model))[0]


def _pack(model: Model, args: argparse.Namespace) -> None:
    """Write a packed model: this one, what `--pack-info-json` says, and measurements.

    What a method of decryption is named for is encrypted already, and stays as it is.
    """
    info = Path(args.pack_info_json).read_bytes() if args.pack_info_json else b"{}"
    cache = tuned.installed()
    if args.pack_cache:
        cache = choices_of(Path(args.pack_cache).read_text(encoding="utf-8"))
    written = io.BytesIO()
    if args.pack_model_cryption:
        written.write(Path(args.model).read_bytes())
    else:
        write_models(written, [model], "load_and_run")
    methods = {"model": args.pack_model_cryption or "", "info": args.pack_info_cryption or ""}
    pack(Path(args.packed_model_dump), written.getvalue(), info, cache, methods)


def _write(model: Model, args: argparse.Namespace) -> None:
    """Write the model in the forms that were asked for."""
    if args.model_dump:
        write_models(args.model_dump, [model], "load_and_run")
    if args.layout_transform_dump:
        chosen = {**model.options, "layouts": list(_layouts(args, model))}
        write_models(args.layout_transform_dump, [replace(model, options=chosen)], "load_and_run")
    if args.packed_model_dump:
        _pack(model, args)


def _run(args: argparse.Namespace) -> None:
    _prepare(args)
    model = _model(Path(args.model), args.pack_model_cryption)
    if args.batch_size:
        model = with_batch(model, args.batch_size)
    console = Console()
    if args.model_info:
        console.print(_ends(model))
    _write(model, args)
    cases = [] if args.input else list(model.cases)
    for number, case in enumerate(cases):
        results = _once(model, case.inputs, args, console, f"case {number}")
        try:
            worst = check_case(model, case, results)
        except WrongValues as error:
            if not args.disable_assert_throw:
                raise
            console.print(f"case {number} FAILED: {error}")
            continue
        if case.outputs:
            console.print(f"case {number} passed: results differ by at most {worst:.3g}")
    if not cases:
        _once(model, parsed_inputs(args.input or "", model), args, console, "model")


def _ends(model: Model) -> Table:
    table = Table(title="inputs and outputs")
    for title in ("", "name", "type"):
        table.add_column(title)
    for kind, names, values in (
        ("input", model.inputs, model.graph.inputs),
        ("output", model.outputs, model.graph.outputs),
    ):
        for name, value in zip(names, values, strict=True):
            table.add_row(kind, name, str(value.type))
    return table


def _options(args: argparse.Namespace, model: Model) -> Options:
    options = Options(reuse_memory=not args.disable_mem_opt)
    if args.workspace_limit:
        options = replace(options, memory_budget=args.workspace_limit)
    return replace(options, layouts=_layouts(args, model))


def _layouts(args: argparse.Namespace, model: Model) -> tuple[str, ...]:
    """Orders of axes to hold maps in; empty: those that the target prefers."""
    if args.layout_transform:
        if args.layout_transform.lower() != "cpu":
            raise ValueError(f"--layout-transform {args.layout_transform}: this runs on cpu")
        return ("channels-last", "blocked")
    wanted = {
        "blocked": args.enable_nchw44 or args.enable_nchw88,
        "blocked-4": args.enable_nchw4 or args.enable_nchw44_dot,
        "blocked-32": args.enable_nchw32,
        "blocked-64": args.enable_nchw64,
        "channels-last": args.enable_nhwcd4,
    }
    return tuple(name for name, yes in wanted.items() if yes) or layouts_of(model)


def _measure(model: Model, graph: Graph, args: argparse.Namespace, console: Console) -> None:
    """Measure kernels, where that was asked for."""
    if not (args.fast_run or args.full_run):
        return
    size, options = args.fast_run_shared_batch_size, _options(args, model)
    measured = with_batch(model, size).graph if size else graph
    seconds, every = SECONDS["full" if args.full_run else "fast"], []
    for found in measure(measured, options, seconds):
        kept = found.before / found.after
        console.print(f"{found.name}: {found.tried} ways, the best {kept:.2f} times as fast")
        every.append(found)
    if size:
        shared = carried(every, measured, graph, options)
        console.print(f"{len(shared)} choices of batch size {size} are used for the model's")
        use_choices(shared)
    if args.fast_run_algo_policy:
        text = choices_text(tuned.installed())
        Path(args.fast_run_algo_policy).write_text(text, encoding="utf-8")


def _once(
    model: Model, given: Any, args: argparse.Namespace, console: Console, what: str
) -> dict[str, Any]:
    """Run a model on one set of inputs in all the ways that were asked for; its results by name."""
    graph, arrays = as_wanted(model, given)
    if args.enable_ioc16:
        graph, _ = with_precision(graph, "mixed-float16")
    _measure(model, graph, args, console)
    options = _options(args, model)
    if args.fitting:
        options = _fitted(graph, arrays, options, console)
    home = resolve("gpu0") if args.cuda else None
    made = (
        LiteRunner(model, graph, options, home) if args.lite else Runner(graph, options, home=home)
    )
    if args.fake_first:
        made.stages.compile()

    def runner(given: Sequence[Any]) -> list[Any]:
        return [to_host(x) for x in made(given)]  # A device is done when its results are here.

    tell = console.print if args.verbose else None
    count = 10 if args.iter is None else args.iter
    warmup = 1 if args.warmup_iter is None else args.warmup_iter
    with_param = args.c_opr_lib_with_param
    with dynamic_parameter(args.c_opr_lib, arrays) if with_param else nullcontext():
        results, timing = timed(runner, arrays, warmup, count, tell)
    console.print(f"{what}: {timing}", soft_wrap=True)
    if args.thread and args.thread > 1:
        call_together(lambda: runner(arrays), args.thread, count)
        console.print(f"{what}: {args.thread} threads ran it {count} times each")
    _values(graph, arrays, args)
    _reports(made, arrays, args, console)
    named = dict(zip(model.outputs, results, strict=True))
    if args.bin_out_dump:
        write_arrays(Path(args.bin_out_dump), ((n, "", a) for n, a in named.items()))
    if args.dump_fitting_model:
        write_models(args.dump_fitting_model, [model], "load_and_run")
    return named


def _fitted(graph: Any, arrays: list[Any], plain: Options, console: Console) -> Options:
    """The options with the fastest engine."""
    best, chosen = float("inf"), plain
    for engine in registry.engines("cpu"):
        options = replace(plain, engines=(engine.name,))
        _, timing = timed(Runner(graph, options), arrays, 1, 5)
        seconds = float(np.median(timing.measured))
        console.print(f"engine {engine.name}: {1e3 * seconds:.3f} ms")
        if seconds < best:
            best, chosen = seconds, options
    console.print(f"fastest: {chosen.engines[0]}")
    return chosen


def _values(graph: Any, arrays: list[Any], args: argparse.Namespace) -> None:
    """Look at the value of every op, where that was asked for."""
    streams = ((sys.stdout, args.io_dump_stdout), (sys.stderr, args.io_dump_stderr))
    outs = [stream for stream, yes in streams if yes]
    if not (outs or args.io_dump or args.bin_io_dump or args.range or args.check_var_value):
        return
    found = values_of(graph, arrays)
    for name, op, array in found:
        _check(name, op, array, args)
    lines = [facts(*row) for row in found]
    for out in outs:
        print("\n".join(lines), file=out)
    if args.io_dump:
        Path(args.io_dump).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if args.bin_io_dump:
        write_arrays(Path(args.bin_io_dump), found)


def _check(name: str, op: str, array: Any, args: argparse.Namespace) -> None:
    if not array.size or array.dtype.kind not in "fiu":
        return
    largest = float(np.abs(array.astype(np.float64)).max())
    if args.check_var_value and not np.isfinite(largest):
        raise WrongValues(f"{name} ({op}) has values that are not finite")
    if args.range and not largest <= args.range:
        raise WrongValues(f"{name} ({op}) reaches {largest:.6g}, allowed are {args.range:.6g}")


def _reports(runner: Runner, arrays: list[Any], args: argparse.Namespace, console: Console) -> None:
    program = Inspected(runner.stages)
    for path in filter(None, (args.profile, args.profile_host)):
        profile = program.profile(arrays, repeats=5)
        if isinstance(profile, Profile):
            found = [(k.label, k.kernel, k.calls, k.seconds) for k in profile.kernels]
        else:  # Devices that do not time their kernels: the parts that ran there, and the copies.
            found = [(s.name, s.device, 1, s.seconds) for s in profile.spans]
        rows = [dict(zip(("op", "kernel", "calls", "seconds"), row, strict=True)) for row in found]
        text = json.dumps({"seconds": profile.seconds, "kernels": rows}, indent=1)
        Path(path).write_text(text, encoding="utf-8")
    if args.check_dispatch:
        console.print(program.explained(), markup=False, soft_wrap=True)
    if args.get_static_mem_info:
        folder = Path(args.get_static_mem_info)
        folder.mkdir(parents=True, exist_ok=True)
        text = program.explained(full=True)
        (folder / "static_memory.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
