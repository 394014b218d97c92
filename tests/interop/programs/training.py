"""A ResNet trained as MegEngine's models are: arguments, AMP, traces, checkpoints."""

import argparse
import bisect
import os
import tempfile
import time

import megengine
import megengine as mge
import megengine.amp as amp
import megengine.autodiff as autodiff
import megengine.data as data
import megengine.data.transform as T
import megengine.device
import megengine.distributed as dist
import megengine.dtr
import megengine.functional as F
import megengine.jit as jit
import megengine.module as M
import megengine.optimizer as optim
import numpy as np
from megengine.data.dataset import ArrayDataset

logging = megengine.logger.get_logger()


class AverageMeter:
    def __init__(self, name, fmt=":.3f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


class BasicBlock(M.Module):
    expansion = 1

    def __init__(self, cin, c, stride=1, groups=1, norm=M.BatchNorm2d):
        super().__init__()
        self.conv1 = M.Conv2d(cin, c, 3, stride, 1, bias=False)
        self.bn1 = norm(c)
        self.conv2 = M.Conv2d(c, c, 3, 1, padding=1, bias=False)
        self.bn2 = norm(c)
        self.downsample = (
            M.Identity()
            if cin == c and stride == 1
            else M.Sequential(M.Conv2d(cin, c, 1, stride, bias=False), norm(c))
        )

    def forward(self, x):
        identity = x
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        identity = self.downsample(identity)
        x += identity
        return F.relu(x)


class ResNet(M.Module):
    def __init__(self, num_classes=4, norm=M.BatchNorm2d):
        super().__init__()
        self.conv1 = M.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = norm(8)
        self.maxpool = M.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1, self.layer2 = (
            M.Sequential(BasicBlock(8, 8)),
            M.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16)),
        )
        self.fc = M.Linear(16, num_classes)
        for m in self.modules():
            if isinstance(m, M.Conv2d):
                M.init.msra_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                if m.bias is not None:
                    fan_in, _ = M.init.calculate_fan_in_and_fan_out(m.weight)
                    M.init.uniform_(m.bias, -1 / fan_in**0.5, 1 / fan_in**0.5)
            elif isinstance(m, (M.BatchNorm2d, M.SyncBatchNorm)):
                M.init.ones_(m.weight)
                M.init.zeros_(m.bias)
        for m in self.modules():
            if isinstance(m, BasicBlock):
                M.init.zeros_(m.bn2.weight)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        x = F.avg_pool2d(x, int(x.shape[-1])) if x.shape[-1] > 1 else x
        return self.fc(F.flatten(x, 1))


def loaders_of(args):
    rng = np.random.RandomState(0)
    imgs = rng.randint(0, 255, (32, 40, 40, 3), dtype=np.uint8)
    labels = (np.arange(32) % 4).astype("int32")
    for i in range(32):
        imgs[i, :, :, labels[i] % 3] //= 4
    ds = ArrayDataset(imgs, labels)
    train_sampler = data.Infinite(data.RandomSampler(ds, batch_size=8, drop_last=True))
    loader = data.DataLoader(
        ds,
        sampler=train_sampler,
        transform=T.Compose(
            [
                T.RandomResizedCrop(32),
                T.RandomHorizontalFlip(),
                T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4),
                T.Normalize(mean=[103.53, 116.28, 123.675], std=[57.375, 57.12, 58.395]),
                T.ToMode("CHW"),
            ]
        ),
        num_workers=args.workers,
    )
    queue = iter(loader)
    valid = data.DataLoader(
        ds,
        sampler=data.SequentialSampler(ds, batch_size=16, drop_last=False),
        transform=T.Compose(
            [T.Resize(36), T.CenterCrop(32), T.Normalize(mean=128), T.ToMode("CHW")]
        ),
    )
    return queue, valid


def worker(args):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mge.dtr.eviction_threshold = "1GB"
    mge.dtr.enable()
    mge.dtr.disable()
    os.makedirs(os.path.join(args.save, "m"), exist_ok=True)
    megengine.logger.set_log_file(os.path.join(args.save, f"log{rank}.txt"))
    queue, valid = loaders_of(args)
    model = ResNet(norm=M.SyncBatchNorm)
    if world_size > 1:
        dist.bcast_list_(model.parameters())
        dist.bcast_list_(model.buffers())
    gm = autodiff.GradManager().attach(
        model.parameters(), callbacks=[dist.make_allreduce_cb("SUM")] if world_size > 1 else None
    )
    pw, pb = [], []
    for n, p in model.named_parameters():
        (pb if "bias" in n or p.ndim < 2 else pw).append(p)
    opt = optim.SGD(
        [{"params": pw}, {"params": pb, "weight_decay": 0}],
        lr=args.lr,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-4,
    )
    scaler = amp.GradScaler(init_scale=128.0)

    def train_step(image, label):
        with gm, amp.autocast(enabled=args.amp):
            logits = model(image)
            loss = F.nn.cross_entropy(logits, label, label_smooth=0.1)
            acc1, acc5 = F.topk_accuracy(logits, label, topk=(1, 3))
            if args.amp:
                scaler.backward(gm, loss)
            else:
                gm.backward(loss / world_size)
            opt.step().clear_grad()
        return loss, acc1, acc5

    if args.trace:
        train_step = jit.trace(
            symbolic=args.symbolic,
            sublinear_memory_config=jit.SublinearMemoryConfig(genetic_nr_iter=0)
            if args.symbolic
            else None,
        )(train_step)

    def adjust(step, epoch):
        lr = args.lr * 0.1 ** bisect.bisect_right([30], epoch)
        for g in opt.param_groups:
            g["lr"] = lr * min(1, (step + 1) / 4)
        return lr

    obj = AverageMeter("Loss")
    clck = AverageMeter("Time")
    t = time.time()
    vals = []
    for step in range(8):
        adjust(step, 0)
        image, label = next(queue)
        image, label = mge.tensor(image, dtype="float32"), mge.tensor(label, dtype="int32")
        loss, _a1, _a5 = train_step(image, label)
        obj.update(loss.item())
        clck.update(time.time() - t)
        t = time.time()
        vals.append(loss.item())
        logging.info("%s %s", obj, clck)
    with open(os.path.join(args.save, f"log{rank}.txt")) as log:
        assert "Loss" in log.read()
    model.eval()
    n = 0
    for image, label in valid:
        logits = model(mge.tensor(image))
        F.metric.topk_accuracy(logits, mge.tensor(label), 1)
        n += image.shape[0]
    assert n == 32
    ck = os.path.join(args.save, "checkpoint.pkl")
    mge.save({"epoch": 1, "state_dict": model.state_dict()}, ck)
    state = mge.load(ck)
    model.load_state_dict(state.get("state_dict", state))
    dist.group_barrier()
    return np.isfinite(vals).all()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-n", "--ngpus", default=1, type=int)
    p.add_argument("--lr", default=0.02, type=float)
    p.add_argument("--save", default=tempfile.mkdtemp())
    p.add_argument("--workers", default=0, type=int)
    p.add_argument("--amp", action="store_true")
    p.add_argument("--trace", action="store_true")
    p.add_argument("--symbolic", action="store_true")
    for a in (["--amp"], ["--trace", "--symbolic"], ["--trace", "--workers", "1"]):
        args = p.parse_args(a)
        n = megengine.device.get_device_count("gpu") if args.ngpus is None else args.ngpus
        if n > 1:
            train_proc = dist.launcher(worker, n_gpus=n)
            train_proc(args)
        else:
            assert worker(args)
    print("training ok")


if __name__ == "__main__":
    main()
