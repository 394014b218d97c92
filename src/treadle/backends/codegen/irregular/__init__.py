"""Ops that are no loop nest over one domain: gathers, scatters, sorts, pools, scans, random."""
