"""The files that clusters read: well formed, and they name what is there."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "examples/cluster"
TRAIN = (CLUSTER / "train.py").read_text()
OPTIONS = set(re.findall(r'add_argument\("(--\w+)"', TRAIN))


def manifest() -> dict[str, Any]:
    (found,) = yaml.safe_load_all((CLUSTER / "mpijob.yaml").read_text())
    assert isinstance(found, dict)
    return found


def containers(role: str) -> list[dict[str, Any]]:
    pod = manifest()["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    found: list[dict[str, Any]] = pod["containers"]
    volumes = {v["name"] for v in pod.get("volumes", ())}
    mounts = [m for c in found for m in c.get("volumeMounts", ())]
    assert {m["name"] for m in mounts} == volumes
    assert all(m["mountPath"].startswith("/") for m in mounts)
    return found


def test_the_mpi_job_has_what_the_operator_asks_for() -> None:
    job = manifest()
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    spec = job["spec"]
    assert set(spec) == {"slotsPerWorker", "mpiImplementation", "runPolicy", "mpiReplicaSpecs"}
    assert spec["mpiImplementation"] in ("OpenMPI", "Intel", "MPICH")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    roles = spec["mpiReplicaSpecs"]
    assert set(roles) == {"Launcher", "Worker"} and roles["Launcher"]["replicas"] == 1
    (launcher,), (worker,) = containers("Launcher"), containers("Worker")
    assert launcher["image"] == worker["image"]
    command = launcher["command"]
    assert command[0] == "mpirun" and "mpi4py" in command
    assert {
        a for a in command[command.index("/opt/job/train.py") :] if a.startswith("--")
    } <= OPTIONS
    threads = next(int(a.partition("=")[2]) for a in command if a.startswith("TREADLE_NUM_THREADS"))
    assert threads * spec["slotsPerWorker"] == worker["resources"]["limits"]["cpu"]
    assert "/dev/shm" in {m["mountPath"] for m in worker["volumeMounts"]}


def test_the_batch_script_is_one_of_slurm() -> None:
    script = CLUSTER / "train.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in directives)
    # Slurm stops to look for them at the first command.
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(line in lines[:first] for line in directives)
    started = script.read_text().partition("srun ")[2].replace("\\\n", " ").split()
    assert "--mpi=pmix" in started and "mpi4py" in started
    program = next(a for a in started if a.endswith(".py"))
    assert (ROOT / program).exists()
    after = started[started.index(program) :]
    assert {a for a in after if a.startswith("--")} <= OPTIONS


def test_hosts_and_rays_script_are_well_formed() -> None:
    for line in (CLUSTER / "hosts").read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+ slots=\d+", line)
    tree = ast.parse((CLUSTER / "ray_job.py").read_text())
    names = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    assert {"mpiexec", "mpi4py", "train.py", "--hostfile"} <= names


def test_run_books_name_files_variables_and_commands_that_exist() -> None:
    known = (ROOT / "src/treadle/base/env.py").read_text()
    for page in sorted((ROOT / "docs/runbooks").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"(?:examples/cluster)/[\w.]+", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
        for variable in re.findall(r"TREADLE_\w+", text):
            assert variable.removeprefix("TREADLE_") in known, f"{page.name}: {variable}"
        for module in re.findall(r"-m (treadle[\w.]+)", text):
            assert (ROOT / "src" / f"{module.replace('.', '/')}.py").exists(), module
