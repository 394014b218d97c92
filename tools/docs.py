"""Every generated page: `python -m tools.docs` writes them, `--check` fails where one is stale."""

import sys

from tools import (
    api_page,
    megengine_coverage,
    notebooks,
    op_schemas,
    op_table,
    public_names,
    reference_pages,
    tool_pages,
)


def main(arguments: list[str] | None = None) -> int:
    """Write all pages, or compare with all of them."""
    mains = (
        op_table.main,
        op_schemas.main,
        public_names.main,
        api_page.main,
        reference_pages.main,
        megengine_coverage.main,
        notebooks.main,
        tool_pages.main,
    )
    return max([write(arguments) for write in mains])


if __name__ == "__main__":
    sys.exit(main())
