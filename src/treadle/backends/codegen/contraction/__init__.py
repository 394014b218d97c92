"""The contraction generator: matrix products and convolutions as one register-tiled kernel."""
