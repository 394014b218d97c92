"""Language models beside llama.cpp, OpenVINO GenAI and ONNX Runtime GenAI: speed and memory.

Every side is a process of its own that loads the same GGUF file, with as many threads; processes
take turns, and of each figure the median of all turns is kept. Tokens are made up, the likeliest
one follows, and no text ends early.

    pip install --target DIR openvino-genai
    pip install --target DIR onnxruntime-genai
    npm install --prefix DIR --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
    python benchmarks/llm.py model.gguf [--llama DIR] [--openvino DIR] [--onnx DIR]
        [--turns 3] [--threads 2]

ONNX Runtime GenAI reads a folder of its own, `model.onnx` beside `model.gguf`, as
`python -m onnxruntime_genai.models.builder -i HF -o model.onnx -p int4 -e cpu --extra_options
int4_accuracy_level=4` writes it from weights of the same extents: blocks of 32 in 4 bits.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPT, ANSWER, SHORT, STREAMS = 512, 64, 32, 8
"""Tokens of a prompt that is read, of an answer, of a short prompt; answers at a time."""
HERE = Path(__file__).parent
OPENVINO, ONNX = "OpenVINO GenAI", "ONNX Runtime GenAI"
_FIGURES = {
    "load": ("loaded in, s", "{:.2f}", min),
    "prefill": (f"prompt of {PROMPT}, tokens/s", "{:.0f}", max),
    "decode": (f"answer of {ANSWER}, tokens/s", "{:.1f}", max),
    "first": (f"first token of {SHORT}, ms", "{:.1f}", min),
    "streams": (f"{STREAMS} answers at once, tokens/s", "{:.1f}", max),
    "memory": ("largest resident memory, MB", "{:.0f}", min),
}
"""By key: what it is, how it is written, which is better."""


def tokens(count: int, seed: int = 0) -> list[int]:
    """Made up; every framework's tokenizer has so many."""
    return [300 + (seed + i * 7919) % 20000 for i in range(count)]


def treadle(path: str) -> dict[str, float]:
    """This framework, by `llm.load`."""
    import treadle.llm as llm

    begun = time.perf_counter()
    model = llm.load(path, context=PROMPT + 2 * ANSWER)
    found = {"load": time.perf_counter() - begun}
    for turn in range(2):  # Programs are made in the first.
        times = []
        begun = time.perf_counter()
        for _ in _asked(model, PROMPT, ANSWER + 1, turn):
            times.append(time.perf_counter() - begun)
        found["prefill"] = PROMPT / times[0]
        found["decode"] = (len(times) - 1) / (times[-1] - times[0])
        begun = time.perf_counter()
        next(_asked(model, SHORT, 1, 99 + turn))
        found["first"] = 1e3 * (time.perf_counter() - begun)
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    found["streams"] = _streams(path)
    return found


def _asked(model: Any, count: int, answer: int, seed: int) -> Any:
    from treadle.llm.generation import Options

    options = Options(max_tokens=answer, ignore_eos=True)
    return model.engine.submit(tokens(count, seed), options)


def _streams(path: str) -> float:
    import treadle.llm as llm

    model = llm.load(path, sequences=STREAMS, context=SHORT + ANSWER + 8)
    rate = 0.0
    for turn in range(2):
        asked = [_asked(model, SHORT, ANSWER + 1, 9 * i + turn) for i in range(STREAMS)]
        for generation in asked:
            next(generation)
        begun = time.perf_counter()
        count = sum(1 for generation in asked for _ in generation)
        rate = count / (time.perf_counter() - begun)
    return rate


def openvino(path: str) -> dict[str, float]:
    """OpenVINO GenAI."""
    import numpy as np
    import openvino as ov

    genai = importlib.import_module("openvino_genai")

    threads = int(os.environ["TREADLE_NUM_THREADS"])
    begun = time.perf_counter()
    pipe = genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
    found = {"load": time.perf_counter() - begun}

    def run(count: int, answer: int, seed: int) -> tuple[float, float]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = answer
        config.do_sample, config.ignore_eos = False, True
        given = np.array([tokens(count, seed)], np.int64)
        tensors = ov.Tensor(given), ov.Tensor(np.ones_like(given))
        metrics = pipe.generate(genai.TokenizedInputs(*tensors), config).perf_metrics
        return metrics.get_ttft().mean, metrics.get_tpot().mean

    for turn in range(2):
        first, each = run(PROMPT, ANSWER + 1, turn)
        found |= {"prefill": 1e3 * PROMPT / first, "decode": 1e3 / each}
        found["first"] = run(SHORT, 2, 99 + turn)[0]
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return found


