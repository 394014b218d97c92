"""Models of the common families, as declarations over one decoder and one encoder."""
