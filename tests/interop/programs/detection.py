"""RetinaNet-like head with anchors, box coding, focal loss, nms, roi_align (BaseDet style)."""

import math
from collections import OrderedDict

import megengine as mge
import megengine.distributed as dist
import megengine.functional as F
import megengine.module as M
import megengine.optimizer as optim
import numpy as np
from megengine import tensor
from megengine.autodiff import GradManager

logger = mge.get_logger(__name__)


def meshgrid(x, y):
    assert len(x.shape) == 1 and len(y.shape) == 1
    mesh_shape = (y.shape[0], x.shape[0])
    mesh_x = F.broadcast_to(x, mesh_shape)
    mesh_y = F.broadcast_to(y.reshape(-1, 1), mesh_shape)
    return mesh_x, mesh_y


class AnchorGenerator:
    def __init__(self, sizes=((16, 20), (32, 40)), ratios=(0.5, 1, 2), strides=(4, 8), offset=0.5):
        self.sizes, self.ratios, self.strides, self.offset = sizes, ratios, strides, offset
        self.base = [self.base_anchors(s) for s in sizes]

    def base_anchors(self, sizes):
        out = []
        for s in sizes:
            for r in self.ratios:
                w = math.sqrt(s * s / r)
                h = r * w
                out.append([-w / 2, -h / 2, w / 2, h / 2])
        return np.array(out, dtype=np.float64)

    def __call__(self, features):
        res = []
        for f, stride, base in zip(features, self.strides, self.base, strict=False):
            h, w = f.shape[-2:]
            sx = F.linspace(0, (w - 1) * stride, w).to(f.device) + self.offset * stride
            sy = F.linspace(0, (h - 1) * stride, h).to(f.device) + self.offset * stride
            gx, gy = meshgrid(sx, sy)
            flat = F.stack([gx.flatten(), gy.flatten(), gx.flatten(), gy.flatten()], axis=1)
            res.append((F.expand_dims(flat, 1) + F.expand_dims(tensor(base), 0)).reshape(-1, 4))
        return res


class BoxCoder:
    def __init__(self, mean=(0, 0, 0, 0), std=(0.1, 0.1, 0.2, 0.2)):
        self.mean = np.array(mean, dtype=np.float32)[None, :]
        self.std = np.array(std, dtype=np.float32)[None, :]

    @staticmethod
    def _concat_new_axis(t1, t2, t3, t4, axis=1):
        return F.concat(
            [
                F.expand_dims(t1, axis),
                F.expand_dims(t2, axis),
                F.expand_dims(t3, axis),
                F.expand_dims(t4, axis),
            ],
            axis=axis,
        )

    def encode(self, bbox, gt):
        bw, bh = bbox[:, 2] - bbox[:, 0], bbox[:, 3] - bbox[:, 1]
        bx, by = bbox[:, 0] + bw * 0.5, bbox[:, 1] + bh * 0.5
        gw, gh = gt[:, 2] - gt[:, 0], gt[:, 3] - gt[:, 1]
        gx, gy = gt[:, 0] + gw * 0.5, gt[:, 1] + gh * 0.5
        target = self._concat_new_axis(
            (gx - bx) / bw, (gy - by) / bh, F.log(gw / bw), F.log(gh / bh)
        )
        target -= tensor(self.mean)
        target /= tensor(self.std)
        return target

    def decode(self, anchors, deltas):
        deltas *= tensor(self.std)
        deltas += tensor(self.mean)
        w, h = anchors[:, 2] - anchors[:, 0], anchors[:, 3] - anchors[:, 1]
        x, y = anchors[:, 0] + 0.5 * w, anchors[:, 1] + 0.5 * h
        w, h, x, y = (F.expand_dims(t, 1) for t in (w, h, x, y))
        px = x + deltas[:, 0::4] * w
        py = y + deltas[:, 1::4] * h
        pw = w * F.exp(F.minimum(deltas[:, 2::4], math.log(1000 / 16)))
        ph = h * F.exp(F.minimum(deltas[:, 3::4], math.log(1000 / 16)))
        box = F.stack([px - 0.5 * pw, py - 0.5 * ph, px + 0.5 * pw, py + 0.5 * ph], axis=2)
        return box.reshape(-1, box.shape[1] * 4)


