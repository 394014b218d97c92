"""Gradients clipped by a function of the program's own; labels smoothed by scattering.

Speech programs copy the optimizer's clipping: norms of gradients, one number each, are joined to a
vector. Their loss scatters into a constant, and drops the padding by a mask behind an ellipsis.
"""

import megengine as mge
import megengine.functional as F
import megengine.module as M
import numpy as np
from megengine.autodiff import GradManager
from megengine.core._imperative_rt.core2 import pop_scope, push_scope
from megengine.optimizer import Adam, clip_grad_norm

WORDS, PAD = 6, 0


def clip(tensors, limit):
    push_scope("clip")
    norms = [F.norm(t.grad.flatten(), ord=2.0) for t in tensors]
    total = F.norm(F.concat(norms), ord=2.0)
    scale = F.minimum(limit / (total + 1e-6), 1)
    for t in tensors:
        t.grad._reset(t.grad * scale)
    pop_scope("clip")
    return total


def smoothed(scores, target, smoothing=0.1):
    scores, target = scores.reshape(-1, WORDS), target.reshape(-1)
    labels = F.copy(target).detach()
    padding = labels == PAD
    count = len(labels) - padding.sum().item()
    labels[padding] = 0
    labels = labels.reshape(-1, 1)
    wanted = F.zeros_like(scores)
    wanted[:] = smoothing / (WORDS - 1)
    wanted = F.scatter(wanted, 1, labels, (F.ones_like(labels) * (1 - smoothing)).detach())
    distance = wanted * (F.log(wanted) - F.logsoftmax(scores, axis=1))
    distance[padding] = 0
    return distance.sum() / count


def train(clipping):
    mge.random.seed(3)
    net = M.Sequential(M.Embedding(WORDS, 8), M.Linear(8, 16), M.ReLU(), M.Linear(16, WORDS))
    parameters = list(net.parameters())
    gm, opt = GradManager().attach(parameters), Adam(parameters, lr=0.02)
    words = mge.tensor(np.array([[1, 2, 3, 0], [4, 5, 0, 0]], "int32"))
    losses, norms = [], []
    for _ in range(20):
        with gm:
            loss = smoothed(net(words), words)
            gm.backward(loss)
        norms.append(clipping(parameters, 0.5).item())
        opt.step().clear_grad()
        losses.append(loss.item())
    return losses, norms


own, library = train(clip), train(lambda tensors, limit: clip_grad_norm(tensors, limit))
assert own[0][-1] < own[0][0] / 2, own[0]
np.testing.assert_allclose(own, library, rtol=1e-4, atol=1e-5)
assert train(clip) == own
assert F.concat([mge.tensor(1.0), mge.tensor(2.0)]).shape == (2,)
assert F.concat([mge.tensor(1.0)]).shape == (1,)
print("clipping: losses fall, two runs agree")
