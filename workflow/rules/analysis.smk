def final_output(kind):
    """Everything a run of the workflow makes: the report and, before it, notebooks, figures and tables."""
    return str(RESULTS[kind] / "report" / "index.html")


def runs_behind(kind):
    """What the table of runs is made from: finished experiments, or the archives of the reference data."""
    if kind == "reference":
        return [str(archive) for archive in REFERENCE]
    return [str(project.artifacts / "measured" / TESTBED / f"{experiment}.json") for experiment in EXPERIMENTS]


for KIND in RESULTS:

    rule:
        name:
            f"runs_{KIND}"
        input:
            runs=runs_behind(KIND),
            code=ANALYSIS,
        output:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
        params:
            raw=str(RAW[KIND]),
        message:
            "Collecting all runs into {output.table}"
        shell:
            "{QUICBED} tables {params.raw} {output.table}"

    rule:
        name:
            f"notebook_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            notebook=str(ROOT / "notebooks" / "{notebook}.ipynb"),
            code=ANALYSIS,
        output:
            page=str(RESULTS[KIND] / "notebooks" / "{notebook}.html"),
        log:
            f"logs/notebook-{KIND}-{{notebook}}.log",
        params:
            raw=str(RAW[KIND]),
            artifacts=str(RESULTS[KIND]),
        message:
            "Running notebook {wildcards.notebook}, which draws its figures"
        shell:
            "{QUICBED} notebook {input.notebook} {params.raw} {params.artifacts} {output.page} > {log} 2>&1"

    rule:
        name:
            f"report_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            notebooks=[str(RESULTS[KIND] / "notebooks" / f"{name}.html") for name in NOTEBOOKS],
            code=ANALYSIS,
        output:
            page=str(RESULTS[KIND] / "report" / "index.html"),
        params:
            raw=str(RAW[KIND]),
            artifacts=str(RESULTS[KIND]),
        message:
            "Writing {output.page}"
        shell:
            "{QUICBED} report {params.raw} {params.artifacts}"
