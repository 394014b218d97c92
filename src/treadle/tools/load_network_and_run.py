"""`load_network_and_run NET`: run a model file from Python, with timing and output statistics.

python -m treadle.tools.load_network_and_run model.mge --iter 100 --calc-output-rms
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from treadle.base.errors import TreadleError
from treadle.engine.package.models import Case, Runner, read_models, write_models
from treadle.inspect import Inspected
from treadle.interop.files import read_foreign_models
from treadle.jit.dump import in_halves
from treadle.tools.run_model import as_wanted, parsed_inputs, timed, with_batch

_TEXT = ("device", "load-input-data", "profile", "input-desc", "log", "custom-op-lib", "rng")
_ACCEPTED = (
    "fast-run",
    "reproducible",
    "focused-nvprof",
    "optimize-for-inference",
    "enable-hwcd4",
    "enable-nchw4",
    "enable-nchw88",
    "enable-nchw44",
    "enable-nchw44-dot",
    "enable-chwn4",
    "enable-nchw32",
    "enable-fuse-conv-bias-nonlinearity",
    "weight-preprocess",
)
"""The engine does these, or chooses them, in any case."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("load_network_and_run", description="Run a model file.")
    made.add_argument("net", help="a file that trace.dump or Network.dump wrote")
    made.add_argument("-d", dest="device", help="the host; others are not there")
    for name in _TEXT:
        made.add_argument(f"--{name}", metavar="TEXT")
    for name in _ACCEPTED:
        made.add_argument(f"--{name}", action="store_true", help="done, or chosen, anyway")
    made.add_argument("--enable-io16xc32", action="store_true", help="values are stored in float16")
    made.add_argument("--enable-ioc16", action="store_true", help="ops compute in float16, too")
    made.add_argument("--calc-output-rms", action="store_true", help="print the outputs' RMS")
    made.add_argument("--output-name", nargs="*", help="outputs to look at; all unless given")
    made.add_argument("--batchsize", type=int, help="another first extent of the inputs")
    made.add_argument("--warm-up", action="store_true", help="run once before measuring")
    made.add_argument("-v", "--verbose", action="store_true", help="print every run")
    made.add_argument("--iter", type=int, default=1, help="runs, 1")
    made.add_argument("--seed", type=int, default=0, help="of inputs drawn at random")
    made.add_argument("--dump-cpp-model", metavar="FILE", help="write a copy of the model")
    made.add_argument("--embed-input", action="store_true", help="keep inputs with that copy")
    made.add_argument("--get-static-mem-info", metavar="DIR", help="write how memory is planned")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = parser().parse_args(arguments)
    read_foreign_models()
    try:
        return _run(args)
    except (TreadleError, OSError, ValueError) as error:
        print(f"load_network_and_run: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        log = args.log and stack.enter_context(open(args.log, "w", encoding="utf-8"))
        console = Console(file=log or sys.stdout)
        model = read_models(args.net)[0]
        if args.batchsize:
            model = with_batch(model, args.batchsize)
        model = in_halves(model, vars(args))
        text = args.load_input_data or args.input_desc or ""
        graph, arrays = as_wanted(model, parsed_inputs(text, model, args.seed))
        runner = Runner(graph)
        tell = console.print if args.verbose else None
        results, timing = timed(runner, arrays, 1 + args.warm_up, args.iter, tell)
        console.print(str(timing), soft_wrap=True)
        program = Inspected(runner.stages)
        for name, array in zip(model.outputs, results, strict=True):
            if args.calc_output_rms and (not args.output_name or name in args.output_name):
                rms = float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))
                console.print(f"output {name}: shape {list(array.shape)}, RMS {rms:.6g}")
        if args.profile:
            rows = program.profile(arrays, repeats=5).kernels
            table = [{"op": k.label, "calls": k.calls, "seconds": k.seconds} for k in rows]
            Path(args.profile).write_text(json.dumps(table, indent=1), encoding="utf-8")
        if args.get_static_mem_info:
            folder = Path(args.get_static_mem_info)
            folder.mkdir(parents=True, exist_ok=True)
            explained = program.explained(full=True)
            (folder / "static_memory.txt").write_text(explained, encoding="utf-8")
        if args.dump_cpp_model:
            given = dict(zip(model.inputs, arrays, strict=True))
            made = dict(zip(model.outputs, results, strict=True))
            cases = (Case(given, made),) if args.embed_input else ()
            write_models(args.dump_cpp_model, [replace(model, cases=cases)], "dump")
    return 0


if __name__ == "__main__":
    sys.exit(main())
