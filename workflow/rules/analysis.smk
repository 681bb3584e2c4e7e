for KIND in RESULTS:

    rule:
        name:
            f"runs_{KIND}"
        input:
            runs=runs_behind(KIND),
            code=ANALYSIS,
        output:
            *(
                str(RESULTS[KIND] / "tables" / f"{name}.parquet")
                for name in ("connections", "primitives", "handshakes")
            ),
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
        log:
            f"logs/runs-{KIND}.log",
        conda:
            "../../envs/analysis.yaml"
        resources:
            mem_mb=8000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output.table),
        message:
            "Collecting all runs into tables beside {output.table}"
        shell:
            "python -m quicbed tables {params.raw} {output.table} > {log} 2>&1"

    rule:
        name:
            f"dissect_{KIND}"
        input:
            runs=runs_behind(KIND),
            code=DISSECTION,
        output:
            table=str(RESULTS[KIND] / "tables" / "captures.parquet"),
        log:
            f"logs/dissect-{KIND}.log",
        conda:
            "../../envs/analysis.yaml"
        threads: workflow.cores or 1
        resources:
            mem_mb=8000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output.table),
        message:
            "Dissecting captures again into {output.table}"
        shell:
            "python -m quicbed dissect {params.raw} {output.table} --jobs {threads} > {log} 2>&1"

    rule:
        name:
            f"notebook_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            notebook=str(ROOT / "notebooks" / "{notebook}.ipynb"),
            published=published_behind,
            others=markers_of_others(KIND),
            code=ANALYSIS,
        output:
            page=str(RESULTS[KIND] / "notebooks" / "{notebook}.html"),
        log:
            f"logs/notebook-{KIND}-{{notebook}}.log",
        conda:
            "../../envs/notebooks.yaml"
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output[0]),
            results=lambda wildcards, input: results_of(input.table),
            published=lambda wildcards, input: directories_of(input.published),
        message:
            "Running notebook {wildcards.notebook}, which draws its figures"
        shell:
            "python -m quicbed notebook {input.notebook} {params.raw} {params.results} {output.page} "
            "--published {params.published:q} > {log} 2>&1"

    rule:
        name:
            f"report_{KIND}"
        input:
            table=str(RESULTS[KIND] / "tables" / "runs.parquet"),
            captures=captures_behind(KIND),
            notebooks=[str(RESULTS[KIND] / "notebooks" / f"{name}.html") for name in NOTEBOOKS],
            published=published_of("highway", "steps"),
            code=ANALYSIS,
            claims=CLAIMS,
        output:
            page=str(RESULTS[KIND] / "report" / "index.html"),
        log:
            f"logs/report-{KIND}.log",
        conda:
            "../../envs/analysis.yaml"
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            raw=lambda wildcards, output: raw_of(output[0]),
            results=lambda wildcards, input: results_of(input.table),
            published=lambda wildcards, input: directories_of(input.published),
        message:
            "Writing {output.page}"
        shell:
            "python -m quicbed report {params.raw} {params.results} --published {params.published:q} > {log} 2>&1"