def get_iou(b1, b2, return_ioa=False):
    a1 = F.maximum(b1[:, 2] - b1[:, 0], 0) * F.maximum(b1[:, 3] - b1[:, 1], 0)
    a2 = F.maximum(b2[:, 2] - b2[:, 0], 0) * F.maximum(b2[:, 3] - b2[:, 1], 0)
    _n, _k = b1.shape[0], b2.shape[0]
    b1 = F.expand_dims(b1[:, :4], 1)
    b2 = F.expand_dims(b2[:, :4], 0)
    iw = F.minimum(b1[:, :, 2], b2[:, :, 2]) - F.maximum(b1[:, :, 0], b2[:, :, 0])
    ih = F.minimum(b1[:, :, 3], b2[:, :, 3]) - F.maximum(b1[:, :, 1], b2[:, :, 1])
    inter = F.maximum(iw, 0) * F.maximum(ih, 0)
    union = F.expand_dims(a1, 1) + F.expand_dims(a2, 0) - inter
    return F.maximum(inter / union, 0)


class Matcher:
    def __init__(self, thresholds=(0.4, 0.5), labels=(0, -1, 1)):
        self.thresholds = [-float("inf"), *thresholds, float("inf")]
        self.labels = labels

    def __call__(self, matrix):
        max_scores = matrix.max(axis=0)
        match_indices = F.argmax(matrix, axis=0)
        labels = F.full_like(match_indices, -1)
        for label, low, high in zip(
            self.labels, self.thresholds[:-1], self.thresholds[1:], strict=False
        ):
            mask = (max_scores >= low) & (max_scores < high)
            labels[mask] = label
        mask = (matrix == F.max(matrix, axis=1, keepdims=True)).sum(axis=0) > 0
        labels[mask] = 1
        return match_indices, labels


def sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2.0):
    scores = F.sigmoid(logits)
    loss = -(targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits))
    pt = scores * targets + (1 - scores) * (1 - targets)
    loss *= (1 - pt) ** gamma
    loss *= targets * alpha + (1 - targets) * (1 - alpha)
    return loss


def smooth_l1(pred, target, beta=0.1):
    diff = F.abs(pred - target)
    return F.where(diff < beta, 0.5 * diff**2 / beta, diff - 0.5 * beta)


