"""Ops that are not a loop nest over one domain: gathers, scatters, sorts, pools, scans, random."""
