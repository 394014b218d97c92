"""MegEngine's command line tools, `python -m treadle.tools.NAME`, over model files and profiles.

`load_and_run` runs and times models; `load_network_and_run` is its Python sibling of fewer options.
`network_visualize`, `graph_info_analyze` and `draw_graph` look at networks; `profile_analyze` and
`profiler` at time; `compare_binary_iodump` and `accuracy_shake_var_tree` at values; `benchmark_op`
times ops beside PyTorch; `svg_viewer` serves pictures.
"""
