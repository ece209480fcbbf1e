"""The command line: `elastic-tfjob operator | crd | simulate | ...`. Each command imports what it needs when it runs."""

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-tfjob")
def main() -> None:
    """Run TFJobs elastically: the operator, its CRD, and the simulator of the same decisions."""