class FPN(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(M.ConvBnRelu2d(3, 8, 3, 2, 1), M.ConvBnRelu2d(8, 16, 3, 2, 1))
        self.c4 = M.Sequential(
            OrderedDict(
                [
                    ("conv", M.Conv2d(16, 32, 3, 2, 1, groups=2)),
                    ("bn", M.BatchNorm2d(32)),
                    ("act", M.ReLU()),
                ]
            )
        )
        self.lat3, self.lat4 = M.Conv2d(16, 16, 1), M.Conv2d(32, 16, 1)
        for m in self.modules():
            if isinstance(m, M.Conv2d):
                M.init.msra_normal_(m.weight, mode="fan_in")
                if m.bias is not None:
                    M.init.fill_(m.bias, 0)

    def forward(self, x):
        c3 = self.stem(x)
        c4 = self.c4(c3)
        p4 = self.lat4(c4)
        p3 = self.lat3(c3) + F.vision.interpolate(p4, scale_factor=2, mode="nearest")
        return [p3, p4]


class Net(M.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.num_classes = num_classes
        self.fpn = FPN()
        self.anchors = AnchorGenerator()
        self.coder = BoxCoder()
        self.matcher = Matcher()
        A = 6
        self.cls_score = M.Conv2d(16, A * num_classes, 3, 1, 1)
        self.bbox_pred = M.Conv2d(16, A * 4, 3, 1, 1)
        M.init.normal_(self.cls_score.weight, std=0.01)
        M.init.fill_(self.cls_score.bias, -math.log((1 - 0.01) / 0.01))
        self.loss_normalizer = tensor(100.0)
        self.loss_normalizer_momentum = 0.9

    def preprocess(self, image):
        mean = np.array([103.5, 116.3, 123.7], dtype="float32")[None, :, None, None]
        return (tensor(image) - mean) / np.array([57.4, 57.1, 58.4], np.float32)[
            None, :, None, None
        ]

    def forward(self, image, im_info=None, gt_boxes=None):
        feats = self.fpn(self.preprocess(image))
        logits = [self.cls_score(f) for f in feats]
        offsets = [self.bbox_pred(f) for f in feats]
        L = [_.transpose(0, 2, 3, 1).reshape(image.shape[0], -1, self.num_classes) for _ in logits]
        D = [_.transpose(0, 2, 3, 1).reshape(image.shape[0], -1, 4) for _ in offsets]
        anchors = F.concat(self.anchors(feats), axis=0)
        L, D = F.concat(L, axis=1), F.concat(D, axis=1)
        if self.training:
            labels_list, offs_list = [], []
            for bid in range(gt_boxes.shape[0]):
                gt = (
                    gt_boxes[bid, : im_info[bid, 4].astype("int32")]
                    if isinstance(im_info, mge.Tensor)
                    else gt_boxes[bid]
                )
                overlaps = get_iou(gt[:, :4], anchors)
                match, labels = self.matcher(overlaps)
                gt_m = gt[match]
                fg = labels > 0
                labels[fg] = gt_m[fg, 4].astype("int32")
                labels_list.append(labels)
                offs_list.append(self.coder.encode(anchors, gt_m[:, :4]))
            gt_labels = F.concat([F.expand_dims(found, 0) for found in labels_list])
            gt_offs = F.stack(offs_list)
            gt_labels = gt_labels.detach()
            gt_offs = gt_offs.detach()
            L, D = L.reshape(-1, self.num_classes), D.reshape(-1, 4)
            gt_labels, gt_offs = gt_labels.flatten(), gt_offs.reshape(-1, 4)
            valid, fg = gt_labels >= 0, gt_labels > 0
            num_fg = fg.sum()
            targets = F.zeros_like(L)
            targets[fg, gt_labels[fg] - 1] = 1
            loss_cls = sigmoid_focal_loss(L[valid], targets[valid]).sum() / F.maximum(
                num_fg.astype("float32"), 1
            )
            loss_box = smooth_l1(D[fg], gt_offs[fg]).sum() / F.maximum(self.loss_normalizer, 1)
            self.loss_normalizer[...] = (
                self.loss_normalizer * self.loss_normalizer_momentum
                + num_fg * (1 - self.loss_normalizer_momentum)
            )
            return OrderedDict(
                total_loss=loss_cls + loss_box, loss_cls=loss_cls, loss_bbox=loss_box
            )
        boxes = self.coder.decode(anchors, D[0])
        return F.sigmoid(L[0]), boxes


def main():
    mge.random.seed(3)
    np.random.seed(3)
    net = Net()
    net.train()
    params = {"bias": [], "weight": []}
    for name, p in net.named_parameters():
        params["bias" if name.endswith("bias") else "weight"].append(p)
    opt = optim.SGD(
        [
            {"params": params["weight"], "weight_decay": 1e-4},
            {"params": params["bias"], "weight_decay": 0.0, "lr": 0.02},
        ],
        lr=0.01,
        momentum=0.9,
    )
    gm = GradManager()
    if dist.get_world_size() > 1:
        gm.attach(net.parameters(), callbacks=[dist.make_allreduce_cb("mean", dist.WORLD)])
    else:
        gm.attach(net.parameters())
    image = np.random.rand(2, 3, 64, 64).astype(np.float32) * 255
    gts = np.array(
        [[[4, 4, 30, 30, 1], [20, 20, 60, 60, 2]], [[10, 8, 40, 44, 3], [0, 0, 20, 20, 1]]],
        np.float32,
    )
    info = np.array([[64, 64, 64, 64, 2]] * 2, np.float32)
    losses = []
    for _i in range(8):
        with gm:
            out = net(image, tensor(info), tensor(gts))
            gm.backward(out["total_loss"])
        optim.clip_grad_norm(net.parameters(), 10.0)
        opt.step().clear_grad()
        losses.append({k: v.item() for k, v in out.items()})
    assert losses[-1]["total_loss"] < losses[0]["total_loss"], (losses[0], losses[-1])
    net.eval()
    scores, boxes = net(image[:1])
    im_info = tensor(info)
    scale_w, scale_h = im_info[0, 1] / im_info[0, 3], im_info[0, 0] / im_info[0, 2]
    boxes = boxes / F.concat([scale_w, scale_h, scale_w, scale_h], axis=0)
    conf = scores.max(axis=1)
    idx = F.topk(conf, 50, descending=True)[1]
    keep = F.vision.nms(boxes[idx], conf[idx], 0.5, max_output=10)
    final = boxes[idx][keep]
    assert final.ndim == 2 and final.shape[1] == 4 and keep.dtype == np.int32
    rois = F.concat([F.zeros((final.shape[0], 1)), final], axis=1)
    crops = F.vision.roi_align(
        F.ones((1, 8, 16, 16)),
        rois,
        (7, 7),
        mode="average",
        spatial_scale=0.25,
        sample_points=2,
        aligned=True,
    )
    pool = F.vision.roi_pooling(F.ones((1, 8, 16, 16)), rois, (3, 3), scale=0.25)
    print(
        "detection",
        round(losses[0]["total_loss"], 3),
        round(losses[-1]["total_loss"], 3),
        crops.shape,
        pool.shape,
    )


if __name__ == "__main__":
    main()
