rule draw:
    input:
        marker=str(RESULTS["own"] / "measured" / TESTBED / "{experiment}.json"),
    output:
        marker=str(RESULTS["own"] / "drawn" / TESTBED / "{experiment}.json"),
    log:
        "logs/draw-{experiment}.log",
    benchmark:
        "logs/draw-{experiment}.tsv"
    # at once, and not while the next experiment is measured
    priority: 1
    localrule: True
    conda:
        "../../envs/notebooks.yaml"
    threads: CORES
    resources:
        testbed=1,
        mem_mb=4000,
    params:
        raw=lambda wildcards, output: raw_of(output.marker),
        # above drawn/<testbed>/
        results=lambda wildcards, output: str(Path(output.marker).parents[2]),
    message:
        "Drawing the figures of {wildcards.experiment}"
    shell:
        "python -m quicbed draw {wildcards.experiment} {params.raw:q} {params.results:q} --marker {output.marker:q}"
        " --messages {log:q}"


for KIND in RESULTS:

    rule:
        name:
            f"runs_{KIND}"
        input:
            runs=runs_behind(KIND),
            code=code_of("tables"),
        output:
            *(
                str(RESULTS[KIND] / "tables" / f"{name}.parquet")
                for name in (
                    "connections",
                    "primitives",
                    "handshakes",
                    "pacing",
                    "floors",
                    "campaigns",
                    "unread",
                )
            ),
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
        log:
            f"logs/runs-{KIND}.log",
        benchmark:
            f"logs/runs-{KIND}.tsv"
        conda:
            "../../envs/analysis.yaml"
        threads: CORES
        resources:
            mem_mb=8000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output.table),
        message:
            "Collecting all runs into tables beside {output.table}"
        shell:
            "python -m quicbed tables {params.raw:q} {output.table:q} --jobs {threads} > {log:q} 2>&1"

    rule:
        name:
            f"dissect_{KIND}"
        input:
            runs=runs_behind(KIND),
            code=code_of("dissect"),
        output:
            table=str(RESULTS[KIND] / "tables" / "captures.parquet"),
        log:
            f"logs/dissect-{KIND}.log",
        benchmark:
            f"logs/dissect-{KIND}.tsv"
        conda:
            "../../envs/analysis.yaml"
        threads: CORES
        resources:
            mem_mb=8000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output.table),
        message:
            "Dissecting captures again into {output.table}"
        shell:
            "python -m quicbed dissect {params.raw:q} {output.table:q} --jobs {threads} > {log:q} 2>&1"

    rule:
        name:
            f"verdicts_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            code=code_of("verdicts"),
        output:
            verdicts=str(RESULTS[KIND] / "tables" / judged.FILE),
        log:
            f"logs/verdicts-{KIND}.log",
        benchmark:
            f"logs/verdicts-{KIND}.tsv"
        conda:
            "../../envs/analysis.yaml"
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output.verdicts),
        message:
            "Judging all claims"
        shell:
            "python -m quicbed verdicts {params.raw:q} {output.verdicts:q} --table {input.table:q} > {log:q} 2>&1"

    rule:
        name:
            f"notebooks_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            verdicts=str(RESULTS[KIND] / "tables" / judged.FILE),
            notebooks=[str(ROOT / "notebooks" / f"{name}.ipynb") for name in NOTEBOOKS],
            published=published_shown(),
            others=markers_of_others(KIND),
            # which write the same files
            drawn=figures_drawn(KIND),
            code=code_of_notebooks(),
        output:
            *(
                report(
                    str(RESULTS[KIND] / "notebooks" / f"{name}.html"),
                    caption="../report/notebook.rst",
                    category=category_of_notebook(name),
                    labels=labels_of_notebook(name),
                )
                for name in NOTEBOOKS
            ),
        log:
            f"logs/notebooks-{KIND}.log",
        benchmark:
            f"logs/notebooks-{KIND}.tsv"
        conda:
            "../../envs/notebooks.yaml"
        threads: CORES
        resources:
            mem_mb=8000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output[0]),
            results=lambda wildcards, input: results_of(input.table),
            published=lambda wildcards, input: directories_of(input.published),
            pictures=project.config.pictures,
        message:
            "Running the notebooks, which draw all figures"
        shell:
            "python -m quicbed notebooks {params.raw:q} {params.results:q} {input.notebooks:q} --jobs {threads} "
            "--table {input.table:q} --published {params.published:q} > {log:q} 2>&1"

    rule:
        name:
            f"report_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            verdicts=str(RESULTS[KIND] / "tables" / judged.FILE),
            captures=captures_behind(KIND),
            notebooks=[str(RESULTS[KIND] / "notebooks" / f"{name}.html") for name in NOTEBOOKS],
            published=published_shown(),
            code=code_of("report"),
        output:
            page=str(RESULTS[KIND] / "report" / "index.html"),
            results=report(
                directory(str(RESULTS[KIND] / "report" / workflow_report.DIRECTORY)),
                patterns=workflow_report.PATTERNS,
                caption="../report/result.rst",
                category=category_of_result,
                labels=labels_of_result,
            ),
        log:
            f"logs/report-{KIND}.log",
        benchmark:
            f"logs/report-{KIND}.tsv"
        conda:
            "../../envs/analysis.yaml"
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output.page),
            results=lambda wildcards, input: results_of(input.table),
            published=lambda wildcards, input: directories_of(input.published),
        message:
            "Writing {output.page}"
        shell:
            "python -m quicbed report {params.raw:q} {params.results:q} --table {input.table:q} "
            "--published {params.published:q} > {log:q} 2>&1"
