"""Every generated page: `python -m tools.docs` writes them, `--check` fails where one is stale."""

import sys

from tools import api_page, op_table


def main(arguments: list[str] | None = None) -> int:
    """Write all pages, or compare with all of them."""
    return max(op_table.main(arguments), api_page.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
