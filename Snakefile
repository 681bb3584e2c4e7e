# The workflow is in workflow/; this file makes `snakemake` work from the repository's root.
include: "workflow/Snakefile"
