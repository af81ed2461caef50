"""The type of parameters that are paths of this machine."""

from typing import Any

import click

from courser.spark.addresses import AddressGiven, check_local


class LocalPath(click.Path):
    """A path of this machine. Without this, an address would become a folder that is named like it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse addresses."""
        try:
            check_local(value, f'"{value}"')
        except AddressGiven as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)
