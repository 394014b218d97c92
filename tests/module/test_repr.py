"""The printed tree, literally as MegEngine prints it."""

from collections import OrderedDict

import treadle.module as M


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(3, 8, 3, padding=1, bias=False)
        self.conv2 = M.Conv2d(3, 8, 3, stride=2, dilation=2, padding_mode="reflect")
        self.bn1 = M.BatchNorm1d(8)
        self.bn2 = M.BatchNorm2d(8, momentum=0.5)
        self.pooling = M.MaxPool2d(kernel_size=2, padding=0)
        layers = OrderedDict()
        layers["depthwise"] = M.Conv2d(4, 4, 3, 1, 0, groups=4, bias=False)
        layers["pointwise"] = M.Conv2d(4, 4, kernel_size=1, stride=1, padding=0, bias=True)
        self.submodule1 = M.Sequential(layers)
        self.list1 = [M.Dropout(drop_prob=0.1), [M.Softmax(axis=100)]]
        self.tuple1 = (M.Dropout(0.1), (M.Softmax(axis=100), M.Dropout(0.2)))
        self.dict1 = {"Dropout": M.Dropout(drop_prob=0.1)}
        self.fc1 = M.Linear(16, 32)

    def forward(self) -> None: ...


EXPECTED = """\
Net(
  (conv1): Conv2d(3, 8, kernel_size=(3, 3), padding=(1, 1), bias=False)
  (conv2): Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), dilation=(2, 2), padding_mode=reflect)
  (bn1): BatchNorm1d(8, eps=1e-05, momentum=0.9, affine=True, track_running_stats=True)
  (bn2): BatchNorm2d(8, eps=1e-05, momentum=0.5, affine=True, track_running_stats=True)
  (pooling): MaxPool2d(kernel_size=2, stride=2, padding=0)
  (submodule1): Sequential(
    (depthwise): Conv2d(4, 4, kernel_size=(3, 3), groups=4, bias=False)
    (pointwise): Conv2d(4, 4, kernel_size=(1, 1))
  )
  (list1.0): Dropout(drop_prob=0.1)
  (list1.1.0): Softmax(axis=100)
  (tuple1.0): Dropout(drop_prob=0.1)
  (tuple1.1.0): Softmax(axis=100)
  (tuple1.1.1): Dropout(drop_prob=0.2)
  (dict1.Dropout): Dropout(drop_prob=0.1)
  (fc1): Linear(in_features=16, out_features=32, bias=True)
)"""


def test_tree_in_order_of_assignment() -> None:
    assert repr(Net()) == EXPECTED


def test_other_layers() -> None:
    net = M.Sequential(
        M.ReLU(),
        M.LayerNorm((4, 2), affine=False),
        M.GroupNorm(2, 4),
        M.InstanceNorm(3),
        M.ConvTranspose2d(2, 3, 2, output_padding=1, stride=2),
        M.AdaptiveAvgPool2d(1),
        M.Embedding(10, 4),
    )
    lines = [line.strip() for line in repr(net).splitlines()[1:-1]]
    assert lines == [
        "(0): ReLU()",
        "(1): LayerNorm(normalized_shape=(4, 2), eps=1e-05, affine=False)",
        "(2): GroupNorm(groups=2, channels=4, eps=1e-05, affine=True)",
        "(3): InstanceNorm(channels=3, eps=1e-05, affine=True)",
        "(4): ConvTranspose2d(2, 3, kernel_size=(2, 2), stride=(2, 2), output_padding=(1, 1))",
        "(5): AdaptiveAvgPool2d(oshp=1)",
        "(6): Embedding(10, 4)",
    ]


def test_info_of_several_lines() -> None:
    class Wordy(M.Module):
        def forward(self) -> None: ...

        def _module_info_string(self) -> str:
            return "first\nsecond"

    assert repr(Wordy()) == "Wordy(\n  first\n  second\n)"
