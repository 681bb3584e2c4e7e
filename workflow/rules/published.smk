rule published:
    input:
        published_tables(),


rule import_published:
    input:
        results=published_copy,
        code=code_of_importer,
    output:
        # the other tables of a format depend on what its copy has
        table=str(project.published_tables / "{published}" / "runs.parquet"),
        summary=str(project.published_tables / "{published}" / SUMMARY_FILE),
    log:
        "logs/import-{published}.log",
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        out=lambda wildcards, output: str(Path(output.summary).parent),
    message:
        "Importing the published results in {input.results}"
    shell:
        "python -m quicbed import {wildcards.published} {input.results:q} --out {params.out:q} > {log:q} 2>&1"
