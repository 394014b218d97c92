"""Tools for users: statistics, networks in files, profiles, and what MegEngine keeps here."""
