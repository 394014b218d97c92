"""Programs of PyTorch on one of Treadle's devices, beside PyTorch's CPU.

`python -m treadle.interop.torch.checks DEVICE` answers lines of JSON. The conformance kit and
`make opinfo-device` ask it, since an operator may end a process or make it hang.
"""
