"""Hooks of the documentation site: nothing is fetched from elsewhere; the version is shown."""

from __future__ import annotations

from typing import Any

from treadle.base.version import VERSION

FETCHED = "https://unpkg.com/iframe-worker/shim"
OWN = "javascripts/worker-on-disk.js"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The page's HTML with the script that search needs, out of the site itself."""
    return output.replace(FETCHED, "../" * page.url.count("/") + OWN)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for pages that are no documents, such as 404.html."""
    return output_content.replace(FETCHED, OWN)


def on_config(config: Any) -> Any:
    """The site's name with the version that it describes."""
    config.site_name = f"{config.site_name} {VERSION}"
    return config
