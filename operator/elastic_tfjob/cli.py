"""The command line of elastic-tfjob. Each command imports what it needs when it runs, so that none pays for another."""

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-tfjob")
def main() -> None:
    """Run TFJobs elastically: the operator, its CRD, and the simulator of the same decisions."""


@main.command()
def crd() -> None:
    """Print the CustomResourceDefinition of TFJob as YAML.

    It is larger than the annotation of client-side apply may be, so apply it on the server's side:

    elastic-tfjob crd | kubectl apply --server-side -f -
    """
    import yaml  # noqa: PLC0415

    from elastic_tfjob.api.crd import custom_resource_definition  # noqa: PLC0415

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    click.echo(yaml.dump(custom_resource_definition(), Dumper=Dumper, sort_keys=False, width=120), nl=False)