def onnxruntime(path: str) -> dict[str, float]:
    """ONNX Runtime GenAI, whose model lies beside the GGUF file."""
    genai = importlib.import_module("onnxruntime_genai")
    threads = int(os.environ["TREADLE_NUM_THREADS"])
    begun = time.perf_counter()
    config = genai.Config(str(Path(path).with_suffix(".onnx")))
    options = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = genai.Model(config)
    found = {"load": time.perf_counter() - begun}

    def run(count: int, answer: int, seed: int, batch: int = 1) -> tuple[float, float]:
        """Seconds until the first tokens, and of each step behind it."""
        params = genai.GeneratorParams(model)
        length = count + answer
        params.set_search_options(
            max_length=length, min_length=length, batch_size=batch, do_sample=False
        )
        generator = genai.Generator(model, params)
        begun = time.perf_counter()
        given = [tokens(count, seed + 9 * i) for i in range(batch)]
        generator.append_tokens(given if batch > 1 else given[0])
        generator.generate_next_token()
        first = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(answer - 1):
            generator.generate_next_token()
        return first, (time.perf_counter() - begun) / max(1, answer - 1)

    for turn in range(2):
        first, each = run(PROMPT, ANSWER + 1, turn)
        found |= {"prefill": PROMPT / first, "decode": 1 / each}
        found["first"] = 1e3 * run(SHORT, 1, 99 + turn)[0]
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    found["streams"] = STREAMS / run(SHORT, ANSWER + 1, 0, STREAMS)[1]
    return found


def measured(side: str, path: str, given: argparse.Namespace) -> dict[str, float]:
    """A side's figures of one turn, in a process of its own."""
    environment = os.environ | {"TREADLE_NUM_THREADS": str(given.threads)}
    command = [sys.executable, str(HERE / "llm.py"), path, "--side", side]
    folder = None
    if side == "llama.cpp":
        command = ["node", str(Path(given.llama) / "peer_llama.mjs"), path, str(given.threads)]
        command += map(str, (PROMPT, ANSWER, SHORT, STREAMS))
        script = (HERE / "peer_llama.mjs").read_text()
        Path(command[1]).write_text(script)  # Modules are looked for beside it.
        folder = given.llama
    if side in (OPENVINO, ONNX):
        environment["PYTHONPATH"] = given.openvino if side == OPENVINO else given.onnx
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{side}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure, and print a table for each file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--llama", metavar="DIR")
    parser.add_argument("--openvino", metavar="DIR")
    parser.add_argument("--onnx", metavar="DIR")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        run = {OPENVINO: openvino, ONNX: onnxruntime}.get(given.side, treadle)
        print(json.dumps(run(given.files[0])))
        return
    sides = ["Treadle", *["llama.cpp"] * bool(given.llama)]
    sides += [OPENVINO] * bool(given.openvino) + [ONNX] * bool(given.onnx)
    for path in map(os.path.abspath, given.files):
        turns: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(given.turns):
            for side in sides:
                turns[side].append(measured(side, path, given))
        print(f"\n{os.path.basename(path)}, {os.path.getsize(path) / 1e6:.0f} MB\n")
        print_table(turns)


def print_table(turns: dict[str, list[dict[str, float]]]) -> None:
    """Medians, and how many times as good as the best other side we are."""
    sides = list(turns)
    print(f"| | {' | '.join(sides)} | ratio |\n|{'---|' * (len(sides) + 2)}")
    for key, (name, form, better) in _FIGURES.items():
        found: dict[str, Any] = {
            side: statistics.median(values)
            for side in sides
            if (values := [turn[key] for turn in turns[side] if key in turn])
        }
        if "Treadle" not in found:
            continue
        cells = [form.format(found[s]) if s in found else "" for s in sides]
        others = [x for side, x in found.items() if side != "Treadle"]
        own = found["Treadle"]
        best = better(others) if others else own
        ratio = f"{best / own if better is min else own / best:.2f}" if others else ""
        print(f"| {name} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
