"""The operator with the seeded defect that CAMPAIGN_MUTANT names, as a process: `python -m campaign.mutated operator`.

The package installs the defect before anything of the product is imported.
"""

from elastic_tfjob.cli import main

if __name__ == "__main__":
    main()
