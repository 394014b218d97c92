"""cuDNN by way of NVIDIA's frontend: convolutions and fused attention.

Where to read: `calls.py` (what is asked for, as values), `graphs.py` (their graphs), `library.py`
(plans on a device), `convolutions.py` and `attention.py` (which ops become calls).
"""
