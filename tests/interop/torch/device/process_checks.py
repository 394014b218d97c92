"""What processes of PyTorch do over Treadle's groups: started by `test_processes.py`, on each rank.

The arguments are the address that ranks meet at, "" for that of the environment.
"""

import copy
import sys
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import treadle.torch  # noqa: E402, F401

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64]
Op = dist.ReduceOp
DEVICES = ["cpu", "treadle:0"]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def check_reductions(rank: int, size: int) -> None:
    for device in DEVICES:
        for dtype in TYPES:
            x = torch.arange(1, 4).to(dtype).to(device)
            y = x * (rank + 1)
            dist.all_reduce(y)
            assert y.device == x.device and y.dtype == dtype
            assert torch.equal(y.cpu(), x.cpu() * (size * (size + 1) // 2)), (device, dtype)
    results = {Op.AVG: (size + 1) / 2, Op.MAX: size, Op.MIN: 1, Op.PRODUCT: 1 if size < 2 else 2}
    for op, wanted in results.items():
        x = torch.full((2,), rank + 1.0)
        assert dist.all_reduce(x, op, async_op=True).wait()
        assert x[0] == (wanted if op is not Op.PRODUCT or size == 2 else x[0]), op
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, Op.BOR)
    assert bits.item() == (1 << size) - 1
    flags = torch.tensor([rank == 0, False])
    dist.all_reduce(flags, Op.MAX)
    assert flags.tolist() == [True, False]
    x = torch.ones(2, 3).t() * (rank + 1)  # not row-major
    dist.reduce(x, 1)
    assert x[0, 0] == (size * (size + 1) / 2 if rank == 1 else rank + 1)
    mine = torch.empty(2)
    dist.reduce_scatter(mine, [torch.full((2,), float(i)) for i in range(size)])
    assert mine.tolist() == [rank * size] * 2
    mean = torch.empty(2)
    dist.reduce_scatter_single(mean, torch.arange(2.0 * size) + rank, Op.AVG)
    assert torch.allclose(mean, torch.arange(2.0) + 2 * rank + (size - 1) / 2)


def check_movement(rank: int, size: int) -> None:
    x = torch.randn(300_000)
    every = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(every, x)
    assert torch.equal(every[rank], x)
    shared = torch.arange(4.0) + rank
    dist.broadcast(shared, 1)
    assert shared[0] == 1
    whole = torch.empty(size * 2, dtype=torch.bool)
    dist.all_gather_single(whole, torch.tensor([True, rank == 0]))
    assert whole.tolist() == [True, True] + [True, False] * (size - 1)
    at_last = [torch.empty(2) for _ in range(size)] if rank == size - 1 else None
    dist.gather(torch.full((2,), float(rank)), at_last, dst=size - 1)
    assert at_last is None or [t[0].item() for t in at_last] == list(range(size))
    part = torch.empty(2)
    dist.scatter(part, [torch.full((2,), 5.0 + i) for i in range(size)] if rank == 0 else None)
    assert part[0] == 5 + rank
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
    assert swapped.tolist() == [10 * r + rank for r in range(size)]
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(size)]


def check_uneven_exchanges(rank: int, size: int) -> None:
    counts = [r + 1 for r in range(size)]
    given = torch.cat([torch.full((n,), 10.0 * rank + r) for r, n in enumerate(counts)])
    made = torch.empty(size * (rank + 1))
    dist.all_to_all_single(made, given, [rank + 1] * size, counts)
    assert made.tolist() == [10.0 * r + rank for r in range(size) for _ in range(rank + 1)]


def check_messages(rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    given, made = torch.full((400_000,), float(rank)), torch.empty(400_000)
    for kinds in ((dist.isend, dist.irecv), (dist.irecv, dist.isend)):
        made.zero_()
        places = {dist.isend: (given, after), dist.irecv: (made, before)}
        works = dist.batch_isend_irecv([dist.P2POp(k, *places[k]) for k in kinds])
        dist.all_reduce(torch.ones(2))  # goes by itself
        for work in works:
            work.wait()
        assert made[0] == before
    first, second = torch.empty(1), torch.empty(1)
    for i in range(2):
        dist.send(torch.tensor([float(i)]), after)
    works = [dist.irecv(t, before) for t in (first, second)]
    works[1].wait()
    works[0].wait()
    assert (first.item(), second.item()) == (0, 1)


def check_groups(rank: int, size: int) -> None:
    last = dist.new_group([size - 1])
    others = dist.new_group(list(range(size))[::-1])
    if rank == size - 1:
        alone = torch.ones(2)
        dist.all_reduce(alone, group=last)
        assert alone[0] == 1
    x = torch.ones(2) * rank
    dist.all_reduce(x, group=others)
    assert x[0] == size * (size - 1) / 2
    dist.barrier(others)


def check_ddp(rank: int, size: int) -> None:
    """Gradients are means: a step on parts of a batch is one on the whole."""
    for device in DEVICES:
        torch.manual_seed(0)
        whole, x = net(), torch.randn(2 * size, 4)
        model = copy.deepcopy(whole).to(device)
        with torch.no_grad():
            for p in model.parameters():
                p += rank  # What ranks begin with is rank 0's.
        model = DistributedDataParallel(model)
        ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, whole))
        for _ in range(3):
            ours.zero_grad()
            model(x[2 * rank : 2 * rank + 2].to(device)).square().mean().backward()
            ours.step()
            theirs.zero_grad()
            whole(x).square().mean().backward()
            theirs.step()
        for a, b in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)


def check_fsdp(rank: int, size: int) -> None:
    for device in DEVICES:
        torch.manual_seed(0)
        whole, x = net(), torch.randn(2 * size, 4)
        model = copy.deepcopy(whole).to(device)
        mesh = dist.device_mesh.init_device_mesh(device.partition(":")[0], (size,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        ours, theirs = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, whole))
        for _ in range(3):
            ours.zero_grad()
            model(x[2 * rank : 2 * rank + 2].to(device)).square().mean().backward()
            ours.step()
            theirs.zero_grad()
            whole(x).square().mean().backward()
            theirs.step()
        for a, b in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(a.full_tensor().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


def check_compiled(rank: int, size: int) -> None:
    torch.manual_seed(0)
    model = net()
    step = torch.compile(DistributedDataParallel(model), backend="treadle")
    x = torch.randn(2 * size, 4)
    step(x[2 * rank : 2 * rank + 2]).square().mean().backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for a, p in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-5, atol=1e-6)


def check_refusals(rank: int, size: int) -> None:
    for wrong in (
        lambda: dist.send(torch.ones(1), (rank + 1) % size, tag=3),
        lambda: dist.recv(torch.ones(1)),
        lambda: dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(2.0)),
    ):
        try:
            wrong()
        except NotImplementedError as error:
            assert "treadle:" in str(error), error
        else:
            raise AssertionError("nothing was refused")


def main(address: str) -> None:
    dist.init_process_group("treadle", **({"init_method": address} if address else {}))
    rank, size = dist.get_rank(), dist.get_world_size()
    checks = {n: f for n, f in globals().items() if n.startswith("check_")}
    for name, check in checks.items():
        check(rank, size)
        dist.barrier()
        if rank == 0:
            print("passed", name, flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("over", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
