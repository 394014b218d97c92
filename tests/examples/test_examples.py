"""Every example and benchmark runs, at a small size, as a user would start it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

HAS_MPI = all(importlib.util.find_spec(name) for name in ("mpi4py", "cloudpickle"))
ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *arguments: str) -> str:
    """What a script prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_digits_learn_save_and_read_back(tmp_path: Path) -> None:
    text = run("examples/digits_cnn.py", "--epochs", "2", "--out", str(tmp_path))
    accuracy = [float(a) for a in re.findall(r"test accuracy ([0-9.]+)%", text)]
    assert len(accuracy) == 2
    assert accuracy[-1] > 90
    assert f"a fresh process reads it back: {accuracy[-1]:.2f}%" in text.replace("\n", " ")
    assert "read as" in text
    assert (tmp_path / "digits.mge").stat().st_size > 100_000


@pytest.mark.long
def test_the_autoencoder_learns_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "new/map.png"
    text = run("examples/digits_vae.py", "--epochs", "12", "--out", str(picture))
    costs = [float(c) for c in re.findall(r"cost ([0-9.]+) nats", text)]
    # Where nothing is learned, a digit costs what the mean of all costs: 27.2 nats.
    assert costs[-1] < costs[0] - 1 and costs[-1] < 27
    pixels = cv2.imread(str(picture), cv2.IMREAD_GRAYSCALE)
    assert pixels is not None and pixels.shape == (800, 800)
    # Digits that differ from place to place, on white.
    assert pixels[0].min() > 200 and pixels.std() > 40
    assert np.abs(pixels[:50, :50].astype(int) - pixels[-50:, -50:]).mean() > 20


@pytest.mark.long
def test_digits_are_found_in_photographs(tmp_path: Path) -> None:
    picture = tmp_path / "boxes.png"
    text = run("examples/find_digits.py", "--steps", "400", "--out", str(picture))
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", text)]
    assert losses[-1] < losses[0] < 10
    found = re.search(r"(\d+) of (\d+) digits found and read, (\d+) boxes", text)
    # One of ten digits, of one of a hundred places: nobody guesses so many.
    assert found is not None and int(found[1]) > 0.1 * int(found[2])
    pixels = cv2.imread(str(picture))
    assert pixels is not None and pixels.shape == (768, 1152, 3)
    assert (pixels == (60, 200, 60)).all(axis=2).sum() > 1000


@pytest.mark.long
def test_character_model_learns() -> None:
    text = run(
        "examples/char_lm.py", "--steps", "50", "--dim", "32", "--layers", "1", "--sample", "20"
    )
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+) nats", text)]
    assert losses[-1] < losses[0] - 0.5
    assert text.rstrip().splitlines()[-1]


@pytest.mark.long
def test_mixed_precision_learns_as_float32_does() -> None:
    rows = [r.split() for r in run("examples/mixed_precision.py", "--steps", "60").splitlines()[1:]]
    assert [row[0] for row in rows] == ["float32", "bfloat16", "float16"]
    first, last, kept = ([float(row[i]) for row in rows] for i in (1, 2, -1))
    for i in (1, 2):
        assert abs(first[i] - first[0]) < 0.02
        assert abs(last[i] - last[0]) < 0.05
        assert kept[i] < 0.7 * kept[0]
    assert last[0] < first[0] / 2


@pytest.mark.long
def test_quantized_digits_keep_their_accuracy() -> None:
    rows = re.findall(
        r"^(.+?) +([0-9.]+)% +([0-9.]+) KiB",
        run("examples/quantized_digits.py", "--epochs", "3", "--tune", "1"),
        re.MULTILINE,
    )
    assert [name for name, _, _ in rows] == [
        "float32",
        "calibrated",
        "calibrated, per channel",
        "trained with rounding",
    ]
    best, *integers = [float(accuracy) for _, accuracy, _ in rows]
    assert best > 90
    assert min(integers) > best - 1.5
    sizes = [float(size) for _, _, size in rows]
    assert max(sizes[1:]) < 0.3 * sizes[0]


def test_compiled_step_learns_what_the_eager_one_does() -> None:
    text = run("examples/compiled_mlp.py", "--steps", "120", "--batch", "64", "--explain")
    losses = re.findall(r"(\w+) +loss ([0-9.]+) -> ([0-9.]+)", text)
    assert [name for name, _, _ in losses] == ["eager", "compiled", "sink"]
    assert all(float(last) < float(first) for _, first, last in losses)
    gap = re.search(r"eager and compiled: (\S+)", text)
    assert gap is not None and float(gap[1]) < 1e-3
    assert "agree bit for bit: yes" in text
    for stage in ("prepare", "partition", "optimize", "compile", "load"):
        assert stage in text


@pytest.mark.long
def test_recomputation_needs_less_memory() -> None:
    text = run("examples/recomputation.py", "--layers", "4", "--width", "32", "--batch", "256")
    share = [int(v) for v in re.findall(r"MiB +(\d+)%", text)]
    assert share[0] == 100
    assert max(share[1:]) < 90
    assert "with a budget agree bit for bit: yes" in text
    gap = re.search(r"with regions: (\S+)", text)
    assert gap is not None and float(gap[1]) < 1e-4


def test_the_slow_part_is_found(tmp_path: Path) -> None:
    text = run("examples/find_the_slow_part.py", "--batch", "16", "--out", str(tmp_path))
    assert re.search(r"DIV\D+16", text)
    assert [*tmp_path.glob("*.chrome_timeline.json")]
    gap = re.search(r"of the results: (\S+)", text)
    assert gap is not None and float(gap[1]) < 1e-5


