"""The campaign against the operator. With CAMPAIGN_MUTANT in the environment it runs against that seeded defect."""

import os

from campaign import mutants

if name := os.environ.get("CAMPAIGN_MUTANT"):
    mutants.install(name)
