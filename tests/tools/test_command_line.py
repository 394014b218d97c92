"""MegEngine's command line tools over real files, as commands."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.engine.package.models import read_models
from treadle.tools import (
    accuracy_shake_var_tree,
    benchmark_op,
    compare_binary_iodump,
    draw_graph,
    graph_info_analyze,
    load_and_run,
    load_network_and_run,
    network_visualize,
    profile_analyze,
    profiler,
    svg_viewer,
)
from treadle.tools.load_and_run_flags_table import FLAGS

X = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    """A small network with a test case, and its input beside it."""
    mge.random.seed(0)
    conv, head = M.Conv2d(3, 4, 3), M.Linear(4, 5)
    traced = jit.trace(lambda data: head(F.mean(F.relu(conv(data)), (2, 3))), capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path_factory.mktemp("tools") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["logits"], input_data=[X])
    np.save(path.with_name("x.npy"), X)
    return path


def run(*arguments: Any) -> int:
    return load_and_run.main([str(a) for a in arguments])


# -- load_and_run -------------------------------------------------------------------------------


def test_a_model_is_run_and_checked(model: Path, capsys: Any) -> None:
    assert run(model, "--iter", 3, "--warmup_iter", 2, "--verbose", "--model-info") == 0
    out = capsys.readouterr().out
    assert out.count("run 2:") == 1
    assert "median" in out
    assert "case 0 passed" in out
    assert "float32[2,3,8,8]" in out


def test_wrong_results_are_found(model: Path, tmp_path: Path, capsys: Any) -> None:
    from dataclasses import replace

    from treadle.engine.package.models import Case, write_models

    [good] = read_models(model)
    case = good.cases[0]
    spoiled = Case(case.inputs, {"logits": case.outputs["logits"] + 1})
    bad = tmp_path / "bad.mge"
    write_models(bad, [replace(good, cases=(spoiled,))], "test")
    assert run(bad, "--iter", 1) == 1
    assert "logits differs by" in capsys.readouterr().err
    assert run(bad, "--iter", 1, "--disable-assert-throw") == 0
    assert "FAILED" in capsys.readouterr().out


def test_inputs_and_values(model: Path, tmp_path: Path, capsys: Any) -> None:
    outs, values = tmp_path / "outs", tmp_path / "values"
    given = f"data:{model.with_name('x.npy')}"
    flags = ("--iter", 1, "--bin-out-dump", outs, "--bin-io-dump", values, "--io-dump-stdout")
    assert run(model, "--input", given, *flags) == 0
    [result] = outs.iterdir()
    [case] = read_models(model)[0].cases
    np.testing.assert_allclose(np.load(result), case.outputs["logits"], rtol=1e-5, atol=1e-6)
    assert len(list(values.iterdir())) > 5
    assert " conv float32[2, 4, 6, 6] mean" in capsys.readouterr().out
    assert run(model, "--input", "#rand(0, 1, 4, 3, 8, 8)", "--iter", 1) == 0
    assert run(model, "--batch-size", 3, "--iter", 1, "--input", "#rand(0, 1, 3, 3, 8, 8)") == 0
    assert run(model, "--input", "data.jpg") == 1
    assert "no .npy" in capsys.readouterr().err


def test_limits_of_values(model: Path, capsys: Any) -> None:
    assert run(model, "--iter", 1, "--range", "1e6", "--check-var-value", "0") == 0
    assert run(model, "--iter", 1, "--range", "1e-6") == 1
    assert "allowed are 1e-06" in capsys.readouterr().err


def test_reports(model: Path, tmp_path: Path, capsys: Any) -> None:
    profile, memory, copy = tmp_path / "p.json", tmp_path / "memory", tmp_path / "copy.mge"
    flags = ("--profile", profile, "--get-static-mem-info", memory, "--model-dump", copy)
    assert run(model, "--iter", 1, *flags, "--check-dispatch", "--fitting", "--fake-first") == 0
    assert json.loads(profile.read_text())["kernels"]
    assert "arena" in (memory / "static_memory.txt").read_text()
    assert read_models(copy)[0].outputs == ("logits",)
    out = capsys.readouterr().out
    assert "fastest:" in out
    assert "ops captured" in out
    assert run(model, "--iter", 2, "--thread", 3, "--workspace-limit", 1 << 30) == 0
    assert "3 threads" in capsys.readouterr().out
    assert run(model, "--iter", 1, "--workspace-limit", 1) == 1
    assert "memory budget" in capsys.readouterr().err


def test_every_flag_is_known(model: Path, capsys: Any) -> None:
    assert len({name for name, _, _ in FLAGS}) == len(FLAGS) == 74
    values = {"int": "1", "float": "1e9", "text": "x"}
    skipped = {"wait-gdb", "input", "batch-size"}
    for name, kind, what in FLAGS:
        given = [f"--{name}"] if kind == "flag" else [f"--{name}", values[kind]]
        args = [str(model), *given]
        if what.startswith("refused"):
            with pytest.raises(SystemExit) as end:
                load_and_run.main(args)
            assert end.value.code == 2
            assert f"--{name}: " in capsys.readouterr().err
        elif name not in skipped:
            load_and_run.parser().parse_args(args)


def test_missing_files_are_errors(capsys: Any) -> None:
    assert run("nowhere.mge") == 1
    assert "nowhere.mge" in capsys.readouterr().err


# -- the others ---------------------------------------------------------------------------------


def test_load_network_and_run(model: Path, tmp_path: Path, capsys: Any) -> None:
    copy, profile = tmp_path / "copy.mge", tmp_path / "p.json"
    args = [str(model), "--iter", "2", "--calc-output-rms", "-v", "--fast-run", "--seed", "3"]
    args += ["--dump-cpp-model", str(copy), "--embed-input", "--profile", str(profile)]
    assert load_network_and_run.main(args) == 0
    out = capsys.readouterr().out
    assert "output logits: shape [2, 5], RMS" in out
    assert "run 1:" in out
    assert json.loads(profile.read_text())
    assert run(copy, "--iter", 1) == 0
    assert load_network_and_run.main(["nowhere"]) == 1


def test_network_visualize(model: Path, tmp_path: Path, capsys: Any) -> None:
    totals, rows = network_visualize.visualize(model, log_path=str(tmp_path / "log"))
    assert totals.flops == sum(r["flops_num"] for r in rows.flops[:-1])
    by_class = {r["class_name"]: r for r in rows.flops[:-1]}
    assert by_class["ConvolutionForward"]["flops_num"] == 2 * 4 * 36 * 27
    assert by_class["ConvolutionForward"]["receptive_field"] == (3, 3)
    assert by_class["MatrixMul"]["flops_num"] == 2 * 4 * 5
    assert totals.param_dims >= 4 * 27 + 4 + 4 * 5 + 5
    assert totals.param_size == totals.param_dims * 4
    assert list((tmp_path / "log").iterdir())
    assert "mean" not in rows.activations[0]
    data = tmp_path / "data.npz"
    mge.save(np.ones((2, 3, 8, 8), "float32"), data)
    assert network_visualize.main([str(model), "--load_input_data", str(data)]) == 0
    assert "mean" in capsys.readouterr().out
    assert network_visualize.main([str(model), "--cal_flops"]) == 0
    out = capsys.readouterr().out
    assert "multiply-adds" in out and "activations" not in out
    assert network_visualize.main(["nowhere"]) == 1
    with pytest.raises(ValueError, match="give an array for each"):
        network_visualize.visualize(model, inp_dict={})


def test_graph_info_and_pictures(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "info"
    assert graph_info_analyze.main(["-i", str(model), "-o", str(folder)]) == 0
    names = {p.name for p in folder.iterdir()}
    assert names == {"graph.json", "program.json", "report.txt", "graph.svg"}
    picture = tmp_path / "picture.x"
    args = ["-i", str(model), "-o", str(picture), "--output-format", "html", "-d", "logits"]
    assert draw_graph.main(args) == 0
    assert "conv" in picture.with_suffix(".html").read_text()
    assert draw_graph.main(["-i", str(model), "-o", str(picture), "-d", "nobody"]) == 1
    assert graph_info_analyze.main(["-i", "nowhere", "-o", str(folder)]) == 1


def test_profile_analyze(tmp_path: Path, capsys: Any) -> None:
    traced = jit.trace(lambda x: F.softmax(x @ x, axis=1).sum(), profiling=True)
    traced(mge.tensor(np.ones((64, 64), np.float32)))
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(traced.get_profile()))
    assert profile_analyze.main([str(path), "-t", "1"]) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    assert profile_analyze.main([str(path), "--wiki", "--aggregate-by", "type", "-t", "0"]) == 0
    assert "| matmul" in capsys.readouterr().out.replace("contraction(matmul", "matmul")
    assert profile_analyze.main([str(path), "--type", "nothing", "--dump-only-opr"]) == 0
    assert capsys.readouterr().out.strip() == ""
    path.write_text("{}")
    assert profile_analyze.main([str(path)]) == 1


def test_profiler_runs_scripts(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(
        "import sys, treadle as mge\n"
        "assert sys.argv[1:] == ['a']\n"
        "mge.functional.exp(mge.tensor(1.))\n"
    )
    assert profiler.main(["-o", str(out), str(script), "a"]) == 0
    [timeline] = out.iterdir()
    assert "EXP" in timeline.read_text()
    assert profiler.main(["-o", str(out), "--merge_trace_events"]) == 0
    assert (out / "merge.chrome_timeline.json").exists()
    assert profiler.main(["-o", str(out / "missing"), "--merge_trace_events"]) == 1
    with pytest.raises(SystemExit):
        profiler.main(["-o", str(out)])


def test_compare_binary_iodump(tmp_path: Path, capsys: Any) -> None:
    for folder, shift in (("a", 0.0), ("b", 0.5)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "same.npy", np.ones(3, np.float32))
        np.save(tmp_path / folder / "other.npy", np.ones(3, np.float32) + shift)
    np.save(tmp_path / "a" / "only.npy", np.ones(1))
    pair = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert compare_binary_iodump.main(pair) == 1
    out = capsys.readouterr().out
    assert "other.npy: differs by 0.5 at (0,)" in out
    assert "only.npy: only in" in out
    assert compare_binary_iodump.main([pair[0], pair[0]]) == 0
    assert compare_binary_iodump.main([*pair, "-e", "0.6", "-s"]) == 1


def test_accuracy_shake_var_tree(tmp_path: Path, capsys: Any) -> None:
    values = [
        {"name": "x", "inputs": [], "difference": 0},
        {"name": "conv", "inputs": ["x"], "difference": 0.1},
        {"name": "relu", "inputs": ["conv"], "difference": 0.2},
        {"name": "pool", "inputs": ["x"], "difference": 0},
    ]
    assert accuracy_shake_var_tree.roots(values) == ["conv"]
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    assert accuracy_shake_var_tree.main([str(path)]) == 0
    out = capsys.readouterr().out
    assert out.index("conv: 0.1") < out.index("relu: 0.2")
    assert "pool" not in out
    path.write_text("[{}]")
    assert accuracy_shake_var_tree.main([str(path)]) == 1


def test_benchmark_op(capsys: Any) -> None:
    assert benchmark_op.main(["add"]) == 0
    assert "256x1024" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        benchmark_op.main(["beauty"])


def test_svg_viewer(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("<svg/>")
    made = svg_viewer.server("127.0.0.1", 0, str(tmp_path))
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{made.server_port}/a.svg"
        with urllib.request.urlopen(url, timeout=300) as response:
            assert response.read() == b"<svg/>"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()
