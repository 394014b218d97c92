"""LSTM language model and seq2seq with attention."""

import os
import tempfile

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.optimizer as optim
import numpy as np
from megengine.autodiff import GradManager
from megengine.data import (
    Collator,
    DataLoader,
    Infinite,
    RandomSampler,
    SequentialSampler,
    StreamSampler,
)
from megengine.data.dataset import ArrayDataset, Dataset, StreamDataset
from megengine.optimizer import MultiStepLR
from megengine.optimizer.lr_scheduler import LRScheduler

text = "the quick brown fox jumps over the lazy dog. " * 12
vocab = sorted(set(text))
stoi = {c: i for i, c in enumerate(vocab)}
data = np.array([stoi[c] for c in text], dtype=np.int32)
SEQ = 12


class Chunks(Dataset):
    def __init__(self, data):
        super().__init__()
        self.data = data

    def __getitem__(self, i):
        return self.data[i * SEQ : (i + 1) * SEQ], self.data[i * SEQ + 1 : (i + 1) * SEQ + 1]

    def __len__(self):
        return (len(self.data) - 1) // SEQ


class LM(M.Module):
    def __init__(self, n, dim=24):
        super().__init__()
        self.emb = M.Embedding(n, dim)
        self.rnn = M.LSTM(dim, 32, num_layers=2, batch_first=True, dropout=0.0)
        self.out = M.Linear(32, n)

    def forward(self, x, hx=None):
        y, state = self.rnn(self.emb(x), hx)
        return self.out(y), state


class Warmup(LRScheduler):
    def __init__(self, optimizer, warm, current_epoch=-1):
        self.warm = warm
        super().__init__(optimizer, current_epoch)

    def get_lr(self):
        return [b * min(1.0, (self.current_epoch + 1) / self.warm) for b in self.base_lrs]


mge.random.seed(1)
ds = Chunks(data)
loader = DataLoader(
    ds, sampler=RandomSampler(ds, batch_size=8, drop_last=True, seed=2), collator=Collator()
)
net = LM(len(vocab))
gm = GradManager().attach(net.parameters())
opt = optim.AdamW(net.parameters(), lr=1e-2)
sch = Warmup(opt, 4)
first = last = None
for _ in range(6):
    for x, y in loader:
        x, y = mge.tensor(x, dtype="int32"), mge.Tensor(y)
        with gm:
            logits, _ = net(x)
            loss = F.nn.cross_entropy(logits.reshape(-1, len(vocab)), y.flatten(), label_smooth=0.0)
            gm.backward(loss)
        norm = optim.clip_grad_norm(net.parameters(), max_norm=1.0)
        opt.step().clear_grad()
        first = loss.item() if first is None else first
        last = loss.item()
    sch.step()
assert last < first * 0.75, (first, last)
net.eval()
state = None
tok = mge.tensor([[stoi["t"]]], dtype="int32")
out = []
for _ in range(5):
    logits, state = net(tok, state)
    tok = F.argmax(logits[:, -1], axis=1).reshape(1, 1)
    out.append(vocab[int(tok.item())])
(h, c) = state
assert h.shape == (2, 1, 32) and c.shape == (2, 1, 32)
acc = F.topk_accuracy(logits[:, -1], tok.flatten(), topk=(1, 3))
with tempfile.TemporaryDirectory() as t:
    path = os.path.join(t, "ck.pkl")
    mge.save(
        {
            "epoch": 8,
            "state_dict": net.state_dict(),
            "opt": opt.state_dict(),
            "sch": sch.state_dict(),
        },
        path,
    )
    ck = mge.load(path, map_location="cpu0")
    net2 = LM(len(vocab))
    net2.load_state_dict(ck["state_dict"])
    opt.load_state_dict(ck["opt"])
    sch.load_state_dict(ck["sch"])
    net2.eval()
    a, b = net(mge.tensor(data[None, :5]))[0].numpy(), net2(mge.tensor(data[None, :5]))[0].numpy()
    np.testing.assert_allclose(a, b)


class Attention(M.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = M.Linear(dim, dim, bias=False)
        self.v = mge.Parameter(np.random.randn(dim).astype("float32") * 0.1)

    def forward(self, h, enc, mask):
        e = F.tanh(F.expand_dims(self.q(h), 1) + enc)
        score = F.matmul(e, self.v)
        score = F.where(mask, score, F.full(score.shape, -1e9))
        w = F.softmax(score, axis=-1)
        return F.squeeze(F.matmul(F.expand_dims(w, 1), enc), 1), w


class S2S(M.Module):
    def __init__(self, n=12, dim=32):
        super().__init__()
        self.e = M.Embedding(n, dim)
        self.enc = M.RNN(dim, dim, batch_first=True, bidirectional=False, nonlinearity="tanh")
        self.cell = M.LSTMCell(2 * dim, dim)
        self.att = Attention(dim)
        self.out = M.Linear(dim, n)

    def forward(self, src, tgt):
        enc, h = self.enc(self.e(src))
        mask = src != 0
        hx = (h[-1], F.zeros_like(h[-1]))
        outs = []
        for t in range(tgt.shape[1]):
            ctx, _w = self.att(hx[0], enc, mask)
            hx = self.cell(F.concat([self.e(tgt[:, t]), ctx], axis=1), hx)
            outs.append(self.out(hx[0]))
        return F.stack(outs, axis=1)


rng = np.random.RandomState(0)
net = S2S()
gm = GradManager()
gm.attach(list(net.parameters()))
opt = optim.Adam(net.parameters(), 1e-2)
sched = MultiStepLR(opt, milestones=[10, 15], gamma=0.5)
ls = []
for _it in range(20):
    src = rng.randint(1, 12, (8, 6)).astype("int32")
    src[:4, 5] = 0
    tgt = src[:, ::-1].copy()
    inp = np.concatenate([np.full((8, 1), 11, "int32"), tgt[:, :-1]], 1)
    gm.record()
    logits = net(mge.tensor(src), mge.tensor(inp))
    flat, lab = logits.reshape(-1, 12), mge.tensor(tgt).reshape(-1)
    valid = (lab != 0).astype("float32")
    loss = (F.nn.cross_entropy(flat, lab, reduction="none") * valid).sum() / valid.sum()
    gm.backward(loss)
    opt.step()
    opt.clear_grad()
    sched.step()
    ls.append(float(loss))
assert ls[-1] < ls[0]


class Gen(StreamDataset):
    def __iter__(self):
        for i in range(7):
            yield np.full((2,), i, np.float32), i


n = sum(1 for _ in DataLoader(Gen(), StreamSampler(batch_size=3), timeout=5))
inf = iter(
    DataLoader(
        ArrayDataset(np.arange(5), np.arange(5)),
        Infinite(SequentialSampler(ArrayDataset(np.arange(5)), batch_size=2)),
    )
)
got = [next(inf)[0].tolist() for _ in range(4)]
probs = F.softmax(logits[0, -1])
idx = mge.random.multinomial(F.expand_dims(probs, 0), 2)
print("text", round(first, 2), round(last, 2), n, got, "".join(out))
