"""Files: reading that trusts nothing, writing that leaves the old file or the new one."""