@pytest.mark.long
def test_the_edited_network_scores_the_same(tmp_path: Path) -> None:
    text = run("examples/edit_network.py", "--out", str(tmp_path / "net.tm"))
    assert re.findall(r"(\d+) batch norms", text) == ["3", "0"]
    assert "outputs: scores, features" in text
    gap = re.search(r"of the scores: (\S+)", text)
    assert gap is not None and float(gap[1]) < 1e-4
    assert "without the class: the same scores" in text


def test_the_op_in_c_agrees() -> None:
    text = run("examples/custom_op.py", "--size", "1000")
    gaps = re.search(r"values (\S+), of gradients (\S+)", text)
    assert gaps is not None and max(map(float, gaps.groups())) < 1e-5
    assert "the gradient agrees with differences" in text


def test_the_mandelbrot_set_is_the_same_on_devices_and_the_host(tmp_path: Path) -> None:
    out = tmp_path / "set.pgm"
    text = run("examples/mandelbrot.py", "--size", "60", "--turns", "40", "--out", str(out))
    share = re.search(r"differs from NumPy's: ([0-9.]+)%", text)
    assert share is not None and float(share[1]) < 1
    assert "@@@" in text and re.search(r"compiled +on cpux:0", text)
    assert out.read_bytes().startswith(b"P5 60 60 255\n") and out.stat().st_size == 3613


@pytest.mark.long
@pytest.mark.multi
@pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and cloudpickle")
def test_several_processes_learn_what_one_does() -> None:
    sizes = ("--steps", "5", "--batch", "64", "--width", "32")
    text = run("examples/several_processes.py", *sizes)
    losses = re.findall(r"loss ([0-9.]+) -> ([0-9.]+)", text)
    assert len(losses) == 2 and losses[0] == losses[1]
    assert re.search(r"gain: [0-9.]+ times as fast", text)
    gap = re.search(r"difference of a loss: (\S+)", text)
    assert gap is not None and float(gap[1]) < 1e-5
    assert "equal weights: yes" in text


@pytest.mark.long
def test_cores_share_a_task_that_falls_into_parts() -> None:
    text = run("examples/cores.py", "--size", "64", "--turns", "20", "--cores", "1", "2")
    assert re.search(r"^1 core .* ms +1.00 times", text, re.MULTILINE)
    assert re.search(r"^2 cores .* ms .* of what they could give", text, re.MULTILINE)
    assert "the same counts on any number of cores: yes" in text


def test_scaling_is_predicted_from_measured_kernels() -> None:
    text = run("benchmarks/scaling.py", "--workloads", "T1", "--repeats", "2")
    assert re.search(r"^T1: .*: 6 gradients, 2\.6 MiB; backward ends at [1-9]", text, re.MULTILINE)
    found = re.findall(r"^ *T1 .* ([0-9]+)% +([0-9]+)% +([0-9]+)% +([0-9]+)% ", text, re.MULTILINE)
    assert len(found) == 6
    for row in found:
        efficiency = list(map(int, row))
        assert efficiency == sorted(efficiency, reverse=True) and 0 < efficiency[0] <= 100


def test_the_runner_knows_every_example_and_the_table_lists_it() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/run.py"), "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2
    listed = re.search(r"examples: (.*)", done.stdout)
    assert listed is not None
    table = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    found = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"run"}
    assert (
        found == set(listed[1].split(", ")) == set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    )
    assert "custom_op: done in" in run("examples/run.py", "custom_op", "--size", "100")


@pytest.mark.long
def test_crossover_benchmark_prints_its_table() -> None:
    head, rule, *rows = run(
        "benchmarks/crossover.py", "--seconds", "0.01", "--markdown"
    ).splitlines()
    assert head.startswith("| batch | MFLOP |") and set(rule) <= set("|- ")
    assert len(rows) == 5


@pytest.mark.long
def test_inference_over_random_input_sizes_needs_no_change_of_the_program() -> None:
    arguments = ("--calls", "3", "--largest", "64", "--markdown")
    head, rule, *rows = run("benchmarks/random_sizes.py", *arguments).splitlines()
    assert head.startswith("| network | sizes | images/s |") and set(rule) <= set("|- ")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(c[0], c[1]) for c in cells] == [("ResNet-18", "4"), ("MobileNetV2", "4")]
    assert all(float(c[2]) > 0 and float(c[3]) > 0 for c in cells)


@pytest.mark.long
def test_workload_benchmark_prints_its_table() -> None:
    arguments = ("T2", "O2e", "--seconds", "0.1", "--only", "own", "--threads", "1", "--markdown")
    head, rule, *rows = run("benchmarks/compare.py", *arguments).splitlines()
    assert head.startswith("|  | workload | who | median ms | p20 ms | first s | MiB | ratio |")
    assert set(rule) == {"|", "-"}
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(c[0], c[2]) for c in cells] == [("T2", "Treadle compile"), ("O2e", "Treadle eager")]
    assert all(float(c[3]) > 0 and float(c[6]) > 0 for c in cells)


@pytest.mark.long
def test_overhead_benchmark_prints_its_table() -> None:
    arguments = ("--rounds", "1", "--number", "20", "--alone", "--markdown")
    text = run("benchmarks/overhead.py", *arguments)
    assert text.startswith("| op | Treadle | PyTorch | ratio |")
    assert "| import, seconds |" in text
