"""Ray finds the machines, MPI does the rest: one task per job, which holds the cores of its nodes.

ray job submit --working-dir examples/cluster -- python ray_job.py --nodes 2 --ranks 4
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=0)
def address() -> str:
    """Where a bundle of cores is."""
    return str(ray.util.get_node_ip_address())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="per node")
    parser.add_argument("--folder", default="/shared/checkpoints")
    given = parser.parse_args()
    ray.init()
    held = placement_group([{"CPU": given.ranks}] * given.nodes, strategy="STRICT_SPREAD")
    ray.get(held.ready())
    places = [
        address.options(scheduling_strategy=PlacementGroupSchedulingStrategy(held, i)).remote()
        for i in range(given.nodes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder, "hosts")
        hosts.write_text("".join(f"{a} slots={given.ranks}\n" for a in ray.get(places)))
        count = str(given.nodes * given.ranks)
        program = ["python", "-m", "mpi4py", "train.py", "--folder", given.folder]
        subprocess.run(["mpiexec", "-n", count, "--hostfile", str(hosts), *program], check=True)


if __name__ == "__main__":
    main()
