import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.random as rand
import numpy as np
from megengine import Parameter, Tensor
from megengine.autodiff import Function, GradManager
from megengine.jit import trace
from megengine.module.init import normal_, zeros_
from megengine.optimizer import Adam


class SpectralNorm(M.Module):
    def __init__(self, m, power=1):
        super().__init__()
        self.m = m
        self.power = power
        w = m.weight
        h = w.shape[0]
        self.u = Tensor(np.random.randn(h).astype("float32"))
        self.register = None

    def forward(self, x):
        w = self.m.weight
        flat = w.reshape(w.shape[0], -1)
        u = self.u
        v = F.normalize(F.matmul(flat, u.reshape(-1, 1), transpose_a=True).flatten(), axis=0)
        u2 = F.normalize(F.matmul(flat, v.reshape(-1, 1)).flatten(), axis=0)
        self.u._reset(u2.detach()) if self.training else None
        sigma = F.dot(u2.detach(), F.matmul(flat, v.detach().reshape(-1, 1)).flatten())
        return F.conv2d(x, w / sigma, self.m.bias, self.m.stride, self.m.padding)


class G(M.Module):
    def __init__(self, z=8):
        super().__init__()
        self.fc = M.Linear(z, 32 * 4 * 4)
        self.net = M.Sequential(
            M.BatchNorm2d(32),
            M.ReLU(),
            M.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
            M.BatchNorm2d(16),
            M.LeakyReLU(0.2),
            M.ConvTranspose2d(16, 1, 4, 2, 1),
        )

    def forward(self, z):
        return F.tanh(self.net(F.reshape(self.fc(z), (-1, 32, 4, 4))))


class D(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (
            SpectralNorm(M.Conv2d(1, 16, 4, 2, 1)),
            SpectralNorm(M.Conv2d(16, 32, 4, 2, 1)),
        )
        self.out = M.Linear(32 * 16, 1)

    def forward(self, x):
        x = F.leaky_relu(self.a(x), 0.2)
        x = F.leaky_relu(self.b(x), 0.2)
        return self.out(F.flatten(x, 1))


def gradient_penalty(d, real, fake):
    alpha = rand.uniform(size=(real.shape[0], 1, 1, 1))
    mid = alpha * real + (1 - alpha) * fake
    g2 = GradManager().attach([mid])
    with g2:
        y = d(mid).sum()
        g2.backward(y)
        grad = mid.grad
    return ((F.sqrt((grad**2).sum(axis=(1, 2, 3)) + 1e-12) - 1) ** 2).mean()


g, d = G(), D()
for m in g.modules():
    if isinstance(m, (M.ConvTranspose2d,)):
        normal_(m.weight, 0, 0.02)
    elif isinstance(m, M.Linear):
        M.init.xavier_uniform_(m.weight)
        zeros_(m.bias)
og, od = (
    Adam(g.parameters(), lr=2e-4, betas=(0.0, 0.9)),
    Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999)),
)
gg, gd = GradManager().attach(g.parameters()), GradManager().attach(d.parameters())


def d_step(real, z):
    with gd:
        fake = g(z).detach()
        lr_, lf = d(real), d(fake)
        loss = F.nn.binary_cross_entropy(lr_, F.ones_like(lr_)) + F.nn.binary_cross_entropy(
            lf, F.zeros_like(lf)
        )
        gp = gradient_penalty(d, real, fake)
        gd.backward(loss + 0.1 * gp)
        od.step().clear_grad()
    return loss, gp


@trace(symbolic=False)
def g_step(z):
    with gg:
        lf = d(g(z))
        loss = F.loss.binary_cross_entropy(lf, F.ones_like(lf))
        gg.backward(loss)
    og.step()
    og.clear_grad()
    return loss


np.random.seed(0)
rand.seed(0)
for _it in range(6):
    real = mge.tensor(np.random.rand(4, 1, 16, 16).astype("float32") * 2 - 1)
    z = rand.normal(size=(4, 8))
    ld, gp = d_step(real, z)
    lg = g_step(mge.random.normal(0, 1, (4, 8)))
    assert np.isfinite(ld.numpy()) and np.isfinite(lg.item()) and gp.item() > 0
ema = {k: v.copy() for k, v in g.state_dict().items()}
for k, p in g.named_parameters():
    ema[k] = 0.9 * ema[k] + 0.1 * p.numpy().reshape(ema[k].shape)
g2 = G()
g2.load_state_dict(ema)
g2.eval()
img = ((g2(rand.normal(size=(2, 8))).numpy() + 1) * 127.5).clip(0, 255).astype("uint8")
print("gan", img.shape, img.dtype)


class Swish(Function):
    def forward(self, x):
        s = 1 / (1 + F.exp(-x))
        self.saved = (x, s)
        return x * s

    def backward(self, dy):
        x, s = self.saved
        return dy * (s + x * s * (1 - s))


x = Parameter(np.linspace(-2, 2, 5))
gm = GradManager().attach(x)
with gm:
    gm.backward(Swish()(x).sum())
with gm:
    pass
ref = x.grad.numpy()
x.grad = None
with gm:
    gm.backward(F.silu(x).sum())
np.testing.assert_allclose(ref, x.grad.numpy(), rtol=1e-5)
